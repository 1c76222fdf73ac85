//! Registration and reports: every interval, and at once when something changed that placements depend on.
//!
//! Its own file because it is the worker's half of two-way reconciliation (I6): what the grid has given up is ended
//! here, and a worker that the grid does not know ends everything and registers again.

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::task::TaskTracker;
use wharf_core::EndReason;
use wharf_store::{Heartbeat, HeartbeatReply, Registration};

use crate::{UplinkError, WorkerHandle, WorkerParts};

/// A report that takes longer is given up; the next one follows.
const REPORT_LIMIT: Duration = Duration::from_secs(5);

/// Counts for people are reported at most this often.
const COUNTS_GAP: Duration = Duration::from_secs(1);

pub(crate) async fn register(parts: &WorkerParts) -> Result<(), UplinkError> {
    parts.uplink.register(registration(parts)).await
}

fn registration(parts: &WorkerParts) -> Registration {
    Registration {
        worker: parts.config.id,
        pool: parts.config.pool.clone(),
        browsers: vec![parts.config.browser],
        slots: u32::try_from(parts.config.warm.max).unwrap_or(u32::MAX),
        address: String::new(),
        is_ready: true,
    }
}

pub(crate) fn spawn(parts: &WorkerParts, tasks: &TaskTracker, handle: WorkerHandle) {
    let uplink = parts.uplink.clone();
    let registration = registration(parts);
    let interval = parts.config.heartbeat_interval;
    let mut counts = handle.counts.clone();
    tasks.spawn(async move {
        // Ends when the desk is gone.
        while let Some(status) = handle.status().await {
            counts.mark_unchanged();
            let heartbeat = Heartbeat {
                worker: handle.id(),
                held: status.held,
                is_circuit_open: status.is_circuit_open,
                is_ready: true,
                is_draining: status.is_draining,
                warm: u32::try_from(status.warm).unwrap_or(u32::MAX),
                launching: u32::try_from(status.launching).unwrap_or(u32::MAX),
            };
            match tokio::time::timeout(REPORT_LIMIT, uplink.heartbeat(heartbeat)).await {
                Ok(Ok(HeartbeatReply::Known { end, .. })) => {
                    for (session, epoch) in end {
                        tracing::debug!(%session, "the grid has given this session up");
                        handle.close(session, epoch).await;
                    }
                }
                Ok(Ok(HeartbeatReply::Unknown)) => {
                    tracing::warn!("the grid does not know this worker: ending what it holds and registering again");
                    end_everything(&handle).await;
                    if let Err(error) = uplink.register(registration.clone()).await {
                        tracing::warn!(%error, "could not register again");
                    }
                }
                Ok(Err(error)) => tracing::warn!(%error, "heartbeat failed"),
                Err(_) => tracing::warn!(limit = ?REPORT_LIMIT, "heartbeat took too long"),
            }
            tokio::select! {
                () = tokio::time::sleep(interval) => {}
                () = handle.changed.notified() => {}
                () = counts_changed(&mut counts) => {}
            }
        }
        if let Err(error) = uplink.deregister(handle.id()).await {
            tracing::warn!(%error, "could not deregister; the grid will notice the silence");
        }
        tracing::debug!(reason = %EndReason::WorkerDrained, "worker deregistered");
    });
}

/// Warm browsers and launches come and go with every session: they are worth an early report, but not one each.
async fn counts_changed(counts: &mut watch::Receiver<(usize, usize)>) {
    tokio::time::sleep(COUNTS_GAP).await;
    if counts.changed().await.is_err() {
        // The desk is gone; the next look says so.
        std::future::pending::<()>().await;
    }
}

async fn end_everything(handle: &WorkerHandle) {
    if let Some(status) = handle.status().await {
        for (session, epoch) in status.held {
            handle.close(session, epoch).await;
        }
    }
}
