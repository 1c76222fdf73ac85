//! What the suite is built with: a clock that tests move, a harness that opens an engine, and short hands.
//!
//! Its own file because scenarios and random runs share it. Ids are small numbers here, so that a failing sequence reads
//! well.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tokio::sync::broadcast;
use uuid::Uuid;
use wharf_core::{
    BrowserKind, Clock, CoordinatorId, Cover, EndReason, Epoch, KeyId, LimitScope, LockName, LockToken, Operation,
    PoolName, Priority, SessionId, SessionSpec, Timestamp, WorkerId,
};

use crate::{
    Change, Freed, Heartbeat, HeartbeatReply, KeyRole, Load, LockWish, NewKey, Registration, SessionRecord, Store,
    StoreRules, Submission, Submitted, invariants,
};

/// A clock that moves only when told to, or by a tick with every reading.
#[derive(Debug)]
pub struct ManualClock {
    now: AtomicI64,
    /// Microseconds.
    tick: i64,
}

/// How the suite gets an engine: empty, on this clock, with these rules.
#[async_trait]
pub trait Harness: Send + Sync {
    /// Opens an empty store.
    async fn open(&self, clock: Arc<ManualClock>, rules: StoreRules) -> Arc<dyn Store>;

    /// Whether the engine may take a submission with the id of a session that has ended for a new one. An engine that has
    /// its own way to find out about a lost answer need not remember ids for it.
    fn forgets_ids(&self) -> bool {
        false
    }
}

/// An engine under test and its clock.
pub(crate) struct Grid {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<ManualClock>,
}

/// Runs a test's future.
pub fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime
        .expect("a runtime needs nothing a test host lacks")
        .block_on(test);
}

pub(crate) fn session(n: u128) -> SessionId {
    SessionId::from_uuid(Uuid::from_u128(n))
}

pub(crate) fn worker(n: u128) -> WorkerId {
    WorkerId::from_uuid(Uuid::from_u128(n))
}

pub(crate) fn coordinator(n: u128) -> CoordinatorId {
    CoordinatorId::from_uuid(Uuid::from_u128(n))
}

pub(crate) fn pool(name: &str) -> PoolName {
    name.parse().expect("the suite's pool names are legal")
}

pub(crate) fn priority(number: i64) -> Priority {
    Priority::try_from(number).expect("the suite's priorities are in range")
}

pub(crate) fn operation(name: &str) -> Operation {
    name.parse().expect("the suite's operations are legal")
}

pub(crate) fn limit_scope(name: &str) -> LimitScope {
    LimitScope::Operation(operation(name))
}

pub(crate) fn lock_name(name: &str) -> LockName {
    name.parse().expect("the suite's lock names are legal")
}

pub(crate) fn token(n: u128) -> LockToken {
    LockToken::from_uuid(Uuid::from_u128(n))
}

pub(crate) fn key(n: u128) -> KeyId {
    KeyId::from_uuid(Uuid::from_u128(n))
}

/// A key of a client, without a quota.
pub(crate) fn new_key(n: u128) -> NewKey {
    NewKey {
        id: key(n),
        name: format!("key number {n}"),
        hash: [u8::try_from(n).unwrap_or(u8::MAX); 32],
        role: KeyRole::Client,
        max_sessions: None,
    }
}

/// A wish for a lock over everything, for ten seconds.
pub(crate) fn wish(name: &str, by: u128) -> LockWish {
    LockWish {
        name: lock_name(name),
        token: token(by),
        holder: format!("holder {by}"),
        description: "maintenance".to_owned(),
        cover: Cover::default(),
        ttl: seconds(10),
        owner: None,
    }
}

pub(crate) const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A ready worker of the default pool that serves Chromium.
pub(crate) fn registration(n: u128, slots: u32) -> Registration {
    Registration {
        worker: worker(n),
        pool: PoolName::default(),
        browsers: vec![BrowserKind::Chromium],
        slots,
        address: format!("http://worker-{n}:1"),
        is_ready: true,
    }
}

/// A newcomer of the default pool and class, from coordinator 1, with room in the queue.
pub(crate) fn submission(n: u128) -> Submission {
    Submission {
        session: session(n),
        coordinator: coordinator(1),
        spec: SessionSpec::default(),
        owner: None,
        idempotency_key: None,
        queue_limit: 100,
    }
}

/// The same for one operation.
pub(crate) fn submission_for(n: u128, name: &str) -> Submission {
    let mut one = submission(n);
    one.spec.operation = operation(name);
    one
}

/// A report of a healthy worker that holds these.
pub(crate) fn heartbeat(n: u128, held: &[(u128, u32)]) -> Heartbeat {
    Heartbeat {
        worker: worker(n),
        held: held.iter().map(|(n, epoch)| (session(*n), Epoch(*epoch))).collect(),
        is_circuit_open: false,
        is_ready: true,
        is_draining: false,
        warm: 0,
        launching: 0,
        load: Load::default(),
        wants_recycling: false,
    }
}

/// Who ended, and why, in order.
pub(crate) fn ended(freed: &Freed) -> Vec<(u128, EndReason)> {
    freed
        .ended
        .iter()
        .map(|ended| (ended.session.as_uuid().as_u128(), ended.reason))
        .collect()
}

/// The changes told so far, but for the word that there are events.
pub(crate) fn told(changes: &mut broadcast::Receiver<Change>) -> Vec<Change> {
    let mut news = Vec::new();
    while let Ok(change) = changes.try_recv() {
        if !matches!(change, Change::Noted(_)) {
            news.push(change);
        }
    }
    news
}

/// Who was placed, in order.
pub(crate) fn placed(freed: &Freed) -> Vec<u128> {
    freed
        .placed
        .iter()
        .map(|placement| placement.session.as_uuid().as_u128())
        .collect()
}

// === impl ManualClock ===

impl ManualClock {
    /// A clock at a fixed, ordinary time.
    pub fn new() -> Self {
        Self {
            now: AtomicI64::new(1_700_000_000_000_000),
            tick: 0,
        }
    }

    /// The same, but no two readings are equal: what came later in a race has a later time.
    pub fn ticking() -> Self {
        Self { tick: 1, ..Self::new() }
    }

    /// Moves the time on.
    pub fn advance(&self, span: Duration) {
        self.now
            .fetch_add(i64::try_from(span.as_micros()).unwrap_or(i64::MAX), Ordering::SeqCst);
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.now.fetch_add(self.tick, Ordering::SeqCst))
    }
}

// === impl Grid ===

impl Grid {
    /// An empty engine with the default rules.
    pub(crate) async fn open(harness: &dyn Harness) -> Self {
        let clock = Arc::new(ManualClock::new());
        let store = harness.open(Arc::clone(&clock), StoreRules::default()).await;
        Self { store, clock }
    }

    /// The same with one ready worker, number 1.
    pub(crate) async fn with_worker(harness: &dyn Harness, slots: u32) -> Self {
        let grid = Self::open(harness).await;
        grid.store.register(registration(1, slots)).await.expect("register");
        grid
    }

    pub(crate) async fn submit(&self, n: u128) -> Submitted {
        self.store.submit(submission(n)).await.expect("submit")
    }

    /// Submits a session that must find a slot.
    pub(crate) async fn place(&self, n: u128) -> SessionRecord {
        match self.submit(n).await {
            Submitted::Placed(record) => *record,
            other => panic!("expected {n} to be placed, got {other:?}"),
        }
    }

    /// Submits a session that must find a slot, and hands it a browser.
    pub(crate) async fn activate(&self, n: u128) -> SessionRecord {
        let epoch = self.place(n).await.epoch;
        self.store
            .activate(session(n), epoch)
            .await
            .expect("activate")
            .expect("it has just been placed")
    }

    /// Submits a session that must wait; its place.
    pub(crate) async fn queue(&self, n: u128) -> u64 {
        match self.submit(n).await {
            Submitted::Queued { position, .. } => position,
            other => panic!("expected {n} to wait, got {other:?}"),
        }
    }

    pub(crate) async fn record(&self, n: u128) -> SessionRecord {
        self.store
            .session(session(n))
            .await
            .expect("session")
            .expect("it exists")
    }

    pub(crate) async fn reason(&self, n: u128) -> Option<wharf_core::EndReason> {
        self.record(n).await.reason()
    }

    /// A report that must be known; what the worker is told to end.
    pub(crate) async fn beat(&self, n: u128, held: &[(u128, u32)]) -> (Vec<(SessionId, Epoch)>, Freed) {
        match self.store.heartbeat(heartbeat(n, held)).await.expect("heartbeat") {
            HeartbeatReply::Known { end, freed, .. } => (end, freed),
            HeartbeatReply::Unknown => panic!("expected worker {n} to be known"),
        }
    }

    /// The invariants hold; every scenario ends with this.
    pub(crate) async fn check(&self) {
        let snapshot = self.store.snapshot().await.expect("snapshot");
        assert_eq!(invariants::violations(&snapshot), Vec::<String>::new());
    }
}
