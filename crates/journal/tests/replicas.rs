//! Replicas over a journal that fails on purpose: the whole suite of the port, agreement with the model and with each
//! other, lost answers, lost tails, outages.
#![expect(clippy::unwrap_used, reason = "a helper that fails is a failed test")]

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{sync::broadcast, task::JoinSet};
use uuid::Uuid;
use wharf_core::{
    BrowserKind, CoordinatorId, EndReason, Epoch, KeyId, LimitScope, LockName, LockToken, PoolName, SessionId,
    SessionSpec, Timestamp, WorkerId,
};
use wharf_journal::{
    Journal, JournalStore, ReplicaConfig, Upkeep, Writer,
    conformance::{Place, Places},
    memory::{Faults, MemoryJournal},
};
use wharf_store::{
    Change, Ended, EventPage, Freed, Heartbeat, HeartbeatReply, KeyRecord, LimitRecord, LockRecord, LockView, LockWish,
    Locking, NewKey, Placement, PlacementFailure, PoolReport, QueueFilter, Registered, Registration, Renewal, Replaced,
    SessionQuery, SessionRecord, SetBack, Snapshot, Stats, Store, StoreError, StoreRules, Submission, Submitted, Touch,
    Unlocking, WorkerRecord,
    conformance::{Harness, ManualClock, lockstep, race, run},
    invariants,
};
use wharf_store_memory::MemoryStore;

/// Everything is put away at once, so that tests see it happen.
const EAGER: Upkeep = Upkeep {
    archive_every: Duration::ZERO,
    archive_others: Duration::ZERO,
    prune_every: Duration::ZERO,
    checkpoint_pages: 7,
    pages_kept: 3,
};

fn config(n: u128, clock: Option<Arc<ManualClock>>, rules: StoreRules) -> ReplicaConfig {
    ReplicaConfig {
        writer: Writer(Uuid::from_u128(n)),
        coordinator: CoordinatorId::from_uuid(Uuid::from_u128(n)),
        rules,
        upkeep: EAGER,
        clock: clock.map(|clock| clock as _),
    }
}

async fn open(journal: &MemoryJournal, n: u128, clock: &Arc<ManualClock>, rules: StoreRules) -> Arc<JournalStore> {
    let config = config(n, Some(clock.clone()), rules);
    Arc::new(JournalStore::open(Arc::new(journal.clone()), config).await.unwrap())
}

struct Model;
struct One;
/// Answers are lost and calls fail, all the time.
struct Faulty;

#[async_trait::async_trait]
impl Harness for Model {
    async fn open(&self, clock: Arc<ManualClock>, rules: StoreRules) -> Arc<dyn Store> {
        Arc::new(MemoryStore::new(clock, rules))
    }
}

#[async_trait::async_trait]
impl Harness for One {
    fn forgets_ids(&self) -> bool {
        true
    }

    async fn open(&self, clock: Arc<ManualClock>, rules: StoreRules) -> Arc<dyn Store> {
        open(&MemoryJournal::default(), 1, &clock, rules).await
    }
}

/// The same, its tasks on a runtime that outlives whoever opened it.
struct Shared;

#[async_trait::async_trait]
impl Harness for Shared {
    async fn open(&self, clock: Arc<ManualClock>, rules: StoreRules) -> Arc<dyn Store> {
        static RUNTIME: OnceLock<tokio::runtime::Runtime> = OnceLock::new();
        let runtime = RUNTIME.get_or_init(|| tokio::runtime::Runtime::new().unwrap());
        let opening = async move { open(&MemoryJournal::default(), 1, &clock, rules).await };
        runtime.spawn(opening).await.unwrap()
    }
}

#[async_trait::async_trait]
impl Harness for Faulty {
    fn forgets_ids(&self) -> bool {
        true
    }

    async fn open(&self, clock: Arc<ManualClock>, rules: StoreRules) -> Arc<dyn Store> {
        let journal = MemoryJournal::default();
        let store = open(&journal, 1, &clock, rules).await;
        journal.set_faults(Faults {
            lose_answer_every: 3,
            fail_every: 0,
            is_down: false,
        });
        store
    }
}

#[async_trait::async_trait]
impl Places for Model {
    async fn empty(&self) -> Box<dyn Place> {
        Box::new(MemoryPlace(MemoryJournal::default()))
    }
}

struct MemoryPlace(MemoryJournal);

#[async_trait::async_trait]
impl Place for MemoryPlace {
    async fn open(&self) -> Arc<dyn Journal> {
        Arc::new(self.0.clone())
    }
}

mod one {
    wharf_store::conformance_tests!(super::One);
}

#[test]
fn random_sequences_agree_with_the_model() {
    lockstep::check(&One, Some(&Model), 256);
}

#[test]
fn random_sequences_agree_although_answers_are_lost() {
    lockstep::check(&Faulty, Some(&Model), 24);
}

#[test]
fn locks_raced_against_placement_keep_the_invariants() {
    race::locks(&Shared, 1_000);
}

#[test]
fn limits_raced_against_placement_keep_the_invariants() {
    race::limits(&Shared, 1_000);
}

#[test]
fn journal_for_tests_keeps_the_contract_of_journals() {
    run(wharf_journal::conformance::check(&Model));
}

/// Three coordinators on one journal; operations go to each in turn, and are looked at through the first.
struct Three;

struct InTurn {
    stores: Vec<Arc<JournalStore>>,
    next: AtomicUsize,
}

#[async_trait::async_trait]
impl Harness for Three {
    fn forgets_ids(&self) -> bool {
        true
    }

    async fn open(&self, clock: Arc<ManualClock>, rules: StoreRules) -> Arc<dyn Store> {
        let journal = MemoryJournal::default();
        let mut stores = Vec::new();
        for n in 1..=3 {
            stores.push(open(&journal, n, &clock, rules).await);
        }
        Arc::new(InTurn {
            stores,
            next: AtomicUsize::new(0),
        })
    }
}

macro_rules! in_turn {
    ($($name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        #[async_trait::async_trait]
        impl Store for InTurn {
            $(async fn $name(&self, $($arg: $type),*) -> Result<$answer, StoreError> {
                let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.stores.len();
                let answer = self.stores[turn].$name($($arg),*).await;
                // The first one, which is listened to, has heard of it.
                self.stores[0].now().await?;
                answer
            })*

            fn changes(&self) -> broadcast::Receiver<Change> {
                self.stores[0].changes()
            }

            async fn close(&self) -> Result<(), StoreError> {
                let first = self.stores[0].image().await?;
                for store in &self.stores {
                    assert_eq!(store.image().await?, first, "replicas differ");
                    store.close().await?;
                }
                Ok(())
            }
        }
    };
}

in_turn! {
    now() -> Timestamp;
    register(registration: Registration) -> Registered;
    heartbeat(heartbeat: Heartbeat) -> HeartbeatReply;
    deregister(worker: WorkerId) -> Freed;
    drain_worker(worker: WorkerId) -> Option<WorkerRecord>;
    remove_worker(worker: WorkerId) -> Option<(WorkerRecord, Freed)>;
    workers(pool: Option<&PoolName>) -> Vec<WorkerRecord>;
    submit(submission: Submission) -> Submitted;
    claim(session: SessionId, epoch: Epoch) -> Option<SessionRecord>;
    activate(session: SessionId, epoch: Epoch) -> Option<SessionRecord>;
    placement_failed(failure: PlacementFailure) -> Replaced;
    touch(batch: &[Touch]) -> ();
    end(session: SessionId, reason: EndReason, detail: Option<String>) -> Ended;
    vacate(session: SessionId, epoch: Epoch) -> Freed;
    session(session: SessionId) -> Option<SessionRecord>;
    sessions(query: &SessionQuery) -> Vec<SessionRecord>;
    position(session: SessionId) -> Option<u64>;
    renew_tickets(coordinator: CoordinatorId) -> u64;
    queue(pool: &PoolName, limit: u32) -> Vec<SessionRecord>;
    clear_queue(filter: QueueFilter, reason: EndReason, detail: &str) -> Freed;
    set_limit(pool: &PoolName, scope: LimitScope, max: Option<u64>) -> Freed;
    limits() -> Vec<LimitRecord>;
    acquire_lock(wish: LockWish) -> Locking;
    renew_lock(name: &LockName, token: LockToken, ttl: Duration) -> Renewal;
    release_lock(name: &LockName, token: LockToken) -> Unlocking;
    force_unlock(name: &LockName) -> Option<(LockRecord, Freed)>;
    locks() -> Vec<LockView>;
    create_key(key: NewKey) -> KeyRecord;
    key(key: KeyId) -> Option<KeyRecord>;
    keys() -> Vec<KeyRecord>;
    revoke_key(key: KeyId) -> Option<(KeyRecord, Freed)>;
    set_quota(key: KeyId, max_sessions: Option<u64>) -> Option<KeyRecord>;
    key_used(key: KeyId) -> ();
    pool(pool: &PoolName) -> PoolReport;
    dispatch() -> Vec<Placement>;
    sweep() -> Freed;
    stats() -> Stats;
    snapshot() -> Snapshot;
    events(after: u64, limit: u32) -> EventPage;
}

#[test]
fn three_coordinators_in_turn_agree_with_the_model_and_with_each_other() {
    lockstep::check(&Three, Some(&Model), 64);
}

fn worker(slots: u32) -> Registration {
    Registration {
        worker: WorkerId::from_uuid(Uuid::from_u128(7)),
        pool: PoolName::default(),
        browsers: vec![BrowserKind::Chromium],
        slots,
        address: String::new(),
        is_ready: true,
    }
}

fn newcomer(n: u128) -> Submission {
    Submission {
        session: SessionId::from_uuid(Uuid::from_u128(n)),
        coordinator: CoordinatorId::from_uuid(Uuid::from_u128(1)),
        spec: SessionSpec::default(),
        owner: None,
        idempotency_key: None,
        queue_limit: 10_000,
    }
}

/// Everybody who asks is answered once, by a journal whose answers are lost and whose calls fail.
#[tokio::test]
async fn many_callers_at_three_coordinators_of_a_faulty_journal_are_each_answered_once() {
    let journal = MemoryJournal::default();
    let clock = Arc::new(ManualClock::ticking());
    let mut stores = Vec::new();
    for n in 1..=3 {
        stores.push(open(&journal, n, &clock, StoreRules::default()).await);
    }
    stores[0].register(worker(50)).await.unwrap();
    journal.set_faults(Faults {
        lose_answer_every: 5,
        fail_every: 7,
        is_down: false,
    });
    let mut callers = JoinSet::new();
    for n in 1..=300u128 {
        let store = stores[usize::try_from(n % 3).unwrap()].clone();
        callers.spawn(async move {
            let submitted = store.submit(newcomer(n)).await.unwrap();
            if let Submitted::Placed(record) = &submitted {
                store.activate(record.id, record.epoch).await.unwrap().unwrap();
                store.end(record.id, EndReason::Released, None).await.unwrap();
                store.vacate(record.id, record.epoch).await.unwrap();
            }
        });
    }
    while let Some(done) = callers.join_next().await {
        done.unwrap();
    }
    journal.set_faults(Faults::default());
    let first = stores[0].image().await.unwrap();
    for store in &stores {
        assert_eq!(store.image().await.unwrap(), first);
        let snapshot = store.snapshot().await.unwrap();
        assert_eq!(snapshot.sessions.len(), 300);
        assert_eq!(invariants::violations(&snapshot), Vec::<String>::new());
    }
    for store in &stores {
        store.close().await.unwrap();
    }
}

/// A fail-over loses the last pages: every coordinator begins again from what is there, and says that it missed something.
#[tokio::test]
async fn lost_tail_is_noticed_and_all_coordinators_agree_again() {
    let journal = MemoryJournal::default();
    let clock = Arc::new(ManualClock::ticking());
    let one = open(&journal, 1, &clock, StoreRules::default()).await;
    let other = open(&journal, 2, &clock, StoreRules::default()).await;
    one.register(worker(4)).await.unwrap();
    for n in 1..=3 {
        one.submit(newcomer(n)).await.unwrap();
    }
    other.now().await.unwrap();
    let mut changes = other.changes();
    let told = other.events(0, 100).await.unwrap();
    assert_eq!(told.set_back, SetBack::default());
    journal.lose_tail(2);
    // Sessions 2 and 3 were never heard of by the server that took over.
    other.submit(newcomer(9)).await.unwrap();
    assert!(one.session(newcomer(3).session).await.unwrap().is_none());
    assert!(one.session(newcomer(9).session).await.unwrap().is_some());
    assert_eq!(one.image().await.unwrap(), other.image().await.unwrap());
    let mut missed = false;
    while let Ok(change) = changes.try_recv() {
        missed |= change == Change::Missed;
    }
    assert!(missed, "whoever listens must look for itself");
    let now = other.events(0, 100).await.unwrap();
    let agreed = told
        .events
        .iter()
        .zip(&now.events)
        .take_while(|(then, now)| then == now);
    let agreed = agreed.map(|(event, _)| event.number).last().unwrap();
    assert!(agreed < told.newest, "{told:?} and {now:?}");
    assert_eq!(now.set_back, SetBack { times: 1, to: agreed });
    let snapshot = one.snapshot().await.unwrap();
    assert_eq!(invariants::violations(&snapshot), Vec::<String>::new());
    one.close().await.unwrap();
    other.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn outage_is_told_and_over_without_a_restart() {
    let journal = MemoryJournal::default();
    let clock = Arc::new(ManualClock::ticking());
    let store = open(&journal, 1, &clock, StoreRules::default()).await;
    store.register(worker(4)).await.unwrap();
    journal.set_faults(Faults {
        is_down: true,
        ..Faults::default()
    });
    let error = store.submit(newcomer(1)).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    assert!(store.session(newcomer(1).session).await.is_err());
    journal.set_faults(Faults::default());
    assert!(matches!(store.submit(newcomer(2)).await.unwrap(), Submitted::Placed(_)));
    assert!(store.session(newcomer(1).session).await.unwrap().is_none());
    store.close().await.unwrap();
}

/// A page of a later version stops this coordinator instead of letting it drift away from the others.
#[tokio::test]
async fn page_of_a_later_version_is_not_applied() {
    let journal = MemoryJournal::default();
    let clock = Arc::new(ManualClock::ticking());
    let store = open(&journal, 1, &clock, StoreRules::default()).await;
    store.register(worker(4)).await.unwrap();
    let (seq, before) = store.image().await.unwrap();
    let last = journal.pages().pop().unwrap();
    let after = wharf_journal::Position {
        seq: last.seq,
        mark: Some((last.writer, last.number)),
    };
    let draft = wharf_journal::Draft {
        writer: Writer(Uuid::from_u128(99)),
        number: 1,
        body: "{\"v\":2,\"ops\":[{\"op\":\"teleport\"}]}".to_owned(),
        at: None,
    };
    journal.append(after, &draft).await.unwrap();
    let error = store.submit(newcomer(1)).await.unwrap_err();
    assert!(error.to_string().contains("upgrade this coordinator"), "{error}");
    assert!(store.image().await.is_err());
    assert!(before.len() > 2 && seq == last.seq);
    store.close().await.unwrap();
}

/// A coordinator that comes late reads the checkpoint and what follows, not everything.
#[tokio::test]
async fn latecomer_begins_at_the_checkpoint() {
    let journal = MemoryJournal::default();
    let clock = Arc::new(ManualClock::ticking());
    let store = open(&journal, 1, &clock, StoreRules::default()).await;
    store.register(worker(2)).await.unwrap();
    for n in 1..=40 {
        store.submit(newcomer(n)).await.unwrap();
        store.sweep().await.unwrap();
    }
    let kept = journal.checkpoint().await.unwrap().expect("a checkpoint").position.seq;
    assert!(kept > 7, "{kept}");
    assert!(journal.pages().first().unwrap().seq > 1, "old pages are removed");
    let late = open(&journal, 2, &clock, StoreRules::default()).await;
    assert_eq!(late.image().await.unwrap(), store.image().await.unwrap());
    store.close().await.unwrap();
    late.close().await.unwrap();
}
