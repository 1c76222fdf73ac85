//! Registration and reports: every interval, and at once when something changed that placements depend on.
//!
//! Its own file because it is the worker's half of two-way reconciliation (I6): what the grid has given up is ended
//! here, a worker that the grid does not know ends everything and registers again, and one that reaches no coordinator
//! for so long that the grid must have given it up ends its sessions by itself.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};
use tokio_util::task::TaskTracker;
use wharf_core::EndReason;
use wharf_store::{Heartbeat, HeartbeatReply, Registration};

use crate::{
    DrainOrder, Recycling, Uplink, UplinkError, WorkerHandle, WorkerParts, WorkerStatus,
    load::{Meter, own_memory},
};

/// A report that takes longer is given up; the next one follows.
const REPORT_LIMIT: Duration = Duration::from_secs(10);

/// Counts for people are reported at most this often.
const COUNTS_GAP: Duration = Duration::from_secs(1);

/// Between attempts to register, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LAST_PAUSE: Duration = Duration::from_secs(16);

/// How often the grid may fail to call back before the address is taken to be wrong.
const CALLS_BACK: u32 = 5;

/// Registers, however long the grid takes to be there. Fails only where trying again changes nothing.
pub(crate) async fn register(parts: &WorkerParts) -> Result<(), UplinkError> {
    let mut pause = FIRST_PAUSE;
    let mut not_called_back = 0;
    loop {
        let error = match parts.uplink.register(registration(parts)).await {
            Ok(()) => return Ok(()),
            Err(error @ UplinkError::Refused(_)) => return Err(error),
            Err(error @ UplinkError::NotCalledBack(_)) => {
                not_called_back += 1;
                if not_called_back >= CALLS_BACK {
                    return Err(error);
                }
                error
            }
            Err(error) => error,
        };
        tracing::warn!(%error, next = ?pause, "could not register; trying again");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

fn registration(parts: &WorkerParts) -> Registration {
    Registration {
        worker: parts.config.id,
        pool: parts.config.pool.clone(),
        browsers: vec![parts.config.browser],
        slots: u32::try_from(parts.config.warm.max).unwrap_or(u32::MAX),
        address: parts.config.address.clone(),
        is_ready: true,
    }
}

/// The reports of one worker.
struct Reports {
    uplink: Arc<dyn Uplink>,
    registration: Registration,
    recycling: Recycling,
    fence_after: Option<Duration>,
    handle: WorkerHandle,
    order: watch::Sender<Option<DrainOrder>>,
    meter: Meter,
    /// When a coordinator last answered anything.
    heard_at: Instant,
}

pub(crate) fn spawn(
    parts: &WorkerParts,
    tasks: &TaskTracker,
    handle: WorkerHandle,
    order: watch::Sender<Option<DrainOrder>>,
) {
    let mut reports = Reports {
        uplink: parts.uplink.clone(),
        registration: registration(parts),
        recycling: parts.config.recycling,
        fence_after: parts.config.fence_after,
        handle: handle.clone(),
        order,
        meter: Meter::new(),
        heard_at: Instant::now(),
    };
    let interval = parts.config.heartbeat_interval;
    let mut counts = handle.counts.clone();
    tasks.spawn(async move {
        // Ends when the desk is gone.
        while let Some(status) = handle.status().await {
            counts.mark_unchanged();
            reports.report(status).await;
            tokio::select! {
                () = tokio::time::sleep(interval) => {}
                () = handle.changed.notified() => {}
                () = counts_changed(&mut counts) => {}
            }
        }
        if let Err(error) = reports.uplink.deregister(handle.id()).await {
            tracing::warn!(%error, "could not deregister; the grid will notice the silence");
        }
        tracing::debug!(reason = %EndReason::WorkerDrained, "worker deregistered");
    });
}

// === impl Reports ===

impl Reports {
    async fn report(&mut self, status: WorkerStatus) {
        let wants_recycling = !status.is_draining && self.has_served_long_enough(&status);
        let heartbeat = Heartbeat {
            worker: self.handle.id(),
            held: status.held,
            is_circuit_open: status.is_circuit_open,
            is_ready: true,
            is_draining: status.is_draining,
            warm: u32::try_from(status.warm).unwrap_or(u32::MAX),
            launching: u32::try_from(status.launching).unwrap_or(u32::MAX),
            load: self.meter.read(),
            wants_recycling,
        };
        match tokio::time::timeout(REPORT_LIMIT, self.uplink.heartbeat(heartbeat)).await {
            Ok(Ok(reply)) => {
                self.heard_at = Instant::now();
                self.obey(reply, wants_recycling, status.is_draining).await;
            }
            Ok(Err(error @ UplinkError::Unavailable(_))) => {
                // The grid is there, only its store is not: nobody is given up meanwhile.
                self.heard_at = Instant::now();
                tracing::warn!(%error, "heartbeat not taken");
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "heartbeat failed");
                self.fence().await;
            }
            Err(_) => {
                tracing::warn!(limit = ?REPORT_LIMIT, "heartbeat took too long");
                self.fence().await;
            }
        }
    }

    async fn obey(&self, reply: HeartbeatReply, wanted_recycling: bool, is_draining: bool) {
        match reply {
            HeartbeatReply::Known { end, drain, .. } => {
                for (session, epoch) in end {
                    tracing::debug!(%session, "the grid has given this session up");
                    self.handle.close(session, epoch).await;
                }
                if drain && !is_draining {
                    let order = match wanted_recycling {
                        true => DrainOrder::Recycling,
                        false => DrainOrder::ByOperator,
                    };
                    tracing::info!(?order, "the grid wants this worker to drain");
                    self.handle.drain().await;
                    self.order.send_replace(Some(order));
                }
            }
            HeartbeatReply::Unknown => {
                tracing::warn!("the grid does not know this worker: ending what it holds and registering again");
                end_everything(&self.handle).await;
                if is_draining {
                    // It is leaving: nothing is to be placed here again.
                    return;
                }
                match self.uplink.register(self.registration.clone()).await {
                    // What a drain order was lost with is asked for anew.
                    Ok(()) => tracing::info!("registered again"),
                    Err(error) => tracing::warn!(%error, "could not register again"),
                }
            }
        }
    }

    /// Cut off for so long that the grid has given this worker up: its sessions are nobody's.
    async fn fence(&mut self) {
        let Some(limit) = self.fence_after.filter(|limit| self.heard_at.elapsed() >= *limit) else {
            return;
        };
        let held = self.handle.status().await.map_or(0, |status| status.held.len());
        if held > 0 {
            tracing::warn!(
                ?limit,
                sessions = held,
                "no coordinator answers: ending the sessions that nobody can reach"
            );
            end_everything(&self.handle).await;
        }
    }

    fn has_served_long_enough(&self, status: &WorkerStatus) -> bool {
        let rule = self.recycling;
        rule.sessions.is_some_and(|sessions| status.served >= sessions)
            || rule.age.is_some_and(|age| self.meter.age() >= age)
            || rule.memory.is_some_and(|memory| own_memory() >= memory)
    }
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
