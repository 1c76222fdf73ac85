//! What a coordinator is told at start. Validated by the binary; nothing here reads files or the environment.

use std::time::Duration;

use ipnet::IpNet;
use wharf_core::{CoordinatorId, Timeouts};
use wharf_relay::RelayConfig;

/// A coordinator's settings.
#[derive(Debug, Clone)]
pub struct CoordinatorConfig {
    /// Who holds the tickets of its waiters.
    pub id: CoordinatorId,
    /// How many may wait in a pool.
    pub queue_limit: u64,
    /// What sessions get that ask for nothing.
    pub timeouts: Timeouts,
    /// The most that sessions may ask for; `None` is no limit.
    pub longest: LongestTimeouts,
    /// Longest time for one placement to become a browser.
    pub starting_limit: Duration,
    /// Longest time for a connection to a browser.
    pub dial_limit: Duration,
    /// How relays ping and give up.
    pub relay: RelayConfig,
    /// How often time is applied to the store; spread by a fifth.
    pub sweep_interval: Duration,
    /// How often activity is written; once a second loses little and costs little.
    pub touch_interval: Duration,
    /// How often tickets are renewed: a third of their lease or less.
    pub ticket_renewal: Duration,
    /// The largest request body, in bytes.
    pub body_limit: usize,
    /// Longest time for a request's body to arrive.
    pub body_timeout: Duration,
    /// The URL clients use, if it cannot be told from their requests.
    pub external_url: Option<String>,
    /// Proxies whose `Forwarded` and `X-Forwarded-*` headers are believed.
    pub trusted_proxies: Vec<IpNet>,
}

/// The most that a session may ask for.
#[derive(Debug, Clone, Copy, Default)]
pub struct LongestTimeouts {
    /// In the queue.
    pub queue: Option<Duration>,
    /// Without traffic.
    pub idle: Option<Duration>,
    /// Of the whole session.
    pub max_duration: Option<Duration>,
}
