//! What a session asks for: class of browser, priority, isolation, timeouts.
//!
//! Its own file because the request's meaning is shared by every front and every store engine. Limits are applied
//! here, once: what a client may ask is clamped or refused before anything is reserved.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{Operation, PoolName};

/// The kind of browser a driver serves. With the pool it forms the class in which first come is first served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum BrowserKind {
    /// Chromium's headless shell or a full Chromium, over CDP.
    #[default]
    Chromium,
    /// Firefox. No driver serves it yet; it is here so that stores and queues are tested with two classes.
    Firefox,
    /// Any program that serves one session over HTTP (seed 000's worker contract).
    Command,
}

/// How far a session's browser is its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Own process and profile.
    #[default]
    Browser,
    /// Own browser context in a shared process.
    Context,
}

/// Who is served first among waiters of one class: higher before lower, equal in order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Default)]
#[serde(transparent)]
pub struct Priority(i8);

/// A session's time limits. `None` means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeouts {
    /// Longest wait in the queue.
    pub queue: Duration,
    /// From active to the first attach.
    pub connect: Option<Duration>,
    /// Without client traffic.
    pub idle: Option<Duration>,
    /// Of the whole session, from active on.
    pub max_duration: Option<Duration>,
}

/// What a session asks for, validated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionSpec {
    /// The set of workers it may run on.
    pub pool: PoolName,
    /// The class of browser.
    pub browser: BrowserKind,
    /// Its place among waiters.
    pub priority: Priority,
    /// What it is for.
    pub operation: Operation,
    /// A line for people.
    pub description: String,
    /// The client's own data, never read by us.
    pub data: serde_json::Value,
    /// Launch options as the driver defines them; an empty object means the warm browsers' own.
    pub options: serde_json::Value,
    /// Own process or own context.
    pub isolation: Isolation,
    /// Its time limits.
    pub timeouts: Timeouts,
    /// Whether the session outlives its last attached client (until idle) or ends with it.
    pub keep_alive: bool,
}

/// A priority outside the range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a whole number from -100 to 100, got {0}")]
pub struct PriorityOutOfRange(i64);

/// A text that names no kind of browser.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a kind of browser; expected one of: chromium, firefox, command")]
pub struct UnknownBrowser(String);

// === impl BrowserKind ===

impl BrowserKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Chromium, Self::Firefox, Self::Command];

    /// The one spelling.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Chromium => "chromium",
            Self::Firefox => "firefox",
            Self::Command => "command",
        }
    }
}

impl fmt::Display for BrowserKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for BrowserKind {
    type Err = UnknownBrowser;

    fn from_str(text: &str) -> Result<Self, UnknownBrowser> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| UnknownBrowser(text.to_owned()))
    }
}

// === impl Isolation ===

impl Isolation {
    /// The one spelling.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Browser => "browser",
            Self::Context => "context",
        }
    }
}

// === impl Priority ===

impl Priority {
    /// The priority as a number, higher served sooner.
    pub const fn get(self) -> i8 {
        self.0
    }
}

impl TryFrom<i64> for Priority {
    type Error = PriorityOutOfRange;

    fn try_from(number: i64) -> Result<Self, PriorityOutOfRange> {
        match i8::try_from(number) {
            Ok(small) if (-100..=100).contains(&small) => Ok(Self(small)),
            _ => Err(PriorityOutOfRange(number)),
        }
    }
}

impl<'de> Deserialize<'de> for Priority {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::try_from(i64::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

// === impl Timeouts ===

impl Default for Timeouts {
    /// DESIGN.md §3.
    fn default() -> Self {
        Self {
            queue: Duration::from_secs(300),
            connect: Some(Duration::from_secs(30)),
            idle: Some(Duration::from_secs(60)),
            max_duration: None,
        }
    }
}

// === impl SessionSpec ===

impl Default for SessionSpec {
    fn default() -> Self {
        Self {
            pool: PoolName::default(),
            browser: BrowserKind::default(),
            priority: Priority::default(),
            operation: Operation::default(),
            description: String::new(),
            data: serde_json::Value::Object(serde_json::Map::new()),
            options: serde_json::Value::Object(serde_json::Map::new()),
            isolation: Isolation::default(),
            timeouts: Timeouts::default(),
            keep_alive: true,
        }
    }
}
