//! Why a session ended: the closed list, and how each reason is told to a client.
//!
//! Its own file because the same word must appear in the WebSocket close frame, the API, the event stream, the log
//! line and the metric label. Close codes follow RFC 6455 §7.4 and the 4xxx range for what is ours.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Why a session ended. A session has exactly one, and it never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// The client gave it back: DELETE, a proper WebSocket close, or `Browser.close`.
    Released,
    /// The client's connection broke without a closing handshake.
    ClientDisconnected,
    /// No client traffic for the session's idle timeout.
    IdleTimeout,
    /// The session's maximum duration passed.
    MaxDuration,
    /// Nobody attached within the connect timeout.
    ConnectTimeout,
    /// The queue deadline passed before a slot was free.
    QueueTimeout,
    /// The client left or withdrew before the session was active.
    Cancelled,
    /// The browser's process exited on its own.
    BrowserCrashed,
    /// The browser stopped answering probes and was killed.
    BrowserHung,
    /// The browser was killed for want of memory.
    OutOfMemory,
    /// No browser could be launched for it.
    LaunchFailed,
    /// Its worker vanished.
    WorkerLost,
    /// Its worker was drained and the drain timeout passed.
    WorkerDrained,
    /// An operator ended it.
    Killed,
    /// A policy forbids it.
    Policy,
    /// A bug of ours; the log has the details.
    Internal,
}

/// A WebSocket close: the code and the short text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CloseAdvice {
    /// The close code.
    pub code: u16,
    /// A sentence for people. The frame carries `<reason>: <sentence>`.
    pub sentence: &'static str,
}

// === impl EndReason ===

impl EndReason {
    /// Every reason, in the order of DESIGN.md §3.
    pub const ALL: [Self; 16] = [
        Self::Released,
        Self::ClientDisconnected,
        Self::IdleTimeout,
        Self::MaxDuration,
        Self::ConnectTimeout,
        Self::QueueTimeout,
        Self::Cancelled,
        Self::BrowserCrashed,
        Self::BrowserHung,
        Self::OutOfMemory,
        Self::LaunchFailed,
        Self::WorkerLost,
        Self::WorkerDrained,
        Self::Killed,
        Self::Policy,
        Self::Internal,
    ];

    /// The one spelling, for JSON, SQL, metrics, logs and close frames.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::ClientDisconnected => "client_disconnected",
            Self::IdleTimeout => "idle_timeout",
            Self::MaxDuration => "max_duration",
            Self::ConnectTimeout => "connect_timeout",
            Self::QueueTimeout => "queue_timeout",
            Self::Cancelled => "cancelled",
            Self::BrowserCrashed => "browser_crashed",
            Self::BrowserHung => "browser_hung",
            Self::OutOfMemory => "out_of_memory",
            Self::LaunchFailed => "launch_failed",
            Self::WorkerLost => "worker_lost",
            Self::WorkerDrained => "worker_drained",
            Self::Killed => "killed",
            Self::Policy => "policy",
            Self::Internal => "internal",
        }
    }

    /// How an attached client is told.
    pub const fn close(self) -> CloseAdvice {
        let (code, sentence) = match self {
            Self::Released => (1001, "the session was released"),
            Self::ClientDisconnected => (1001, "the client that owned the session left"),
            Self::IdleTimeout => (4409, "no client traffic within the idle timeout"),
            Self::MaxDuration => (4408, "the session reached its maximum duration"),
            Self::ConnectTimeout => (4409, "nobody attached within the connect timeout"),
            Self::QueueTimeout => (1013, "no slot became free in time"),
            Self::Cancelled => (1001, "the request was withdrawn"),
            Self::BrowserCrashed => (1011, "the browser exited unexpectedly"),
            Self::BrowserHung => (1011, "the browser stopped answering and was killed"),
            Self::OutOfMemory => (4413, "the browser ran out of memory"),
            Self::LaunchFailed => (1011, "the browser could not be launched"),
            Self::WorkerLost => (1011, "the worker was lost"),
            Self::WorkerDrained => (1001, "the grid is shutting down"),
            Self::Killed => (4410, "an operator ended the session"),
            Self::Policy => (1008, "a policy forbids it"),
            Self::Internal => (1011, "an internal error"),
        };
        CloseAdvice { code, sentence }
    }

    /// Whether the session did what its client wanted (for success rates).
    pub const fn is_normal(self) -> bool {
        matches!(self, Self::Released | Self::ClientDisconnected)
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for EndReason {
    type Err = UnknownReason;

    fn from_str(text: &str) -> Result<Self, UnknownReason> {
        Self::ALL
            .into_iter()
            .find(|reason| reason.as_str() == text)
            .ok_or_else(|| UnknownReason(text.to_owned()))
    }
}

/// A text that is no end reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an end reason")]
pub struct UnknownReason(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_one_spelling_everywhere() {
        for reason in EndReason::ALL {
            assert_eq!(serde_json::to_string(&reason).unwrap(), format!("\"{reason}\""));
            assert_eq!(reason.as_str().parse::<EndReason>(), Ok(reason));
        }
    }

    #[test]
    fn close_frames_are_legal_and_fit() {
        for reason in EndReason::ALL {
            let CloseAdvice { code, sentence } = reason.close();
            assert!(
                matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999),
                "{reason}: {code}"
            );
            assert!(reason.as_str().len() + 2 + sentence.len() <= 123, "{reason}");
        }
    }
}
