//! The service against the reference store and a scripted link: a client that leaves at every await point, placements
//! that fail, ends that race, the drain.
//!
//! Every store and link call is made to yield before and after, so that "dropped after k polls" visits each await.

mod look;

use std::{
    collections::HashSet,
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::poll;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::{
    sync::{broadcast, watch},
    task::yield_now,
};
use uuid::Uuid;
use wharf_core::{
    BrowserKind, Clock, CoordinatorId, EndReason, Epoch, ErrorCode, KeyId, LimitScope, LockName, LockToken, Phase,
    PoolName, Seat, SessionId, SessionSpec, Timeouts, Timestamp, WorkerId,
};
use wharf_relay::Side;
use wharf_store::{invariants::violations, *};
use wharf_store_memory::MemoryStore;

use super::{Ask, Service, ServiceParts};
use crate::{
    BrowserIo, Caller, CoordinatorConfig, CoordinatorMetrics, DialTarget, Driven, LeaseWish, LinkError, PageInfo,
    Refusal, WorkerLink,
};

struct TokioClock(tokio::time::Instant);

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(i64::try_from(self.0.elapsed().as_micros()).unwrap())
    }
}

/// The reference store with an await point on both sides of every operation.
struct YieldingStore(MemoryStore);

macro_rules! yielding {
    ($($name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        #[async_trait]
        impl Store for YieldingStore {
            $(async fn $name(&self, $($arg: $type),*) -> Result<$answer, StoreError> {
                yield_now().await;
                let answer = self.0.$name($($arg),*).await;
                yield_now().await;
                answer
            })*

            fn changes(&self) -> broadcast::Receiver<Change> {
                self.0.changes()
            }
        }
    };
}

yielding! {
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
    close() -> ();
}

/// A worker that leases after a few yields, or fails as often as it is told.
struct FakeLink {
    store: Arc<dyn Store>,
    held: Mutex<HashSet<(SessionId, Epoch)>>,
    failures: AtomicUsize,
    leases: AtomicUsize,
    /// What a program would answer; none for browsers that are not asked.
    answer: Mutex<Option<Result<serde_json::Value, LinkError>>>,
}

#[async_trait]
impl WorkerLink for FakeLink {
    async fn lease(&self, wish: LeaseWish) -> Result<Option<serde_json::Value>, LinkError> {
        self.leases.fetch_add(1, Ordering::SeqCst);
        yield_now().await;
        if self.failures.load(Ordering::SeqCst) > 0 {
            self.failures.fetch_sub(1, Ordering::SeqCst);
            return Err(LinkError::LaunchFailed("scripted".to_owned()));
        }
        self.held.lock().insert((wish.session, wish.seat.epoch));
        yield_now().await;
        let answer = self.answer.lock().clone();
        answer.transpose().map(|answer| {
            answer.map(|mut answer| {
                answer["data"] = wish.data;
                answer
            })
        })
    }

    async fn look(&self, _: SessionId, _: Seat, _: Duration) -> Result<serde_json::Value, LinkError> {
        yield_now().await;
        self.answer.lock().clone().unwrap_or(Err(LinkError::NotHeld))
    }

    async fn close(&self, session: SessionId, seat: Seat) -> bool {
        yield_now().await;
        let was_held = self.held.lock().remove(&(session, seat.epoch));
        if was_held {
            yield_now().await;
            self.store.vacate(session, seat.epoch).await.unwrap();
        }
        was_held
    }

    async fn dial(&self, _: SessionId, _: Seat, _: DialTarget) -> Result<Side<Box<dyn BrowserIo>>, LinkError> {
        yield_now().await;
        let (ours, _theirs) = tokio::io::duplex(64);
        Ok(Side::new(Box::new(ours)))
    }

    async fn pages(&self, _: SessionId, _: Seat) -> Result<Vec<PageInfo>, LinkError> {
        Ok(Vec::new())
    }

    async fn open_page(&self, _: SessionId, _: Seat, _: &str) -> Result<PageInfo, LinkError> {
        Err(LinkError::NotHeld)
    }

    async fn protocol(&self) -> Result<Vec<u8>, LinkError> {
        Err(LinkError::NotHeld)
    }

    async fn driven(&self) -> Driven {
        Driven::default()
    }

    fn check_options(&self, _: &serde_json::Value) -> Result<(), String> {
        Ok(())
    }

    async fn disturb(&self, _: SessionId, _: Seat, _: crate::Fault) -> Result<(), LinkError> {
        Ok(())
    }

    async fn is_there(&self, _: WorkerId) -> bool {
        true
    }

    async fn call_back(&self, _: WorkerId, _: &str) -> Result<(), String> {
        Ok(())
    }

    async fn orphans(&self) -> u64 {
        0
    }
}

pub(crate) struct Rig {
    pub(crate) service: Service,
    pub(crate) store: Arc<dyn Store>,
    link: Arc<FakeLink>,
    pub(crate) phase: watch::Sender<Phase>,
}

pub(crate) async fn rig(slots: u32, queue_limit: u64) -> Rig {
    let clock = Arc::new(TokioClock(tokio::time::Instant::now()));
    let rules = StoreRules {
        liveness_ttl: Duration::from_secs(1_000_000),
        ..StoreRules::default()
    };
    let store: Arc<dyn Store> = Arc::new(YieldingStore(MemoryStore::new(clock, rules)));
    let worker = WorkerId::from_uuid(Uuid::now_v7());
    let registration = Registration {
        worker,
        pool: PoolName::default(),
        browsers: vec![BrowserKind::Chromium, BrowserKind::Command],
        slots,
        address: String::new(),
        is_ready: true,
    };
    store.register(registration).await.unwrap();
    let link = Arc::new(FakeLink {
        store: store.clone(),
        held: Mutex::default(),
        failures: AtomicUsize::new(0),
        leases: AtomicUsize::new(0),
        answer: Mutex::default(),
    });
    let (phase, phases) = watch::channel(Phase::Ready);
    let service = Service::spawn(ServiceParts {
        config: CoordinatorConfig {
            queue_limit,
            ..crate::config::tests::config()
        },
        store: store.clone(),
        link: link.clone(),
        metrics: Arc::new(CoordinatorMetrics::register(&mut Registry::default())),
        phase: phases,
    });
    Rig {
        service,
        store,
        link,
        phase,
    }
}

pub(crate) fn ask() -> Ask {
    Ask {
        spec: SessionSpec::default(),
        owner: None,
        idempotency_key: None,
    }
}

impl Rig {
    /// A look at a session wherever it runs.
    async fn look(&self, session: SessionId) -> Result<serde_json::Value, Refusal> {
        let record = self.service.session(session).await?;
        let seat = Seat {
            worker: record.worker.unwrap(),
            epoch: record.epoch,
        };
        self.service.look(session, seat).await
    }

    /// Waits until nobody holds or waits for anything, then checks the invariants.
    async fn is_empty(&self, when: &str) {
        for _ in 0..200 {
            let stats = self.store.stats().await.unwrap();
            if stats.queued + stats.starting + stats.active + stats.busy == 0 && self.link.held.lock().is_empty() {
                assert_eq!(
                    violations(&self.store.snapshot().await.unwrap()),
                    Vec::<String>::new(),
                    "{when}"
                );
                assert_eq!(self.service.live_sessions(), 0, "{when}: live sessions are remembered");
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!(
            "{when}: something is still held: {:?}",
            self.store.snapshot().await.unwrap()
        );
    }
}

/// Polls a future `times` times, letting everything else run in between; `Some` if it finished by then.
async fn poll_times<F: Future>(future: F, times: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..times {
        if let std::task::Poll::Ready(output) = poll!(future.as_mut()) {
            return Some(output);
        }
        yield_now().await;
    }
    None
}

/// More polls than any path through `open` takes.
const POLLS: usize = 40;

#[tokio::test(start_paused = true)]
async fn client_leaving_at_every_await_of_a_free_slot_leaves_nothing() {
    let mut finished = 0;
    for polls in 0..POLLS {
        let rig = rig(1, 10).await;
        finished += usize::from(poll_times(rig.service.open(ask()), polls).await.is_some());
        rig.is_empty(&format!("left after {polls} polls")).await;
    }
    assert!(
        (1..POLLS).contains(&finished),
        "{finished} of {POLLS} got as far as the hand-over"
    );
}

#[tokio::test(start_paused = true)]
async fn client_leaving_at_every_await_of_the_queue_leaves_nothing_and_the_next_is_served() {
    let mut finished = 0;
    for polls in 0..POLLS {
        let rig = rig(1, 10).await;
        let holder = rig.service.open(ask()).await.unwrap().delivered();
        let leaver = async {
            // Placed in the middle of the wait, so that claim, lease and activation are visited too.
            let freed = async {
                for _ in 0..8 {
                    yield_now().await;
                }
                rig.service.end(holder.id, EndReason::Released, None).await.unwrap();
            };
            tokio::join!(poll_times(rig.service.open(ask()), polls), freed).0
        };
        finished += usize::from(leaver.await.is_some());
        let next = tokio::time::timeout(Duration::from_secs(20), rig.service.open(ask())).await;
        drop(next.expect("the next client was not served").unwrap());
        rig.is_empty(&format!("left after {polls} polls")).await;
    }
    assert!(
        (1..POLLS).contains(&finished),
        "{finished} of {POLLS} got as far as the hand-over"
    );
}

#[tokio::test(start_paused = true)]
async fn client_leaving_at_every_await_of_a_failing_placement_leaves_nothing() {
    for polls in 0..POLLS * 2 {
        let rig = rig(1, 10).await;
        rig.link.failures.store(2, Ordering::SeqCst);
        poll_times(rig.service.open(ask()), polls).await;
        rig.is_empty(&format!("left after {polls} polls")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn failed_placements_are_tried_three_times_and_then_told() {
    let rig = rig(1, 10).await;
    rig.link.failures.store(2, Ordering::SeqCst);
    rig.service.open(ask()).await.unwrap().delivered();
    assert_eq!(rig.link.leases.load(Ordering::SeqCst), 3);

    let rig = self::rig(1, 10).await;
    rig.link.failures.store(9, Ordering::SeqCst);
    let refusal = rig.service.open(ask()).await.err().unwrap();
    assert_eq!(refusal.code, ErrorCode::LaunchFailed);
    assert!(refusal.message.contains("scripted"), "{}", refusal.message);
    assert_eq!(rig.link.leases.load(Ordering::SeqCst), 3);
    rig.is_empty("all attempts failed").await;
}

#[tokio::test(start_paused = true)]
async fn full_queue_names_its_limit_and_timed_out_wait_its_position() {
    let rig = rig(1, 1).await;
    let holder = rig.service.open(ask()).await.unwrap().delivered();
    let spec = SessionSpec {
        timeouts: Timeouts {
            queue: Duration::from_secs(2),
            ..Timeouts::default()
        },
        ..SessionSpec::default()
    };
    let waiter = rig.service.open(Ask {
        spec,
        owner: None,
        idempotency_key: None,
    });
    let second = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        rig.service.open(ask()).await
    };
    let (waiter, second) = tokio::join!(waiter, second);
    let (waiter, second) = (waiter.err().unwrap(), second.err().unwrap());
    assert_eq!((second.code, second.limit), (ErrorCode::QueueFull, Some((1, 1))));
    assert!(second.retry_after.is_some());
    assert_eq!((waiter.code, waiter.position), (ErrorCode::QueueTimeout, Some(1)));
    rig.service.end(holder.id, EndReason::Released, None).await.unwrap();
    rig.is_empty("afterwards").await;
}

#[tokio::test(start_paused = true)]
async fn draining_refuses_newcomers_and_waiters() {
    let rig = rig(1, 10).await;
    let holder = rig.service.open(ask()).await.unwrap().delivered();
    let drain = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        rig.phase.send_replace(Phase::Draining);
    };
    let (waiter, ()) = tokio::join!(rig.service.open(ask()), drain);
    assert_eq!(waiter.err().unwrap().code, ErrorCode::Draining);
    assert_eq!(rig.service.open(ask()).await.err().unwrap().code, ErrorCode::Draining);
    rig.service
        .end(holder.id, EndReason::WorkerDrained, None)
        .await
        .unwrap();
    rig.is_empty("drained").await;
}

#[tokio::test(start_paused = true)]
async fn retried_create_with_the_same_key_never_makes_two() {
    let rig = rig(2, 10).await;
    let keyed = || Ask {
        owner: None,
        idempotency_key: Some("k".to_owned()),
        ..ask()
    };
    let (one, two) = tokio::join!(rig.service.open(keyed()), rig.service.open(keyed()));
    let (one, two) = (one.unwrap().delivered(), two.unwrap().delivered());
    assert_eq!(one.id, two.id);
    assert_eq!(rig.store.stats().await.unwrap().active, 1);
    rig.service.end(one.id, EndReason::Released, None).await.unwrap();
    rig.is_empty("afterwards").await;
}

#[tokio::test(start_paused = true)]
async fn session_ended_while_it_waits_tells_its_client() {
    let rig = rig(1, 10).await;
    let holder = rig.service.open(ask()).await.unwrap().delivered();
    let kill = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let query = SessionQuery {
            statuses: vec![wharf_core::SessionStatus::Queued],
            limit: 1,
            ..SessionQuery::default()
        };
        let waiting = rig.store.sessions(&query).await.unwrap();
        rig.service.end(waiting[0].id, EndReason::Killed, None).await.unwrap();
    };
    let (waiter, ()) = tokio::join!(rig.service.open(ask()), kill);
    let refusal = waiter.err().unwrap();
    assert_eq!(
        (refusal.code, refusal.reason),
        (ErrorCode::QueueCleared, Some(EndReason::Killed))
    );
    rig.service.end(holder.id, EndReason::Released, None).await.unwrap();
    rig.is_empty("afterwards").await;
}

#[tokio::test(start_paused = true)]
async fn attachment_dropped_before_its_relay_ends_a_session_per_connection() {
    let rig = rig(1, 10).await;
    let session = rig.service.open(ask()).await.unwrap().delivered().id;
    let attachment = rig
        .service
        .attach(Caller::Anyone, session, DialTarget::Browser, super::OnLeave::End)
        .await
        .unwrap();
    drop(attachment);
    rig.is_empty("dropped at the hand-over").await;
    let record = rig.service.session(session).await.unwrap();
    assert_eq!(record.reason(), Some(EndReason::ClientDisconnected));
}

/// After `Browser.close` the browser's socket breaks, the client leaves, and only then the exit is seen.
#[tokio::test(start_paused = true)]
async fn broken_socket_waits_for_whoever_knows_why_and_speaks_for_itself_if_nobody_does() {
    for (told, expected) in [
        (Some(EndReason::Released), EndReason::Released),
        (None, EndReason::BrowserCrashed),
    ] {
        let rig = rig(1, 10).await;
        let session = rig.service.open(ask()).await.unwrap().delivered().id;
        let mut attachment = rig
            .service
            .attach(Caller::Anyone, session, DialTarget::Browser, super::OnLeave::End)
            .await
            .unwrap();
        attachment.end = Some(wharf_relay::RelayEnd::BrowserGone);
        drop(attachment);
        tokio::time::sleep(Duration::from_millis(500)).await;
        if let Some(reason) = told {
            rig.service.end(session, reason, None).await.unwrap();
        }
        rig.is_empty("told or not").await;
        let record = rig.service.session(session).await.unwrap();
        assert_eq!(record.reason(), Some(expected));
    }
}

#[tokio::test(start_paused = true)]
async fn idle_and_connect_timeouts_end_sessions_by_the_sweep() {
    let rig = rig(2, 10).await;
    let never_attached = rig.service.open(ask()).await.unwrap().delivered().id;
    let attached = rig.service.open(ask()).await.unwrap().delivered().id;
    drop(
        rig.service
            .attach(Caller::Anyone, attached, DialTarget::Browser, super::OnLeave::AsMade)
            .await
            .unwrap(),
    );
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert_eq!(
        rig.service.session(never_attached).await.unwrap().reason(),
        Some(EndReason::ConnectTimeout)
    );
    assert_eq!(rig.service.session(attached).await.unwrap().reason(), None);
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert_eq!(
        rig.service.session(attached).await.unwrap().reason(),
        Some(EndReason::IdleTimeout)
    );
    rig.is_empty("timed out").await;
}
