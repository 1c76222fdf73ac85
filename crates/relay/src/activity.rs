//! What other tasks may know of a running relay: bytes each way, and when the client last did something.
//!
//! Apart from the relay because the two share nothing but these numbers: the relay writes them per read, the session's
//! keeper reads them in batches, and neither waits for the other.
//!
//! Invariant: no number ever goes down, so a reader may keep the last one it saw and compare.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::Instant;

/// Counters shared between a relay and those who watch it. One may outlive several relays of the same session.
#[derive(Debug)]
pub struct Activity {
    base: Instant,
    to_browser: AtomicU64,
    to_client: AtomicU64,
    /// Milliseconds from `base` to the client's last data frame.
    client_mark: AtomicU64,
}

// === impl Activity ===

impl Activity {
    /// Counts from now; the client counts as active at this moment.
    pub fn new() -> Activity {
        Activity {
            base: Instant::now(),
            to_browser: AtomicU64::new(0),
            to_client: AtomicU64::new(0),
            client_mark: AtomicU64::new(0),
        }
    }

    /// Bytes of data frames passed to the browser.
    pub fn to_browser(&self) -> u64 {
        self.to_browser.load(Relaxed)
    }

    /// Bytes of data frames passed to the client.
    pub fn to_client(&self) -> u64 {
        self.to_client.load(Relaxed)
    }

    /// Milliseconds from the start to the client's last data frame: unchanged means that it did nothing since.
    pub fn client_mark(&self) -> u64 {
        self.client_mark.load(Relaxed)
    }

    /// When the client last sent data. Pings, pongs and what the browser says do not count.
    pub fn client_active_at(&self) -> Instant {
        self.base + Duration::from_millis(self.client_mark())
    }

    /// How long the client has sent no data.
    pub fn idle(&self) -> Duration {
        Instant::now().saturating_duration_since(self.client_active_at())
    }

    pub(crate) fn passed_to_browser(&self, bytes: u64, now: Instant) {
        self.to_browser.fetch_add(bytes, Relaxed);
        let mark = now.saturating_duration_since(self.base).as_millis();
        self.client_mark
            .fetch_max(u64::try_from(mark).unwrap_or(u64::MAX), Relaxed);
    }

    pub(crate) fn passed_to_client(&self, bytes: u64) {
        self.to_client.fetch_add(bytes, Relaxed);
    }
}

impl Default for Activity {
    fn default() -> Activity {
        Activity::new()
    }
}
