//! The life of a session: states with their data, and the one function that moves between them.
//!
//! ```text
//!  queued -> placed -> starting -> active -> ended(reason)
//!     \________\__________\___________/
//!       cancel, timeout, loss, at any point
//! ```
//!
//! Its own file because every store engine must agree on it: engines in this process call [`step`], engines elsewhere
//! encode it and prove equality in the conformance suite. Invariant I4: a session ends exactly once, with a reason,
//! and a terminal state never changes.
//!
//! A slot is not part of the state: it is held by a *lease* that appears with the placement and goes when the worker
//! says that the browser's process tree is gone, which may be after the end.

use serde::{Deserialize, Serialize};

use crate::{EndReason, Timeouts, Timestamp, WorkerId};

/// Counts the placements of one session, so that a late holder of an old one is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u32);

/// Where a placed session runs, and which placement this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Seat {
    /// The worker whose slot it holds.
    pub worker: WorkerId,
    /// Which placement of the session this is.
    pub epoch: Epoch,
}

/// The state of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// Waiting for a slot.
    Queued,
    /// A slot is reserved; its coordinator has not taken it up yet.
    Placed(Seat),
    /// The coordinator is asking the worker for a browser.
    Starting(Seat),
    /// The browser is the client's.
    Active(Seat),
    /// Over.
    Ended(EndReason),
}

/// The name of a state, without its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionStatus {
    /// Waiting for a slot.
    Queued,
    /// A slot is reserved.
    Placed,
    /// A browser is being prepared.
    Starting,
    /// In use.
    Active,
    /// Over.
    Ended,
}

/// What may happen to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionEvent {
    /// Dispatch reserved a slot.
    Placed(Seat),
    /// The coordinator took the placement up.
    Claimed(Epoch),
    /// The worker handed over a browser.
    Activated(Epoch),
    /// The worker could not; the session waits again, at the place it had.
    Requeued(Epoch),
    /// It is over.
    Ended(EndReason),
}

/// Why an event does not apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Terminal states never change.
    #[error("the session has already ended ({0})")]
    AlreadyEnded(EndReason),
    /// The caller speaks of an earlier placement.
    #[error("the placement is not the current one")]
    StaleEpoch,
    /// The event makes no sense in this state.
    #[error("a {0:?} session cannot do that")]
    WrongState(SessionStatus),
}

/// Moves a session. Pure: the same state and event always give the same answer.
pub fn step(state: SessionState, event: SessionEvent) -> Result<SessionState, Refused> {
    use SessionEvent as E;
    use SessionState as S;
    match (state, event) {
        (S::Ended(reason), _) => Err(Refused::AlreadyEnded(reason)),
        (_, E::Ended(reason)) => Ok(S::Ended(reason)),
        (S::Queued, E::Placed(seat)) => Ok(S::Placed(seat)),
        (S::Placed(seat), E::Claimed(epoch)) => seat.matching(epoch).map(S::Starting),
        (S::Starting(seat), E::Activated(epoch)) => seat.matching(epoch).map(S::Active),
        (S::Placed(seat) | S::Starting(seat), E::Requeued(epoch)) => seat.matching(epoch).map(|_| S::Queued),
        (state, _) => Err(Refused::WrongState(state.status())),
    }
}

/// The times a session's limits are counted from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clockwork {
    /// When it was submitted.
    pub queued_at: Timestamp,
    /// When the present placement was made.
    pub placed_at: Option<Timestamp>,
    /// When it became active.
    pub started_at: Option<Timestamp>,
    /// When a client first attached.
    pub attached_at: Option<Timestamp>,
    /// When client traffic was last seen.
    pub active_at: Option<Timestamp>,
}

/// When time alone will end the session, and with which reason; the earliest limit wins.
pub fn deadline(state: SessionState, times: Clockwork, limits: &Timeouts) -> Option<(Timestamp, EndReason)> {
    match state {
        SessionState::Queued => Some((times.queued_at + limits.queue, EndReason::QueueTimeout)),
        SessionState::Placed(_) | SessionState::Starting(_) | SessionState::Ended(_) => None,
        SessionState::Active(_) => {
            let started_at = times.started_at.unwrap_or(times.queued_at);
            let connect = match times.attached_at {
                None => limits
                    .connect
                    .map(|span| (started_at + span, EndReason::ConnectTimeout)),
                Some(_) => None,
            };
            // Before the first attach the connect timeout rules; a session without one idles from its start.
            let idle = match (times.attached_at, limits.connect) {
                (None, Some(_)) => None,
                _ => limits
                    .idle
                    .map(|span| (times.active_at.unwrap_or(started_at) + span, EndReason::IdleTimeout)),
            };
            let longest = limits
                .max_duration
                .map(|span| (started_at + span, EndReason::MaxDuration));
            [connect, idle, longest].into_iter().flatten().min_by_key(|(at, _)| *at)
        }
    }
}

// === impl Seat ===

impl Seat {
    fn matching(self, epoch: Epoch) -> Result<Self, Refused> {
        if self.epoch == epoch {
            Ok(self)
        } else {
            Err(Refused::StaleEpoch)
        }
    }
}

// === impl Epoch ===

impl Epoch {
    /// The epoch of the next placement.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

// === impl SessionState ===

impl SessionState {
    /// The state's name.
    pub const fn status(self) -> SessionStatus {
        match self {
            Self::Queued => SessionStatus::Queued,
            Self::Placed(_) => SessionStatus::Placed,
            Self::Starting(_) => SessionStatus::Starting,
            Self::Active(_) => SessionStatus::Active,
            Self::Ended(_) => SessionStatus::Ended,
        }
    }

    /// The seat, while it has one.
    pub const fn seat(self) -> Option<Seat> {
        match self {
            Self::Placed(seat) | Self::Starting(seat) | Self::Active(seat) => Some(seat),
            Self::Queued | Self::Ended(_) => None,
        }
    }

    /// Whether it is over.
    pub const fn is_ended(self) -> bool {
        matches!(self, Self::Ended(_))
    }
}

// === impl SessionStatus ===

impl SessionStatus {
    /// Every status, in the order of life.
    pub const ALL: [Self; 5] = [Self::Queued, Self::Placed, Self::Starting, Self::Active, Self::Ended];

    /// The one spelling.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Placed => "placed",
            Self::Starting => "starting",
            Self::Active => "active",
            Self::Ended => "ended",
        }
    }
}

impl std::str::FromStr for SessionStatus {
    type Err = UnknownStatus;

    fn from_str(text: &str) -> Result<Self, UnknownStatus> {
        Self::ALL
            .into_iter()
            .find(|status| status.as_str() == text)
            .ok_or_else(|| UnknownStatus(text.to_owned()))
    }
}

/// A text that is no status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a session status; expected one of: queued, placed, starting, active, ended")]
pub struct UnknownStatus(String);

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    fn seat() -> impl Strategy<Value = Seat> {
        (0u128..3, 0u32..3).prop_map(|(w, e)| Seat {
            worker: WorkerId::from_uuid(Uuid::from_u128(w)),
            epoch: Epoch(e),
        })
    }

    fn event() -> impl Strategy<Value = SessionEvent> {
        prop_oneof![
            seat().prop_map(SessionEvent::Placed),
            (0u32..3).prop_map(|e| SessionEvent::Claimed(Epoch(e))),
            (0u32..3).prop_map(|e| SessionEvent::Activated(Epoch(e))),
            (0u32..3).prop_map(|e| SessionEvent::Requeued(Epoch(e))),
            prop::sample::select(EndReason::ALL.to_vec()).prop_map(SessionEvent::Ended),
        ]
    }

    proptest! {
        #[test]
        fn no_path_leaves_a_terminal_state(events in prop::collection::vec(event(), 0..40)) {
            let mut state = SessionState::Queued;
            let mut first = None;
            for event in events {
                if let Ok(next) = step(state, event) {
                    prop_assert!(first.is_none(), "moved from {state:?} by {event:?}");
                    state = next;
                    if let SessionState::Ended(reason) = next { first = Some(reason); }
                }
            }
            if let Some(reason) = first { prop_assert_eq!(state, SessionState::Ended(reason)); }
        }

        #[test]
        fn a_session_is_active_only_on_its_current_placement(events in prop::collection::vec(event(), 0..40)) {
            let mut state = SessionState::Queued;
            for event in events {
                let before = state;
                if let Ok(next) = step(state, event) { state = next; }
                if let SessionState::Active(seat) = state {
                    prop_assert!(matches!(before, SessionState::Active(s) | SessionState::Starting(s) if s == seat));
                }
            }
        }
    }

    fn times() -> Clockwork {
        Clockwork {
            queued_at: Timestamp::from_micros(0),
            placed_at: None,
            started_at: Some(Timestamp::from_micros(1_000_000)),
            attached_at: None,
            active_at: None,
        }
    }

    fn active() -> SessionState {
        SessionState::Active(Seat {
            worker: WorkerId::from_uuid(Uuid::nil()),
            epoch: Epoch(1),
        })
    }

    #[test]
    fn unattached_session_has_its_connect_timeout() {
        let found = deadline(active(), times(), &Timeouts::default());
        assert_eq!(
            found,
            Some((Timestamp::from_micros(31_000_000), EndReason::ConnectTimeout))
        );
    }

    #[test]
    fn attached_session_idles_from_its_last_traffic() {
        let at = Some(Timestamp::from_micros(5_000_000));
        let found = deadline(
            active(),
            Clockwork {
                attached_at: at,
                active_at: at,
                ..times()
            },
            &Timeouts::default(),
        );
        assert_eq!(
            found,
            Some((Timestamp::from_micros(65_000_000), EndReason::IdleTimeout))
        );
    }

    #[test]
    fn session_without_connect_timeout_idles_from_its_start() {
        let limits = Timeouts {
            connect: None,
            ..Timeouts::default()
        };
        let found = deadline(active(), times(), &limits);
        assert_eq!(
            found,
            Some((Timestamp::from_micros(61_000_000), EndReason::IdleTimeout))
        );
    }

    #[test]
    fn earliest_limit_wins() {
        let limits = Timeouts {
            max_duration: Some(Duration::from_secs(3)),
            ..Timeouts::default()
        };
        let found = deadline(active(), times(), &limits);
        assert_eq!(found, Some((Timestamp::from_micros(4_000_000), EndReason::MaxDuration)));
    }
}
