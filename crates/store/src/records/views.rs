//! Questions about many sessions at once, and their answers.
//!
//! Its own file because nothing in it is kept: it is all counted or copied from records.

use serde::{Deserialize, Serialize};
use wharf_core::{EndReason, KeyId, Operation, PoolName, Seat, SessionId, Timestamp};

use super::{KeyRecord, LimitRecord, LockRecord, SessionRecord, WorkerRecord};

/// Which sessions to list.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SessionQuery {
    /// Only this pool.
    pub pool: Option<PoolName>,
    /// Only these states; empty means any.
    pub statuses: Vec<wharf_core::SessionStatus>,
    /// Only this operation.
    pub operation: Option<wharf_core::Operation>,
    /// Only those ended with this reason.
    pub reason: Option<EndReason>,
    /// Only those of this API key.
    pub owner: Option<KeyId>,
    /// Only what comes after this one in the order asked for.
    pub after: Option<SessionId>,
    /// Newest first.
    pub newest_first: bool,
    /// At most this many.
    pub limit: u32,
}

/// Counts over all pools.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Stats {
    /// Sessions waiting.
    pub queued: u64,
    /// Sessions placed or starting.
    pub starting: u64,
    /// Sessions active.
    pub active: u64,
    /// Slots of live workers.
    pub slots: u64,
    /// Leases held.
    pub busy: u64,
    /// Live workers.
    pub workers: u64,
}

/// Which waiters to send away; `None` means any.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct QueueFilter {
    /// Only this pool.
    pub pool: Option<PoolName>,
    /// Only this operation.
    pub operation: Option<Operation>,
    /// Only those of this API key.
    pub owner: Option<KeyId>,
}

/// One pool at one instant.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PoolReport {
    /// Sessions waiting.
    pub queued: u64,
    /// Sessions placed or starting.
    pub starting: u64,
    /// Sessions active.
    pub active: u64,
    /// Leases held: sessions placed, starting and active, and ended ones whose browser is still being closed.
    pub running: u64,
    /// Slots of workers that may take placements or hold leases (live ones).
    pub slots: u64,
    /// Live workers.
    pub workers: u64,
    /// Warm browsers of live workers.
    pub warm: u64,
    /// Launches in flight of live workers.
    pub launching: u64,
    /// By operation: every one that runs, waits or has a limit, by name.
    pub operations: Vec<OperationReport>,
    /// The limit of the pool.
    pub limit: Option<u64>,
}

/// One operation of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationReport {
    /// Which.
    pub operation: Operation,
    /// Leases held.
    pub running: u64,
    /// Sessions waiting.
    pub queued: u64,
    /// Its limit.
    pub limit: Option<u64>,
}

/// Everything at one instant.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Snapshot {
    /// The store's time of it.
    pub at: Timestamp,
    /// All sessions, by id.
    pub sessions: Vec<SessionRecord>,
    /// All leases: session, seat.
    pub leases: Vec<(SessionId, Seat)>,
    /// All workers, by id.
    pub workers: Vec<WorkerRecord>,
    /// All limits, by pool and scope.
    pub limits: Vec<LimitRecord>,
    /// All locks, by name: the held ones (`until > at`), and those that have expired since anything was dispatched.
    pub locks: Vec<LockRecord>,
    /// All keys, by id.
    pub keys: Vec<KeyRecord>,
}
