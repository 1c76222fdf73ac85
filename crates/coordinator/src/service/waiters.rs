//! Who waits for a placement, and how they learn of it.
//!
//! Its own file because it must cost little for ten thousand waiters: one small channel each, no timers, no polling;
//! the loop that reads the store's changes is the only one that wakes them.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::sync::watch;
use wharf_core::{EndReason, Seat, SessionId};

/// What a waiter learns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum News {
    /// Nothing yet.
    None,
    /// A slot is reserved.
    Placed(Seat),
    /// Its browser is up; whoever joined the wait may go on.
    Active,
    /// It is over.
    Ended(EndReason),
}

#[derive(Default)]
pub(crate) struct Waiters(Mutex<HashMap<SessionId, watch::Sender<News>>>);

// === impl Waiters ===

impl Waiters {
    /// Begins to listen; called before the session is submitted, so that no news is missed.
    pub fn join(&self, session: SessionId) -> watch::Receiver<News> {
        self.0
            .lock()
            .entry(session)
            .or_insert_with(|| watch::channel(News::None).0)
            .subscribe()
    }

    /// Listens to a wait that somebody else began.
    pub fn follow(&self, session: SessionId) -> Option<watch::Receiver<News>> {
        self.0.lock().get(&session).map(watch::Sender::subscribe)
    }

    pub fn tell(&self, session: SessionId, news: News) {
        if let Some(waiter) = self.0.lock().get(&session) {
            // Nobody listening is fine: the waiter is just leaving.
            waiter.send_if_modified(|now| std::mem::replace(now, news) != news);
        }
    }

    pub fn leave(&self, session: SessionId) {
        self.0.lock().remove(&session);
    }
}
