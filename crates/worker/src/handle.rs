//! What a coordinator may ask of a worker: lease a browser, close a session's, look at one, drain, stop.
//!
//! Its own file because it is the whole surface of the role: the in-process link calls it directly, the gateway of a
//! fleet will call it for HTTP. Everything is a message to the desk; nothing here decides.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::RwLock;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::task::TaskTracker;
use wharf_core::{EndReason, Epoch, SessionId, WorkerId};
use wharf_driver::{Browser, CallFailed, Endpoint, LaunchOptions};

/// A wish for a browser.
#[derive(Debug, Clone)]
pub struct LeaseRequest {
    /// For whom.
    pub session: SessionId,
    /// Which placement.
    pub epoch: Epoch,
    /// Launch options; the default ones are served from the warm pool.
    pub options: LaunchOptions,
    /// The client's own data, for programs that are told of their session.
    pub data: serde_json::Value,
}

/// A browser that serves a session.
pub struct Leased {
    /// The browser.
    pub browser: Arc<dyn Browser>,
    /// What a program answered when it was told of its session; browsers that are not told have none.
    pub answer: Option<serde_json::Value>,
}

/// Why a session's program could not be looked at.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LookError {
    /// The session has no browser here.
    #[error("the worker holds no browser for the session")]
    NotHeld,
    /// Its browser is driven over a WebSocket.
    #[error("the session's browser is no program that could be asked over HTTP")]
    NoProgram,
    /// The program did not answer as it should.
    #[error(transparent)]
    Failed(#[from] CallFailed),
}

/// Why there is no browser.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LeaseError {
    /// It would not start.
    #[error("{0}")]
    LaunchFailed(String),
    /// The session was closed while it waited for its browser.
    #[error("the session was closed before its browser was ready")]
    Withdrawn,
    /// The worker takes no more.
    #[error("the worker is draining")]
    Draining,
    /// The desk is gone.
    #[error("the worker has stopped")]
    Stopped,
}

/// A worker at a glance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkerStatus {
    /// Leases held, with their placement.
    pub held: Vec<(SessionId, Epoch)>,
    /// The root process of every browser.
    pub pids: Vec<u32>,
    /// Idle and ready browsers.
    pub warm: usize,
    /// On their way.
    pub launching: usize,
    /// In use.
    pub leased: usize,
    /// Being killed.
    pub closing: usize,
    /// Launches keep failing.
    pub is_circuit_open: bool,
    /// Takes no more.
    pub is_draining: bool,
    /// Sessions it has served since it began.
    pub served: u64,
}

/// The browsers that sessions hold, readable without a message to the desk (attaching is the hot path).
pub(crate) type Held = Arc<RwLock<HashMap<SessionId, (Epoch, Arc<dyn Browser>)>>>;

pub(crate) enum Request {
    Lease(LeaseRequest, oneshot::Sender<Result<Leased, LeaseError>>),
    Close {
        session: SessionId,
        epoch: Epoch,
        known: oneshot::Sender<bool>,
    },
    Status(oneshot::Sender<WorkerStatus>),
    AnyEndpoint(oneshot::Sender<Option<Endpoint>>),
    Drain,
    Stop {
        reason: EndReason,
        done: oneshot::Sender<()>,
    },
}

/// A handle on a running worker.
#[derive(Clone)]
pub struct WorkerHandle {
    pub(crate) id: WorkerId,
    pub(crate) requests: mpsc::Sender<Request>,
    pub(crate) held: Held,
    pub(crate) changed: Arc<Notify>,
    pub(crate) counts: watch::Receiver<(usize, usize)>,
    pub(crate) tasks: TaskTracker,
    pub(crate) order: watch::Receiver<Option<DrainOrder>>,
}

/// Why the grid wants a worker to drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainOrder {
    /// An operator said so: it is to leave.
    ByOperator,
    /// It has served long enough and asked for it: it is to leave and begin anew.
    Recycling,
}

// === impl WorkerHandle ===

impl WorkerHandle {
    /// The worker's id.
    pub fn id(&self) -> WorkerId {
        self.id
    }

    /// A browser for a session; a program has taken the session by then. Dropping the future withdraws the wish; a browser
    /// already chosen is then closed.
    pub async fn lease(&self, request: LeaseRequest) -> Result<Leased, LeaseError> {
        let (reply, answer) = oneshot::channel();
        self.requests
            .send(Request::Lease(request, reply))
            .await
            .map_err(|_| LeaseError::Stopped)?;
        answer.await.map_err(|_| LeaseError::Stopped)?
    }

    /// Ends a session's browser. `false` means that the worker holds nothing for it (the caller frees the slot).
    pub async fn close(&self, session: SessionId, epoch: Epoch) -> bool {
        let (known, answer) = oneshot::channel();
        if self
            .requests
            .send(Request::Close { session, epoch, known })
            .await
            .is_err()
        {
            return false;
        }
        answer.await.unwrap_or(false)
    }

    /// The browser a session holds.
    pub fn browser(&self, session: SessionId) -> Option<Arc<dyn Browser>> {
        self.held.read().get(&session).map(|(_, browser)| browser.clone())
    }

    /// What a session's program says of it. Goes straight to the program: the desk is not asked.
    pub async fn look(&self, session: SessionId, limit: Duration) -> Result<serde_json::Value, LookError> {
        let browser = self.browser(session).ok_or(LookError::NotHeld)?;
        let program = browser.program().ok_or(LookError::NoProgram)?;
        Ok(program.look(limit).await?)
    }

    /// Where any browser that is up listens, for what is the same for all of them.
    pub async fn any_endpoint(&self) -> Option<Endpoint> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(Request::AnyEndpoint(reply)).await.ok()?;
        answer.await.ok().flatten()
    }

    /// The worker at a glance.
    pub async fn status(&self) -> Option<WorkerStatus> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(Request::Status(reply)).await.ok()?;
        answer.await.ok()
    }

    /// Resolves when the grid wants this worker to drain.
    pub async fn told_to_drain(&self) -> DrainOrder {
        let mut order = self.order.clone();
        let told = order.wait_for(Option::is_some).await.map(|order| *order);
        match told {
            Ok(Some(order)) => order,
            // The reports have ended: nobody will be told anything any more.
            _ => std::future::pending().await,
        }
    }

    /// No more leases; warm browsers go.
    pub async fn drain(&self) {
        // A desk that is gone takes no more either.
        let _ = self.requests.send(Request::Drain).await;
        self.changed.notify_one();
    }

    /// Ends everything and returns when nothing is left: browsers, files, tasks, registration.
    pub async fn stop(&self, reason: EndReason, limit: Duration) {
        let (done, finished) = oneshot::channel();
        if self.requests.send(Request::Stop { reason, done }).await.is_ok()
            && tokio::time::timeout(limit, finished).await.is_err()
        {
            tracing::error!(limit = ?limit, "the worker did not stop in time");
        }
        self.tasks.close();
        if tokio::time::timeout(limit, self.tasks.wait()).await.is_err() {
            tracing::error!(
                left = self.tasks.len(),
                "worker tasks were still running after the stop"
            );
        }
    }
}
