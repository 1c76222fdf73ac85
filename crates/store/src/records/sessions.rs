//! One session: asked for, kept, placed, ended.
//!
//! Its own file because these are the words of every request's path.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use wharf_core::{
    CoordinatorId, EndReason, Epoch, KeyId, Seat, SessionId, SessionSpec, SessionState, Timestamp, WorkerId,
    session::{Clockwork, deadline},
};

use super::LockRecord;

/// The detail of a waiting session that ended because nobody renewed its ticket: its client did not cancel it.
pub const TICKET_LAPSED: &str = "the coordinator it came by did not renew its place in the queue in time";

/// A newcomer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Submission {
    /// Chosen by the coordinator, so that a lost answer can be asked for.
    pub session: SessionId,
    /// Who holds its ticket while it waits.
    pub coordinator: CoordinatorId,
    /// What it asks for.
    pub spec: SessionSpec,
    /// The API key it comes with.
    pub owner: Option<KeyId>,
    /// A retry with the same idempotency key and the same owner gets the same session.
    pub idempotency_key: Option<String>,
    /// How many may wait in the pool.
    pub queue_limit: u64,
}

/// The answer to a newcomer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Submitted {
    /// A slot is reserved and claimed: the session is `starting`.
    Placed(Box<SessionRecord>),
    /// It waits.
    Queued {
        /// The session.
        record: Box<SessionRecord>,
        /// Its place, 1 being next.
        position: u64,
    },
    /// The idempotency key is known: this is the session that it made.
    Known(Box<SessionRecord>),
    /// The idempotency key is known, but the request differs from the one that made this session.
    KeyReused(SessionId),
    /// The queue is full; nothing was kept.
    QueueFull {
        /// How many wait.
        waiting: u64,
        /// The limit.
        limit: u64,
    },
    /// No worker of this pool serves such browsers, now or by waiting.
    NoSuchPool,
    /// A lock covers it; nothing was kept. Of several, the one that lasts longest.
    Locked(Box<LockRecord>),
    /// Its owner holds as many sessions as it may; nothing was kept.
    QuotaReached {
        /// Sessions of the owner that have not ended or still hold a slot.
        held: u64,
        /// The quota.
        limit: u64,
    },
}

/// A session as the store knows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionRecord {
    /// Who.
    pub id: SessionId,
    /// What it asked for.
    pub spec: SessionSpec,
    /// Its state.
    pub state: SessionState,
    /// How often it was placed; the epoch of the present or last placement.
    pub epoch: Epoch,
    /// Its order of arrival.
    pub number: u64,
    /// The times its limits are counted from.
    pub times: Clockwork,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// More about the end, for people.
    pub detail: Option<String>,
    /// Workers where a placement failed.
    pub excluded: Vec<WorkerId>,
    /// The coordinator that submitted it.
    pub coordinator: CoordinatorId,
    /// The worker of the present or last placement.
    pub worker: Option<WorkerId>,
    /// The API key it came with.
    pub owner: Option<KeyId>,
    /// The client's idempotency key.
    pub idempotency_key: Option<String>,
}

/// A slot reserved for a waiter by dispatch. To be claimed by its coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Placement {
    /// For whom.
    pub session: SessionId,
    /// By whom it is to be claimed.
    pub coordinator: CoordinatorId,
    /// Where.
    pub seat: Seat,
}

/// A placement that the worker could not serve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementFailure {
    /// Which session.
    pub session: SessionId,
    /// Which placement.
    pub epoch: Epoch,
    /// What went wrong, for people.
    pub cause: String,
    /// The worker itself was not there (gone, draining, cut off), rather than its browser.
    #[serde(default)]
    pub is_worker_absent: bool,
}

/// What became of a session whose placement failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Replaced {
    /// Placed again and claimed.
    Placed(Box<SessionRecord>),
    /// Waiting again, at its old place.
    Queued(Box<SessionRecord>),
    /// It ended: too many attempts, or it had ended before.
    Ended(Box<SessionRecord>),
    /// Unknown session or an old placement: nothing was done.
    Stale,
}

/// One session's activity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Touch {
    /// Which session.
    pub session: SessionId,
    /// How long ago client traffic was last seen.
    pub idle_for: Duration,
    /// Whether a client is, or was, attached.
    pub is_attached: bool,
}

/// The answer to an end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Ended {
    /// It ended now, by this call.
    Now(Box<SessionRecord>),
    /// It had ended before; the record has the true reason.
    Before(Box<SessionRecord>),
    /// No such session.
    Unknown,
}

/// What an operation set free: sessions that ended, and placements that became possible.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Freed {
    /// Sessions ended by this step, with the seat they had.
    pub ended: Vec<EndedSession>,
    /// Waiters placed by this step.
    pub placed: Vec<Placement>,
}

/// A session ended by the store's own rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedSession {
    /// Which.
    pub session: SessionId,
    /// Why.
    pub reason: EndReason,
    /// Whose browser is to be closed.
    pub seat: Option<Seat>,
}

// === impl SessionRecord ===

impl SessionRecord {
    /// When time alone will end it.
    pub fn deadline(&self) -> Option<(Timestamp, EndReason)> {
        deadline(self.state, self.times, &self.spec.timeouts)
    }

    /// Why it ended.
    pub fn reason(&self) -> Option<EndReason> {
        match self.state {
            SessionState::Ended(reason) => Some(reason),
            _ => None,
        }
    }

    /// Time in the queue, up to the (last) placement, the end, or now.
    pub fn waited(&self, now: Timestamp) -> Duration {
        let until = self.times.placed_at.or(self.ended_at).unwrap_or(now);
        until.since(self.times.queued_at)
    }

    /// Time active, up to the end or now; `None` if it never was.
    pub fn ran(&self, now: Timestamp) -> Option<Duration> {
        self.times.started_at.map(|at| self.ended_at.unwrap_or(now).since(at))
    }
}

// === impl Freed ===

impl Freed {
    /// Adds what another step set free.
    pub fn merge(&mut self, other: Self) {
        self.ended.extend(other.ended);
        self.placed.extend(other.placed);
    }
}
