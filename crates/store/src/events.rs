//! Events: what happened, numbered without gaps, kept for a while so that a listener that was cut off misses nothing.
//!
//! Its own file because the log of events is read by number, on any coordinator, long after the step that wrote it.
//! Invariants: an event is written in the step that it tells of; numbers grow by one; a number means the same event to
//! every reader.
//!
//! Within one step the order is: workers, locks, sessions, queues (by pool name).

use serde::{Deserialize, Serialize};
use wharf_core::{EndReason, KeyId, LockName, Operation, PoolName, SessionId, Timestamp, WorkerId};

/// Events kept at least; an engine may keep more.
pub const EVENTS_KEPT: u64 = 10_000;

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Its place in the log, from 1.
    pub number: u64,
    /// When.
    pub at: Timestamp,
    /// What.
    pub what: Happening,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Happening {
    /// To a session.
    Session {
        /// Which.
        session: SessionId,
        /// In which pool.
        pool: PoolName,
        /// What it is for.
        operation: Operation,
        /// Whose it is.
        owner: Option<KeyId>,
        /// On which worker, once placed; the last one, once ended.
        worker: Option<WorkerId>,
        /// What changed.
        change: SessionChange,
    },
    /// To a worker.
    Worker {
        /// Which.
        worker: WorkerId,
        /// In which pool.
        pool: PoolName,
        /// What changed.
        change: WorkerChange,
    },
    /// To a lock.
    Lock {
        /// Which.
        name: LockName,
        /// Who holds or held it.
        holder: String,
        /// The key it was taken with.
        owner: Option<KeyId>,
        /// What changed.
        change: LockChange,
    },
    /// The number of waiters of a pool changed.
    Queue {
        /// Which pool.
        pool: PoolName,
        /// How many wait after the step.
        waiting: u64,
    },
}

/// What may happen to a session. A newcomer that is placed at once is never `Queued`; taking a placement up is no event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionChange {
    /// It waits, or waits again.
    Queued,
    /// A slot is reserved.
    Placed,
    /// Its browser is ready.
    Active,
    /// It is over.
    Ended(EndReason),
}

/// What may happen to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerChange {
    /// It registered; `Available` follows at once if it was ready.
    Registered,
    /// It takes placements.
    Available,
    /// Its launches keep failing.
    CircuitOpened,
    /// They work again.
    CircuitClosed,
    /// It takes no more.
    Draining,
    /// It was silent too long.
    Lost,
    /// It said goodbye.
    Gone,
    /// An operator removed its record.
    Removed,
}

/// What may happen to a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LockChange {
    /// Taken.
    Acquired,
    /// It holds longer.
    Renewed,
    /// Given back, or given up with its key.
    Released,
    /// Taken away by an operator.
    Forced,
    /// Its time had passed; told when the store forgets it.
    Expired,
}

/// A stretch of the log.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EventPage {
    /// The events asked for, in order.
    pub events: Vec<Event>,
    /// The oldest number that is still kept; one more than `newest` if none is.
    pub oldest: u64,
    /// The newest number there is; 0 if nothing has happened yet.
    pub newest: u64,
    /// Whether some of what was read before has been taken back.
    pub set_back: SetBack,
}

/// A log that lost its end and went on: other events have the numbers of some that were told. Only a store whose server
/// may forget what it acknowledged can do that, and only a process that had read the lost end can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SetBack {
    /// How often this process has seen it.
    pub times: u64,
    /// The last number that meant the same before and after, when it last happened.
    pub to: u64,
}

// === impl Happening ===

impl Happening {
    /// The key whose affair it is, beside admins'.
    pub const fn owner(&self) -> Option<KeyId> {
        match self {
            Self::Session { owner, .. } | Self::Lock { owner, .. } => *owner,
            Self::Worker { .. } | Self::Queue { .. } => None,
        }
    }

    /// The name of it, as streams of events have it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Session { change, .. } => match change {
                SessionChange::Queued => "session.queued",
                SessionChange::Placed => "session.placed",
                SessionChange::Active => "session.active",
                SessionChange::Ended(_) => "session.ended",
            },
            Self::Worker { change, .. } => match change {
                WorkerChange::Registered => "worker.registered",
                WorkerChange::Available => "worker.available",
                WorkerChange::CircuitOpened => "worker.circuit_opened",
                WorkerChange::CircuitClosed => "worker.circuit_closed",
                WorkerChange::Draining => "worker.draining",
                WorkerChange::Lost => "worker.lost",
                WorkerChange::Gone => "worker.gone",
                WorkerChange::Removed => "worker.removed",
            },
            Self::Lock { change, .. } => match change {
                LockChange::Acquired => "lock.acquired",
                LockChange::Renewed => "lock.renewed",
                LockChange::Released => "lock.released",
                LockChange::Forced => "lock.forced",
                LockChange::Expired => "lock.expired",
            },
            Self::Queue { .. } => "queue.changed",
        }
    }
}
