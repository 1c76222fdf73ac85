//! The phases of a process, from start to stop, as roles publish and tests assert them.
//!
//! Its own file because readiness, admission and the drain all read the same value. Phases only move forward.

use serde::{Deserialize, Serialize};

/// Where in its life a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Not serving yet.
    Starting,
    /// Serving.
    Ready,
    /// No new work; sessions may finish.
    Draining,
    /// Time is up or a second signal came: everything is being ended.
    Closing,
    /// Nothing is left.
    Stopped,
}

// === impl Phase ===

impl Phase {
    /// The next phase if it lies ahead, else the present one.
    #[must_use]
    pub fn advance(self, to: Self) -> Self {
        self.max(to)
    }

    /// Whether new sessions are taken.
    pub const fn admits(self) -> bool {
        matches!(self, Self::Ready)
    }

    /// The one spelling.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Closing => "closing",
            Self::Stopped => "stopped",
        }
    }
}
