//! The [`Store`] over a replica: what changes something goes through the lane, what only looks catches up first.
//!
//! Its own file because it is the port's surface. Invariant: whatever has left the ledger for the archive is looked for
//! there, so a caller cannot tell where a record lies.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use wharf_core::{
    Clock, CoordinatorId, EndReason, Epoch, KeyId, LimitScope, LockName, LockToken, PoolName, SessionId, SessionStatus,
    Timestamp, WorkerId,
};
use wharf_ledger::{Answer, Ledger, Op, read_text};
use wharf_store::{
    Change, Ended, EventPage, Freed, Heartbeat, HeartbeatReply, KeyRecord, LimitRecord, LockRecord, LockView, LockWish,
    Locking, NewKey, Placement, PlacementFailure, PoolReport, QueueFilter, Registered, Registration, Renewal, Replaced,
    SessionQuery, SessionRecord, Snapshot, Stats, Store, StoreError, StoreRules, Submission, Submitted, Touch,
    Unlocking, WorkerRecord,
};

use crate::{
    follow::{self, store_error},
    lane::{self, Order},
    port::{ArchiveQuery, Journal, Writer},
    replica::Replica,
    upkeep::Beats,
};

/// News kept for a receiver that is behind; one further behind looks for itself (see [`Store::changes`]).
const NEWS_KEPT: usize = 16_384;
/// Operations that may wait for the lane; more callers wait to be let in.
const ORDERS: usize = 4096;
/// Archived records read at once for a snapshot.
const STRIDE: u32 = 1000;
/// How fine the time of a key's last use is.
const USE_KNOWN_TO: Duration = Duration::from_secs(60);

/// What a replica is told.
#[derive(Clone)]
pub struct ReplicaConfig {
    /// Who writes: this process, this life.
    pub writer: Writer,
    /// The coordinator of this process: its own ended sessions are archived by it first.
    pub coordinator: CoordinatorId,
    /// The rules of the store. Those of whoever started last hold for all.
    pub rules: StoreRules,
    /// How often things are put away.
    pub upkeep: Upkeep,
    /// In tests: the clock, instead of the journal's own.
    pub clock: Option<Arc<dyn Clock>>,
}

/// When things are put away.
#[derive(Debug, Clone, Copy)]
pub struct Upkeep {
    /// Between looks for ended sessions to archive.
    pub archive_every: Duration,
    /// Ended sessions of other coordinators are archived by us after this long.
    pub archive_others: Duration,
    /// Between prunings of the archive.
    pub prune_every: Duration,
    /// Pages after which a checkpoint is due.
    pub checkpoint_pages: u64,
    /// Pages kept behind a checkpoint, so that a coordinator that lags need not begin again.
    pub pages_kept: u64,
}

/// How often the journal was asked, for metrics.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Pages appended, attempts included.
    pub appends: AtomicU64,
    /// Reads of pages and checkpoints.
    pub reads: AtomicU64,
    /// Reads and writes of the archive.
    pub archive: AtomicU64,
    /// Operations asked for.
    pub operations: AtomicU64,
}

/// A store over a shared journal.
pub struct JournalStore {
    pub(crate) inner: Arc<Inner>,
    orders: Mutex<Option<mpsc::Sender<Order>>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

pub(crate) struct Inner {
    pub journal: Arc<dyn Journal>,
    pub config: ReplicaConfig,
    pub replica: Mutex<Replica>,
    pub rebuilding: tokio::sync::Mutex<()>,
    pub catching: Catching,
    pub changes: broadcast::Sender<Change>,
    pub traffic: Arc<Traffic>,
    pub beats: Mutex<Beats>,
}

/// Callers that catch up together.
#[derive(Default)]
pub(crate) struct Catching {
    /// Round trips begun so far.
    pub begun: AtomicU64,
    /// Round trips that failed so far.
    pub failed: AtomicU64,
    /// How the last ones went; held by whoever makes one.
    pub gate: tokio::sync::Mutex<Trips>,
}

/// The last round trips.
#[derive(Default)]
pub(crate) struct Trips {
    /// The last one that succeeded, and the time it brought.
    pub good: Option<(u64, Timestamp)>,
    /// Why the last one failed that did.
    pub failure: Option<StoreError>,
}

// === impl Upkeep ===

impl Default for Upkeep {
    fn default() -> Self {
        Self {
            archive_every: Duration::from_secs(2),
            archive_others: Duration::from_secs(30),
            prune_every: Duration::from_secs(60),
            checkpoint_pages: 2_000,
            pages_kept: 1_000,
        }
    }
}

// === impl JournalStore ===

impl JournalStore {
    /// Reads the journal up to its end and begins to follow it.
    pub async fn open(journal: Arc<dyn Journal>, config: ReplicaConfig) -> Result<Self, StoreError> {
        let (changes, _) = broadcast::channel(NEWS_KEPT);
        let rules = config.rules;
        let inner = Arc::new(Inner {
            journal,
            replica: Mutex::new(Replica::new(
                Ledger::new(rules),
                crate::port::Position { seq: 0, mark: None },
            )),
            config,
            rebuilding: tokio::sync::Mutex::default(),
            catching: Catching::default(),
            changes,
            traffic: Arc::default(),
            beats: Mutex::default(),
        });
        let loaded = inner.load().await?;
        *inner.replica.lock() = loaded;
        inner.catch_up().await?;
        let (orders, taken) = mpsc::channel(ORDERS);
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        tasks.spawn(lane::run(inner.clone(), taken));
        let (follower, told) = (inner.clone(), stop.clone());
        tasks.spawn(async move {
            tokio::select! {
                () = told.cancelled() => {}
                () = follow::run(follower) => {}
            }
        });
        let store = Self {
            inner,
            orders: Mutex::new(Some(orders)),
            tasks,
            stop,
        };
        let held = store.look(Ledger::rules);
        let is_new = store.inner.position()?.seq == 0;
        if held != rules {
            if !is_new {
                tracing::warn!(?held, now = ?rules, "the rules of the store change for all coordinators to ours");
            }
            store.order(Op::Rules { rules }).await?;
        }
        Ok(store)
    }

    /// How often the journal was asked.
    pub fn traffic(&self) -> Arc<Traffic> {
        self.inner.traffic.clone()
    }

    /// The whole state as JSON, after everything durable was applied. Equal on all coordinators that stand at the same
    /// page.
    pub async fn image(&self) -> Result<(u64, String), StoreError> {
        self.inner.catch_up().await?;
        let replica = self.inner.replica.lock();
        let image = replica.ledger.image();
        let image = image.map_err(|error| StoreError::Corrupt(error.to_string()))?;
        Ok((replica.position.seq, image))
    }

    pub(crate) fn look<T>(&self, at: impl FnOnce(&Ledger) -> T) -> T {
        at(&self.inner.replica.lock().ledger)
    }

    /// Looks after everything durable was applied.
    async fn look_now<T>(&self, at: impl FnOnce(&Ledger, Timestamp) -> T) -> Result<T, StoreError> {
        let now = self.inner.catch_up().await?;
        Ok(at(&self.inner.replica.lock().ledger, now))
    }

    /// One operation, through the journal.
    pub(crate) async fn order(&self, op: Op) -> Result<Answer, StoreError> {
        self.inner.traffic.operations.fetch_add(1, Ordering::Relaxed);
        let closed = || StoreError::Unavailable("it is closed".to_owned());
        let text = lane::text(&op)?;
        let orders = self.orders.lock().clone().ok_or_else(closed)?;
        let (asker, answer) = oneshot::channel();
        orders.send(Order { text, asker }).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }

    async fn find_archived(&self, session: SessionId) -> Result<Option<SessionRecord>, StoreError> {
        self.inner.traffic.archive.fetch_add(1, Ordering::Relaxed);
        let found = self.inner.journal.archived(session).await.map_err(store_error)?;
        found.map(|text| parse(&text)).transpose()
    }

    async fn list_archive(&self, query: &SessionQuery) -> Result<Vec<SessionRecord>, StoreError> {
        self.inner.traffic.archive.fetch_add(1, Ordering::Relaxed);
        let query = ArchiveQuery {
            pool: query.pool.clone(),
            operation: query.operation.clone(),
            owner: query.owner,
            reason: query.reason,
            after: query.after,
            newest_first: query.newest_first,
            limit: query.limit,
        };
        let found = self.inner.journal.archived_list(&query).await.map_err(store_error)?;
        found.iter().map(|text| parse(text)).collect()
    }
}

impl Drop for JournalStore {
    /// A store that nobody closed lets go of its journal all the same; the lane ends with its last sender.
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn parse(text: &str) -> Result<SessionRecord, StoreError> {
    read_text(text).map_err(|error| StoreError::Corrupt(format!("an archived record: {error}")))
}

/// An answer of another kind than asked for cannot come: the ledger answers each operation with its own kind.
fn odd(answer: &Answer) -> StoreError {
    StoreError::Corrupt(format!("an answer of another kind: {answer:?}"))
}

macro_rules! expect {
    ($answer:expr, $kind:ident) => {
        match $answer {
            Answer::$kind(said) => Ok(said),
            other => Err(odd(&other)),
        }
    };
}

#[async_trait]
impl Store for JournalStore {
    async fn now(&self) -> Result<Timestamp, StoreError> {
        self.inner.catch_up().await
    }

    async fn register(&self, registration: Registration) -> Result<Registered, StoreError> {
        expect!(self.order(Op::Register { registration }).await?, Registered)
    }

    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatReply, StoreError> {
        expect!(self.order(Op::Heartbeat { heartbeat }).await?, Heartbeat)
    }

    async fn deregister(&self, worker: WorkerId) -> Result<Freed, StoreError> {
        expect!(self.order(Op::Deregister { worker }).await?, Freed)
    }

    async fn drain_worker(&self, worker: WorkerId) -> Result<Option<WorkerRecord>, StoreError> {
        expect!(self.order(Op::DrainWorker { worker }).await?, Worker)
    }

    async fn remove_worker(&self, worker: WorkerId) -> Result<Option<(WorkerRecord, Freed)>, StoreError> {
        expect!(self.order(Op::RemoveWorker { worker }).await?, Removed)
    }

    async fn workers(&self, pool: Option<&PoolName>) -> Result<Vec<WorkerRecord>, StoreError> {
        self.look_now(|ledger, _| ledger.workers(pool)).await
    }

    async fn submit(&self, submission: Submission) -> Result<Submitted, StoreError> {
        let spec = submission.spec.clone();
        let submission = Box::new(submission);
        let known = match self.order(Op::Submit { submission }).await? {
            Answer::Submitted(submitted) => return Ok(submitted),
            Answer::KnownInArchive(known) => known,
            other => return Err(odd(&other)),
        };
        match self.find_archived(known).await? {
            Some(record) if record.spec == spec => Ok(Submitted::Known(Box::new(record))),
            Some(record) => Ok(Submitted::KeyReused(record.id)),
            None => Err(StoreError::Unavailable(format!(
                "the record of {known}, which the idempotency key made, is just being removed; try again"
            ))),
        }
    }

    async fn claim(&self, session: SessionId, epoch: Epoch) -> Result<Option<SessionRecord>, StoreError> {
        let answer = self.order(Op::Claim { session, epoch }).await?;
        expect!(answer, Session).map(|record| record.map(|record| *record))
    }

    async fn activate(&self, session: SessionId, epoch: Epoch) -> Result<Option<SessionRecord>, StoreError> {
        let answer = self.order(Op::Activate { session, epoch }).await?;
        expect!(answer, Session).map(|record| record.map(|record| *record))
    }

    async fn placement_failed(&self, failure: PlacementFailure) -> Result<Replaced, StoreError> {
        let (session, epoch) = (failure.session, failure.epoch);
        let replaced = expect!(self.order(Op::PlacementFailed { failure }).await?, Replaced)?;
        if replaced == Replaced::Stale
            && let Some(record) = self.find_archived(session).await?
            && record.epoch == epoch
        {
            self.dispatch().await?;
            return Ok(Replaced::Ended(Box::new(record)));
        }
        Ok(replaced)
    }

    async fn touch(&self, batch: &[Touch]) -> Result<(), StoreError> {
        if batch.is_empty() {
            return Ok(());
        }
        let batch = batch.to_vec();
        self.order(Op::Touch { batch }).await.map(drop)
    }

    async fn end(&self, session: SessionId, reason: EndReason, detail: Option<String>) -> Result<Ended, StoreError> {
        let op = Op::End {
            session,
            reason,
            detail,
        };
        match expect!(self.order(op).await?, Ended)? {
            Ended::Unknown => Ok(match self.find_archived(session).await? {
                Some(record) => Ended::Before(Box::new(record)),
                None => Ended::Unknown,
            }),
            ended => Ok(ended),
        }
    }

    async fn vacate(&self, session: SessionId, epoch: Epoch) -> Result<Freed, StoreError> {
        expect!(self.order(Op::Vacate { session, epoch }).await?, Freed)
    }

    async fn session(&self, session: SessionId) -> Result<Option<SessionRecord>, StoreError> {
        match self.look_now(|ledger, _| ledger.session(session).cloned()).await? {
            Some(record) => Ok(Some(record)),
            None => self.find_archived(session).await,
        }
    }

    async fn sessions(&self, query: &SessionQuery) -> Result<Vec<SessionRecord>, StoreError> {
        let mut found = self.look_now(|ledger, _| ledger.sessions(query)).await?;
        let wants_ended = query.statuses.is_empty() || query.statuses.contains(&SessionStatus::Ended);
        if wants_ended && query.limit > 0 {
            found.extend(self.list_archive(query).await?);
            found.sort_by_key(|record| record.id);
            if query.newest_first {
                found.reverse();
            }
            // One that was archived between the two looks is in both.
            found.dedup_by_key(|record| record.id);
            found.truncate(query.limit as usize);
        }
        Ok(found)
    }

    async fn position(&self, session: SessionId) -> Result<Option<u64>, StoreError> {
        self.look_now(|ledger, _| ledger.position(session)).await
    }

    async fn renew_tickets(&self, coordinator: CoordinatorId) -> Result<u64, StoreError> {
        if self.look(|ledger| ledger.tickets(coordinator)) == 0 {
            return Ok(0);
        }
        expect!(self.order(Op::RenewTickets { coordinator }).await?, Renewed)
    }

    async fn queue(&self, pool: &PoolName, limit: u32) -> Result<Vec<SessionRecord>, StoreError> {
        self.look_now(|ledger, _| ledger.queue(pool, limit)).await
    }

    async fn clear_queue(&self, filter: QueueFilter, reason: EndReason, detail: &str) -> Result<Freed, StoreError> {
        let detail = detail.to_owned();
        let op = Op::ClearQueue { filter, reason, detail };
        expect!(self.order(op).await?, Freed)
    }

    async fn dispatch(&self) -> Result<Vec<Placement>, StoreError> {
        expect!(self.order(Op::Dispatch).await?, Placed)
    }

    async fn sweep(&self) -> Result<Freed, StoreError> {
        let (now, is_due) = self.look_now(|ledger, now| (now, ledger.is_due(now))).await?;
        // Every coordinator sweeps; a sweep that would change nothing is not written.
        let freed = match is_due {
            true => expect!(self.order(Op::Sweep).await?, Freed)?,
            false => Freed::default(),
        };
        self.keep_house(now).await?;
        Ok(freed)
    }

    async fn set_limit(&self, pool: &PoolName, scope: LimitScope, max: Option<u64>) -> Result<Freed, StoreError> {
        let pool = pool.clone();
        expect!(self.order(Op::SetLimit { pool, scope, max }).await?, Freed)
    }

    async fn limits(&self) -> Result<Vec<LimitRecord>, StoreError> {
        self.look_now(|ledger, _| ledger.limits()).await
    }

    async fn acquire_lock(&self, wish: LockWish) -> Result<Locking, StoreError> {
        expect!(self.order(Op::AcquireLock { wish }).await?, Locking)
    }

    async fn renew_lock(&self, name: &LockName, token: LockToken, ttl: Duration) -> Result<Renewal, StoreError> {
        let name = name.clone();
        expect!(self.order(Op::RenewLock { name, token, ttl }).await?, Renewal)
    }

    async fn release_lock(&self, name: &LockName, token: LockToken) -> Result<Unlocking, StoreError> {
        let name = name.clone();
        expect!(self.order(Op::ReleaseLock { name, token }).await?, Unlocking)
    }

    async fn force_unlock(&self, name: &LockName) -> Result<Option<(LockRecord, Freed)>, StoreError> {
        let name = name.clone();
        expect!(self.order(Op::ForceUnlock { name }).await?, ForcedUnlock)
    }

    async fn locks(&self) -> Result<Vec<LockView>, StoreError> {
        self.look_now(|ledger, now| ledger.locks(now)).await
    }

    async fn create_key(&self, key: NewKey) -> Result<KeyRecord, StoreError> {
        let record = expect!(self.order(Op::CreateKey { key }).await?, Key)?;
        record.ok_or_else(|| StoreError::Corrupt("a key that was just made is not there".to_owned()))
    }

    async fn key(&self, key: KeyId) -> Result<Option<KeyRecord>, StoreError> {
        self.look_now(|ledger, _| ledger.key(key)).await
    }

    async fn keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        self.look_now(|ledger, _| ledger.keys()).await
    }

    async fn revoke_key(&self, key: KeyId) -> Result<Option<(KeyRecord, Freed)>, StoreError> {
        expect!(self.order(Op::RevokeKey { key }).await?, Revoked)
    }

    async fn set_quota(&self, key: KeyId, max_sessions: Option<u64>) -> Result<Option<KeyRecord>, StoreError> {
        expect!(self.order(Op::SetQuota { key, max_sessions }).await?, Key)
    }

    async fn key_used(&self, key: KeyId) -> Result<(), StoreError> {
        let now = self.inner.catch_up().await?;
        let used_at = self.look(|ledger| ledger.key(key)).map(|record| record.used_at);
        match used_at {
            // Unknown, or known to have been used lately: nothing to write.
            None => Ok(()),
            Some(Some(used_at)) if used_at + USE_KNOWN_TO > now => Ok(()),
            Some(_) => self.order(Op::KeyUsed { key }).await.map(drop),
        }
    }

    async fn pool(&self, pool: &PoolName) -> Result<PoolReport, StoreError> {
        self.look_now(|ledger, _| ledger.pool(pool)).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        self.look_now(|ledger, _| ledger.stats()).await
    }

    async fn snapshot(&self) -> Result<Snapshot, StoreError> {
        let mut archived = Vec::new();
        let mut query = SessionQuery {
            limit: STRIDE,
            ..SessionQuery::default()
        };
        loop {
            let page = self.list_archive(&query).await?;
            query.after = page.last().map(|record| record.id);
            let is_last = page.len() < STRIDE as usize;
            archived.extend(page);
            if is_last {
                break;
            }
        }
        let mut snapshot = self.look_now(|ledger, now| ledger.snapshot(now)).await?;
        snapshot.sessions.extend(archived);
        snapshot.sessions.sort_by_key(|record| record.id);
        snapshot.sessions.dedup_by_key(|record| record.id);
        Ok(snapshot)
    }

    async fn events(&self, after: u64, limit: u32) -> Result<EventPage, StoreError> {
        self.look_now(|ledger, _| ledger.events(after, limit)).await
    }

    fn changes(&self) -> broadcast::Receiver<Change> {
        self.inner.changes.subscribe()
    }

    async fn close(&self) -> Result<(), StoreError> {
        // The lane ends when what was ordered is written; the tail has no end of its own.
        drop(self.orders.lock().take());
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.inner.journal.close().await;
        Ok(())
    }
}
