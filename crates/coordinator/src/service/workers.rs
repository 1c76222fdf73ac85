//! The workers, as operators see and drive them: looking, draining, forgetting.
//!
//! Its own file because it is the only place where somebody waits for a worker: a drain that is waited for ends when
//! nothing runs there any more, when its time is up, or when whoever waits leaves; only the waiting ends then, the drain
//! goes on.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};
use wharf_core::{ErrorCode, PoolName, WorkerId, WorkerState};
use wharf_store::{Freed, WorkerRecord};

use super::Service;
use crate::Refusal;

/// How often a worker that drains is looked at. A slot is freed a moment after its session's end, which is no event.
const LOOK: Duration = Duration::from_millis(250);
/// Many ends at once are one look.
const PAUSE: Duration = Duration::from_millis(20);

/// How a worker is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// Only if nothing is lost by it.
    WhenDone,
    /// Whatever it holds.
    ByForce,
}

// === impl Service ===

impl Service {
    /// The workers of a pool, or all, by id.
    pub async fn workers(&self, pool: Option<&PoolName>) -> Result<Vec<WorkerRecord>, Refusal> {
        Ok(self.inner().store.workers(pool).await?)
    }

    /// One worker.
    pub async fn worker(&self, worker: WorkerId) -> Result<WorkerRecord, Refusal> {
        let workers = self.inner().store.workers(None).await?;
        let found = workers.into_iter().find(|record| record.id == worker);
        found.ok_or_else(|| unknown(worker))
    }

    /// Tells a worker to drain; with `wait`, answers when it is done or the span has passed.
    pub async fn drain_worker(&self, worker: WorkerId, wait: Option<Duration>) -> Result<WorkerRecord, Refusal> {
        let drained = self.inner().store.drain_worker(worker).await?;
        let mut record = drained.ok_or_else(|| unknown(worker))?;
        tracing::info!(%worker, sessions = record.busy, ?wait, "worker is to drain");
        let Some(wait) = wait else { return Ok(record) };
        let deadline = Instant::now() + wait;
        let mut news = self.inner().events.subscribe();
        while !is_done(&record) && Instant::now() < deadline {
            let next = deadline.min(Instant::now() + LOOK);
            tokio::select! {
                // Whether news came or it is time to look again is the same to us.
                _ = timeout_at(next, news.changed()) => sleep(PAUSE).await,
                () = self.inner().stop.cancelled() => break,
            }
            match self.worker(worker).await {
                Ok(now) => record = now,
                // Removed meanwhile: what it held has ended with it.
                Err(refusal) if refusal.code == ErrorCode::WorkerNotFound => {
                    record.state = WorkerState::Gone;
                    record.busy = 0;
                }
                // A store that does not answer for a moment does not end the wait.
                Err(refusal) => tracing::debug!(%worker, message = refusal.message, "could not look at the worker"),
            }
        }
        Ok(record)
    }

    /// Forgets a worker. One that serves, or still holds sessions, only by force.
    pub async fn remove_worker(&self, worker: WorkerId, how: Removal) -> Result<(WorkerRecord, Freed), Refusal> {
        let record = self.worker(worker).await?;
        if how == Removal::WhenDone
            && record.state.is_live()
            && !(record.state == WorkerState::Draining && is_done(&record))
        {
            let message = format!(
                "the worker {worker} is {} and holds {} sessions; drain it first, or remove it by force",
                record.state.as_str(),
                record.busy
            );
            return Err(Refusal::new(ErrorCode::WorkerInUse, message));
        }
        let removed = self.inner().store.remove_worker(worker).await?;
        let (record, freed) = removed.ok_or_else(|| unknown(worker))?;
        tracing::warn!(%worker, state = record.state.as_str(), ended = freed.ended.len(), "worker removed");
        Ok((record, freed))
    }
}

/// Nothing runs there any more.
pub(crate) fn is_done(record: &WorkerRecord) -> bool {
    record.busy == 0 || !record.state.is_live()
}

fn unknown(worker: WorkerId) -> Refusal {
    Refusal::new(ErrorCode::WorkerNotFound, format!("there is no worker {worker}"))
}
