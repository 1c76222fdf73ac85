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
use uuid::Uuid;
use wharf_core::{
    BrowserKind, Clock, CoordinatorId, Epoch, PoolName, Priority, SessionId, SessionSpec, Timestamp, WorkerId,
};

use crate::{
    Freed, Heartbeat, HeartbeatReply, Registration, SessionRecord, Store, StoreRules, Submission, Submitted, invariants,
};

/// A clock that moves only when told to.
#[derive(Debug)]
pub struct ManualClock(AtomicI64);

/// How the suite gets an engine: empty, on this clock, with these rules.
#[async_trait]
pub trait Harness: Send + Sync {
    /// Opens an empty store.
    async fn open(&self, clock: Arc<ManualClock>, rules: StoreRules) -> Arc<dyn Store>;
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
        idempotency_key: None,
        queue_limit: 100,
    }
}

/// A report of a healthy worker that holds these.
pub(crate) fn heartbeat(n: u128, held: &[(u128, u32)]) -> Heartbeat {
    Heartbeat {
        worker: worker(n),
        held: held.iter().map(|(n, epoch)| (session(*n), Epoch(*epoch))).collect(),
        is_circuit_open: false,
        is_ready: true,
        is_draining: false,
    }
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
        Self(AtomicI64::new(1_700_000_000_000_000))
    }

    /// Moves the time on.
    pub fn advance(&self, span: Duration) {
        self.0
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
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
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
            HeartbeatReply::Known { end, freed } => (end, freed),
            HeartbeatReply::Unknown => panic!("expected worker {n} to be known"),
        }
    }

    /// The invariants hold; every scenario ends with this.
    pub(crate) async fn check(&self) {
        let snapshot = self.store.snapshot().await.expect("snapshot");
        assert_eq!(invariants::violations(&snapshot), Vec::<String>::new());
    }
}
