//! `wharf worker`: browsers of a fleet, apart from its coordinators. Phases: start, serve, drain, exit (or begin anew).
//!
//! Its own file because it is wiring: host, gateway, uplink, worker. The gateway listens before the worker registers, since
//! the grid calls back before it believes an address; and it is the last thing to go, since sessions end through it.

use std::{net::SocketAddr, sync::Arc};

use anyhow::Context;
use prometheus_client::{encoding::text::encode, metrics::gauge::Gauge, registry::Registry};
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use wharf_coordinator::server;
use wharf_core::{EndReason, Phase};
use wharf_fleet::{Gateway, GatewayAddress, HttpUplink};
use wharf_worker::{DrainOrder, UplinkError, WorkerHandle, WorkerMetrics, WorkerParts};

use crate::{
    clock::SystemClock,
    config::Settings,
    host::{Host, worker_config},
    local::LocalLink,
    places::Places,
    serving::{After, CLEAN_UP, Signals, announce, bind, drained, server_config},
};

/// A worker that is being served.
struct Worker {
    settings: Settings,
    phase: watch::Sender<Phase>,
    host: Host,
    handle: WorkerHandle,
    serving: tokio::task::JoinHandle<()>,
    stop_serving: CancellationToken,
    pipes: TaskTracker,
}

/// Serves until told to stop, by a signal or by the grid.
pub async fn run(settings: Settings) -> anyhow::Result<After> {
    let mut signals = Signals::listen()?;
    let worker = tokio::select! {
        started = Worker::start(settings) => started?,
        which = signals.next() => {
            // Nothing was registered yet; what was launched dies with its values.
            tracing::warn!(signal = which, "shutdown signal received before the worker was registered");
            return Ok(After::Exit);
        }
    };
    let mut is_signalled = false;
    let mut after = tokio::select! {
        which = signals.next() => {
            tracing::warn!(signal = which, "shutdown signal received");
            is_signalled = true;
            After::Exit
        }
        order = worker.handle.told_to_drain() => match order {
            DrainOrder::Recycling if !worker.settings.recycles_by_exit => After::BeginAnew,
            DrainOrder::Recycling | DrainOrder::ByOperator => After::Exit,
        },
    };
    worker.phase.send_replace(Phase::Draining);
    tracing::info!("marked not ready; no more sessions are taken");
    let told_again = async {
        if !is_signalled {
            // The grid had ordered this drain: the first signal only says what comes after it.
            let which = signals.next().await;
            tracing::warn!(signal = which, "shutdown signal received while draining");
            after = After::Exit;
        }
        signals.next().await;
        tracing::warn!("second signal: ending the remaining sessions now");
    };
    tokio::select! {
        () = worker.drain() => {}
        () = told_again => {}
    }
    worker.stop().await?;
    Ok(after)
}

// === impl Worker ===

impl Worker {
    async fn start(settings: Settings) -> anyhow::Result<Self> {
        let places = Places::tell(&settings)?;
        let listener = bind(settings.gateway, "gateway")?;
        let listens_at = listener.local_addr()?;
        let address = gateway_address(&settings, listens_at)?;
        let host = Host::open(&settings, &places).await?;
        let link = host.link();
        let mut config = worker_config(&settings, &places)?;
        config.address = address.to_registration();
        config.recycling = settings.recycling;
        config.fence_after = Some(settings.fence_after);
        let id = config.id;

        let mut registry = Registry::with_prefix("wharf");
        let metrics = Arc::new(WorkerMetrics::register(&mut registry));
        let (phase, phases) = watch::channel(Phase::Starting);
        let (stop_serving, pipes) = (CancellationToken::new(), TaskTracker::new());
        let gateway = Gateway {
            worker: id,
            key: address.key.clone().into(),
            link: link.clone(),
            phase: phases,
            pipes: pipes.clone(),
            metrics: exposition(registry),
        };
        let serving = server::serve(
            listener,
            gateway.router(),
            server_config(&settings),
            Gauge::default(),
            stop_serving.clone(),
        );
        #[expect(clippy::disallowed_methods, reason = "the accept loop is awaited by name in `stop`")]
        let serving = tokio::spawn(serving);

        let token = settings.worker_token.clone().context("worker_token is not set")?;
        let uplink = HttpUplink::new(&settings.coordinators, token).map_err(anyhow::Error::msg)?;
        tracing::info!(worker = %id, gateway = %address, coordinators = ?settings.coordinators, "registering");
        let parts = WorkerParts {
            config,
            driver: host.driver.clone(),
            uplink: Arc::new(uplink),
            clock: Arc::new(SystemClock),
            metrics,
        };
        let handle = wharf_worker::spawn(parts).await.map_err(explain)?;
        set(&link, &handle);
        phase.send_replace(Phase::Ready);
        tracing::info!(
            worker = %id, gateway = %address, browser = host.report.version.product, pool = %settings.pool,
            max = settings.max, "serving"
        );
        announce(&settings, listens_at)?;
        Ok(Self {
            settings,
            phase,
            host,
            handle,
            serving,
            stop_serving,
            pipes,
        })
    }

    /// Lets sessions finish, up to the drain timeout.
    async fn drain(&self) {
        self.handle.drain().await;
        let held = async || self.handle.status().await.map_or(0, |status| status.held.len() as u64);
        tracing::info!(sessions = held().await, limit = ?self.settings.drain_timeout, "draining");
        drained(self.settings.drain_timeout, "sessions", held).await;
    }

    async fn stop(self) -> anyhow::Result<()> {
        self.phase.send_replace(Phase::Closing);
        self.handle.stop(EndReason::WorkerDrained, CLEAN_UP).await;
        self.host.is_empty().await;
        self.stop_serving.cancel();
        self.pipes.close();
        let gone = async {
            self.pipes.wait().await;
            self.serving.await
        };
        if tokio::time::timeout(CLEAN_UP, gone).await.is_err() {
            tracing::warn!("connections were still open after the stop");
        }
        self.phase.send_replace(Phase::Stopped);
        self.host.leave()?;
        tracing::info!("stopped; nothing is left");
        Ok(())
    }
}

/// Set once, here; the link answers "still starting" until then.
fn set(link: &LocalLink, handle: &WorkerHandle) {
    let _ = link.worker.set(handle.clone());
}

fn exposition(registry: Registry) -> Arc<dyn Fn() -> String + Send + Sync> {
    Arc::new(move || {
        let mut text = String::with_capacity(4 * 1024);
        match encode(&mut text, &registry) {
            Ok(()) => text,
            Err(error) => format!("# {error}\n"),
        }
    })
}

/// Where coordinators reach the gateway: as told, or as it listens, or by this host's name if it listens everywhere.
fn gateway_address(settings: &Settings, listens_at: SocketAddr) -> anyhow::Result<GatewayAddress> {
    let key = GatewayAddress::new_key();
    let url = match &settings.advertise {
        Some(url) => url.clone(),
        None if listens_at.ip().is_unspecified() => {
            let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
            format!("http://{name}:{}", listens_at.port())
        }
        None => format!("http://{listens_at}"),
    };
    GatewayAddress::advertised(&url, &key).with_context(|| format!("advertise ({url}) is no address of a gateway"))
}

fn explain(error: UplinkError) -> anyhow::Error {
    let context = match &error {
        UplinkError::Refused(_) => "the worker was not taken",
        UplinkError::NotCalledBack(_) => "the grid cannot reach this worker's gateway",
        UplinkError::Unreachable(_) | UplinkError::Unavailable(_) => "the worker could not be registered",
    };
    anyhow::Error::new(error).context(context)
}
