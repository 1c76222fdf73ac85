//! What the store keeps and answers: plain data, the same on every engine.
//!
//! Its own folder because these are the nouns of the port, one file for each kind; the verbs are in the trait.

mod holds;
mod keys;
mod sessions;
mod views;
mod workers;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::{holds::*, keys::*, sessions::*, views::*, workers::*};

/// The spans the store's rules use. One value for all coordinators of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreRules {
    /// A worker silent for this long is lost.
    pub liveness_ttl: Duration,
    /// A ticket not renewed for this long lapses.
    pub ticket_lease: Duration,
    /// A placement not active after this long failed.
    pub starting_grace: Duration,
    /// A lease the worker does not report is dropped after this long.
    pub lease_grace: Duration,
    /// Records of ended sessions are kept this long.
    pub history: Duration,
    /// Placements a session may fail before it ends with `launch_failed`.
    pub max_attempts: u32,
}

/// A wake-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// A waiter was placed.
    Placed(Placement),
    /// A session ended, by a step of this process: whoever holds its browser is to be told.
    Ended(EndedSession),
    /// A session ended, by a step of another process, which tells whoever holds its browser.
    EndedElsewhere(EndedSession),
    /// Some changes were missed and will not be told: look at the store.
    Missed,
    /// There are events up to this number. At most one for each step, after its other changes.
    Noted(u64),
}

// === impl StoreRules ===

impl Default for StoreRules {
    fn default() -> Self {
        Self {
            liveness_ttl: Duration::from_secs(10),
            ticket_lease: Duration::from_secs(10),
            starting_grace: Duration::from_secs(60),
            lease_grace: Duration::from_secs(15),
            history: Duration::from_secs(24 * 60 * 60),
            max_attempts: 3,
        }
    }
}
