//! The REST bodies: what clients send to and get from `/v1/sessions` and `/sessions`.
//!
//! Its own file because the OpenAPI document is generated from these types and nothing else. Requests refuse unknown
//! fields: a misspelt option must not be silently ignored.

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;
use wharf_core::{
    BrowserKind, EndReason, ErrorCode, ErrorSource, Isolation, KeyId, Operation, PoolName, Priority, Retry, SessionId,
    SessionStatus, Timestamp, WorkerId,
};

use crate::span::Span;

/// What to create. Every field may be left out.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSession {
    /// Free-form data of your own, kept with the session and never read.
    pub data: Option<serde_json::Value>,
    /// What the session is for; for statistics and limits.
    #[schema(value_type = Option<String>, pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$", example = "test_run")]
    pub operation: Option<Operation>,
    /// A line for people, at most 1,000 characters.
    pub description: Option<String>,
    /// The pool to run in.
    #[schema(value_type = Option<String>, pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$", example = "default")]
    pub pool: Option<PoolName>,
    /// The kind of browser.
    #[schema(value_type = Option<String>, example = "chromium")]
    pub browser: Option<BrowserKind>,
    /// Higher is served sooner, -100 to 100; equal ones in order of arrival.
    #[schema(value_type = Option<i32>, minimum = -100, maximum = 100)]
    pub priority: Option<Priority>,
    /// `browser`: own process and profile.
    #[schema(value_type = Option<String>, example = "browser")]
    pub isolation: Option<Isolation>,
    /// Longest wait for a slot: seconds, or text such as "5m".
    #[schema(value_type = Option<f64>)]
    pub queue_timeout: Option<Span>,
    /// Longest time until the first client attaches; null for no limit.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<f64>)]
    pub connect_timeout: Option<Option<Span>>,
    /// Longest time without client traffic; null for no limit.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<f64>)]
    pub idle_timeout: Option<Option<Span>>,
    /// Longest life once active; null for no limit.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<f64>)]
    pub max_duration: Option<Option<Span>>,
    /// Whether the session outlives its last attached client, until its idle timeout. Default true.
    pub keep_alive: Option<bool>,
    /// Launch options, by allow-list.
    #[schema(value_type = Option<Object>)]
    pub launch: Option<serde_json::Value>,
}

/// A session.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct SessionBody {
    /// Its id.
    #[schema(value_type = String, example = "ses_0198c0de0198c0de0198c0de0198c0de")]
    pub id: SessionId,
    /// Where in its life it is.
    #[schema(value_type = String, example = "active")]
    pub status: SessionStatus,
    /// When it was asked for.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Your own data.
    pub data: serde_json::Value,
    /// Where to connect, while it is active.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connect: Option<Connect>,
    /// What it is for.
    #[schema(value_type = String)]
    pub operation: Operation,
    /// A line for people.
    pub description: String,
    /// Its pool.
    #[schema(value_type = String)]
    pub pool: PoolName,
    /// The kind of browser.
    #[schema(value_type = String)]
    pub browser: BrowserKind,
    /// Its priority.
    #[schema(value_type = i32)]
    pub priority: Priority,
    /// Own process or own context.
    #[schema(value_type = String)]
    pub isolation: Isolation,
    /// Whether it outlives its last attached client.
    pub keep_alive: bool,
    /// The launch options it asked for.
    #[schema(value_type = Object)]
    pub launch: serde_json::Value,
    /// Its limit in the queue, in seconds.
    #[schema(value_type = f64)]
    pub queue_timeout: Span,
    /// Its limit until the first attach, in seconds.
    #[schema(value_type = Option<f64>)]
    pub connect_timeout: Option<Span>,
    /// Its limit without traffic, in seconds.
    #[schema(value_type = Option<f64>)]
    pub idle_timeout: Option<Span>,
    /// Its limit of life, in seconds.
    #[schema(value_type = Option<f64>)]
    pub max_duration: Option<Span>,
    /// The worker it runs or ran on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub worker: Option<WorkerId>,
    /// The API key it was made with.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub key: Option<KeyId>,
    /// Its place in the queue, 1 being next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// How long it will probably still wait, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub estimated_wait: Option<Span>,
    /// When it began to wait.
    #[schema(value_type = String, format = DateTime)]
    pub queued_at: Timestamp,
    /// When it became active.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
    /// Seconds in the queue.
    #[schema(value_type = f64)]
    pub wait_time: Span,
    /// Seconds active.
    #[schema(value_type = Option<f64>)]
    pub run_time: Option<Span>,
    /// Why it ended.
    #[schema(value_type = Option<String>)]
    pub reason: Option<EndReason>,
    /// More about the end.
    pub detail: Option<String>,
}

/// Where to connect: one of these, by the kind of browser.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Connect {
    /// For puppeteer, Playwright's connectOverCDP and every CDP client.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "ws://127.0.0.1:8080/devtools/browser/ses_0198c0de0198c0de0198c0de0198c0de")]
    pub cdp: Option<String>,
    /// For sessions that a program serves (driver `command`): GET asks the program and keeps the session alive.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "http://127.0.0.1:8080/sessions/ses_0198c0de0198c0de0198c0de0198c0de")]
    pub http: Option<String>,
}

/// A page of sessions.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct SessionList {
    /// The sessions.
    pub sessions: Vec<SessionBody>,
    /// Pass it as `after` for the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub next: Option<SessionId>,
}

/// Seed 000's form of a session: the whole request body is the `data`.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct SeedSession {
    /// Its id.
    #[schema(value_type = String)]
    pub id: SessionId,
    /// When it was asked for.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// The request's body.
    pub data: serde_json::Value,
    /// Where in its life it is.
    #[schema(value_type = String)]
    pub status: SessionStatus,
    /// Where to connect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connect: Option<Connect>,
}

/// The body of every error.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ErrorBody {
    /// What went wrong.
    pub error: ErrorDetail,
}

/// What went wrong.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ErrorDetail {
    /// A stable name.
    #[schema(value_type = String, example = "queue_full")]
    pub code: ErrorCode,
    /// A sentence that names the thing and the value.
    pub message: String,
    /// What to do.
    pub advice: &'static str,
    /// Whose matter it is.
    #[schema(value_type = String)]
    pub source: ErrorSource,
    /// Whether trying again helps.
    #[schema(value_type = String)]
    pub retry: Retry,
    /// The request, as the log knows it.
    pub request_id: String,
    /// The session, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub session: Option<SessionId>,
    /// Why the session ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub reason: Option<EndReason>,
    /// The limit that was reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// How much of it is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current: Option<u64>,
    /// The place in the queue that the request had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// The lock that is in the way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock: Option<Box<crate::pool::LockBody>>,
    /// When to try again, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

/// Tells "absent" (`None`) from "null" (`Some(None)`).
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<Span>>, D::Error> {
    Option::<Span>::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_is_not_absent() {
        let body: CreateSession = serde_json::from_str(r#"{"idle_timeout":null,"max_duration":"2m"}"#).unwrap();
        assert_eq!(body.idle_timeout, Some(None));
        assert_eq!(body.connect_timeout, None);
        assert_eq!(body.max_duration, Some(Some("120".parse().unwrap())));
    }

    #[test]
    fn a_misspelt_field_is_refused_and_named() {
        let error = serde_json::from_str::<CreateSession>(r#"{"idle_timout":5}"#)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("idle_timout") && error.contains("idle_timeout"),
            "{error}"
        );
    }
}
