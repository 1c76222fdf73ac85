//! The bodies of `/v1/workers`: who offers slots, how busy they are, where they are.
//!
//! Its own file because it is the fleet's view; `pool` has the sums. An address is shown without what may be secret in it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use wharf_core::{BrowserKind, PoolName, SessionId, Timestamp, WorkerId, WorkerState};

/// A worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkerBody {
    /// Its id, stable across restarts.
    #[schema(value_type = String, example = "wrk_0198c0de0198c0de0198c0de0198c0de")]
    pub id: WorkerId,
    /// Its pool.
    #[schema(value_type = String)]
    pub pool: PoolName,
    /// What it can launch.
    #[schema(value_type = Vec<String>)]
    pub browsers: Vec<BrowserKind>,
    /// `starting`, `available`, `draining` (takes no more), `gone` (said goodbye), `lost` (silent too long).
    #[schema(value_type = String, example = "available")]
    pub state: WorkerState,
    /// How many sessions it can hold.
    pub slots: u32,
    /// How many it holds, closing browsers included.
    pub busy: u32,
    /// Sessions it was ever given since it registered.
    pub lifetime: u64,
    /// Browsers that are up and idle, by its last report.
    pub warm: u32,
    /// Launches in flight, by its last report.
    pub launching: u32,
    /// Its launches keep failing: nothing is placed there.
    pub is_circuit_open: bool,
    /// How busy its machine is, by its last report.
    pub load: LoadBody,
    /// Where its gateway is; empty for the worker of `wharf up`.
    pub address: String,
    /// When it registered.
    #[schema(value_type = String, format = DateTime)]
    pub registered_at: Timestamp,
    /// When it was last heard.
    #[schema(value_type = String, format = DateTime)]
    pub heard_at: Timestamp,
}

/// How busy a machine is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LoadBody {
    /// Processor time used: 0 is idle, 1 is all cores.
    pub cpu: f64,
    /// Memory used by the worker and its browsers, in bytes.
    pub memory_used: u64,
    /// What there is of it, in bytes.
    pub memory_limit: u64,
    /// Share of time in which something waited for memory or a processor (PSI `some`, ten seconds): 0 to 1.
    pub pressure: f64,
}

/// Workers, by id.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkerList {
    /// The workers; given-up ones too, until their record is pruned.
    pub workers: Vec<WorkerBody>,
}

/// A worker that was removed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RemovedWorker {
    /// As it was.
    pub worker: WorkerBody,
    /// Its sessions, which ended as `worker_lost`.
    #[schema(value_type = Vec<String>)]
    pub ended: Vec<SessionId>,
}

// === impl WorkerBody ===

impl WorkerBody {
    /// Nothing runs on it, or it is given up.
    pub fn is_drained(&self) -> bool {
        self.busy == 0 || !self.state.is_live()
    }
}

/// An address as others may see it: without name and password.
pub fn without_userinfo(address: &str) -> String {
    let (scheme, rest) = match address.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), address),
    };
    // RFC 3986 §3.2: the authority ends at the first `/`, `?` or `#`; a password may itself hold an `@`.
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_loses_name_and_password_and_nothing_else() {
        for (address, shown) in [
            ("http://user:pass@10.0.0.7:8081", "http://10.0.0.7:8081"),
            ("https://u:p@ss@[fd00::1]:8081/a@b", "https://[fd00::1]:8081/a@b"),
            ("http://worker-1:8081/", "http://worker-1:8081/"),
            ("user:pass@worker-1:8081", "worker-1:8081"),
            ("http://u:p@h?x=@", "http://h?x=@"),
            ("", ""),
        ] {
            assert_eq!(without_userinfo(address), shown);
        }
    }
}
