//! What a worker is told at start. Validated by the binary; nothing here reads files or the environment.

use std::time::Duration;

use wharf_core::{BrowserKind, PoolName, WorkerId, warm::WarmRules};

/// A worker's settings.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// Stable across restarts.
    pub id: WorkerId,
    /// Its pool.
    pub pool: PoolName,
    /// What its driver serves.
    pub browser: BrowserKind,
    /// Floor, ceiling and pace of its browsers.
    pub warm: WarmRules,
    /// Limit of one launch, readiness gate included.
    pub launch_timeout: Duration,
    /// How long a program may take to answer for its session.
    pub forward_timeout: Duration,
    /// How often a browser is probed.
    pub probe_interval: Duration,
    /// How long one probe may take.
    pub probe_limit: Duration,
    /// Misses in a row after which a browser is hung.
    pub probe_misses: u32,
    /// How often the pool may shrink by one.
    pub tick: Duration,
    /// How often it reports; sooner on change.
    pub heartbeat_interval: Duration,
    /// A browser above this many bytes of PSS is ended as out of memory.
    pub memory_limit: Option<u64>,
    /// Where its gateway is, key included; empty for a worker in the coordinator's own process.
    pub address: String,
    /// When it asks to begin anew.
    pub recycling: Recycling,
    /// Without any coordinator for this long it ends its sessions: the grid has given it up, and nobody can reach them.
    /// None in the coordinator's own process.
    pub fence_after: Option<Duration>,
}

/// When a worker has served long enough. The grid says when it may go: one at a time in a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recycling {
    /// After this many sessions.
    pub sessions: Option<u64>,
    /// After this long.
    pub age: Option<Duration>,
    /// When its own process, browsers apart, is larger than this many bytes.
    pub memory: Option<u64>,
}
