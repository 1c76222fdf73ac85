//! The errors the world sees: one closed list with status, source, retry advice and a sentence to act on.
//!
//! Its own file because whose fault it is and whether to retry are data, not prose: every front (REST, WebSocket
//! rejections, later gRPC and WebDriver) reads this table and nothing else.

use serde::{Deserialize, Serialize};

/// Whose matter an error is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorSource {
    /// The request itself.
    Caller,
    /// All slots are busy, or a limit is reached.
    Capacity,
    /// The browser.
    Browser,
    /// The worker.
    Worker,
    /// The store.
    Store,
    /// Us.
    Internal,
}

/// Whether trying again helps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Retry {
    /// The same request will fail again.
    No,
    /// The same request may succeed after the time given in `Retry-After`.
    After,
    /// Make a new session.
    AsNew,
}

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $status:literal, $source:ident, $retry:ident, $advice:literal;)*) => {
        /// A stable error code.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum ErrorCode {
            $($(#[$doc])* #[serde(rename = $name)] $variant,)*
        }

        impl ErrorCode {
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The stable name.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The HTTP status.
            pub const fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)* }
            }

            /// Whose matter it is.
            pub const fn source(self) -> ErrorSource {
                match self { $(Self::$variant => ErrorSource::$source,)* }
            }

            /// Whether trying again helps.
            pub const fn retry(self) -> Retry {
                match self { $(Self::$variant => Retry::$retry,)* }
            }

            /// What a person can do.
            pub const fn advice(self) -> &'static str {
                match self { $(Self::$variant => $advice,)* }
            }
        }
    };
}

codes! {
    /// The body is not the JSON that was expected.
    InvalidRequest = "invalid_request", 400, Caller, No, "Correct the request as the message says.";
    /// An id that is not spelled as one.
    InvalidId = "invalid_id", 400, Caller, No, "Use the id exactly as it was given out.";
    /// A launch option that is not allowed.
    OptionRefused = "option_refused", 400, Caller, No, "Remove the option, or have the operator add it to the allow-list.";
    /// No key was shown, or it is unknown or revoked.
    Unauthorized = "unauthorized", 401, Caller, No, "Send a key as `Authorization: Bearer …`, as a Basic password or as `?token=`; `wharf key create` makes one.";
    /// The key may not do this.
    Forbidden = "forbidden", 403, Caller, No, "Use an admin key; `wharf key create --admin` makes one.";
    /// A foreign page tried to drive the grid.
    OriginRefused = "origin_refused", 403, Caller, No, "Call from a program or from the grid's own origin.";
    /// A name that is not ours (DNS rebinding).
    HostRefused = "host_refused", 403, Caller, No, "Call by address, as localhost, or have the operator set `external_url` or `allow_host`.";
    /// No such session.
    SessionNotFound = "session_not_found", 404, Caller, AsNew, "Check the id; records are kept for the history time only.";
    /// The session is over.
    SessionEnded = "session_ended", 404, Caller, AsNew, "Make a new session; `reason` says why this one ended.";
    /// No such page.
    TargetNotFound = "target_not_found", 404, Caller, No, "List the pages at /json/list and use one of their ids.";
    /// No such path.
    RouteNotFound = "route_not_found", 404, Caller, No, "See /openapi.json for what there is.";
    /// No worker serves such a pool or browser.
    PoolNotFound = "pool_not_found", 404, Caller, No, "Use a pool and a browser that a worker offers.";
    /// No such key.
    KeyNotFound = "key_not_found", 404, Caller, No, "List the keys with `wharf key list`.";
    /// Nobody holds such a lock.
    LockNotFound = "lock_not_found", 404, Caller, No, "List the locks with `wharf lock list`; it may have been released or have expired.";
    /// No such worker.
    WorkerNotFound = "worker_not_found", 404, Caller, No, "List the workers with `wharf workers list`; a removed one is forgotten.";
    /// The path exists, the method does not.
    MethodNotAllowed = "method_not_allowed", 405, Caller, No, "Use a method named in the Allow header.";
    /// The session is not yet active.
    SessionNotActive = "session_not_active", 409, Caller, After, "Wait until the session's status is `active`.";
    /// The key was used for another request.
    IdempotencyKeyReused = "idempotency_key_reused", 409, Caller, No, "Use a new idempotency key for a different request.";
    /// A lock covers this work, or is held by somebody else.
    LockHeld = "lock_held", 409, Caller, After, "Wait until the holder releases it or it expires; an operator can force it with `wharf lock force-unlock`.";
    /// What runs did not end in time, so the lock was given back.
    LockNotDrained = "lock_not_drained", 409, Caller, After, "Wait longer with `drain`, or end what runs first; `/v1/pool` lists it.";
    /// A worker that serves sessions is not simply forgotten.
    WorkerInUse = "worker_in_use", 409, Caller, After, "Drain it first with `wharf workers drain ID --wait 60s`, or remove it by force; its sessions then end as `worker_lost`.";
    /// Too large.
    BodyTooLarge = "body_too_large", 413, Caller, No, "Send less; `data` is meant for labels, not for files.";
    /// The body is not JSON by its content type.
    UnsupportedMediaType = "unsupported_media_type", 415, Caller, No, "Send `Content-Type: application/json`.";
    /// A WebSocket was expected.
    UpgradeRequired = "upgrade_required", 426, Caller, No, "Connect with a WebSocket client, version 13.";
    /// The client was too slow to send its request.
    RequestTimeout = "request_timeout", 408, Caller, After, "Send the whole request without pauses.";
    /// The key holds as many sessions as it may.
    QuotaReached = "quota_reached", 429, Caller, After, "End one of the key's sessions, or have the operator raise its `max_sessions`.";
    /// Too many wait already.
    QueueFull = "queue_full", 503, Capacity, After, "Try again after Retry-After, or raise `queue` or `max`.";
    /// The queue deadline passed.
    QueueTimeout = "queue_timeout", 503, Capacity, After, "Try again after Retry-After, wait longer with `queue_timeout`, or raise `max`.";
    /// An operator emptied the queue.
    QueueCleared = "queue_cleared", 503, Capacity, After, "An operator cleared the queue; ask again when they say so.";
    /// As many follow the events as one coordinator serves.
    TooManyStreams = "too_many_streams", 503, Capacity, After, "Try again after Retry-After, or at another coordinator; close streams that nobody reads.";
    /// Shutting down.
    Draining = "draining", 503, Capacity, After, "Try again after Retry-After; the grid is shutting down.";
    /// All launches failed.
    LaunchFailed = "launch_failed", 502, Browser, After, "See the message for the browser's own words; `wharf up` logs the details.";
    /// The browser could not be reached.
    BrowserUnreachable = "browser_unreachable", 502, Browser, AsNew, "Make a new session.";
    /// The session's worker is not reachable.
    WorkerUnreachable = "worker_unreachable", 502, Worker, AsNew, "Make a new session.";
    /// The store does not answer.
    StoreUnavailable = "store_unavailable", 503, Store, After, "Try again after Retry-After; running sessions are not affected.";
    /// A bug of ours.
    Internal = "internal", 500, Internal, After, "Report it with the request id; the log has the details.";
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_unique_and_says_what_to_do() {
        let mut names: Vec<_> = ErrorCode::ALL.iter().map(|code| code.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ErrorCode::ALL.len());
        for code in ErrorCode::ALL {
            assert!((400..600).contains(&code.status()), "{code}");
            assert!(code.advice().ends_with('.'), "{code}");
            assert_eq!(serde_json::to_string(code).unwrap(), format!("\"{code}\""));
            // A 4xx is the caller's matter; a 5xx never is.
            assert_eq!(code.status() < 500, code.source() == ErrorSource::Caller, "{code}");
        }
    }
}
