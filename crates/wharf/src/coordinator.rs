//! `wharf coordinator`: a front door of a fleet. Stateless: any number on one store, none knows another.
//!
//! Its own file because it is wiring: store, link to workers elsewhere, service, accept loop; and the stop is the same list
//! backwards. Sessions are not its own: after the drain its clients are sent away with 1001, and their sessions live on for
//! whoever attaches through another coordinator.

use std::sync::Arc;

use anyhow::Context;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use wharf_coordinator::{CoordinatorMetrics, Service, fronts, server, service::ServiceParts};
use wharf_core::{BrowserKind, CoordinatorId, Phase};
use wharf_driver::AllowList;
use wharf_fleet::FleetLink;
use wharf_store::Store;

use crate::{
    config::Settings,
    host,
    local::check_options,
    places::Places,
    serving::{After, CLEAN_UP, Signals, announce, bind, coordinator_config, drained, server_config},
    stores::{self, Past},
};

/// A coordinator that is being served.
struct Coordinator {
    settings: Settings,
    phase: watch::Sender<Phase>,
    service: Service,
    store: Arc<dyn Store>,
    serving: tokio::task::JoinHandle<()>,
    stop_serving: CancellationToken,
}

/// Serves until told to stop.
pub async fn run(settings: Settings) -> anyhow::Result<After> {
    let mut signals = Signals::listen()?;
    let coordinator = tokio::select! {
        started = Coordinator::start(settings) => started?,
        which = signals.next() => {
            tracing::warn!(signal = which, "shutdown signal received before anything was served");
            return Ok(After::Exit);
        }
    };
    let which = signals.next().await;
    tracing::warn!(signal = which, "shutdown signal received");
    coordinator.phase.send_replace(Phase::Draining);
    tracing::info!("marked not ready; new sessions are refused");
    tokio::select! {
        () = coordinator.drain() => {}
        _ = signals.next() => tracing::warn!("second signal: sending the remaining clients away now"),
    }
    coordinator.stop().await?;
    Ok(After::Exit)
}

// === impl Coordinator ===

impl Coordinator {
    async fn start(settings: Settings) -> anyhow::Result<Self> {
        let places = Places::tell(&settings)?;
        let listener = bind(settings.listen, "listen")?;
        let address = listener.local_addr()?;
        let id = CoordinatorId::from_uuid(Uuid::now_v7());
        let store = stores::open(&settings, &places, id, Past::MayLive).await?;
        let allow_list: Option<AllowList> = match settings.driver {
            BrowserKind::Command => None,
            _ => Some(host::allow_list(&settings)?),
        };
        let check = Box::new(move |options: &serde_json::Value| check_options(allow_list.as_ref(), options));
        let link = Arc::new(FleetLink::new(store.clone(), settings.dial_limit, check));
        let mut registry = Registry::with_prefix("wharf");
        let metrics = Arc::new(CoordinatorMetrics::register(&mut registry));
        let (phase, phases) = watch::channel(Phase::Starting);
        let service = Service::spawn(ServiceParts {
            config: coordinator_config(&settings, id),
            store: store.clone(),
            link,
            metrics: metrics.clone(),
            phase: phases,
        });
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
        tracing::info!(listen = %address, store = %settings.store, coordinator = %id, queue = settings.queue, "serving");
        announce(&settings, address)?;
        Ok(Self {
            settings,
            phase,
            service,
            store,
            serving,
            stop_serving,
        })
    }

    /// Lets clients finish, up to the drain timeout. Waiters have been sent away by the phase.
    async fn drain(&self) {
        let limit = self.settings.drain_timeout;
        tracing::info!(clients = self.service.attached(), ?limit, "draining");
        drained(limit, "attached clients", async || self.service.attached() as u64).await;
    }

    async fn stop(self) -> anyhow::Result<()> {
        self.phase.send_replace(Phase::Closing);
        self.service.send_away();
        self.stop_serving.cancel();
        self.service.stop(CLEAN_UP).await;
        if tokio::time::timeout(CLEAN_UP, self.serving).await.is_err() {
            tracing::warn!("connections were still open after the stop");
        }
        self.store.close().await.context("could not close the store")?;
        self.phase.send_replace(Phase::Stopped);
        tracing::info!("stopped; nothing is left");
        Ok(())
    }
}
