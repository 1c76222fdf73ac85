//! The coordinator's numbers, registered once. Ids never become labels.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};
use wharf_core::{EndReason, ErrorCode};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ReasonLabel {
    pub reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct DirectionLabel {
    pub direction: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct CodeLabel {
    pub code: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct PoolLabel {
    pub pool: String,
}

/// What a coordinator counts.
pub struct CoordinatorMetrics {
    pub(crate) sessions_active: Gauge,
    pub(crate) sessions_starting: Gauge,
    pub(crate) sessions_ended: Family<ReasonLabel, Counter>,
    pub(crate) queue_depth: Gauge,
    pub(crate) queue_wait: Histogram,
    pub(crate) acquire_wait: Histogram,
    pub(crate) session_seconds: Histogram,
    pub(crate) slots: Gauge,
    pub(crate) slots_busy: Gauge,
    pub(crate) workers: Gauge,
    pub(crate) desired_workers: Family<PoolLabel, Gauge>,
    pub(crate) event_streams: Gauge,
    pub(crate) events_sent: Counter,
    pub(crate) event_streams_slow: Counter,
    pub(crate) relays: Gauge,
    pub(crate) relay_bytes: Family<DirectionLabel, Counter>,
    pub(crate) refused: Family<CodeLabel, Counter>,
    /// Open connections, counted by the accept loop.
    pub connections: Gauge,
    pub(crate) orphans: Gauge,
}

// === impl CoordinatorMetrics ===

impl CoordinatorMetrics {
    /// Registers everything under the registry's prefix.
    pub fn register(registry: &mut Registry) -> Self {
        // From a warm hand-over's millisecond to the queue timeout.
        let waits = [
            0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
        ];
        let metrics = Self {
            sessions_active: Gauge::default(),
            sessions_starting: Gauge::default(),
            sessions_ended: Family::default(),
            queue_depth: Gauge::default(),
            queue_wait: Histogram::new(waits),
            acquire_wait: Histogram::new(waits),
            session_seconds: Histogram::new([0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0]),
            slots: Gauge::default(),
            slots_busy: Gauge::default(),
            workers: Gauge::default(),
            desired_workers: Family::default(),
            event_streams: Gauge::default(),
            events_sent: Counter::default(),
            event_streams_slow: Counter::default(),
            relays: Gauge::default(),
            relay_bytes: Family::default(),
            refused: Family::default(),
            connections: Gauge::default(),
            orphans: Gauge::default(),
        };
        for reason in EndReason::ALL {
            drop(metrics.sessions_ended.get_or_create(&ReasonLabel {
                reason: reason.as_str(),
            }));
        }
        for code in ErrorCode::ALL {
            drop(metrics.refused.get_or_create(&CodeLabel { code: code.as_str() }));
        }
        metrics.to_client();
        metrics.to_browser();
        metrics.list(registry);
        metrics.list_fleet(registry);
        metrics
    }

    fn list(&self, registry: &mut Registry) {
        registry.register("sessions_active", "Sessions in use", self.sessions_active.clone());
        registry.register(
            "sessions_starting",
            "Sessions placed, waiting for a browser",
            self.sessions_starting.clone(),
        );
        registry.register(
            "sessions_ended",
            "Sessions ended, by reason",
            self.sessions_ended.clone(),
        );
        registry.register("queue_depth", "Sessions waiting for a slot", self.queue_depth.clone());
        let wait = self.queue_wait.clone();
        registry.register_with_unit(
            "queue_wait",
            "Time in the queue of those who waited",
            Unit::Seconds,
            wait,
        );
        let acquire = self.acquire_wait.clone();
        registry.register_with_unit(
            "acquire_wait",
            "Time from request to active session",
            Unit::Seconds,
            acquire,
        );
        let ran = self.session_seconds.clone();
        registry.register_with_unit("session_duration", "Time active", Unit::Seconds, ran);
        registry.register("slots", "Slots of live workers", self.slots.clone());
        registry.register("slots_busy", "Slots held by sessions", self.slots_busy.clone());
        registry.register("workers", "Live workers", self.workers.clone());
        registry.register("relays_active", "Attached clients", self.relays.clone());
        let bytes = self.relay_bytes.clone();
        registry.register_with_unit("relay", "Bytes relayed, by direction", Unit::Bytes, bytes);
        registry.register(
            "requests_refused",
            "Refused requests, by error code",
            self.refused.clone(),
        );
        registry.register("connections", "Open client connections", self.connections.clone());
        registry.register(
            "orphan_processes",
            "Browser processes without an owner; must be 0",
            self.orphans.clone(),
        );
    }

    fn list_fleet(&self, registry: &mut Registry) {
        registry.register(
            "desired_workers",
            "Workers a pool should have, by what runs and waits",
            self.desired_workers.clone(),
        );
        registry.register("event_streams", "Open streams of events", self.event_streams.clone());
        registry.register("events_sent", "Events told on streams", self.events_sent.clone());
        registry.register(
            "event_streams_closed_slow",
            "Streams closed because their client took nothing",
            self.event_streams_slow.clone(),
        );
    }

    pub(crate) fn to_client(&self) -> Counter {
        self.relay_bytes
            .get_or_create(&DirectionLabel { direction: "to_client" })
            .clone()
    }

    pub(crate) fn to_browser(&self) -> Counter {
        self.relay_bytes
            .get_or_create(&DirectionLabel {
                direction: "to_browser",
            })
            .clone()
    }

    pub(crate) fn ended(&self, reason: EndReason) {
        self.sessions_ended
            .get_or_create(&ReasonLabel {
                reason: reason.as_str(),
            })
            .inc();
    }
}
