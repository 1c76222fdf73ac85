//! The port towards the grid: registration, reports, and the two things a worker must say at once.
//!
//! Its own file because it has two implementations: in-process (`wharf up`) and HTTP to any coordinator (fleet). A
//! worker never sees the store: hosts that run untrusted pages have no database credentials.

use async_trait::async_trait;
use wharf_core::{EndReason, Epoch, SessionId, WorkerId};
use wharf_store::{Heartbeat, HeartbeatReply, Registration};

/// Why the grid could not be told.
#[derive(Debug, Clone, thiserror::Error)]
pub enum UplinkError {
    /// No coordinator answers: the worker may be cut off, and the grid may have given it up.
    #[error("could not reach the grid: {0}")]
    Unreachable(String),
    /// A coordinator answers, but not its store: nobody is given up meanwhile.
    #[error("the grid cannot answer now: {0}")]
    Unavailable(String),
    /// The grid could not reach the worker at the address it advertises.
    #[error("{0}")]
    NotCalledBack(String),
    /// The grid does not take this worker; trying again changes nothing.
    #[error("the grid refuses this worker: {0}")]
    Refused(String),
}

/// Towards the grid.
#[async_trait]
pub trait Uplink: Send + Sync + 'static {
    /// Introduces the worker.
    async fn register(&self, registration: Registration) -> Result<(), UplinkError>;
    /// Reports; the answer says what to end.
    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatReply, UplinkError>;
    /// Says goodbye.
    async fn deregister(&self, worker: WorkerId) -> Result<(), UplinkError>;
    /// A session's browser ended by itself. Said before its slot is free, so that the client learns at once.
    async fn ended(&self, session: SessionId, epoch: Epoch, reason: EndReason, detail: Option<String>);
    /// A session's process tree is gone; its slot is free.
    async fn vacated(&self, session: SessionId, epoch: Epoch);
}
