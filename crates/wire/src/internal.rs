//! What workers and coordinators of a fleet say to each other.
//!
//! Its own file because it is a contract between our own processes only, of the same version or one apart: fields are only
//! added, with a default. Registrations, reports and their answers are the store's own words.

use serde::{Deserialize, Serialize};
use wharf_core::{EndReason, Epoch, SessionId, WorkerId};

/// Where a coordinator takes workers' words.
pub const REGISTER: &str = "/internal/workers/register";
/// Reports.
pub const HEARTBEAT: &str = "/internal/workers/heartbeat";
/// Goodbyes.
pub const DEREGISTER: &str = "/internal/workers/deregister";
/// Ends of browsers.
pub const ENDED: &str = "/internal/workers/ended";
/// Free slots.
pub const VACATED: &str = "/internal/workers/vacated";

/// Where a worker's gateway takes coordinators' words; every path below needs the gateway's key.
pub const GATEWAY: &str = "/gateway/v1";

/// A worker says goodbye.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Goodbye {
    /// Who.
    pub worker: WorkerId,
}

/// A session's browser ended by itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BrowserEnded {
    /// Which session.
    pub session: SessionId,
    /// Which placement.
    pub epoch: Epoch,
    /// Why.
    pub reason: EndReason,
    /// More, for people.
    pub detail: Option<String>,
}

/// A session's process tree is gone.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct SlotVacated {
    /// Which session.
    pub session: SessionId,
    /// Which placement.
    pub epoch: Epoch,
}

/// A gateway's answer to a call back.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Hello<D> {
    /// Who answers there.
    pub worker: WorkerId,
    /// What it drives.
    pub driven: D,
}

/// A wish for a browser.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LeaseBody {
    /// For whom.
    pub session: SessionId,
    /// Which placement.
    pub epoch: Epoch,
    /// Launch options.
    pub options: serde_json::Value,
    /// The client's own data.
    pub data: serde_json::Value,
}

/// A browser is there.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Leased {
    /// A program's own answer.
    pub answer: Option<serde_json::Value>,
}

/// The answer to a close.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Closed {
    /// Whether the worker held anything for the session.
    pub was_held: bool,
}

/// A new page.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NewPage {
    /// Its address.
    pub url: String,
}

/// What to do to a browser on purpose.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultBody {
    /// Kill it.
    Crash,
    /// Stop it for good.
    Hang,
    /// Stop it for so many milliseconds.
    Slow(u64),
}

/// Why a worker could not, as `LinkError` has it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GatewayError {
    /// Which.
    pub error: GatewayErrorKind,
    /// In words.
    pub message: String,
}

/// The kinds of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GatewayErrorKind {
    /// The browser would not start.
    LaunchFailed,
    /// The session was closed meanwhile.
    Withdrawn,
    /// The worker takes no more.
    Draining,
    /// The worker does not answer.
    Unreachable,
    /// The browser does not answer on its socket.
    BrowserUnreachable,
    /// The browser was asked and said nothing in time.
    BrowserHung,
    /// The session has no browser there.
    NotHeld,
    /// The browser has no such page.
    NoSuchTarget,
}
