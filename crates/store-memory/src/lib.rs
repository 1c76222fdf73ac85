//! The reference store engine: plain maps under one lock, readable as the specification of the port.
//!
//! Layout:
//! - this file: [`MemoryStore`], which turns each operation of the port into one step on the book.
//! - `book`: what is kept, and the moves every operation is made of (end, release, dispatch).
//! - `holds`: what holds sessions back (limits, locks, quotas), as questions to the book.
//! - `rules`: the operations themselves.
//!
//! It scans where an engine for production would look up: the conformance suite compares other engines with it, so it
//! is written to be obviously right. Invariant: every answer is computed under one lock, and news leave in the order of
//! the steps that made them.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod book;
mod holds;
mod rules;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
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

use crate::book::{Book, Noted, Step};

/// News kept for a receiver that is behind; one further behind polls (see [`Store::changes`]).
const NEWS_KEPT: usize = 4096;

/// A store that lives and dies with its process.
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    rules: StoreRules,
    book: Mutex<Book>,
    changes: broadcast::Sender<Change>,
}

// === impl MemoryStore ===

impl MemoryStore {
    /// An empty store on this clock.
    pub fn new(clock: Arc<dyn Clock>, rules: StoreRules) -> Self {
        let (changes, _) = broadcast::channel(NEWS_KEPT);
        Self {
            clock,
            rules,
            book: Mutex::new(Book::default()),
            changes,
        }
    }

    /// One atomic step.
    fn step<T>(&self, work: impl FnOnce(&mut Step<'_>) -> T) -> T {
        let mut book = self.book.lock();
        // A clock that steps back must not make a silent worker fresh again.
        book.now = book.now.max(self.clock.now());
        let now = book.now;
        let waited = book.waiting_by_pool();
        let mut step = Step {
            book: &mut book,
            rules: &self.rules,
            now,
            news: Vec::new(),
            noted: Noted::default(),
        };
        let answer = work(&mut step);
        step.log(&waited);
        for change in step.news {
            // Nobody listening is not an error.
            self.changes.send(change).ok();
        }
        answer
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(self.step(|step| step.now))
    }

    async fn register(&self, registration: Registration) -> Result<Registered, StoreError> {
        Ok(self.step(|step| step.register(registration)))
    }

    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatReply, StoreError> {
        Ok(self.step(|step| step.heartbeat(&heartbeat)))
    }

    async fn deregister(&self, worker: WorkerId) -> Result<Freed, StoreError> {
        Ok(self.step(|step| step.deregister(worker)))
    }

    async fn drain_worker(&self, worker: WorkerId) -> Result<Option<WorkerRecord>, StoreError> {
        Ok(self.step(|step| step.drain_worker(worker)))
    }

    async fn remove_worker(&self, worker: WorkerId) -> Result<Option<(WorkerRecord, Freed)>, StoreError> {
        Ok(self.step(|step| step.remove_worker(worker)))
    }

    async fn workers(&self, pool: Option<&PoolName>) -> Result<Vec<WorkerRecord>, StoreError> {
        Ok(self.step(|step| {
            let all = step.book.workers();
            all.into_iter()
                .filter(|worker| pool.is_none_or(|pool| worker.pool == *pool))
                .collect()
        }))
    }

    async fn submit(&self, submission: Submission) -> Result<Submitted, StoreError> {
        Ok(self.step(|step| step.submit(submission)))
    }

    async fn claim(&self, session: SessionId, epoch: Epoch) -> Result<Option<SessionRecord>, StoreError> {
        Ok(self.step(|step| step.claim(session, epoch)))
    }

    async fn activate(&self, session: SessionId, epoch: Epoch) -> Result<Option<SessionRecord>, StoreError> {
        Ok(self.step(|step| step.activate(session, epoch)))
    }

    async fn placement_failed(&self, failure: PlacementFailure) -> Result<Replaced, StoreError> {
        Ok(self.step(|step| step.placement_failed(failure)))
    }

    async fn touch(&self, batch: &[Touch]) -> Result<(), StoreError> {
        self.step(|step| batch.iter().for_each(|touch| step.touch(touch)));
        Ok(())
    }

    async fn end(&self, session: SessionId, reason: EndReason, detail: Option<String>) -> Result<Ended, StoreError> {
        Ok(self.step(|step| step.end(session, reason, detail)))
    }

    async fn vacate(&self, session: SessionId, epoch: Epoch) -> Result<Freed, StoreError> {
        Ok(self.step(|step| step.vacate(session, epoch)))
    }

    async fn session(&self, session: SessionId) -> Result<Option<SessionRecord>, StoreError> {
        Ok(self.step(|step| step.book.sessions.get(&session).map(|entry| entry.record.clone())))
    }

    async fn sessions(&self, query: &SessionQuery) -> Result<Vec<SessionRecord>, StoreError> {
        Ok(self.step(|step| step.book.list(query)))
    }

    async fn position(&self, session: SessionId) -> Result<Option<u64>, StoreError> {
        Ok(self.step(|step| step.book.position(session)))
    }

    async fn renew_tickets(&self, coordinator: CoordinatorId) -> Result<u64, StoreError> {
        Ok(self.step(|step| step.renew_tickets(coordinator)))
    }

    async fn dispatch(&self) -> Result<Vec<Placement>, StoreError> {
        Ok(self.step(|step| step.dispatch(None)))
    }

    async fn sweep(&self) -> Result<Freed, StoreError> {
        Ok(self.step(|step| step.sweep()))
    }

    async fn queue(&self, pool: &PoolName, limit: u32) -> Result<Vec<SessionRecord>, StoreError> {
        Ok(self.step(|step| step.queue(pool, limit)))
    }

    async fn clear_queue(&self, filter: QueueFilter, reason: EndReason, detail: &str) -> Result<Freed, StoreError> {
        Ok(self.step(|step| step.clear_queue(&filter, reason, detail)))
    }

    async fn set_limit(&self, pool: &PoolName, scope: LimitScope, max: Option<u64>) -> Result<Freed, StoreError> {
        Ok(self.step(|step| step.set_limit(pool, scope, max)))
    }

    async fn limits(&self) -> Result<Vec<LimitRecord>, StoreError> {
        Ok(self.step(|step| step.book.limits.values().cloned().collect()))
    }

    async fn acquire_lock(&self, wish: LockWish) -> Result<Locking, StoreError> {
        Ok(self.step(|step| step.acquire_lock(wish)))
    }

    async fn renew_lock(&self, name: &LockName, token: LockToken, ttl: Duration) -> Result<Renewal, StoreError> {
        Ok(self.step(|step| step.renew_lock(name, token, ttl)))
    }

    async fn release_lock(&self, name: &LockName, token: LockToken) -> Result<Unlocking, StoreError> {
        Ok(self.step(|step| step.release_lock(name, token)))
    }

    async fn force_unlock(&self, name: &LockName) -> Result<Option<(LockRecord, Freed)>, StoreError> {
        Ok(self.step(|step| step.force_unlock(name)))
    }

    async fn locks(&self) -> Result<Vec<LockView>, StoreError> {
        Ok(self.step(|step| step.locks()))
    }

    async fn create_key(&self, key: NewKey) -> Result<KeyRecord, StoreError> {
        Ok(self.step(|step| step.create_key(key)))
    }

    async fn key(&self, key: KeyId) -> Result<Option<KeyRecord>, StoreError> {
        Ok(self.step(|step| step.book.key(key)))
    }

    async fn keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        Ok(self.step(|step| step.book.all_keys()))
    }

    async fn revoke_key(&self, key: KeyId) -> Result<Option<(KeyRecord, Freed)>, StoreError> {
        Ok(self.step(|step| step.revoke_key(key)))
    }

    async fn set_quota(&self, key: KeyId, max_sessions: Option<u64>) -> Result<Option<KeyRecord>, StoreError> {
        Ok(self.step(|step| step.set_quota(key, max_sessions)))
    }

    async fn key_used(&self, key: KeyId) -> Result<(), StoreError> {
        self.step(|step| step.key_used(key));
        Ok(())
    }

    async fn pool(&self, pool: &PoolName) -> Result<PoolReport, StoreError> {
        Ok(self.step(|step| step.book.pool(pool)))
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        Ok(self.step(|step| step.book.stats()))
    }

    async fn snapshot(&self) -> Result<Snapshot, StoreError> {
        Ok(self.step(|step| Snapshot {
            at: step.now,
            sessions: step.book.sessions.values().map(|entry| entry.record.clone()).collect(),
            leases: step
                .book
                .leases
                .iter()
                .map(|(session, lease)| (*session, lease.seat))
                .collect(),
            workers: step.book.workers(),
            limits: step.book.limits.values().cloned().collect(),
            locks: step.book.locks.values().cloned().collect(),
            keys: step.book.all_keys(),
        }))
    }

    async fn events(&self, after: u64, limit: u32) -> Result<EventPage, StoreError> {
        Ok(self.step(|step| step.book.events(after, limit)))
    }

    fn changes(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    async fn close(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
