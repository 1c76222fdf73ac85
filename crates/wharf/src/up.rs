//! `wharf up`: coordinator and worker in one process on the embedded store.
//!
//! Its own file because it is the wiring: each part is built from the ones before it, sockets are bound before anything
//! is served, and the stop is the same list backwards (DESIGN.md §10).

use std::sync::Arc;

use anyhow::Context;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use wharf_coordinator::{CoordinatorMetrics, Service, fronts, server, service::ServiceParts};
use wharf_core::{CoordinatorId, EndReason, Phase};
use wharf_store::Store;
use wharf_worker::{WorkerHandle, WorkerMetrics, WorkerParts};

use crate::{
    clock::SystemClock,
    config::Settings,
    host::{Host, worker_config},
    local::LocalUplink,
    places::Places,
    serving::{After, CLEAN_UP, Signals, announce, bind, coordinator_config, drained, server_config},
    stores::{self, Past},
};

/// A grid that is being served.
struct Grid {
    settings: Settings,
    phase: watch::Sender<Phase>,
    service: Service,
    worker: WorkerHandle,
    store: Arc<dyn Store>,
    serving: tokio::task::JoinHandle<()>,
    stop_serving: CancellationToken,
    host: Host,
}

/// Serves until the first signal, drains, then stops. A second signal forces.
pub async fn run(settings: Settings) -> anyhow::Result<After> {
    let grid = Grid::start(settings).await?;
    let mut signals = Signals::listen()?;
    let which = signals.next().await;
    tracing::warn!(signal = which, "shutdown signal received");
    grid.phase.send_replace(Phase::Draining);
    tracing::info!("marked not ready; new sessions are refused");
    tokio::select! {
        () = grid.drain() => {}
        _ = signals.next() => tracing::warn!("second signal: ending the remaining sessions now"),
    }
    grid.stop().await?;
    Ok(After::Exit)
}

// === impl Grid ===

impl Grid {
    async fn start(settings: Settings) -> anyhow::Result<Self> {
        let places = Places::tell(&settings)?;
        let listener = bind(settings.listen, "listen")?;
        let address = listener.local_addr()?;
        let host = Host::open(&settings, &places).await?;
        let id = CoordinatorId::from_uuid(Uuid::now_v7());
        let store = stores::open(&settings, &places, id, Past::IsOver).await?;
        let link = host.link();

        let mut registry = Registry::with_prefix("wharf");
        let metrics = Arc::new(CoordinatorMetrics::register(&mut registry));
        let worker_metrics = Arc::new(WorkerMetrics::register(&mut registry));
        let (phase, phases) = watch::channel(Phase::Starting);
        let service = Service::spawn(ServiceParts {
            config: coordinator_config(&settings, id),
            store: store.clone(),
            link: link.clone(),
            metrics: metrics.clone(),
            phase: phases,
        });
        let worker = wharf_worker::spawn(WorkerParts {
            config: worker_config(&settings, &places)?,
            driver: host.driver.clone(),
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
            metrics.connections.clone(),
            stop_serving.clone(),
        );
        #[expect(clippy::disallowed_methods, reason = "the accept loop is awaited by name in `stop`")]
        let serving = tokio::spawn(serving);
        phase.send_replace(Phase::Ready);
        let report = &host.report;
        tracing::info!(
            listen = %address, browser = report.version.product, binary = %report.binary.display(),
            min = settings.min, max = settings.max, queue = settings.queue, store = %settings.store, "serving"
        );
        announce(&settings, address)?;
        Ok(Self {
            settings,
            phase,
            service,
            worker,
            store,
            serving,
            stop_serving,
            host,
        })
    }

    /// Lets sessions finish, up to the drain timeout.
    async fn drain(&self) {
        self.worker.drain().await;
        let limit = self.settings.drain_timeout;
        tracing::info!(sessions = self.service.live_sessions(), ?limit, "draining");
        drained(limit, "sessions", async || self.live_sessions().await).await;
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
        self.host.is_empty().await;
        self.stop_serving.cancel();
        self.service.stop(CLEAN_UP).await;
        if tokio::time::timeout(CLEAN_UP, self.serving).await.is_err() {
            tracing::warn!("connections were still open after the stop");
        }
        self.store.close().await.context("could not close the store")?;
        self.phase.send_replace(Phase::Stopped);
        self.host.leave()?;
        tracing::info!("stopped; nothing is left");
        Ok(())
    }
}
