//! What a caller may set, and why a journal could not be opened.
//!
//! Its own file because it is what the binary's configuration maps to. Invariant: no text here holds a password.

use std::time::Duration;

/// How the journal is used. The address may set `wait_replicas` and `wait_timeout_ms`, too, and then wins.
#[derive(Debug, Clone)]
pub struct Options {
    /// What all keys begin with, in braces: `{wharf}:head`. One grid, one prefix.
    pub prefix: String,
    /// How long one connection may take to be opened.
    pub connect_timeout: Duration,
    /// How long one call may take in all, reconnecting and trying again included; what moves an image or a list may
    /// take four times as long.
    pub response_timeout: Duration,
    /// An append is acknowledged when this many replicas have the page (`WAIT`): with all replicas of the primary, an
    /// acknowledged page survives a fail-over. Costs a round trip to a replica per append. 0: fastest; a fail-over may
    /// lose the last moments, which every coordinator then notices.
    pub wait_replicas: u32,
    /// How long replicas may take to confirm before the append counts as failed (and is tried again by its caller).
    pub wait_timeout: Duration,
}

/// Why the journal could not be opened.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ConnectError {
    /// The address or an option makes no sense.
    #[error("redis address {address:?}: {problem}")]
    Address {
        /// The address, without its password.
        address: String,
        /// What is wrong with it, and what would be right.
        problem: String,
    },
    /// The prefix cannot be one.
    #[error("redis prefix {0:?}: must be 1 to 64 of a-z, A-Z, 0-9, '_', '-', '.', ':'; for example \"wharf\"")]
    Prefix(String),
    /// Nobody answered there.
    #[error("redis at {address}: {problem}; is it running, and reachable from here?")]
    Unreachable {
        /// Where.
        address: String,
        /// What happened.
        problem: String,
    },
    /// It answered, but will not do.
    #[error("redis at {address}: {problem}")]
    Refused {
        /// Where.
        address: String,
        /// What it said, and what would help.
        problem: String,
    },
}

// === impl Options ===

impl Default for Options {
    fn default() -> Self {
        Self {
            prefix: "wharf".to_owned(),
            // A connection within one network takes milliseconds; one lost packet (SYN again after 1 s) is forgiven by
            // the next try.
            connect_timeout: Duration::from_secs(1),
            // Longer and a coordinator would answer its own clients too late; shorter and a server that forks or
            // loads would look dead.
            response_timeout: Duration::from_secs(3),
            wait_replicas: 0,
            wait_timeout: Duration::from_secs(1),
        }
    }
}

impl Options {
    /// Whether the prefix may be one: braces in it would move the hash tag, spaces would confuse people.
    pub(crate) fn check(&self) -> Result<(), ConnectError> {
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"_-.:".contains(&b);
        if (1..=64).contains(&self.prefix.len()) && self.prefix.bytes().all(is_plain) {
            Ok(())
        } else {
            Err(ConnectError::Prefix(self.prefix.chars().take(80).collect()))
        }
    }
}
