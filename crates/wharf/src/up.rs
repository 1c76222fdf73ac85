//! `wharf up`: coordinator and worker in one process on the embedded store.
//!
//! Its own file because it is the wiring: each part is built from the ones before it, sockets are bound before anything
//! is served, and the stop is the same list backwards (DESIGN.md §10).

use std::{process::ExitCode, sync::Arc, time::Duration};

use anyhow::Context;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::{
    net::{TcpListener, TcpSocket},
    sync::watch,
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use wharf_coordinator::{
    CoordinatorConfig, CoordinatorMetrics, Driven, KeyRule, Service, fronts,
    server::{self, ServerConfig},
    service::ServiceParts,
};
use wharf_core::{BrowserKind, CoordinatorId, EndReason, Phase, warm::WarmRules};
use wharf_driver::{AllowList, Driver, DriverReport};
use wharf_process::{Cgroups, RunDir, guard};
use wharf_store::Store;
use wharf_store_memory::MemoryStore;
use wharf_store_sqlite::{Durability, SqliteStore};
use wharf_worker::{WorkerConfig, WorkerHandle, WorkerMetrics, WorkerParts};

use crate::{
    EXIT_FAILED,
    clock::SystemClock,
    config::{Settings, StoreUrl},
    drivers::{self, Ground},
    local::{LocalLink, LocalUplink},
    logging,
    places::{Places, write_whole},
};

/// Ten thousand clients may come at once; the kernel caps it at its own `somaxconn`.
const BACKLOG: u32 = 4096;
/// How often the number of sessions is said while they drain.
const DRAIN_BEAT: Duration = Duration::from_millis(500);
/// How long clean-up may take after the drain.
pub const CLEAN_UP: Duration = Duration::from_secs(10);

/// A grid that is being served.
struct Grid {
    settings: Settings,
    phase: watch::Sender<Phase>,
    service: Service,
    worker: WorkerHandle,
    store: Arc<dyn Store>,
    serving: tokio::task::JoinHandle<()>,
    stop_serving: CancellationToken,
    guard: Option<guard::Guard>,
    run_dir: Arc<RunDir>,
}

pub fn run(settings: Settings) -> ExitCode {
    logging::start(&settings);
    raise_file_limit();
    // Two threads do for a grid on small machines; more cores bring more relays.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("wharf")
        .build();
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(async {
            let grid = Grid::start(settings).await?;
            grid.serve_until_told().await
        }),
        Err(error) => Err(error.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("wharf: could not run the grid: {error:#}");
            ExitCode::from(EXIT_FAILED)
        }
    }
}

// === impl Grid ===

impl Grid {
    async fn start(settings: Settings) -> anyhow::Result<Self> {
        let places = Places::tell(&settings)?;
        let listener = bind(&settings)?;
        let address = listener.local_addr()?;
        let run_dir = Arc::new(RunDir::open(&places.run_dir)?);
        say_swept(&run_dir);
        let guard = start_guard(run_dir.path());
        let store = open_store(&settings, &places).await?;

        let allow_list = allow_list(&settings)?;
        let (driver, report) = open_driver(&settings, &run_dir, allow_list.clone()).await?;
        let link = Arc::new(LocalLink {
            worker: std::sync::OnceLock::new(),
            driven: driven(&report),
            allow_list: (settings.driver != BrowserKind::Command).then_some(allow_list),
            run_dir: run_dir.clone(),
        });

        let mut registry = Registry::with_prefix("wharf");
        let metrics = Arc::new(CoordinatorMetrics::register(&mut registry));
        let worker_metrics = Arc::new(WorkerMetrics::register(&mut registry));
        let (phase, phases) = watch::channel(Phase::Starting);
        let service = Service::spawn(ServiceParts {
            config: coordinator_config(&settings),
            store: store.clone(),
            link: link.clone(),
            metrics: metrics.clone(),
            phase: phases,
        });
        let worker = wharf_worker::spawn(WorkerParts {
            config: worker_config(&settings, &places)?,
            driver,
            uplink: Arc::new(LocalUplink { store: store.clone() }),
            clock: Arc::new(SystemClock),
            metrics: worker_metrics,
        })
        .await?;
        // Set once, here; the link answers "still starting" until then.
        let _ = link.worker.set(worker.clone());

        let stop_serving = CancellationToken::new();
        let router = fronts::router(service.clone(), Arc::new(Mutex::new(registry)));
        let serving = server::serve(
            listener,
            router,
            server_config(&settings),
            metrics,
            stop_serving.clone(),
        );
        #[expect(clippy::disallowed_methods, reason = "the accept loop is awaited by name in `stop`")]
        let serving = tokio::spawn(serving);
        phase.send_replace(Phase::Ready);
        announce(&settings, address, &report)?;
        Ok(Self {
            settings,
            phase,
            service,
            worker,
            store,
            serving,
            stop_serving,
            guard,
            run_dir,
        })
    }

    /// Serves until the first signal, drains, then stops. A second signal forces.
    async fn serve_until_told(self) -> anyhow::Result<()> {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let which = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        tracing::warn!(signal = which, "shutdown signal received");
        self.phase.send_replace(Phase::Draining);
        tracing::info!("marked not ready; new sessions are refused");
        tokio::select! {
            () = self.drain() => {}
            _ = terminate.recv() => tracing::warn!("second signal: ending the remaining sessions now"),
            _ = interrupt.recv() => tracing::warn!("second signal: ending the remaining sessions now"),
        }
        self.stop().await
    }

    /// Lets sessions finish, up to the drain timeout.
    async fn drain(&self) {
        let deadline = tokio::time::Instant::now() + self.settings.drain_timeout;
        self.worker.drain().await;
        tracing::info!(sessions = self.service.live_sessions(), limit = ?self.settings.drain_timeout, "draining");
        loop {
            let left = self.live_sessions().await;
            if left == 0 {
                tracing::info!("all sessions have finished");
                return;
            }
            if tokio::time::Instant::now() >= deadline {
                tracing::warn!(sessions = left, "drain timeout: ending the remaining sessions");
                return;
            }
            tracing::info!(sessions = left, "waiting for sessions to finish");
            tokio::time::sleep(DRAIN_BEAT.min(deadline - tokio::time::Instant::now())).await;
        }
    }

    async fn live_sessions(&self) -> u64 {
        match self.store.stats().await {
            Ok(stats) => stats.active + stats.starting,
            // Without the store's word, what this process knows.
            Err(_) => self.service.live_sessions() as u64,
        }
    }

    async fn stop(self) -> anyhow::Result<()> {
        self.phase.send_replace(Phase::Closing);
        self.worker.stop(EndReason::WorkerDrained, CLEAN_UP).await;
        if tokio::time::timeout(CLEAN_UP, nothing_is_left(&self.run_dir))
            .await
            .is_err()
        {
            tracing::error!(directories = ?self.run_dir.session_ids(), "browsers were still there after the stop");
        }
        self.stop_serving.cancel();
        self.service.stop(CLEAN_UP).await;
        if tokio::time::timeout(CLEAN_UP, self.serving).await.is_err() {
            tracing::warn!("connections were still open after the stop");
        }
        self.store.close().await.context("could not close the store")?;
        self.phase.send_replace(Phase::Stopped);
        if let Some(guard) = self.guard {
            guard.dismiss().context("could not dismiss the guard")?;
        }
        if self.settings.run_dir.is_none() {
            // Ours by name and empty by now; a given one is the operator's to keep.
            let _ = std::fs::remove_dir_all(self.run_dir.path());
        }
        tracing::info!("stopped; nothing is left");
        Ok(())
    }
}

fn bind(settings: &Settings) -> anyhow::Result<TcpListener> {
    let address = settings.listen;
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    }?;
    socket.set_reuseaddr(true)?;
    let bound = socket.bind(address).and_then(|()| socket.listen(BACKLOG));
    bound.with_context(|| {
        format!("could not listen on {address}: is another grid running? Choose another port with --listen")
    })
}

/// A session holds half a dozen descriptors, and the usual soft limit of 1,024 would end at 170 sessions. The hard
/// limit is the operator's word.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!(%error, "could not raise the limit of open files; about 170 sessions will fit");
        }
    }
}

/// The process must outlive every tree it started: one that failed at the very stop is killed in the background.
async fn nothing_is_left(run_dir: &RunDir) {
    while !(wharf_process::live_roots().is_empty() && run_dir.session_ids().is_empty()) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn say_swept(run_dir: &RunDir) {
    let swept = run_dir.swept();
    if !swept.killed.is_empty() {
        tracing::warn!(processes = swept.killed.len(), "ended browsers of a past life");
    }
}

/// Without a guard everything works, except that a SIGKILL of Wharf may leave a stopped helper process behind until
/// the next start.
fn start_guard(run_dir: &std::path::Path) -> Option<guard::Guard> {
    let exe = std::env::current_exe().ok()?;
    match guard::spawn(&exe, &["guard".as_ref()], run_dir) {
        Ok(guard) => Some(guard),
        Err(error) => {
            tracing::warn!(%error, "could not start the guard process");
            None
        }
    }
}

async fn open_store(settings: &Settings, places: &Places) -> anyhow::Result<Arc<dyn Store>> {
    let clock = Arc::new(SystemClock);
    let path = match &settings.store {
        StoreUrl::Memory => return Ok(Arc::new(MemoryStore::new(clock, settings.rules))),
        StoreUrl::Sqlite(Some(path)) => path.clone(),
        StoreUrl::Sqlite(None) => places.data_dir.join("wharf.db"),
    };
    let store = SqliteStore::open(&path, Durability::default(), clock, settings.rules)?;
    let freed = store.recover("wharf was restarted").await?;
    if !freed.ended.is_empty() {
        tracing::warn!(
            sessions = freed.ended.len(),
            "ended sessions that could not survive the restart"
        );
    }
    Ok(Arc::new(store))
}

fn allow_list(settings: &Settings) -> anyhow::Result<AllowList> {
    AllowList::default().with(&settings.allow_flags).map_err(|forbidden| {
        anyhow::anyhow!(
            "allow_flag: --{} can never be allowed: it would give a client the host",
            forbidden.join(", --")
        )
    })
}

async fn open_driver(
    settings: &Settings,
    run_dir: &Arc<RunDir>,
    allow_list: AllowList,
) -> anyhow::Result<(Arc<dyn Driver>, DriverReport)> {
    let ground = Ground {
        run_dir: run_dir.clone(),
        cgroups: useful_cgroups(),
        allow_list,
    };
    let driver = drivers::open(settings, ground)?;
    let report = driver.check().await?;
    for note in &report.notes {
        tracing::warn!("{note}");
    }
    Ok((driver, report))
}

/// Groups that count memory, or none.
fn useful_cgroups() -> Option<Cgroups> {
    let cgroups = Cgroups::detect()?;
    if cgroups.counts_memory() {
        return Some(cgroups);
    }
    cgroups.remove();
    None
}

fn driven(report: &DriverReport) -> Driven {
    let version = report.version.clone();
    Driven {
        product: version.product,
        protocol_version: version.protocol_version,
        user_agent: version.user_agent,
        js_version: version.js_version,
        revision: version.revision,
    }
}

fn coordinator_config(settings: &Settings) -> CoordinatorConfig {
    CoordinatorConfig {
        id: CoordinatorId::from_uuid(Uuid::now_v7()),
        queue_limit: settings.queue,
        pool: settings.pool.clone(),
        browser: settings.driver,
        timeouts: settings.timeouts,
        longest: settings.longest,
        starting_limit: settings.rules.starting_grace,
        dial_limit: settings.dial_limit,
        forward_timeout: settings.forward_timeout,
        relay: settings.relay,
        sweep_interval: Duration::from_secs(1),
        touch_interval: Duration::from_secs(1),
        ticket_renewal: settings.ticket_renewal,
        body_limit: settings.body_limit,
        body_timeout: settings.body_timeout,
        // Whoever can be reached from elsewhere asks for a key, whether one was made or not.
        keys: match settings.keys {
            KeyRule::OnceMade if !settings.listen.ip().is_loopback() => KeyRule::Always,
            rule => rule,
        },
        faults: settings.faults,
        allow_hosts: settings.allow_hosts.clone(),
        external_url: settings.external_url.clone(),
        trusted_proxies: settings.trusted_proxies.clone(),
    }
}

fn worker_config(settings: &Settings, places: &Places) -> anyhow::Result<WorkerConfig> {
    Ok(WorkerConfig {
        id: places.worker_id()?,
        pool: settings.pool.clone(),
        browser: settings.driver,
        warm: WarmRules {
            min: settings.min,
            max: settings.max,
            spare: settings.spare,
            parallel_launches: std::thread::available_parallelism().map_or(2, std::num::NonZero::get),
            memory_budget: settings.memory_budget,
        },
        launch_timeout: settings.launch_timeout,
        forward_timeout: settings.forward_timeout,
        probe_interval: settings.probe_interval,
        probe_limit: settings.probe_limit,
        probe_misses: settings.probe_misses,
        tick: settings.tick,
        heartbeat_interval: settings.heartbeat_interval,
        memory_limit: settings.memory_limit,
    })
}

fn server_config(settings: &Settings) -> ServerConfig {
    ServerConfig {
        connections: settings.connections,
        header_timeout: settings.header_timeout,
        header_limit: settings.header_limit,
    }
}

fn announce(settings: &Settings, address: std::net::SocketAddr, report: &DriverReport) -> anyhow::Result<()> {
    tracing::info!(
        listen = %address, browser = report.version.product, binary = %report.binary.display(),
        min = settings.min, max = settings.max, queue = settings.queue, store = %settings.store, "serving"
    );
    if let Some(path) = &settings.ready_file {
        let ready = serde_json::json!({"pid": std::process::id(), "listen": address.to_string()});
        write_whole(path, &format!("{ready}\n"))?;
    }
    Ok(())
}
