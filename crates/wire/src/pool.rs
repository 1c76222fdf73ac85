//! The REST bodies for operators: `/v1/pool`, `/v1/queue`, `/v1/locks`, `/v1/keys`.
//!
//! Its own file because these are another audience's words than `rest`'s; the same rules hold: the OpenAPI document is
//! generated from these types, and requests refuse unknown fields. A lock's token and a key's secret appear in exactly
//! one answer each, to whoever took or made it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use wharf_core::{
    BrowserKind, KeyId, LockName, LockToken, Operation, PoolName, Priority, SessionId, SessionStatus, Timestamp,
    WorkerId,
};

use crate::span::Span;

/// A pool: what runs, what waits, what is free, and who holds what since when.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PoolBody {
    /// Its name.
    #[schema(value_type = String)]
    pub pool: PoolName,
    /// Slots of its workers.
    pub max: u64,
    /// The limit that was set, if any.
    pub limit: Option<u64>,
    /// What holds: the smaller of `max` and `limit`.
    pub effective_max: u64,
    /// Slots in use, closing browsers included.
    pub running: u64,
    /// Sessions waiting.
    pub queued: u64,
    /// Sessions that could be placed at once.
    pub available: u64,
    /// Sessions that are being given a browser.
    pub starting: u64,
    /// Sessions in use.
    pub active: u64,
    /// Browsers that are up and idle.
    pub warm: u64,
    /// Launches in flight.
    pub launching: u64,
    /// Live workers.
    pub workers: u64,
    /// How many there should be, by what runs and waits: for whoever adds and removes machines.
    #[serde(default)]
    pub desired_workers: u64,
    /// The live workers in the order in which they should go when there are too many: idle ones first.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub scale_down: Vec<WorkerId>,
    /// By operation: what runs, waits or has a limit.
    pub operations: Vec<OperationBody>,
    /// Who holds a slot, longest first; of a key that is not an admin's, its own sessions only.
    pub holders: Vec<HolderBody>,
    /// Locks that keep work out of this pool.
    pub locks: Vec<LockBody>,
}

/// One operation of a pool.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct OperationBody {
    /// Which.
    #[schema(value_type = String)]
    pub operation: Operation,
    /// Slots in use.
    pub running: u64,
    /// Sessions waiting.
    pub queued: u64,
    /// Its limit.
    pub limit: Option<u64>,
}

/// A session that holds a slot.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct HolderBody {
    /// Which session.
    #[schema(value_type = String)]
    pub session: SessionId,
    /// Where in its life it is.
    #[schema(value_type = String)]
    pub status: SessionStatus,
    /// What it is for.
    #[schema(value_type = String)]
    pub operation: Operation,
    /// A line for people.
    pub description: String,
    /// The API key it was made with.
    #[schema(value_type = Option<String>)]
    pub key: Option<KeyId>,
    /// On which worker.
    #[schema(value_type = Option<String>)]
    pub worker: Option<WorkerId>,
    /// Since when it has the slot.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub since: Option<Timestamp>,
    /// For how long, in seconds.
    #[schema(value_type = f64)]
    pub held_for: Span,
    /// Its limit of life, in seconds.
    #[schema(value_type = Option<f64>)]
    pub max_duration: Option<Span>,
}

/// A change of limits.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetLimit {
    /// The pool; `default` if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")]
    pub pool: Option<PoolName>,
    /// Of one operation; of the whole pool if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")]
    pub operation: Option<Operation>,
    /// How many sessions may hold a slot at once; null lifts the limit. Waiters that it held back are served at once.
    #[serde(deserialize_with = "required")]
    #[schema(required = true, maximum = 1_000_000)]
    pub max: Option<u64>,
}

/// Which sessions to release by force.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Cleanup {
    /// The pool; all pools if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")]
    pub pool: Option<PoolName>,
    /// Sessions that are active for longer: seconds, or text such as "60m" (the default).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub max_age: Option<Span>,
}

/// What was released or cleared.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Cleaned {
    /// The sessions that ended by it.
    #[schema(value_type = Vec<String>)]
    pub ended: Vec<SessionId>,
}

/// The queue of a pool, in the order of service.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct QueueBody {
    /// Its pool.
    #[schema(value_type = String)]
    pub pool: PoolName,
    /// How many wait in all.
    pub queued: u64,
    /// How many may wait.
    pub limit: u64,
    /// The first of them; of a key that is not an admin's, its own only.
    pub waiting: Vec<WaiterBody>,
}

/// A session that waits.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct WaiterBody {
    /// Its place in the pool's queue, 1 being first.
    pub position: u64,
    /// Which session.
    #[schema(value_type = String)]
    pub session: SessionId,
    /// What it is for.
    #[schema(value_type = String)]
    pub operation: Operation,
    /// A line for people.
    pub description: String,
    /// The kind of browser it wants.
    #[schema(value_type = String)]
    pub browser: BrowserKind,
    /// Its priority.
    #[schema(value_type = i32)]
    pub priority: Priority,
    /// The API key it was made with.
    #[schema(value_type = Option<String>)]
    pub key: Option<KeyId>,
    /// Since when it waits.
    #[schema(value_type = String, format = DateTime)]
    pub queued_at: Timestamp,
    /// For how long, in seconds.
    #[schema(value_type = f64)]
    pub wait_time: Span,
    /// Its limit, in seconds.
    #[schema(value_type = f64)]
    pub queue_timeout: Span,
}

/// A wish for a lock.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TakeLock {
    /// Who wants it: shown to everybody it keeps out. 1 to 200 characters.
    #[schema(min_length = 1, max_length = 200)]
    pub holder: String,
    /// What for, at most 1,000 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// How long it holds without renewal: seconds, or text such as "2h" (the default). 1 s to 24 h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub ttl: Option<Span>,
    /// The pools it covers; all if left out or empty.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub pools: Vec<PoolName>,
    /// The operations it covers; all if left out or empty.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub operations: Vec<Operation>,
    /// Wait at most this long until what runs under it has ended; if it has not, the lock is given back. Without it, the
    /// answer comes at once and what runs goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub drain: Option<Span>,
}

/// A renewal.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewLock {
    /// The token of whoever took it.
    #[schema(value_type = String, pattern = "^lck_[0-9a-f]{32}$")]
    pub token: LockToken,
    /// How long it holds from now on; as in the first wish.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub ttl: Option<Span>,
}

/// A lock that is held.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct LockBody {
    /// Which.
    #[schema(value_type = String)]
    pub name: LockName,
    /// Who holds it.
    pub holder: String,
    /// What for.
    pub description: String,
    /// The pools it covers; empty means all.
    #[schema(value_type = Vec<String>)]
    pub pools: Vec<PoolName>,
    /// The operations it covers; empty means all.
    #[schema(value_type = Vec<String>)]
    pub operations: Vec<Operation>,
    /// Since when.
    #[schema(value_type = String, format = DateTime)]
    pub since: Timestamp,
    /// Until when, unless it is renewed.
    #[schema(value_type = String, format = DateTime)]
    pub until: Timestamp,
    /// Covered sessions that still run. Absent where it is not counted (in error bodies).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<u64>,
    /// To renew and release it; only in the answer to whoever took it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub token: Option<LockToken>,
}

/// All locks.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct LockList {
    /// By name.
    pub locks: Vec<LockBody>,
}

/// What a key may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum KeyRoleBody {
    /// Its own sessions.
    #[default]
    Client,
    /// Everything.
    Admin,
}

/// A new key.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateKey {
    /// What people call it. 1 to 100 characters.
    #[schema(min_length = 1, max_length = 100)]
    pub name: String,
    /// What it may do.
    #[serde(default)]
    pub role: KeyRoleBody,
    /// How many sessions it may hold, waiting ones included; no limit if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 1_000_000)]
    pub max_sessions: Option<u64>,
}

/// A change of a key.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeKey {
    /// How many sessions it may hold; null lifts the limit.
    #[serde(deserialize_with = "required")]
    #[schema(required = true, maximum = 1_000_000)]
    pub max_sessions: Option<u64>,
}

/// A key, without its secret.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct KeyBody {
    /// Its id.
    #[schema(value_type = String)]
    pub id: KeyId,
    /// What people call it.
    pub name: String,
    /// What it may do.
    pub role: KeyRoleBody,
    /// How many sessions it may hold.
    pub max_sessions: Option<u64>,
    /// How many it holds.
    pub sessions: u64,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When it was last used, to the minute.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub used_at: Option<Timestamp>,
    /// When it was revoked.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub revoked_at: Option<Timestamp>,
    /// The key itself; only in the answer to whoever made it, and never again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

/// All keys.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct KeyList {
    /// By age.
    pub keys: Vec<KeyBody>,
}

/// A field that may be null but not left out: a limit must not be lifted by a typing error.
fn required<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    Option::deserialize(deserializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_lifted_by_null_only() {
        assert_eq!(serde_json::from_str::<SetLimit>(r#"{"max":null}"#).unwrap().max, None);
        assert!(serde_json::from_str::<SetLimit>("{}").is_err());
        assert!(serde_json::from_str::<SetLimit>(r#"{"max":-1}"#).is_err());
    }
}
