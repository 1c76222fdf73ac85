//! A store over one ledger, for tests only: the port's operations as operations of the ledger, under one lock, in the
//! manner of the real one, and with what each kind of test wants done besides.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::broadcast;
use wharf_core::{
    Clock, CoordinatorId, EndReason, Epoch, KeyId, LimitScope, LockName, LockToken, PoolName, SessionId, Timestamp,
    WorkerId,
};
use wharf_ledger::{Answer, Ledger, Op};
use wharf_store::{
    Change, Ended, EventPage, Freed, Heartbeat, HeartbeatReply, KeyRecord, LimitRecord, LockRecord, LockView, LockWish,
    Locking, NewKey, Placement, PlacementFailure, PoolReport, QueueFilter, Registered, Registration, Renewal, Replaced,
    SessionQuery, SessionRecord, Snapshot, Stats, Store, StoreError, StoreRules, Submission, Submitted, Touch,
    Unlocking, WorkerRecord,
    conformance::{Harness, ManualClock},
};

/// How often an answer came from the archive, so that a run can say whether it got there.
pub static FROM_ARCHIVE: AtomicU64 = AtomicU64::new(0);

/// What is done beside each operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// Nothing.
    Plain,
    /// The ledger is replaced by what its image says.
    Imaged,
    /// Whatever may be archived is, after every operation.
    Archiving,
    /// Operations go through JSON, into two ledgers that must stay the same.
    Twins,
    /// Indices are made anew and compared; what says that it is not due must not be.
    Audited,
}

impl Variant {
    fn engine(self, clock: Arc<ManualClock>, rules: StoreRules) -> Engine {
        Engine {
            clock,
            variant: self,
            state: Mutex::new(State {
                ledger: Ledger::new(rules),
                twin: Ledger::new(rules),
                archive: BTreeMap::new(),
            }),
            changes: broadcast::channel(4096).0,
        }
    }
}

#[async_trait]
impl Harness for Variant {
    async fn open(&self, clock: Arc<ManualClock>, rules: StoreRules) -> Arc<dyn Store> {
        Arc::new(self.engine(clock, rules))
    }
}

struct Engine {
    clock: Arc<ManualClock>,
    variant: Variant,
    state: Mutex<State>,
    changes: broadcast::Sender<Change>,
}

struct State {
    ledger: Ledger,
    twin: Ledger,
    archive: BTreeMap<SessionId, SessionRecord>,
}

impl State {
    fn apply(&mut self, variant: Variant, now: Timestamp, op: Op, changes: &broadcast::Sender<Change>) -> Answer {
        let is_sweep = op == Op::Sweep;
        let applied = match variant {
            Variant::Twins => self.apply_twice(now, &op),
            Variant::Audited => self.apply_audited(now, op),
            Variant::Plain | Variant::Imaged | Variant::Archiving => self.ledger.apply(now, op),
        };
        match variant {
            Variant::Imaged => {
                let image = self.ledger.image().unwrap();
                self.ledger = Ledger::from_image(&image).unwrap();
                assert_eq!(self.ledger.image().unwrap(), image);
            }
            Variant::Archiving => {
                self.archive(now);
                if is_sweep {
                    let kept_from = now.before(self.ledger.rules().history);
                    self.archive
                        .retain(|_, record| record.ended_at.is_none_or(|at| at > kept_from));
                }
            }
            _ => {}
        }
        for change in applied.news {
            // Nobody listening is not an error.
            changes.send(change).ok();
        }
        applied.answer
    }

    fn apply_twice(&mut self, now: Timestamp, op: &Op) -> wharf_ledger::Applied {
        let text = serde_json::to_string(op).unwrap();
        let read = || serde_json::from_str::<Op>(&text).unwrap();
        assert_eq!(read(), *op);
        let applied = self.ledger.apply(now, read());
        assert_eq!(self.twin.apply(now, read()), applied);
        assert_eq!(self.ledger.image().unwrap(), self.twin.image().unwrap());
        applied
    }

    fn apply_audited(&mut self, now: Timestamp, op: Op) -> wharf_ledger::Applied {
        let is_quiet_sweep = op == Op::Sweep && !self.ledger.is_due(now);
        if is_quiet_sweep {
            // Time is part of the state.
            self.ledger.apply(now, Op::Touch { batch: Vec::new() });
        }
        let before = is_quiet_sweep.then(|| self.ledger.image().unwrap());
        let tickets = match op {
            Op::RenewTickets { coordinator } => Some(self.ledger.tickets(coordinator)),
            _ => None,
        };
        let applied = self.ledger.apply(now, op);
        self.ledger.audit().unwrap();
        if let Some(before) = before {
            assert_eq!(self.ledger.image().unwrap(), before, "it said that nothing was due");
            assert!(!self.ledger.is_due(now));
        }
        if let Some(tickets) = tickets {
            assert_eq!(applied.answer, Answer::Renewed(tickets));
        }
        applied
    }

    /// First those of one coordinator, then whoever's.
    fn archive(&mut self, now: Timestamp) {
        let first = self.ledger.archivable(now, Duration::ZERO, None, usize::MAX);
        let coordinator = first.first().map(|record| record.coordinator);
        for of in [coordinator, None] {
            let found = self.ledger.archivable(now, Duration::ZERO, of, usize::MAX);
            assert!(of.is_none() || found.iter().all(|record| Some(record.coordinator) == of));
            let records: Vec<_> = found.into_iter().cloned().collect();
            let sessions = records.iter().map(|record| record.id).collect();
            self.archive
                .extend(records.into_iter().map(|record| (record.id, record)));
            self.ledger.apply(now, Op::Archived { sessions });
        }
        self.ledger.audit().unwrap();
    }

    /// All records, here and in the archive, by id.
    fn records(&self, snapshot: Vec<SessionRecord>) -> Vec<SessionRecord> {
        let mut all = self.archive.clone();
        for record in snapshot {
            assert!(
                all.insert(record.id, record).is_none(),
                "a record is here and in the archive"
            );
        }
        all.into_values().collect()
    }
}

impl Engine {
    fn read<T>(&self, look: impl FnOnce(&State, Timestamp) -> T) -> T {
        let state = self.state.lock();
        let now = self.clock.now();
        look(&state, now)
    }

    fn apply(&self, op: Op) -> Answer {
        self.with(|state, now| state.apply(self.variant, now, op, &self.changes))
    }

    fn with<T>(&self, work: impl FnOnce(&mut State, Timestamp) -> T) -> T {
        let mut state = self.state.lock();
        let now = self.clock.now();
        work(&mut state, now)
    }
}

/// The answer of the kind that the operation has.
macro_rules! expect {
    ($answer:expr, $kind:ident) => {
        match $answer {
            Answer::$kind(answer) => Ok(answer),
            other => panic!("expected {}, got {other:?}", stringify!($kind)),
        }
    };
}

#[async_trait]
impl Store for Engine {
    async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(self.read(|_, now| now))
    }

    async fn register(&self, registration: Registration) -> Result<Registered, StoreError> {
        expect!(self.apply(Op::Register { registration }), Registered)
    }

    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatReply, StoreError> {
        expect!(self.apply(Op::Heartbeat { heartbeat }), Heartbeat)
    }

    async fn deregister(&self, worker: WorkerId) -> Result<Freed, StoreError> {
        expect!(self.apply(Op::Deregister { worker }), Freed)
    }

    async fn drain_worker(&self, worker: WorkerId) -> Result<Option<WorkerRecord>, StoreError> {
        expect!(self.apply(Op::DrainWorker { worker }), Worker)
    }

    async fn remove_worker(&self, worker: WorkerId) -> Result<Option<(WorkerRecord, Freed)>, StoreError> {
        expect!(self.apply(Op::RemoveWorker { worker }), Removed)
    }

    async fn workers(&self, pool: Option<&PoolName>) -> Result<Vec<WorkerRecord>, StoreError> {
        Ok(self.read(|state, _| state.ledger.workers(pool)))
    }

    async fn submit(&self, submission: Submission) -> Result<Submitted, StoreError> {
        self.with(|state, now| {
            let compare = |known: &SessionRecord, spec| match known.spec == spec {
                true => Submitted::Known(Box::new(known.clone())),
                false => Submitted::KeyReused(known.id),
            };
            if submission.idempotency_key.is_none()
                && let Some(known) = state.archive.get(&submission.session)
            {
                // The journal recognises a repeated submission; the suite repeats it later than a journal would.
                return Ok(compare(known, submission.spec));
            }
            let spec = submission.spec.clone();
            let submission = Box::new(submission);
            match state.apply(self.variant, now, Op::Submit { submission }, &self.changes) {
                Answer::Submitted(submitted) => Ok(submitted),
                Answer::KnownInArchive(id) => {
                    FROM_ARCHIVE.fetch_add(1, Ordering::SeqCst);
                    Ok(compare(&state.archive[&id], spec))
                }
                other => panic!("expected a submission's answer, got {other:?}"),
            }
        })
    }

    async fn claim(&self, session: SessionId, epoch: Epoch) -> Result<Option<SessionRecord>, StoreError> {
        let answer = expect!(self.apply(Op::Claim { session, epoch }), Session);
        answer.map(|record| record.map(|record| *record))
    }

    async fn activate(&self, session: SessionId, epoch: Epoch) -> Result<Option<SessionRecord>, StoreError> {
        let answer = expect!(self.apply(Op::Activate { session, epoch }), Session);
        answer.map(|record| record.map(|record| *record))
    }

    async fn placement_failed(&self, failure: PlacementFailure) -> Result<Replaced, StoreError> {
        self.with(|state, now| {
            let (session, epoch) = (failure.session, failure.epoch);
            let answer = state.apply(self.variant, now, Op::PlacementFailed { failure }, &self.changes);
            let archived = state
                .archive
                .get(&session)
                .filter(|record| record.epoch == epoch)
                .cloned();
            match (answer, archived) {
                (Answer::Replaced(Replaced::Stale), Some(record)) => {
                    // The model dispatches here, too, and forgets an expired lock by it.
                    state.apply(self.variant, now, Op::Dispatch, &self.changes);
                    Ok(Replaced::Ended(Box::new(record)))
                }
                (answer, _) => expect!(answer, Replaced),
            }
        })
    }

    async fn touch(&self, batch: &[Touch]) -> Result<(), StoreError> {
        self.apply(Op::Touch { batch: batch.to_vec() });
        Ok(())
    }

    async fn end(&self, session: SessionId, reason: EndReason, detail: Option<String>) -> Result<Ended, StoreError> {
        let op = Op::End {
            session,
            reason,
            detail,
        };
        self.with(|state, now| {
            let answer = state.apply(self.variant, now, op, &self.changes);
            match (answer, state.archive.get(&session)) {
                (Answer::Ended(Ended::Unknown), Some(record)) => Ok(Ended::Before(Box::new(record.clone()))),
                (answer, _) => expect!(answer, Ended),
            }
        })
    }

    async fn vacate(&self, session: SessionId, epoch: Epoch) -> Result<Freed, StoreError> {
        expect!(self.apply(Op::Vacate { session, epoch }), Freed)
    }

    async fn session(&self, session: SessionId) -> Result<Option<SessionRecord>, StoreError> {
        Ok(self.read(|state, _| {
            let live = state.ledger.session(session);
            live.or_else(|| state.archive.get(&session)).cloned()
        }))
    }

    async fn sessions(&self, query: &SessionQuery) -> Result<Vec<SessionRecord>, StoreError> {
        Ok(self.read(|state, _| {
            let found = state.ledger.sessions(query);
            let matching = |record: &SessionRecord| {
                query.pool.as_ref().is_none_or(|pool| record.spec.pool == *pool)
                    && (query.statuses.is_empty() || query.statuses.contains(&record.state.status()))
                    && query
                        .operation
                        .as_ref()
                        .is_none_or(|operation| record.spec.operation == *operation)
                    && query.owner.is_none_or(|owner| record.owner == Some(owner))
                    && query.reason.is_none_or(|reason| record.reason() == Some(reason))
                    && query.after.is_none_or(|after| match query.newest_first {
                        true => record.id < after,
                        false => record.id > after,
                    })
            };
            let archived = state.archive.values().filter(|record| matching(record)).cloned();
            let mut all: Vec<_> = found.into_iter().chain(archived).collect();
            all.sort_by_key(|record| record.id);
            if query.newest_first {
                all.reverse();
            }
            all.truncate(query.limit as usize);
            all
        }))
    }

    async fn position(&self, session: SessionId) -> Result<Option<u64>, StoreError> {
        Ok(self.read(|state, _| state.ledger.position(session)))
    }

    async fn renew_tickets(&self, coordinator: CoordinatorId) -> Result<u64, StoreError> {
        expect!(self.apply(Op::RenewTickets { coordinator }), Renewed)
    }

    async fn queue(&self, pool: &PoolName, limit: u32) -> Result<Vec<SessionRecord>, StoreError> {
        Ok(self.read(|state, _| state.ledger.queue(pool, limit)))
    }

    async fn clear_queue(&self, filter: QueueFilter, reason: EndReason, detail: &str) -> Result<Freed, StoreError> {
        let detail = detail.to_owned();
        expect!(self.apply(Op::ClearQueue { filter, reason, detail }), Freed)
    }

    async fn dispatch(&self) -> Result<Vec<Placement>, StoreError> {
        expect!(self.apply(Op::Dispatch), Placed)
    }

    async fn sweep(&self) -> Result<Freed, StoreError> {
        expect!(self.apply(Op::Sweep), Freed)
    }

    async fn set_limit(&self, pool: &PoolName, scope: LimitScope, max: Option<u64>) -> Result<Freed, StoreError> {
        let pool = pool.clone();
        expect!(self.apply(Op::SetLimit { pool, scope, max }), Freed)
    }

    async fn limits(&self) -> Result<Vec<LimitRecord>, StoreError> {
        Ok(self.read(|state, _| state.ledger.limits()))
    }

    async fn acquire_lock(&self, wish: LockWish) -> Result<Locking, StoreError> {
        expect!(self.apply(Op::AcquireLock { wish }), Locking)
    }

    async fn renew_lock(&self, name: &LockName, token: LockToken, ttl: Duration) -> Result<Renewal, StoreError> {
        let name = name.clone();
        expect!(self.apply(Op::RenewLock { name, token, ttl }), Renewal)
    }

    async fn release_lock(&self, name: &LockName, token: LockToken) -> Result<Unlocking, StoreError> {
        let name = name.clone();
        expect!(self.apply(Op::ReleaseLock { name, token }), Unlocking)
    }

    async fn force_unlock(&self, name: &LockName) -> Result<Option<(LockRecord, Freed)>, StoreError> {
        let name = name.clone();
        expect!(self.apply(Op::ForceUnlock { name }), ForcedUnlock)
    }

    async fn locks(&self) -> Result<Vec<LockView>, StoreError> {
        Ok(self.read(|state, now| state.ledger.locks(now)))
    }

    async fn create_key(&self, key: NewKey) -> Result<KeyRecord, StoreError> {
        let made: Result<_, StoreError> = expect!(self.apply(Op::CreateKey { key }), Key);
        made.map(|key| key.expect("it has just been made"))
    }

    async fn key(&self, key: KeyId) -> Result<Option<KeyRecord>, StoreError> {
        Ok(self.read(|state, _| state.ledger.key(key)))
    }

    async fn keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        Ok(self.read(|state, _| state.ledger.keys()))
    }

    async fn revoke_key(&self, key: KeyId) -> Result<Option<(KeyRecord, Freed)>, StoreError> {
        expect!(self.apply(Op::RevokeKey { key }), Revoked)
    }

    async fn set_quota(&self, key: KeyId, max_sessions: Option<u64>) -> Result<Option<KeyRecord>, StoreError> {
        expect!(self.apply(Op::SetQuota { key, max_sessions }), Key)
    }

    async fn key_used(&self, key: KeyId) -> Result<(), StoreError> {
        self.apply(Op::KeyUsed { key });
        Ok(())
    }

    async fn pool(&self, pool: &PoolName) -> Result<PoolReport, StoreError> {
        Ok(self.read(|state, _| state.ledger.pool(pool)))
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        Ok(self.read(|state, _| state.ledger.stats()))
    }

    async fn snapshot(&self) -> Result<Snapshot, StoreError> {
        Ok(self.read(|state, now| {
            let snapshot = state.ledger.snapshot(now);
            Snapshot {
                sessions: state.records(snapshot.sessions),
                ..snapshot
            }
        }))
    }

    async fn events(&self, after: u64, limit: u32) -> Result<EventPage, StoreError> {
        Ok(self.read(|state, _| state.ledger.events(after, limit)))
    }

    fn changes(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    async fn close(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
