//! JSON over HTTP/1.1 to our own processes: pooled connections, one limit for each call.
//!
//! Its own file because both directions need the same distinction: who could not be reached may be tried elsewhere, who
//! was reached and refused must be believed. Dropping a call closes its connection, which is how the other side learns
//! that nobody waits any more.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use serde::{Serialize, de::DeserializeOwned};

/// Connecting within one network takes milliseconds.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// Idle connections are kept this long: longer than a report's interval.
const IDLE_KEPT: Duration = Duration::from_secs(60);
/// The largest answer: a protocol description is a megabyte and a half.
const ANSWER_LIMIT: usize = 32 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// Nobody answered; nothing is known to have happened.
    #[error("{0}")]
    Unreachable(String),
    /// Not in time.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// An answer with another status than 2xx.
    #[error("refused with status {status}: {text}")]
    Refused {
        /// The status.
        status: StatusCode,
        /// The body.
        text: String,
    },
    /// An answer that makes no sense.
    #[error("an answer that makes no sense: {0}")]
    Nonsense(String),
}

/// A call.
pub(crate) struct Call<'a> {
    pub method: Method,
    /// `host:port`.
    pub authority: &'a str,
    pub path: &'a str,
    pub token: &'a str,
    pub limit: Duration,
}

/// The client. Cheap to clone.
#[derive(Clone)]
pub(crate) struct HttpClient(Client<HttpConnector, Full<Bytes>>);

// === impl HttpClient ===

impl HttpClient {
    pub(crate) fn new() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_LIMIT));
        connector.set_nodelay(true);
        Self(
            Client::builder(TokioExecutor::new())
                .pool_idle_timeout(IDLE_KEPT)
                .pool_timer(TokioTimer::new())
                .build(connector),
        )
    }

    /// With a JSON body and a JSON answer; no content is `null`.
    pub(crate) async fn json<B: Serialize, A: DeserializeOwned>(
        &self,
        call: Call<'_>,
        body: Option<&B>,
    ) -> Result<A, CallError> {
        let body = match body {
            Some(body) => serde_json::to_vec(body).map_err(|error| CallError::Nonsense(error.to_string()))?,
            None => Vec::new(),
        };
        let bytes = self.bytes(call, body).await?;
        let text: &[u8] = if bytes.is_empty() { b"null" } else { &bytes };
        serde_json::from_slice(text).map_err(|error| CallError::Nonsense(error.to_string()))
    }

    pub(crate) async fn bytes(&self, call: Call<'_>, body: Vec<u8>) -> Result<Bytes, CallError> {
        let limit = call.limit;
        match tokio::time::timeout(limit, self.exchange(call, body)).await {
            Ok(answer) => answer,
            Err(_) => Err(CallError::TimedOut(limit)),
        }
    }

    async fn exchange(&self, call: Call<'_>, body: Vec<u8>) -> Result<Bytes, CallError> {
        let request = Request::builder()
            .method(call.method)
            .uri(format!("http://{}{}", call.authority, call.path))
            .header(header::AUTHORIZATION, format!("Bearer {}", call.token))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| CallError::Nonsense(error.to_string()))?;
        let unreachable = |error: &dyn std::error::Error| CallError::Unreachable(causes(error));
        let answer = self.0.request(request).await.map_err(|error| unreachable(&error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_LIMIT).collect().await;
        let bytes = body.map_err(|error| unreachable(&*error))?.to_bytes();
        match status.is_success() {
            true => Ok(bytes),
            false => Err(CallError::Refused {
                status,
                text: String::from_utf8_lossy(&bytes[..bytes.len().min(4096)]).into_owned(),
            }),
        }
    }
}

/// An error and what it came from: hyper's own words alone say little.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}
