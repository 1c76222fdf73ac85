//! The session service: the use cases that every front calls.
//!
//! - `open`: admission, queue, lease, activation; cancel-safe at every await.
//! - `waiters`: who waits for a placement, and how they learn of it.
//! - `live`: the sessions this coordinator relays or created, and how their clients are told of the end.
//! - `attach`: connecting a client's socket to a session's browser; `watched`: noticing at once that it broke.
//! - `look`: looking at a session through its program.
//! - `locks`: exclusive locks on their way to their holders.
//! - `pool`: the operator's view: what runs and waits, limits, forced release.
//! - `scale`: how many workers a pool should have.
//! - `workers`: the workers, as operators see and drive them.
//! - `background`: the loops: changes, sweep, touch, ticket renewal.

mod attach;
mod background;
mod live;
mod locks;
mod look;
mod open;
mod pool;
mod scale;
#[cfg(test)]
pub(crate) mod tests;
mod waiters;
mod watched;
mod workers;

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use wharf_core::{EndReason, ErrorCode, KeyId, Phase, Seat, SessionId, SessionState, queue};
use wharf_store::{Ended, SessionRecord, Store};

use crate::{Caller, CoordinatorConfig, CoordinatorMetrics, Refusal, WorkerLink};
pub use attach::{Attachment, OnLeave};
use live::Live;
pub use locks::TakenLock;
pub use open::{Ask, Handover};
pub use pool::PoolView;
pub use scale::Scaling;
use waiters::Waiters;
pub use workers::Removal;

/// The parts a coordinator is built from.
pub struct ServiceParts {
    /// What it is told.
    pub config: CoordinatorConfig,
    /// The source of truth.
    pub store: Arc<dyn Store>,
    /// Towards workers.
    pub link: Arc<dyn WorkerLink>,
    /// Its numbers.
    pub metrics: Arc<CoordinatorMetrics>,
    /// Where in its life the process is.
    pub phase: watch::Receiver<Phase>,
}

/// The session service. Cheap to clone.
#[derive(Clone)]
pub struct Service(Arc<Inner>);

pub(crate) struct Inner {
    pub config: CoordinatorConfig,
    pub store: Arc<dyn Store>,
    pub link: Arc<dyn WorkerLink>,
    pub metrics: Arc<CoordinatorMetrics>,
    pub phase: watch::Receiver<Phase>,
    pub tasks: TaskTracker,
    pub stop: CancellationToken,
    waiters: Waiters,
    live: Live,
    /// The number of the newest event known here.
    pub events: watch::Sender<u64>,
    /// Whether a key was ever made, and when that was last looked up.
    pub keys_made: Mutex<Option<(bool, Instant)>>,
    /// When the use of a key was last told to the store.
    pub keys_used: Mutex<HashMap<KeyId, Instant>>,
    /// How long sessions hold a slot, as a decaying average; for estimates only.
    mean_hold: Mutex<Duration>,
}

/// A guess until a session has ended.
const FIRST_HOLD: Duration = Duration::from_secs(10);

// === impl Service ===

impl Service {
    /// Builds the service and starts its loops. They end with [`Service::stop`].
    pub fn spawn(parts: ServiceParts) -> Self {
        let service = Self(Arc::new(Inner {
            config: parts.config,
            store: parts.store,
            link: parts.link,
            metrics: parts.metrics,
            phase: parts.phase,
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            waiters: Waiters::default(),
            live: Live::default(),
            events: watch::Sender::new(0),
            keys_made: Mutex::new(None),
            keys_used: Mutex::default(),
            mean_hold: Mutex::new(FIRST_HOLD),
        }));
        background::spawn(&service);
        service
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.0
    }

    /// Its settings.
    pub fn config(&self) -> &CoordinatorConfig {
        &self.0.config
    }

    /// Where in its life the process is.
    pub fn phase(&self) -> Phase {
        *self.0.phase.borrow()
    }

    /// Sessions that this coordinator knows to be active.
    pub fn live_sessions(&self) -> usize {
        self.0.live.len()
    }

    /// Clients that are attached through this coordinator.
    pub fn attached(&self) -> usize {
        self.0.live.all().iter().map(|live| live.attached()).sum()
    }

    /// Sends all attached clients away; their sessions live on, unless they live by their connection.
    pub fn send_away(&self) {
        self.0.live.all().iter().for_each(|live| live.send_away());
    }

    /// Those that the caller may see, and where their browsers are.
    pub fn live_seats_of(&self, caller: Caller) -> Vec<(SessionId, Seat)> {
        let only = caller.sees_only();
        let live = self.0.live.all();
        live.iter()
            .filter(|live| only.is_none_or(|own| live.owner == Some(own)))
            .filter_map(|live| Some((live.id, live.seat?)))
            .collect()
    }

    /// One session, whatever its state.
    pub async fn session(&self, session: SessionId) -> Result<SessionRecord, Refusal> {
        self.0
            .store
            .session(session)
            .await?
            .ok_or_else(|| Refusal::unknown(session))
    }

    /// Ends a session. The first reason wins; unknown ones are refused.
    pub async fn end(&self, session: SessionId, reason: EndReason, detail: Option<String>) -> Result<(), Refusal> {
        match self.0.store.end(session, reason, detail).await? {
            // Whoever holds its browser or waits for it learns of the end from the store's changes.
            Ended::Now(_) | Ended::Before(_) => Ok(()),
            Ended::Unknown => Err(Refusal::unknown(session)),
        }
    }

    /// One session, whatever its state, if the caller may see it. What others have does not exist.
    pub async fn session_of(&self, caller: Caller, session: SessionId) -> Result<SessionRecord, Refusal> {
        let record = self.session(session).await?;
        match caller.sees(&record) {
            true => Ok(record),
            false => Err(Refusal::unknown(session)),
        }
    }

    /// The client gives a session back, or withdraws it before it was active; an admin ends somebody else's.
    pub async fn release(&self, caller: Caller, session: SessionId) -> Result<(), Refusal> {
        let live = self.0.live.get(session);
        if live.is_some_and(|live| live.owner == caller.owner()) {
            // Whose it is and that it runs is known here.
            return self.end(session, EndReason::Released, None).await;
        }
        let record = self.session_of(caller, session).await?;
        let reason = match record.state {
            _ if record.owner != caller.owner() => EndReason::Killed,
            SessionState::Active(_) | SessionState::Ended(_) => EndReason::Released,
            _ => EndReason::Cancelled,
        };
        self.end(session, reason, None).await
    }

    /// Ends a session without anybody waiting for the answer; used by guards.
    pub(crate) fn end_later(&self, session: SessionId, reason: EndReason) {
        let service = self.clone();
        self.0.tasks.spawn(async move {
            if let Err(refusal) = service.end(session, reason, None).await
                && refusal.code != ErrorCode::SessionNotFound
            {
                tracing::warn!(%session, %reason, message = refusal.message, "could not end the session; the sweep will");
            }
        });
    }

    /// A client that came with an idempotency key has left: the session goes, unless it has passed to another coordinator,
    /// where the same client asks again.
    pub(crate) fn cancel_if_ours(&self, session: SessionId) {
        let service = self.clone();
        self.0.tasks.spawn(async move {
            match service.0.store.session(session).await {
                Ok(Some(record)) if record.coordinator != service.config().id => {}
                _ => service.end_later(session, EndReason::Cancelled),
            }
        });
    }

    /// A client did something with the session outside a relay (seed 000's GET).
    pub async fn touch(&self, session: SessionId) -> Result<(), Refusal> {
        let touch = wharf_store::Touch {
            session,
            idle_for: Duration::ZERO,
            is_attached: true,
        };
        Ok(self.0.store.touch(&[touch]).await?)
    }

    /// The place of a waiting session, and how long it will probably still wait.
    pub async fn place(&self, record: &SessionRecord) -> Result<Option<(u64, Duration)>, Refusal> {
        if record.state != SessionState::Queued {
            return Ok(None);
        }
        let Some(position) = self.0.store.position(record.id).await? else {
            return Ok(None);
        };
        Ok(Some((position, self.estimate(position).await?)))
    }

    pub(crate) async fn estimate(&self, position: u64) -> Result<Duration, Refusal> {
        let slots = self.0.store.stats().await?.slots;
        let hold = *self.0.mean_hold.lock();
        Ok(queue::estimate_wait(position, slots, hold))
    }

    pub(crate) fn held_for(&self, span: Duration) {
        let mut mean = self.0.mean_hold.lock();
        *mean = mean.mul_f64(0.9) + span.mul_f64(0.1);
    }

    /// Ends the loops and waits for everything the service started: relays, guards, releases.
    pub async fn stop(&self, limit: Duration) {
        self.0.tasks.close();
        self.0.stop.cancel();
        if tokio::time::timeout(limit, self.0.tasks.wait()).await.is_err() {
            tracing::error!(
                left = self.0.tasks.len(),
                "service tasks were still running after the stop"
            );
        }
    }
}
