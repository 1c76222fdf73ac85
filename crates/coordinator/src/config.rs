//! What a coordinator is told at start. Validated by the binary; nothing here reads files or the environment.

use std::{net::IpAddr, time::Duration};

use ipnet::IpNet;
use wharf_core::{BrowserKind, CoordinatorId, PoolName, SessionSpec, Timeouts};
use wharf_relay::RelayConfig;

/// A coordinator's settings.
#[derive(Debug, Clone)]
pub struct CoordinatorConfig {
    /// Who holds the tickets of its waiters.
    pub id: CoordinatorId,
    /// How many may wait in a pool.
    pub queue_limit: u64,
    /// The pool of sessions that name none.
    pub pool: PoolName,
    /// The kind of browser of sessions that name none: what this grid's workers serve.
    pub browser: BrowserKind,
    /// What sessions get that ask for nothing.
    pub timeouts: Timeouts,
    /// The most that sessions may ask for; `None` is no limit.
    pub longest: LongestTimeouts,
    /// Longest time for one placement to become a browser.
    pub starting_limit: Duration,
    /// Longest time for a connection to a browser.
    pub dial_limit: Duration,
    /// Longest time for a program to answer for its session.
    pub forward_timeout: Duration,
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
    /// What workers elsewhere must show; none where the only worker is in this process.
    pub worker_token: Option<WorkerToken>,
    /// Whether clients must show a key.
    pub keys: KeyRule,
    /// Whether faults may be injected over the API.
    pub faults: bool,
    /// Host names by which clients may call us, besides addresses, localhost and the external URL's.
    pub allow_hosts: Vec<String>,
    /// The URL clients use, if it cannot be told from their requests.
    pub external_url: Option<String>,
    /// Proxies whose `Forwarded` and `X-Forwarded-*` headers are believed.
    pub trusted_proxies: Vec<IpNet>,
}

// === impl WorkerToken ===

impl WorkerToken {
    /// Shorter ones can be guessed.
    pub const SHORTEST: usize = 32;

    /// A secret of at least [`WorkerToken::SHORTEST`] characters that a header may carry.
    pub fn new(text: &str) -> Result<Self, String> {
        if text.len() < Self::SHORTEST {
            return Err(format!(
                "has {} characters and needs at least {}; make one with: openssl rand -hex 32",
                text.len(),
                Self::SHORTEST
            ));
        }
        match text.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(Self(text.to_owned())),
            false => Err("has a character that no header may carry; make one with: openssl rand -hex 32".to_owned()),
        }
    }

    /// Whether this is the one.
    pub fn matches(&self, shown: &str) -> bool {
        use subtle::ConstantTimeEq as _;
        self.0.as_bytes().ct_eq(shown.as_bytes()).into()
    }

    /// The secret itself, for the header that shows it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for WorkerToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WorkerToken(..)")
    }
}

// === impl CoordinatorConfig ===

impl CoordinatorConfig {
    /// What a session gets that asks for nothing.
    pub fn defaults(&self) -> SessionSpec {
        SessionSpec {
            pool: self.pool.clone(),
            browser: self.browser,
            timeouts: self.timeouts,
            ..SessionSpec::default()
        }
    }

    /// Whether this peer is a proxy whose forwarding headers are believed.
    pub fn trusts(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.trusted_proxies.iter().any(|net| net.contains(&peer))
    }
}

/// The secret that workers and coordinators share. Compared in constant time, never printed.
#[derive(Clone)]
pub struct WorkerToken(String);

/// Whether clients must show a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRule {
    /// Always: the grid can be reached from beyond this machine.
    Always,
    /// From the first key on.
    OnceMade,
    /// Never; the binary allows it on loopback only.
    Never,
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

#[cfg(test)]
pub(crate) mod tests {
    use uuid::Uuid;

    use super::*;

    /// What tests use unless they say otherwise.
    pub(crate) fn config() -> CoordinatorConfig {
        CoordinatorConfig {
            id: CoordinatorId::from_uuid(Uuid::now_v7()),
            queue_limit: 10,
            pool: PoolName::default(),
            browser: BrowserKind::default(),
            timeouts: Timeouts::default(),
            longest: LongestTimeouts::default(),
            starting_limit: Duration::from_secs(30),
            dial_limit: Duration::from_secs(5),
            forward_timeout: Duration::from_secs(5),
            relay: RelayConfig::default(),
            sweep_interval: Duration::from_secs(1),
            touch_interval: Duration::from_secs(1),
            ticket_renewal: Duration::from_secs(3),
            body_limit: 1 << 20,
            body_timeout: Duration::from_secs(10),
            worker_token: None,
            keys: KeyRule::Never,
            faults: false,
            allow_hosts: Vec::new(),
            external_url: None,
            trusted_proxies: Vec::new(),
        }
    }
}
