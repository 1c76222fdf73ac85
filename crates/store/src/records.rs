//! What the store keeps and answers: plain data, the same on every engine.
//!
//! Its own file because these are the nouns of the port; the verbs are in the trait.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use wharf_core::{
    BrowserKind, CoordinatorId, Cover, EndReason, Epoch, KeyId, LimitScope, LockName, LockToken, Operation, PoolName,
    Seat, SessionId, SessionSpec, SessionState, Timestamp, WorkerId, WorkerState,
    session::{Clockwork, deadline},
};

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

/// A worker's introduction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// Stable across restarts.
    pub worker: WorkerId,
    /// Its pool.
    pub pool: PoolName,
    /// What it can launch.
    pub browsers: Vec<BrowserKind>,
    /// How many sessions it can hold.
    pub slots: u32,
    /// Where its gateway is; empty for a worker in the coordinator's own process.
    pub address: String,
    /// Whether its driver has been checked and it may take placements at once.
    pub is_ready: bool,
}

/// What `register` did.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Registered {
    /// Sessions of its past life that were ended, and placements that became possible.
    pub freed: Freed,
}

/// A worker's report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Who.
    pub worker: WorkerId,
    /// The leases it holds: session and placement.
    pub held: Vec<(SessionId, Epoch)>,
    /// Its launches keep failing.
    pub is_circuit_open: bool,
    /// Its driver works.
    pub is_ready: bool,
    /// It takes no more.
    pub is_draining: bool,
    /// Its browsers that are up and idle.
    pub warm: u32,
    /// Its launches in flight.
    pub launching: u32,
    /// How busy its machine is.
    pub load: Load,
    /// It has served long enough and would like to begin anew. The answer says when it may.
    pub wants_recycling: bool,
}

/// How busy a worker's machine is. For people and for scaling: nothing is placed by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Load {
    /// Processor time used, in thousandths of all cores.
    pub cpu_permille: u32,
    /// Memory used by the worker and its browsers, in bytes.
    pub memory_used: u64,
    /// What there is of it, in bytes.
    pub memory_limit: u64,
    /// Share of time in which something waited for memory or a processor (PSI `some`, ten seconds), in thousandths.
    pub pressure_permille: u32,
}

/// The answer to a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HeartbeatReply {
    /// Known.
    Known {
        /// What it holds and must end: given up, ended or never its own.
        end: Vec<(SessionId, Epoch)>,
        /// It is to drain: an operator or the rule of recycling says so, or it said so itself.
        drain: bool,
        /// What the report freed or made possible.
        freed: Freed,
    },
    /// The store does not know it, or has given it up: it must register, after ending everything it holds.
    Unknown,
}

/// A worker as the store knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerRecord {
    /// Who.
    pub id: WorkerId,
    /// Its pool.
    pub pool: PoolName,
    /// What it can launch.
    pub browsers: Vec<BrowserKind>,
    /// Its capacity.
    pub slots: u32,
    /// How many leases it holds.
    pub busy: u32,
    /// Sessions it was ever given.
    pub lifetime: u64,
    /// Its state.
    pub state: WorkerState,
    /// Its launches keep failing.
    pub is_circuit_open: bool,
    /// Its browsers that are up and idle, by its last report.
    pub warm: u32,
    /// Its launches in flight, by its last report.
    pub launching: u32,
    /// How busy its machine is, by its last report.
    pub load: Load,
    /// Where its gateway is.
    pub address: String,
    /// When it registered.
    pub registered_at: Timestamp,
    /// When it was last heard.
    pub heard_at: Timestamp,
}

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

/// A limit in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitRecord {
    /// Where.
    pub pool: PoolName,
    /// Of what.
    pub scope: LimitScope,
    /// How many sessions may hold a slot at once.
    pub max: u64,
    /// When it was set; what was placed before may be more.
    pub set_at: Timestamp,
}

/// A wish for a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockWish {
    /// Which.
    pub name: LockName,
    /// Chosen by the coordinator, so that a lost answer can be asked for again.
    pub token: LockToken,
    /// Who wants it, for people.
    pub holder: String,
    /// What for.
    pub description: String,
    /// What it keeps out.
    pub cover: Cover,
    /// How long it holds without renewal.
    pub ttl: Duration,
    /// The API key it comes with.
    pub owner: Option<KeyId>,
}

/// A lock that is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockRecord {
    /// Which.
    pub name: LockName,
    /// Whoever shows this may renew and release it. Never shown to others.
    pub token: LockToken,
    /// Who holds it.
    pub holder: String,
    /// What for.
    pub description: String,
    /// What it keeps out.
    pub cover: Cover,
    /// Since when.
    pub taken_at: Timestamp,
    /// Until when, unless it is renewed.
    pub until: Timestamp,
    /// The API key it was taken with.
    pub owner: Option<KeyId>,
}

/// A lock and what it waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockView {
    /// The lock.
    pub lock: LockRecord,
    /// Leases that it covers and that were there before it.
    pub running: u64,
}

/// The answer to a wish for a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Locking {
    /// It is yours.
    Taken(LockView),
    /// Somebody holds it.
    Held(LockRecord),
}

/// The answer to a renewal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Renewal {
    /// It holds longer.
    Renewed(LockView),
    /// It is not yours: somebody else's, or nobody's.
    NotYours(Option<LockRecord>),
}

/// The answer to a release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unlocking {
    /// It is free, and this became possible.
    Released(Freed),
    /// It is not yours: somebody else's, or nobody's.
    NotYours(Option<LockRecord>),
}

/// What a key may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum KeyRole {
    /// Its own sessions.
    Client,
    /// Everything.
    Admin,
}

/// A new API key. The secret itself is never here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewKey {
    /// Its id.
    pub id: KeyId,
    /// What people call it.
    pub name: String,
    /// SHA-256 of the secret.
    pub hash: [u8; 32],
    /// What it may do.
    pub role: KeyRole,
    /// How many sessions it may hold, waiting ones included.
    pub max_sessions: Option<u64>,
}

/// An API key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRecord {
    /// Its id.
    pub id: KeyId,
    /// What people call it.
    pub name: String,
    /// SHA-256 of the secret.
    pub hash: [u8; 32],
    /// What it may do.
    pub role: KeyRole,
    /// How many sessions it may hold, waiting ones included.
    pub max_sessions: Option<u64>,
    /// How many it holds: those that have not ended, and ended ones that still hold a slot.
    pub held: u64,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last used, to the minute.
    pub used_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
}

/// The detail of sessions that ended because their API key was revoked.
pub const KEY_REVOKED: &str = "the API key was revoked";

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
