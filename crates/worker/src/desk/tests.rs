//! The desk against a scripted driver: leases, launches, ends, back-off, withdrawal, drain; `program`: sessions of programs.

mod program;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::sync::{Semaphore, mpsc, watch};
use uuid::Uuid;
use wharf_core::{BrowserKind, EndReason, Epoch, SessionId, Timestamp, WorkerId, warm::WarmRules};
use wharf_driver::{
    Browser, BrowserVersion, ControlError, Driver, DriverProblem, DriverReport, Endpoint, Exit, LaunchError,
    LaunchOptions, LaunchSpec, PageTarget, ProbeFailed,
};
use wharf_process::ExitStatus;
use wharf_store::{Heartbeat, HeartbeatReply, Registration};

use crate::{
    LeaseError, LeaseRequest, Uplink, UplinkError, WorkerConfig, WorkerHandle, WorkerMetrics, WorkerParts, WorkerStatus,
};

/// What the worker told the grid.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Told {
    Ended(SessionId, EndReason),
    Vacated(SessionId, Epoch),
}

struct FakeBrowser {
    id: wharf_core::BrowserId,
    options: LaunchOptions,
    endpoint: Endpoint,
    version: BrowserVersion,
    exit: watch::Sender<Option<Exit>>,
    is_hung: AtomicBool,
    alive: Arc<AtomicUsize>,
    script: Option<Arc<program::Script>>,
}

/// Launches as the test allows: one permit a launch; failures as many as asked for.
struct FakeDriver {
    permits: Semaphore,
    failures: AtomicUsize,
    launched: Mutex<Vec<Arc<FakeBrowser>>>,
    alive: Arc<AtomicUsize>,
    most_alive: AtomicUsize,
    /// What its browsers do as programs; none for browsers that are not told of their sessions.
    script: Option<Arc<program::Script>>,
}

struct FakeGrid(mpsc::UnboundedSender<Told>);

struct Clock(tokio::time::Instant);

impl wharf_core::Clock for Clock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(i64::try_from(self.0.elapsed().as_micros()).unwrap())
    }
}

#[async_trait]
impl Browser for FakeBrowser {
    fn id(&self) -> wharf_core::BrowserId {
        self.id
    }
    fn pid(&self) -> u32 {
        1
    }
    fn version(&self) -> &BrowserVersion {
        &self.version
    }
    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
    async fn probe(&self, limit: Duration) -> Result<(), ProbeFailed> {
        if self.is_hung.load(Ordering::SeqCst) {
            tokio::time::sleep(limit).await;
            return Err(ProbeFailed(ControlError::Timeout {
                method: "Fake.method",
                limit,
            }));
        }
        Ok(())
    }
    async fn exited(&self) -> Exit {
        let mut exit = self.exit.subscribe();
        let seen = exit.wait_for(Option::is_some).await.unwrap();
        seen.clone().unwrap()
    }
    async fn kill(&self) {
        tokio::time::sleep(Duration::from_millis(30)).await;
        if self.exit.send_replace(Some(Exit::Killed)) != Some(Exit::Killed) {
            self.alive.fetch_sub(1, Ordering::SeqCst);
        }
    }
    async fn files_removed(&self) {}
    fn pss_bytes(&self) -> Option<u64> {
        None
    }
    async fn pages(&self, _: Duration) -> Result<Vec<PageTarget>, ControlError> {
        Ok(Vec::new())
    }
    async fn open_page(&self, _: &str, limit: Duration) -> Result<PageTarget, ControlError> {
        Err(ControlError::Timeout {
            method: "Fake.method",
            limit,
        })
    }
    fn promote(&self) {}
    fn program(&self) -> Option<&dyn wharf_driver::Program> {
        self.script.as_ref().map(|_| self as &dyn wharf_driver::Program)
    }
}

#[async_trait]
impl Driver for FakeDriver {
    fn kind(&self) -> wharf_driver::BrowserKind {
        wharf_driver::BrowserKind::Chromium
    }
    async fn check(&self) -> Result<DriverReport, DriverProblem> {
        unreachable!("the desk never checks")
    }
    async fn launch(&self, spec: LaunchSpec) -> Result<Arc<dyn Browser>, LaunchError> {
        tokio::select! {
            permit = self.permits.acquire() => permit.unwrap().forget(),
            () = spec.cancel.cancelled() => return Err(LaunchError::Cancelled),
        }
        if self.failures.load(Ordering::SeqCst) > 0 {
            self.failures.fetch_sub(1, Ordering::SeqCst);
            return Err(LaunchError::ExitedEarly {
                exit: ExitStatus::Code(7),
                stderr: "no display".into(),
            });
        }
        let alive = self.alive.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_alive.fetch_max(alive, Ordering::SeqCst);
        let browser = Arc::new(FakeBrowser {
            id: spec.id,
            options: spec.options,
            endpoint: Endpoint {
                addr: SocketAddr::from(([127, 0, 0, 1], 1)),
                path: "/".into(),
            },
            version: serde_json::from_str(r#"{"product":"Fake/1"}"#).unwrap(),
            exit: watch::channel(None).0,
            is_hung: AtomicBool::new(false),
            alive: self.alive.clone(),
            script: self.script.clone(),
        });
        self.launched.lock().push(browser.clone());
        Ok(browser)
    }
}

#[async_trait]
impl Uplink for FakeGrid {
    async fn register(&self, _: Registration) -> Result<(), UplinkError> {
        Ok(())
    }
    async fn heartbeat(&self, _: Heartbeat) -> Result<HeartbeatReply, UplinkError> {
        Ok(HeartbeatReply::Known {
            drain: false,
            end: Vec::new(),
            freed: wharf_store::Freed::default(),
        })
    }
    async fn deregister(&self, _: WorkerId) -> Result<(), UplinkError> {
        Ok(())
    }
    async fn ended(&self, session: SessionId, _: Epoch, reason: EndReason, _: Option<String>) {
        self.0.send(Told::Ended(session, reason)).unwrap();
    }
    async fn vacated(&self, session: SessionId, epoch: Epoch) {
        self.0.send(Told::Vacated(session, epoch)).unwrap();
    }
}

struct Rig {
    worker: WorkerHandle,
    driver: Arc<FakeDriver>,
    told: mpsc::UnboundedReceiver<Told>,
}

async fn rig(min: usize, max: usize, spare: usize, permits: usize) -> Rig {
    rig_with((min, max, spare), permits, None).await
}

async fn rig_with(
    (min, max, spare): (usize, usize, usize),
    permits: usize,
    script: Option<Arc<program::Script>>,
) -> Rig {
    let driver = Arc::new(FakeDriver {
        permits: Semaphore::new(permits),
        failures: AtomicUsize::new(0),
        launched: Mutex::default(),
        alive: Arc::default(),
        most_alive: AtomicUsize::new(0),
        script,
    });
    #[expect(clippy::disallowed_methods, reason = "a test reads it to the end")]
    let (tell, told) = mpsc::unbounded_channel();
    let worker = crate::spawn(WorkerParts {
        config: WorkerConfig {
            id: WorkerId::from_uuid(Uuid::now_v7()),
            pool: "default".parse().unwrap(),
            browser: BrowserKind::Chromium,
            warm: WarmRules {
                min,
                max,
                spare,
                parallel_launches: 2,
                memory_budget: None,
            },
            launch_timeout: Duration::from_secs(6),
            forward_timeout: Duration::from_secs(5),
            probe_interval: Duration::from_secs(5),
            probe_limit: Duration::from_secs(2),
            probe_misses: 2,
            tick: Duration::from_secs(10),
            heartbeat_interval: Duration::from_secs(3),
            memory_limit: None,
            address: String::new(),
            recycling: crate::Recycling::default(),
            fence_after: None,
        },
        driver: driver.clone(),
        uplink: Arc::new(FakeGrid(tell)),
        clock: Arc::new(Clock(tokio::time::Instant::now())),
        metrics: Arc::new(WorkerMetrics::register(&mut Registry::default())),
    })
    .await
    .unwrap();
    Rig { worker, driver, told }
}

fn wish(epoch: u32) -> LeaseRequest {
    LeaseRequest {
        session: SessionId::from_uuid(Uuid::now_v7()),
        epoch: Epoch(epoch),
        options: LaunchOptions::default(),
        data: serde_json::Value::Null,
    }
}

impl Rig {
    /// Waits (in paused time) until the worker looks like this.
    async fn until(&self, what: &str, is_so: impl Fn(&WorkerStatus) -> bool) -> WorkerStatus {
        for _ in 0..2000 {
            let status = self.worker.status().await.unwrap();
            if is_so(&status) {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("never came: {what}; now {:?}", self.worker.status().await);
    }

    /// Stops, and checks that nothing is left.
    async fn finish(self) {
        self.worker.stop(EndReason::WorkerDrained, Duration::from_secs(5)).await;
        assert_eq!(self.driver.alive.load(Ordering::SeqCst), 0, "browsers left alive");
        assert!(self.worker.status().await.is_none(), "the desk is still there");
    }

    fn browser(&self, at: usize) -> Arc<FakeBrowser> {
        self.driver.launched.lock()[at].clone()
    }
}

#[tokio::test(start_paused = true)]
async fn lease_takes_a_warm_browser_and_close_gives_the_slot_back() {
    let mut rig = rig(2, 4, 1, 100).await;
    rig.until("two warm", |s| s.warm == 2).await;
    let wish = wish(1);
    rig.worker.lease(wish.clone()).await.unwrap();
    assert!(rig.worker.browser(wish.session).is_some());
    assert!(rig.worker.close(wish.session, wish.epoch).await);
    assert!(rig.worker.browser(wish.session).is_none());
    assert_eq!(rig.told.recv().await, Some(Told::Vacated(wish.session, Epoch(1))));
    assert!(!rig.worker.close(wish.session, wish.epoch).await, "closed twice");
    rig.finish().await;
}

#[tokio::test(start_paused = true)]
async fn crash_is_told_before_the_slot_is_free() {
    let mut rig = rig(1, 2, 0, 100).await;
    rig.until("one warm", |s| s.warm == 1).await;
    let wish = wish(1);
    rig.worker.lease(wish.clone()).await.unwrap();
    rig.browser(0).exit.send_replace(Some(Exit::Crashed {
        status: ExitStatus::Signal(9),
        detail: String::new(),
    }));
    assert_eq!(
        rig.told.recv().await,
        Some(Told::Ended(wish.session, EndReason::BrowserCrashed))
    );
    assert_eq!(rig.told.recv().await, Some(Told::Vacated(wish.session, Epoch(1))));
    rig.until("replaced", |s| s.warm >= 1).await;
    rig.finish().await;
}

#[tokio::test(start_paused = true)]
async fn browser_closed_by_its_client_is_released() {
    let mut rig = rig(1, 2, 0, 100).await;
    rig.until("one warm", |s| s.warm == 1).await;
    let wish = wish(1);
    rig.worker.lease(wish.clone()).await.unwrap();
    rig.browser(0).exit.send_replace(Some(Exit::Clean));
    assert_eq!(
        rig.told.recv().await,
        Some(Told::Ended(wish.session, EndReason::Released))
    );
    rig.finish().await;
}

#[tokio::test(start_paused = true)]
async fn hung_browser_is_killed_after_two_missed_probes() {
    let mut rig = rig(1, 2, 0, 100).await;
    rig.until("one warm", |s| s.warm == 1).await;
    let wish = wish(1);
    rig.worker.lease(wish.clone()).await.unwrap();
    rig.browser(0).is_hung.store(true, Ordering::SeqCst);
    let from = tokio::time::Instant::now();
    assert_eq!(
        rig.told.recv().await,
        Some(Told::Ended(wish.session, EndReason::BrowserHung))
    );
    assert!(
        from.elapsed() <= Duration::from_secs(12),
        "noticed after {:?}",
        from.elapsed()
    );
    assert_eq!(rig.told.recv().await, Some(Told::Vacated(wish.session, Epoch(1))));
    rig.finish().await;
}

#[tokio::test(start_paused = true)]
async fn failing_launches_are_told_and_open_the_circuit_until_one_succeeds() {
    let rig = rig(0, 2, 0, 100).await;
    rig.driver.failures.store(3, Ordering::SeqCst);
    for _ in 0..3 {
        match rig.worker.lease(wish(1)).await {
            Err(LeaseError::LaunchFailed(text)) => assert!(text.contains("no display"), "{text}"),
            other => panic!("{:?}", other.map(|leased| leased.browser.id())),
        }
    }
    assert!(rig.worker.status().await.unwrap().is_circuit_open);
    rig.until("trial launch closes the circuit", |s| !s.is_circuit_open)
        .await;
    rig.worker.lease(wish(2)).await.unwrap();
    rig.finish().await;
}

#[tokio::test(start_paused = true)]
async fn withdrawn_wishes_leave_nothing_behind() {
    // No launch may finish: the wish is dropped while its browser is being launched.
    let mut rig = rig(0, 1, 0, 0).await;
    let wish = wish(1);
    let session = wish.session;
    assert!(
        tokio::time::timeout(Duration::from_millis(50), rig.worker.lease(wish))
            .await
            .is_err()
    );
    assert!(rig.worker.close(session, Epoch(1)).await, "still waiting there");
    assert_eq!(rig.told.recv().await, Some(Told::Vacated(session, Epoch(1))));
    rig.finish().await;
}

#[tokio::test(start_paused = true)]
async fn abandoned_wish_is_vacated_without_being_closed() {
    let mut rig = rig(0, 1, 0, 0).await;
    let wish = wish(1);
    let session = wish.session;
    assert!(
        tokio::time::timeout(Duration::from_millis(50), rig.worker.lease(wish))
            .await
            .is_err()
    );
    rig.driver.permits.add_permits(1);
    assert_eq!(rig.told.recv().await, Some(Told::Vacated(session, Epoch(1))));
    rig.finish().await;
}

#[tokio::test(start_paused = true)]
async fn own_options_get_their_own_browser() {
    let rig = rig(2, 2, 0, 100).await;
    rig.until("two warm", |s| s.warm == 2).await;
    let options = LaunchOptions {
        lang: Some("de-DE".into()),
        ..LaunchOptions::default()
    };
    let special = LeaseRequest {
        options: options.clone(),
        ..wish(1)
    };
    rig.worker.lease(special.clone()).await.unwrap();
    let given = rig.worker.browser(special.session).unwrap().id();
    let launched = rig
        .driver
        .launched
        .lock()
        .iter()
        .find(|browser| browser.id == given)
        .cloned()
        .unwrap();
    assert_eq!(launched.options, options);
    assert!(
        rig.driver.most_alive.load(Ordering::SeqCst) <= 2,
        "more processes than max + spare"
    );
    rig.finish().await;
}

#[tokio::test(start_paused = true)]
async fn never_more_processes_than_max_and_spare() {
    let rig = rig(2, 3, 1, 1000).await;
    for _ in 0..20 {
        let wishes: Vec<_> = (0..3).map(|_| wish(1)).collect();
        for wish in &wishes {
            rig.worker.lease(wish.clone()).await.unwrap();
        }
        for wish in &wishes {
            rig.worker.close(wish.session, wish.epoch).await;
        }
        rig.until("closed", |s| s.leased == 0 && s.closing == 0).await;
    }
    assert!(rig.driver.most_alive.load(Ordering::SeqCst) <= 4);
    rig.finish().await;
}

#[tokio::test(start_paused = true)]
async fn idle_pool_shrinks_to_min() {
    let rig = rig(1, 6, 0, 1000).await;
    let wishes: Vec<_> = (0..5).map(|_| wish(1)).collect();
    for wish in &wishes {
        rig.worker.lease(wish.clone()).await.unwrap();
    }
    rig.until("some warm", |s| s.leased == 5 && s.warm >= 1).await;
    for wish in &wishes {
        rig.worker.close(wish.session, wish.epoch).await;
    }
    let mut ticks = 0;
    while rig.worker.status().await.unwrap().warm > 1 {
        tokio::time::sleep(Duration::from_secs(10)).await;
        ticks += 1;
        assert!(ticks < 30, "did not shrink: {:?}", rig.worker.status().await);
    }
    rig.finish().await;
}

#[tokio::test(start_paused = true)]
async fn stop_ends_sessions_with_the_reason_and_leaves_nothing() {
    let mut rig = rig(2, 4, 1, 100).await;
    let wish = wish(1);
    rig.worker.lease(wish.clone()).await.unwrap();
    rig.worker.drain().await;
    assert!(matches!(
        rig.worker.lease(self::wish(1)).await,
        Err(LeaseError::Draining)
    ));
    rig.worker.stop(EndReason::WorkerDrained, Duration::from_secs(5)).await;
    assert_eq!(
        rig.told.recv().await,
        Some(Told::Ended(wish.session, EndReason::WorkerDrained))
    );
    assert_eq!(rig.told.recv().await, Some(Told::Vacated(wish.session, Epoch(1))));
    rig.finish().await;
}
