//! The states of a worker and of a browser, and the functions that move between them.
//!
//! Together in one file because they are each a screenful and a browser's end is what a worker's drain waits for.
//! Invariant: `gone` is final for a browser; a worker that was given up may return only by registering anew.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// The state of a worker as the store knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    /// Registered; its driver is being checked.
    Starting,
    /// Takes placements.
    Available,
    /// Takes none; its sessions may finish.
    Draining,
    /// Deregistered.
    Gone,
    /// Silent too long; its sessions have been ended.
    Lost,
}

/// What may happen to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerEvent {
    /// It registered (first time, after a restart, or after having been given up).
    Registered,
    /// Its driver works.
    Ready,
    /// It was told to drain, or told us that it drains.
    Drain,
    /// It said goodbye.
    Deregistered,
    /// It was silent for the liveness TTL.
    Silent,
}

/// The state of a browser.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BrowserState {
    /// The process is being started and gated.
    Launching,
    /// Launched, probed, idle.
    Warm,
    /// A session's.
    Leased,
    /// Being killed.
    Closing,
    /// The whole process tree is gone.
    Gone,
}

/// What may happen to a browser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrowserEvent {
    /// It passed its readiness gate.
    Ready,
    /// A session took it.
    Leased,
    /// It is to end: released, crashed, hung, retired or failed to start.
    Close,
    /// Its process tree is gone.
    Gone,
}

/// Whether a worker counts as under renewal, so that another of its pool may not begin to recycle. One that said goodbye
/// or has registered is expected back soon; one that does not come is not waited for beyond `patience`.
pub fn is_renewing(
    state: WorkerState,
    registered_at: Timestamp,
    heard_at: Timestamp,
    now: Timestamp,
    patience: Duration,
) -> bool {
    match state {
        WorkerState::Draining => true,
        WorkerState::Gone => heard_at + patience > now,
        WorkerState::Starting => registered_at + patience > now,
        WorkerState::Available | WorkerState::Lost => false,
    }
}

/// The worker's next state, or `None` if the event does not apply.
pub const fn worker_step(state: WorkerState, event: WorkerEvent) -> Option<WorkerState> {
    use WorkerEvent as E;
    use WorkerState as S;
    match (state, event) {
        (_, E::Registered) => Some(S::Starting),
        (S::Starting, E::Ready) => Some(S::Available),
        (S::Starting | S::Available, E::Drain) => Some(S::Draining),
        (S::Starting | S::Available | S::Draining, E::Silent) => Some(S::Lost),
        (S::Starting | S::Available | S::Draining | S::Lost, E::Deregistered) => Some(S::Gone),
        _ => None,
    }
}

/// The browser's next state, or `None` if the event does not apply.
pub const fn browser_step(state: BrowserState, event: BrowserEvent) -> Option<BrowserState> {
    use BrowserEvent as E;
    use BrowserState as S;
    match (state, event) {
        (S::Launching, E::Ready) => Some(S::Warm),
        (S::Warm, E::Leased) => Some(S::Leased),
        (S::Launching | S::Warm | S::Leased, E::Close) => Some(S::Closing),
        // A launch that fails has already killed its tree.
        (S::Launching | S::Closing, E::Gone) => Some(S::Gone),
        _ => None,
    }
}

// === impl WorkerState ===

impl WorkerState {
    /// The one spelling.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Available => "available",
            Self::Draining => "draining",
            Self::Gone => "gone",
            Self::Lost => "lost",
        }
    }

    /// Every state.
    pub const ALL: [Self; 5] = [Self::Starting, Self::Available, Self::Draining, Self::Gone, Self::Lost];

    /// Whether it is registered and believed alive.
    pub const fn is_live(self) -> bool {
        matches!(self, Self::Starting | Self::Available | Self::Draining)
    }
}

// === impl BrowserState ===

impl BrowserState {
    /// Every state that can be counted (a gone browser is no longer known).
    pub const COUNTED: [Self; 4] = [Self::Launching, Self::Warm, Self::Leased, Self::Closing];

    /// The one spelling.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Launching => "launching",
            Self::Warm => "warm",
            Self::Leased => "leased",
            Self::Closing => "closing",
            Self::Gone => "gone",
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BROWSER_EVENTS: [BrowserEvent; 4] = [
        BrowserEvent::Ready,
        BrowserEvent::Leased,
        BrowserEvent::Close,
        BrowserEvent::Gone,
    ];
    const WORKER_EVENTS: [WorkerEvent; 5] = [
        WorkerEvent::Registered,
        WorkerEvent::Ready,
        WorkerEvent::Drain,
        WorkerEvent::Deregistered,
        WorkerEvent::Silent,
    ];

    proptest! {
        #[test]
        fn a_browser_is_leased_at_most_once_and_gone_is_final(events in prop::collection::vec(0usize..4, 0..30)) {
            let mut state = BrowserState::Launching;
            let mut leases = 0;
            for event in events.into_iter().map(|n| BROWSER_EVENTS[n]) {
                if let Some(next) = browser_step(state, event) {
                    prop_assert_ne!(state, BrowserState::Gone);
                    leases += i32::from(next == BrowserState::Leased);
                    state = next;
                }
            }
            prop_assert!(leases <= 1);
        }

        #[test]
        fn a_given_up_worker_returns_only_by_registering(events in prop::collection::vec(0usize..5, 0..30)) {
            let mut state = WorkerState::Starting;
            for event in events.into_iter().map(|n| WORKER_EVENTS[n]) {
                if let Some(next) = worker_step(state, event) {
                    if !state.is_live() && next.is_live() {
                        prop_assert_eq!(event, WorkerEvent::Registered);
                    }
                    if state == WorkerState::Draining && next == WorkerState::Available {
                        prop_assert!(false, "drain was undone");
                    }
                    state = next;
                }
            }
        }
    }
}
