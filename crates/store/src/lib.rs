//! The store port: the one source of truth for workers, sessions, leases and the queue.
//!
//! Layout:
//! - [`records`]: what the store keeps and answers. [`events`]: the log of what happened.
//! - [`Store`]: the domain operations, each atomic, each with the same meaning on every engine (DESIGN.md §5).
//! - [`invariants`]: I1-I8 as checks over a [`Snapshot`].
//! - `conformance` (feature): the model-based suite that every engine must pass.
//!
//! Contract, beyond each operation's own words:
//! - Every operation is one atomic step and may be called by any number of coordinators at once.
//! - Time is the store's own clock; callers pass spans, never points (I8).
//! - A lease is a slot. It appears with a placement and goes with `vacate`, with the loss or departure of its worker,
//!   or when its worker does not report it past the grace (I6). Ending a session does not free its slot.
//! - Every operation that frees capacity or adds work also dispatches, in the same step, and answers with the
//!   placements it made (I7). Placements are also announced through [`Store::changes`], except one that its own caller
//!   is answered with, already claimed (`submit`, `placement_failed`). Every end is announced, with the seat it had.
//! - A span has passed when `since + span <= now`. Store time never steps back.
//! - Order of answers: what one step ends comes by worker id, then session id; what it places comes by pool name, then
//!   in the order of service. `number` orders arrivals; it may have gaps.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[cfg(feature = "conformance")]
pub mod conformance;
pub mod events;
pub mod invariants;
pub mod records;

use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::broadcast;
use wharf_core::{
    CoordinatorId, EndReason, Epoch, KeyId, LimitScope, LockName, LockToken, PoolName, SessionId, Timestamp, WorkerId,
};

pub use events::*;
pub use records::*;

/// Why the store could not answer. Domain refusals are answers, not errors.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// It cannot be reached or is shutting down: try again later; nothing is known to have happened.
    #[error("could not reach the store: {0}")]
    Unavailable(String),
    /// What it holds makes no sense; an operator must look.
    #[error("could not make sense of what the store holds: {0}")]
    Corrupt(String),
}

/// The store. See the crate's words for the contract.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The store's clock.
    async fn now(&self) -> Result<Timestamp, StoreError>;

    // --- workers ---

    /// A worker arrives or returns: its row is written anew, in state `starting`, or `available` if it says so. What the
    /// store believed it held from a past life is ended with `worker_lost`, its leases are dropped. Anew means: lifetime
    /// count zero, circuit closed.
    async fn register(&self, registration: Registration) -> Result<Registered, StoreError>;

    /// A worker reports. Unknown or given-up workers are told to register again. Two-way reconciliation (I6): sessions
    /// it holds that are not its own by the store's book are returned to be ended; leases older than `lease_grace` that
    /// it does not hold are dropped and their sessions, if not ended, end with `worker_lost`. An ended session that it
    /// holds is returned to be ended and keeps its lease until `vacate`. A drain is never undone; readiness is never
    /// taken back (an open circuit is the way to say that launches fail). One that wants recycling begins to drain if no
    /// other live worker of its pool drains, so that a fleet never recycles together.
    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatReply, StoreError>;

    /// A worker leaves: its remaining sessions end with `worker_drained`, its leases are dropped, its state is `gone`.
    /// Nothing happens for one that is unknown or gone.
    async fn deregister(&self, worker: WorkerId) -> Result<Freed, StoreError>;

    /// A worker is to drain: it gets no more placements, and learns of it by the answer to its next report. Nothing
    /// changes for one that drains already or is no longer live; `None` if it is unknown.
    async fn drain_worker(&self, worker: WorkerId) -> Result<Option<WorkerRecord>, StoreError>;

    /// Forgets a worker: its sessions end with `worker_lost`, its leases are dropped, its record goes. One that is alive
    /// is told to register again by its next report. `None` if it is unknown.
    async fn remove_worker(&self, worker: WorkerId) -> Result<Option<(WorkerRecord, Freed)>, StoreError>;

    /// All workers of a pool (or of all pools), by id; given-up ones too, until `history` has passed since they were
    /// last heard.
    async fn workers(&self, pool: Option<&PoolName>) -> Result<Vec<WorkerRecord>, StoreError>;

    // --- sessions ---

    /// A newcomer: placed at once if a slot is free that no waiter is owed, else queued, else rejected. A placement
    /// made here is already claimed (`starting`). With an idempotency key that is known, the session it made is
    /// answered instead, whatever its state; likewise with a session id that is known. If that session still waits (`queued`,
    /// or `placed` and not taken up), its ticket passes to the submission's coordinator, with a fresh lease: whoever held it
    /// may be gone. Idempotency keys are each owner's
    /// own. One is free again when its session's record is gone, or when its session ended before it was ever active: a
    /// client that was cut off while it waited may ask again. Checked in this order: key, id, locks (I5), the owner's
    /// quota (a revoked key has none left), pool (a worker that is not `gone` serves such browsers there), a free slot within the limits, room in the
    /// queue (the limit counts all classes of the pool).
    async fn submit(&self, submission: Submission) -> Result<Submitted, StoreError>;

    /// The coordinator takes up a placement that dispatch made: `placed` becomes `starting`. `None` if the session is no
    /// longer placed with this epoch.
    async fn claim(&self, session: SessionId, epoch: Epoch) -> Result<Option<SessionRecord>, StoreError>;

    /// The worker handed over a browser: `starting` becomes `active`. `None` if stale or ended; the caller must then
    /// give the browser back.
    async fn activate(&self, session: SessionId, epoch: Epoch) -> Result<Option<SessionRecord>, StoreError>;

    /// The worker could not. The lease is dropped, the worker excluded, and the session placed again (claimed) or queued
    /// at its old place, with a fresh ticket; after `max_attempts` placements it ends with `launch_failed` and the cause
    /// as detail. For a session that ended while this placement was its last, the lease is dropped and nothing else
    /// changes. The queue's limit does not apply. If the worker itself was absent, that is no attempt of the session's and
    /// the worker is not excluded: its circuit counts as open until its next report, so nobody is placed there meanwhile.
    async fn placement_failed(&self, failure: PlacementFailure) -> Result<Replaced, StoreError>;

    /// Client activity and attachments, in batches. Only active sessions are touched, others are skipped. The points are
    /// spans before now, so that no second clock enters; traffic counts neither from before the session was active nor
    /// from before what is already known.
    async fn touch(&self, batch: &[Touch]) -> Result<(), StoreError>;

    /// Ends a session. The first end wins; a later one is answered with the first. A queued session has no lease and is
    /// simply gone; a placed one keeps its lease until `vacate`.
    async fn end(&self, session: SessionId, reason: EndReason, detail: Option<String>) -> Result<Ended, StoreError>;

    /// The browser's process tree is gone (or never was): the slot is free. Idempotent; an old epoch frees nothing. A
    /// session that nobody has ended yet ends by it: an active one with `browser_crashed`, another with `launch_failed`.
    async fn vacate(&self, session: SessionId, epoch: Epoch) -> Result<Freed, StoreError>;

    /// One session, ended ones included while their record is kept.
    async fn session(&self, session: SessionId) -> Result<Option<SessionRecord>, StoreError>;

    /// Sessions by filter, in order of id (which is order of creation), after the cursor.
    async fn sessions(&self, query: &SessionQuery) -> Result<Vec<SessionRecord>, StoreError>;

    // --- queue ---

    /// The place of a waiting session in its (pool, class) queue, 1 being next; `None` if it does not wait.
    async fn position(&self, session: SessionId) -> Result<Option<u64>, StoreError>;

    /// The coordinator is alive: extends the leases of its tickets (I3), and says how many those are.
    async fn renew_tickets(&self, coordinator: CoordinatorId) -> Result<u64, StoreError>;

    /// The waiters of a pool in the order in which they are served (classes, limits and locks aside), at most `limit`.
    async fn queue(&self, pool: &PoolName, limit: u32) -> Result<Vec<SessionRecord>, StoreError>;

    /// Ends all waiters that match, in one step, by id. Places nobody: who only waited kept nobody out.
    async fn clear_queue(&self, filter: QueueFilter, reason: EndReason, detail: &str) -> Result<Freed, StoreError>;

    /// Matches waiters with free slots, in order (I2). Idempotent; anyone may call it. Nobody is placed beyond a limit
    /// (I1) or under a lock (I5); who is held back by one holds back only those behind whom the same one holds back.
    async fn dispatch(&self) -> Result<Vec<Placement>, StoreError>;

    /// Ends what time has ended: queue, connect, idle and maximum times; tickets whose lease lapsed (`cancelled`);
    /// placements unclaimed or starting past `starting_grace` (`launch_failed`); silent workers (`worker_lost`); and
    /// removes records older than `history`, once no lease is left. Idempotent, no election. Sessions whose own limits
    /// passed keep their lease until `vacate`; a placement that never became active loses it, since nobody may be left to
    /// vacate it and the worker's next report is told to end it. A session that is due twice ends by its own limit. An
    /// engine may remove old records over several sweeps. Expired locks are forgotten; they hold nobody back from the
    /// moment they expire, sweep or not.
    async fn sweep(&self) -> Result<Freed, StoreError>;

    // --- limits ---

    /// Sets or (with `None`) lifts a limit, and serves the waiters that it held back in the same step (I7). A limit below
    /// what runs ends nothing: it lets nobody in until there is room.
    async fn set_limit(&self, pool: &PoolName, scope: LimitScope, max: Option<u64>) -> Result<Freed, StoreError>;

    /// All limits, by pool and scope.
    async fn limits(&self) -> Result<Vec<LimitRecord>, StoreError>;

    // --- locks ---

    /// Takes a lock that nobody holds. From this step on nothing it covers is placed (I5); what runs goes on. The same
    /// token again is answered as the first time, without renewing it.
    async fn acquire_lock(&self, wish: LockWish) -> Result<Locking, StoreError>;

    /// Makes it last `ttl` from now.
    async fn renew_lock(&self, name: &LockName, token: LockToken, ttl: Duration) -> Result<Renewal, StoreError>;

    /// Gives it back, and serves the waiters that it held back in the same step.
    async fn release_lock(&self, name: &LockName, token: LockToken) -> Result<Unlocking, StoreError>;

    /// Takes it away from whoever holds it; `None` if nobody does.
    async fn force_unlock(&self, name: &LockName) -> Result<Option<(LockRecord, Freed)>, StoreError>;

    /// All locks that are held, by name.
    async fn locks(&self) -> Result<Vec<LockView>, StoreError>;

    // --- keys ---

    /// Keeps a new key. The same id again is answered with what is there.
    async fn create_key(&self, key: NewKey) -> Result<KeyRecord, StoreError>;

    /// One key, revoked ones included.
    async fn key(&self, key: KeyId) -> Result<Option<KeyRecord>, StoreError>;

    /// All keys, by id, revoked ones included.
    async fn keys(&self) -> Result<Vec<KeyRecord>, StoreError>;

    /// Revokes a key for ever; all its sessions end with `policy` (they keep their leases until `vacate`) and its locks
    /// are released, in the same step. Idempotent; `None` if there is no such key.
    async fn revoke_key(&self, key: KeyId) -> Result<Option<(KeyRecord, Freed)>, StoreError>;

    /// Sets how many sessions a key may hold. Less than it holds ends nothing.
    async fn set_quota(&self, key: KeyId, max_sessions: Option<u64>) -> Result<Option<KeyRecord>, StoreError>;

    /// The key was used. Written at most once a minute.
    async fn key_used(&self, key: KeyId) -> Result<(), StoreError>;

    // --- seeing ---

    /// One pool, for `/v1/pool`.
    async fn pool(&self, pool: &PoolName) -> Result<PoolReport, StoreError>;

    /// Counts for `/metrics`, `/v1/pool` and readiness.
    async fn stats(&self) -> Result<Stats, StoreError>;

    /// Everything at one instant, for the invariants.
    async fn snapshot(&self) -> Result<Snapshot, StoreError>;

    /// The events after this number (0: from the oldest kept), at most `limit`, in order.
    async fn events(&self, after: u64, limit: u32) -> Result<EventPage, StoreError>;

    /// Wake-ups. A receiver that lags has missed some; the poll every second covers a lost one.
    fn changes(&self) -> broadcast::Receiver<Change>;

    /// Writes out what is pending and lets go of files.
    async fn close(&self) -> Result<(), StoreError>;
}
