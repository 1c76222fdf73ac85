//! The worker role: owns browsers, offers slots, reports, drains.
//!
//! Layout:
//! - [`config`]: what it is told at start.
//! - [`uplink`]: the port towards the grid (in-process for `wharf up`, HTTP to a coordinator for a fleet).
//! - [`handle`]: what a coordinator may ask of it.
//! - `desk`: the actor that owns every browser and lease; decisions come from `wharf_core::warm` and `breaker`.
//! - `supervisor`: one task per browser: exit, probes, memory, kill.
//! - `heartbeat`: registration and reports, two-way reconciliation. `load`: how busy the host is.
//! - [`metrics`]: its numbers.
#![forbid(unsafe_code)]

pub mod config;
mod desk;
pub mod handle;
mod heartbeat;
mod load;
pub mod metrics;
mod supervisor;
pub mod uplink;

pub use config::{Recycling, WorkerConfig};
pub use handle::{DrainOrder, LeaseError, LeaseRequest, Leased, LookError, WorkerHandle, WorkerStatus};
pub use metrics::WorkerMetrics;
pub use uplink::{Uplink, UplinkError};

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::task::TaskTracker;
use wharf_core::Clock;
use wharf_driver::Driver;

/// The parts a worker is built from.
pub struct WorkerParts {
    /// What it is told.
    pub config: WorkerConfig,
    /// How it launches browsers.
    pub driver: Arc<dyn Driver>,
    /// Whom it reports to.
    pub uplink: Arc<dyn Uplink>,
    /// Where `now` comes from.
    pub clock: Arc<dyn Clock>,
    /// Its numbers.
    pub metrics: Arc<WorkerMetrics>,
}

/// Registers the worker and starts its tasks. They end after [`WorkerHandle::stop`].
pub async fn spawn(parts: WorkerParts) -> Result<WorkerHandle, UplinkError> {
    let tasks = TaskTracker::new();
    heartbeat::register(&parts).await?;
    let (order, ordered) = watch::channel(None);
    let handle = desk::spawn(&parts, &tasks, ordered);
    heartbeat::spawn(&parts, &tasks, handle.clone(), order);
    Ok(handle)
}
