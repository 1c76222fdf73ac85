//! The port towards workers: lease, close, dial, look.
//!
//! Its own file because it has two implementations: in-process (`wharf up`) and HTTP to the worker's gateway (fleet).
//! The coordinator never sees a process or a driver.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use wharf_core::{Seat, SessionId, WorkerId};
use wharf_relay::Side;

/// A wish for a browser.
#[derive(Debug, Clone)]
pub struct LeaseWish {
    /// For whom.
    pub session: SessionId,
    /// On which slot.
    pub seat: Seat,
    /// Launch options as the driver defines them.
    pub options: serde_json::Value,
    /// The client's own data, for programs that are told of their session.
    pub data: serde_json::Value,
}

/// Why a worker could not.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LinkError {
    /// The browser would not start.
    #[error("{0}")]
    LaunchFailed(String),
    /// The session was closed meanwhile.
    #[error("the session was closed before its browser was ready")]
    Withdrawn,
    /// The worker takes no more.
    #[error("the worker is draining")]
    Draining,
    /// The worker does not answer.
    #[error("the worker cannot be reached: {0}")]
    Unreachable(String),
    /// The browser does not answer.
    #[error("the browser cannot be reached: {0}")]
    BrowserUnreachable(String),
    /// The browser was asked and said nothing in time.
    #[error("the browser does not answer: {0}")]
    BrowserHung(String),
    /// The session has no browser there.
    #[error("the worker holds no browser for the session")]
    NotHeld,
    /// The browser has no such page.
    #[error("the browser has no page `{0}`")]
    NoSuchTarget(String),
}

/// What to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DialTarget {
    /// The browser itself.
    Browser,
    /// One of its pages.
    Page(String),
}

/// What to do to a browser on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Kill it.
    Crash,
    /// Stop it for good.
    Hang,
    /// Stop it for a while.
    Slow(Duration),
}

/// A page of a session's browser.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageInfo {
    /// Its target id.
    pub id: String,
    /// Its title.
    pub title: String,
    /// Its address.
    pub url: String,
}

/// What the pool drives, for discovery; all known without launching anything.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Driven {
    /// As in `Browser`, e.g. `HeadlessChrome/156.0.8078.79`.
    pub product: String,
    /// As in `Protocol-Version`.
    pub protocol_version: String,
    /// As in `User-Agent`.
    pub user_agent: String,
    /// As in `V8-Version`.
    pub js_version: String,
    /// As in `WebKit-Version`.
    pub revision: String,
}

/// A stream to a browser.
pub trait BrowserIo: AsyncRead + AsyncWrite + Send + Unpin + 'static {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> BrowserIo for T {}

/// Towards workers.
#[async_trait]
pub trait WorkerLink: Send + Sync + 'static {
    /// A browser for a session; the answer is a program's own, browsers that are not told of their session have none.
    /// Dropping the future withdraws the wish.
    async fn lease(&self, wish: LeaseWish) -> Result<Option<serde_json::Value>, LinkError>;
    /// What a session's program says of it.
    async fn look(&self, session: SessionId, seat: Seat, limit: Duration) -> Result<serde_json::Value, LinkError>;
    /// Ends a session's browser. `false` means that the worker holds nothing for it: the slot may be freed at once. A
    /// worker that cannot be asked may still hold it: that is `true`, and its next report or its loss settles it.
    async fn close(&self, session: SessionId, seat: Seat) -> bool;
    /// A WebSocket to a session's browser, past its handshake.
    async fn dial(
        &self,
        session: SessionId,
        seat: Seat,
        target: DialTarget,
    ) -> Result<Side<Box<dyn BrowserIo>>, LinkError>;
    /// The pages of a session's browser.
    async fn pages(&self, session: SessionId, seat: Seat) -> Result<Vec<PageInfo>, LinkError>;
    /// A new page in a session's browser.
    async fn open_page(&self, session: SessionId, seat: Seat, url: &str) -> Result<PageInfo, LinkError>;
    /// The protocol description of the browsers, from one that is up.
    async fn protocol(&self) -> Result<Vec<u8>, LinkError>;
    /// What is driven; empty while no worker can say.
    async fn driven(&self) -> Driven;
    /// Whether these launch options are allowed; the text names each that is not.
    fn check_options(&self, options: &serde_json::Value) -> Result<(), String>;
    /// Breaks a session's browser on purpose.
    async fn disturb(&self, session: SessionId, seat: Seat, fault: Fault) -> Result<(), LinkError>;
    /// Whether this worker's process answers at all. Asked when a browser's socket broke and nobody has said why.
    async fn is_there(&self, worker: WorkerId) -> bool;
    /// Calls a worker back at the address it advertises; the text says what is wrong with it.
    async fn call_back(&self, worker: WorkerId, address: &str) -> Result<(), String>;
    /// Processes that carry our mark and belong to no browser. Must be 0.
    async fn orphans(&self) -> u64;
}
