//! The worker's numbers, registered once. Ids never become labels.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};
use wharf_core::BrowserState;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct StateLabel {
    pub state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct OutcomeLabel {
    pub outcome: &'static str,
}

/// What a worker counts.
pub struct WorkerMetrics {
    pub(crate) browsers: Family<StateLabel, Gauge>,
    pub(crate) launches: Family<OutcomeLabel, Counter>,
    pub(crate) launch_seconds: Histogram,
    pub(crate) leases: Family<OutcomeLabel, Counter>,
    pub(crate) retired: Counter,
    pub(crate) hung: Counter,
    pub(crate) workers_current: Gauge,
    pub(crate) workers_pending: Gauge,
    pub(crate) circuit_open: Gauge,
    pub(crate) browsers_memory: Gauge,
}

// === impl WorkerMetrics ===

impl WorkerMetrics {
    /// Registers everything under the registry's prefix.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            browsers: Family::default(),
            launches: Family::default(),
            // From a warm headless shell's 50 ms to the launch timeout.
            launch_seconds: Histogram::new([0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8]),
            leases: Family::default(),
            retired: Counter::default(),
            hung: Counter::default(),
            workers_current: Gauge::default(),
            workers_pending: Gauge::default(),
            circuit_open: Gauge::default(),
            browsers_memory: Gauge::default(),
        };
        for state in BrowserState::COUNTED {
            drop(metrics.browsers.get_or_create(&StateLabel { state: state.as_str() }));
        }
        for outcome in ["ok", "failed"] {
            drop(metrics.launches.get_or_create(&OutcomeLabel { outcome }));
        }
        for outcome in ["warm", "launched", "failed", "withdrawn"] {
            drop(metrics.leases.get_or_create(&OutcomeLabel { outcome }));
        }
        registry.register("browsers", "Browsers by state", metrics.browsers.clone());
        registry.register("launches", "Browser launches by outcome", metrics.launches.clone());
        let launch = metrics.launch_seconds.clone();
        registry.register_with_unit("launch", "Time from spawn to warm", Unit::Seconds, launch);
        registry.register("leases", "Leases by how they were served", metrics.leases.clone());
        registry.register(
            "browsers_retired",
            "Warm browsers retired for want of demand",
            metrics.retired.clone(),
        );
        registry.register(
            "browsers_hung",
            "Browsers killed because probes failed",
            metrics.hung.clone(),
        );
        // The two names that seed 000 asks for: there a worker is one browser process.
        registry.register(
            "workers_current",
            "Browser processes that are up",
            metrics.workers_current.clone(),
        );
        registry.register(
            "workers_pending",
            "Browser processes being launched",
            metrics.workers_pending.clone(),
        );
        registry.register(
            "circuit_open",
            "1 while launches keep failing",
            metrics.circuit_open.clone(),
        );
        let memory = metrics.browsers_memory.clone();
        registry.register_with_unit("browsers_memory", "Memory of all browsers (PSS)", Unit::Bytes, memory);
        metrics
    }

    pub(crate) fn launched(&self, outcome: &'static str) {
        self.launches.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    pub(crate) fn leased(&self, outcome: &'static str) {
        self.leases.get_or_create(&OutcomeLabel { outcome }).inc();
    }
}
