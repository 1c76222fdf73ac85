//! The embedded store engine: SQLite with one writer thread and group commit.
//!
//! Layout:
//! - this file: [`SqliteStore`], which hands each operation of the port to a lane.
//! - `open`: the file, its lock, its schema.
//! - `lane`: the thread, the transaction around a batch, and the promise that every caller is answered.
//! - `step`, `dispatch`: the moves that keep the invariants; `events`: the log of what they did; `workers`, `sessions`,
//!   `holds`, `keys`, `sweep`, `views`: the operations.
//! - `rows`, `worker_rows`, `hold_rows`: how records are written in SQL.
//!
//! Invariant: all writes happen on one thread, in the order in which they were asked, and an answer means that its
//! commit is done. The queue may be long: submit, end, vacate and dispatch read a fixed number of rows.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod dispatch;
mod events;
mod hold_rows;
mod holds;
mod keys;
mod lane;
mod open;
mod rows;
mod sessions;
mod step;
mod sweep;
#[cfg(test)]
mod tests;
mod views;
mod worker_rows;
mod workers;

use std::{path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::sync::broadcast;
use wharf_core::{
    Clock, CoordinatorId, EndReason, Epoch, KeyId, LimitScope, LockName, LockToken, PoolName, SessionId, Timestamp,
    WorkerId,
};
use wharf_store::{
    Change, Ended, EventPage, Freed, Heartbeat, HeartbeatReply, KeyRecord, LimitRecord, LockRecord, LockView, LockWish,
    Locking, NewKey, Placement, PlacementFailure, PoolReport, QueueFilter, Registered, Registration, Renewal, Replaced,
    SessionQuery, SessionRecord, Snapshot, Stats, Store, StoreError, StoreRules, Submission, Submitted, Touch,
    Unlocking, WorkerRecord,
};

use crate::{
    lane::{Access, Desk, Lane, StoreClock},
    open::FileLock,
};
pub use open::{Durability, OpenError};

/// News kept for a receiver that is behind; one further behind polls (see [`Store::changes`]).
const NEWS_KEPT: usize = 4096;

/// A store in one SQLite file, or in memory.
pub struct SqliteStore {
    clock: Arc<StoreClock>,
    writer: Lane,
    /// A store in memory has none, since its one connection is the store.
    readers: Option<Readers>,
    changes: broadcast::Sender<Change>,
}

/// Lanes that only read, so that neither a big list nor many small questions stall admission, nor each other.
struct Readers {
    lookups: Lane,
    lists: Lane,
}

// === impl SqliteStore ===

impl SqliteStore {
    /// Opens or makes the file and takes its lock. What it holds is as its last process left it: a process that has
    /// also lost its browsers calls [`SqliteStore::recover`] next.
    pub fn open(
        path: &Path,
        durability: Durability,
        clock: Arc<dyn Clock>,
        rules: StoreRules,
    ) -> Result<Self, OpenError> {
        let lock = FileLock::take(path)?;
        Self::start(Some(path), Some(lock), durability, (clock, rules))
    }

    /// A store that lives and dies with this value.
    pub fn in_memory(clock: Arc<dyn Clock>, rules: StoreRules) -> Result<Self, OpenError> {
        Self::start(None, None, Durability::Normal, (clock, rules))
    }

    fn start(
        path: Option<&Path>,
        lock: Option<FileLock>,
        durability: Durability,
        (clock, rules): (Arc<dyn Clock>, StoreRules),
    ) -> Result<Self, OpenError> {
        let shown = path.unwrap_or_else(|| Path::new(":memory:")).to_owned();
        let clock = Arc::new(StoreClock::new(clock));
        let (changes, _) = broadcast::channel(NEWS_KEPT);
        let desk = |conn, access, lock, last_number| Desk {
            conn,
            access,
            rules,
            clock: Arc::clone(&clock),
            changes: changes.clone(),
            last_number,
            lock,
            news: Vec::new(),
        };
        let conn = open::open_writer(path, durability)?;
        let last: i64 = conn
            .query_row("SELECT coalesce(max(number), 0) FROM sessions", [], |row| row.get(0))
            .map_err(|source| OpenError::Sqlite {
                path: shown.clone(),
                source,
            })?;
        let io = |source| OpenError::Io {
            path: shown.clone(),
            source,
        };
        let reader = |name, path| {
            let desk = desk(open::open_reader(path)?, Access::Read, None, 0);
            Lane::start(name, desk).map_err(io)
        };
        let readers = match path {
            Some(path) => Some(Readers {
                lookups: reader("wharf-store-get", path)?,
                lists: reader("wharf-store-list", path)?,
            }),
            None => None,
        };
        let desk = desk(conn, Access::Write, lock, rows::unsigned(last));
        let writer = Lane::start("wharf-store", desk).map_err(io)?;
        Ok(Self {
            clock,
            writer,
            readers,
            changes,
        })
    }

    /// After a restart of the one process that used this file: ends every session of the past life (waiting ones as
    /// `cancelled`, others as `worker_lost`), drops all leases, and gives all workers up. Call it before any worker
    /// registers. The detail is for people, such as "wharf was restarted".
    pub async fn recover(&self, detail: &str) -> Result<Freed, StoreError> {
        let detail = detail.to_owned();
        self.writer.call(move |step| step.recover(&detail)).await
    }

    /// Where short reads run.
    fn lookups(&self) -> &Lane {
        self.readers.as_ref().map_or(&self.writer, |readers| &readers.lookups)
    }

    /// Where long reads run.
    fn lists(&self) -> &Lane {
        self.readers.as_ref().map_or(&self.writer, |readers| &readers.lists)
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(self.clock.now())
    }

    async fn register(&self, registration: Registration) -> Result<Registered, StoreError> {
        self.writer.call(move |step| step.register(&registration)).await
    }

    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatReply, StoreError> {
        self.writer.call(move |step| step.heartbeat(&heartbeat)).await
    }

    async fn deregister(&self, worker: WorkerId) -> Result<Freed, StoreError> {
        self.writer.call(move |step| step.deregister(worker)).await
    }

    async fn drain_worker(&self, worker: WorkerId) -> Result<Option<WorkerRecord>, StoreError> {
        self.writer.call(move |step| step.drain_worker(worker)).await
    }

    async fn remove_worker(&self, worker: WorkerId) -> Result<Option<(WorkerRecord, Freed)>, StoreError> {
        self.writer.call(move |step| step.remove_worker(worker)).await
    }

    async fn workers(&self, pool: Option<&PoolName>) -> Result<Vec<WorkerRecord>, StoreError> {
        let pool = pool.cloned();
        self.lookups().call(move |step| step.workers(pool.as_ref())).await
    }

    async fn submit(&self, submission: Submission) -> Result<Submitted, StoreError> {
        self.writer.call(move |step| step.submit(&submission)).await
    }

    async fn claim(&self, session: SessionId, epoch: Epoch) -> Result<Option<SessionRecord>, StoreError> {
        self.writer.call(move |step| step.claim(session, epoch)).await
    }

    async fn activate(&self, session: SessionId, epoch: Epoch) -> Result<Option<SessionRecord>, StoreError> {
        self.writer.call(move |step| step.activate(session, epoch)).await
    }

    async fn placement_failed(&self, failure: PlacementFailure) -> Result<Replaced, StoreError> {
        self.writer.call(move |step| step.placement_failed(&failure)).await
    }

    async fn touch(&self, batch: &[Touch]) -> Result<(), StoreError> {
        let batch = batch.to_vec();
        self.writer
            .call(move |step| batch.iter().try_for_each(|touch| step.touch(touch)))
            .await
    }

    async fn end(&self, session: SessionId, reason: EndReason, detail: Option<String>) -> Result<Ended, StoreError> {
        self.writer
            .call(move |step| step.end(session, reason, detail.clone()))
            .await
    }

    async fn vacate(&self, session: SessionId, epoch: Epoch) -> Result<Freed, StoreError> {
        self.writer.call(move |step| step.vacate(session, epoch)).await
    }

    async fn session(&self, session: SessionId) -> Result<Option<SessionRecord>, StoreError> {
        self.lookups().call(move |step| step.session(session)).await
    }

    async fn sessions(&self, query: &SessionQuery) -> Result<Vec<SessionRecord>, StoreError> {
        let query = query.clone();
        self.lists().call(move |step| step.sessions(&query)).await
    }

    async fn position(&self, session: SessionId) -> Result<Option<u64>, StoreError> {
        self.lookups().call(move |step| step.position(session)).await
    }

    async fn renew_tickets(&self, coordinator: CoordinatorId) -> Result<u64, StoreError> {
        self.writer.call(move |step| step.renew_tickets(coordinator)).await
    }

    async fn dispatch(&self) -> Result<Vec<Placement>, StoreError> {
        self.writer.call(|step| step.dispatch_all()).await
    }

    async fn sweep(&self) -> Result<Freed, StoreError> {
        self.writer.call(|step| step.sweep()).await
    }

    async fn queue(&self, pool: &PoolName, limit: u32) -> Result<Vec<SessionRecord>, StoreError> {
        let pool = pool.clone();
        self.lists().call(move |step| step.queue(&pool, limit)).await
    }

    async fn clear_queue(&self, filter: QueueFilter, reason: EndReason, detail: &str) -> Result<Freed, StoreError> {
        let detail = detail.to_owned();
        self.writer
            .call(move |step| step.clear_queue(&filter, reason, &detail))
            .await
    }

    async fn set_limit(&self, pool: &PoolName, scope: LimitScope, max: Option<u64>) -> Result<Freed, StoreError> {
        let pool = pool.clone();
        self.writer.call(move |step| step.set_limit(&pool, &scope, max)).await
    }

    async fn limits(&self) -> Result<Vec<LimitRecord>, StoreError> {
        self.lookups().call(|step| step.limits()).await
    }

    async fn acquire_lock(&self, wish: LockWish) -> Result<Locking, StoreError> {
        self.writer.call(move |step| step.acquire_lock(&wish)).await
    }

    async fn renew_lock(&self, name: &LockName, token: LockToken, ttl: Duration) -> Result<Renewal, StoreError> {
        let name = name.clone();
        self.writer.call(move |step| step.renew_lock(&name, token, ttl)).await
    }

    async fn release_lock(&self, name: &LockName, token: LockToken) -> Result<Unlocking, StoreError> {
        let name = name.clone();
        self.writer.call(move |step| step.release_lock(&name, token)).await
    }

    async fn force_unlock(&self, name: &LockName) -> Result<Option<(LockRecord, Freed)>, StoreError> {
        let name = name.clone();
        self.writer.call(move |step| step.force_unlock(&name)).await
    }

    async fn locks(&self) -> Result<Vec<LockView>, StoreError> {
        self.lookups().call(|step| step.locks()).await
    }

    async fn create_key(&self, key: NewKey) -> Result<KeyRecord, StoreError> {
        self.writer.call(move |step| step.create_key(&key)).await
    }

    async fn key(&self, key: KeyId) -> Result<Option<KeyRecord>, StoreError> {
        self.lookups().call(move |step| step.key(key)).await
    }

    async fn keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        self.lookups().call(|step| step.keys()).await
    }

    async fn revoke_key(&self, key: KeyId) -> Result<Option<(KeyRecord, Freed)>, StoreError> {
        self.writer.call(move |step| step.revoke_key(key)).await
    }

    async fn set_quota(&self, key: KeyId, max_sessions: Option<u64>) -> Result<Option<KeyRecord>, StoreError> {
        self.writer.call(move |step| step.set_quota(key, max_sessions)).await
    }

    async fn key_used(&self, key: KeyId) -> Result<(), StoreError> {
        self.writer.call(move |step| step.key_used(key)).await
    }

    async fn pool(&self, pool: &PoolName) -> Result<PoolReport, StoreError> {
        let pool = pool.clone();
        self.lookups().call(move |step| step.pool(&pool)).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        self.lookups().call(|step| step.stats()).await
    }

    async fn snapshot(&self) -> Result<Snapshot, StoreError> {
        self.lists().call(|step| step.snapshot()).await
    }

    async fn events(&self, after: u64, limit: u32) -> Result<EventPage, StoreError> {
        self.lists().call(move |step| step.events(after, limit)).await
    }

    fn changes(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    async fn close(&self) -> Result<(), StoreError> {
        // The readers first: the last connection of a file is the one that may tidy up.
        if let Some(readers) = &self.readers {
            readers.lookups.close().await;
            readers.lists.close().await;
        }
        self.writer.close().await;
        Ok(())
    }
}
