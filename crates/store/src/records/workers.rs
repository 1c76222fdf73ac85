//! What workers say of themselves, and what is kept of it.
//!
//! Its own file because it is the half of the contract that workers speak; clients' half is `sessions`.

use serde::{Deserialize, Serialize};
use wharf_core::{BrowserKind, Epoch, PoolName, SessionId, Timestamp, WorkerId, WorkerState};

use super::Freed;

/// A worker's introduction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// Stable across restarts.
    pub worker: WorkerId,
    /// Its pool.
    pub pool: PoolName,
    /// What it can launch.
    pub browsers: Vec<BrowserKind>,
    /// How many sessions it can hold.
    pub slots: u32,
    /// Where its gateway is; empty for a worker in the coordinator's own process.
    pub address: String,
    /// Whether its driver has been checked and it may take placements at once.
    pub is_ready: bool,
}

/// What `register` did.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Registered {
    /// Sessions of its past life that were ended, and placements that became possible.
    pub freed: Freed,
}

/// A worker's report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Who.
    pub worker: WorkerId,
    /// The leases it holds: session and placement.
    pub held: Vec<(SessionId, Epoch)>,
    /// Its launches keep failing.
    pub is_circuit_open: bool,
    /// Its driver works.
    pub is_ready: bool,
    /// It takes no more.
    pub is_draining: bool,
    /// Its browsers that are up and idle.
    pub warm: u32,
    /// Its launches in flight.
    pub launching: u32,
    /// How busy its machine is.
    pub load: Load,
    /// It has served long enough and would like to begin anew. The answer says when it may.
    pub wants_recycling: bool,
}

/// How busy a worker's machine is. For people and for scaling: nothing is placed by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Load {
    /// Processor time used, in thousandths of all cores.
    pub cpu_permille: u32,
    /// Memory used by the worker and its browsers, in bytes.
    pub memory_used: u64,
    /// What there is of it, in bytes.
    pub memory_limit: u64,
    /// Share of time in which something waited for memory or a processor (PSI `some`, ten seconds), in thousandths.
    pub pressure_permille: u32,
}

/// The answer to a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HeartbeatReply {
    /// Known.
    Known {
        /// What it holds and must end: given up, ended or never its own.
        end: Vec<(SessionId, Epoch)>,
        /// It is to drain: an operator or the rule of recycling says so, or it said so itself.
        drain: bool,
        /// What the report freed or made possible.
        freed: Freed,
    },
    /// The store does not know it, or has given it up: it must register, after ending everything it holds.
    Unknown,
}

/// A worker as the store knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerRecord {
    /// Who.
    pub id: WorkerId,
    /// Its pool.
    pub pool: PoolName,
    /// What it can launch.
    pub browsers: Vec<BrowserKind>,
    /// Its capacity.
    pub slots: u32,
    /// How many leases it holds.
    pub busy: u32,
    /// Sessions it was ever given.
    pub lifetime: u64,
    /// Its state.
    pub state: WorkerState,
    /// Its launches keep failing.
    pub is_circuit_open: bool,
    /// Its browsers that are up and idle, by its last report.
    pub warm: u32,
    /// Its launches in flight, by its last report.
    pub launching: u32,
    /// How busy its machine is, by its last report.
    pub load: Load,
    /// Where its gateway is.
    pub address: String,
    /// When it registered.
    pub registered_at: Timestamp,
    /// When it was last heard.
    pub heard_at: Timestamp,
}
