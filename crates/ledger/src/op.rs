//! The vocabulary of the ledger: every operation of the port that changes something, as data, and what it answers.
//!
//! Its own file because these are what a shared journal keeps: an operation written by one coordinator is read and
//! applied by all of them, perhaps by a later version. Fields are only ever added, with a default.
#![expect(
    missing_docs,
    reason = "operations and answers have the names and the meaning of the port's"
)]

use std::time::Duration;

use serde::{Deserialize, Serialize};
use wharf_core::{
    CoordinatorId, EndReason, Epoch, KeyId, LimitScope, LockName, LockToken, PoolName, SessionId, WorkerId,
};
use wharf_store::{
    Freed, Heartbeat, HeartbeatReply, KeyRecord, LockRecord, LockWish, Locking, NewKey, Placement, PlacementFailure,
    QueueFilter, Registered, Registration, Renewal, Replaced, SessionRecord, StoreRules, Submission, Submitted, Touch,
    Unlocking, WorkerRecord,
};

/// An operation that may change something. Each has the meaning of the port's operation of the same name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Op {
    /// The rules that hold from here on. What is there already is judged by them, too.
    Rules {
        rules: StoreRules,
    },
    Register {
        registration: Registration,
    },
    Heartbeat {
        heartbeat: Heartbeat,
    },
    Deregister {
        worker: WorkerId,
    },
    DrainWorker {
        worker: WorkerId,
    },
    RemoveWorker {
        worker: WorkerId,
    },
    Submit {
        submission: Box<Submission>,
    },
    Claim {
        session: SessionId,
        epoch: Epoch,
    },
    Activate {
        session: SessionId,
        epoch: Epoch,
    },
    PlacementFailed {
        failure: PlacementFailure,
    },
    Touch {
        batch: Vec<Touch>,
    },
    End {
        session: SessionId,
        reason: EndReason,
        detail: Option<String>,
    },
    Vacate {
        session: SessionId,
        epoch: Epoch,
    },
    RenewTickets {
        coordinator: CoordinatorId,
    },
    ClearQueue {
        filter: QueueFilter,
        reason: EndReason,
        detail: String,
    },
    Dispatch,
    Sweep,
    SetLimit {
        pool: PoolName,
        scope: LimitScope,
        max: Option<u64>,
    },
    AcquireLock {
        wish: LockWish,
    },
    RenewLock {
        name: LockName,
        token: LockToken,
        ttl: Duration,
    },
    ReleaseLock {
        name: LockName,
        token: LockToken,
    },
    ForceUnlock {
        name: LockName,
    },
    CreateKey {
        key: NewKey,
    },
    RevokeKey {
        key: KeyId,
    },
    SetQuota {
        key: KeyId,
        max_sessions: Option<u64>,
    },
    KeyUsed {
        key: KeyId,
    },
    /// These ended sessions are in the archive now: the ledger may forget them, but for their idempotency keys. Those
    /// that are not here, have not ended or still hold a lease are passed over.
    Archived {
        sessions: Vec<SessionId>,
    },
}

/// What an operation answers.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// Nothing to say (`Rules`, `Touch`, `KeyUsed`, `Archived`).
    Done,
    Registered(Registered),
    Heartbeat(HeartbeatReply),
    Freed(Freed),
    Worker(Option<WorkerRecord>),
    Removed(Option<(WorkerRecord, Freed)>),
    Submitted(Submitted),
    /// The idempotency key or the id belongs to a session that is in the archive: the caller reads it there, and
    /// compares its request with the one that made it.
    KnownInArchive(SessionId),
    Session(Option<Box<SessionRecord>>),
    Replaced(Replaced),
    Ended(wharf_store::Ended),
    Renewed(u64),
    Placed(Vec<Placement>),
    Locking(Locking),
    Renewal(Renewal),
    Unlocking(Unlocking),
    ForcedUnlock(Option<(LockRecord, Freed)>),
    Key(Option<KeyRecord>),
    Revoked(Option<(KeyRecord, Freed)>),
}
