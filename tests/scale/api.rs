//! A client that keeps its connections: thousands of requests a second must not measure the making of sockets.
//!
//! Its own file because the kit's client opens one connection for each request, on purpose.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use wharf_testkit::Metrics;

/// To one process.
#[derive(Clone)]
pub struct Api {
    addr: SocketAddr,
    client: Client<HttpConnector, Full<Bytes>>,
    token: Option<&'static str>,
}

/// A session that was made.
#[derive(Deserialize)]
struct Made {
    id: String,
}

/// What is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Occupied {
    /// Slots, those of closing browsers included.
    pub running: usize,
    /// Requests.
    pub queued: usize,
}

// === impl Api ===

impl Api {
    pub fn new(addr: SocketAddr) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self {
            addr,
            client: Client::builder(TokioExecutor::new()).build(connector),
            token: None,
        }
    }

    /// As a worker.
    pub fn with_token(mut self, token: &'static str) -> Self {
        self.token = Some(token);
        self
    }

    /// The answer's bytes; an error for every status but 2xx.
    pub async fn send<B: Serialize>(&self, method: Method, path: &str, body: Option<&B>) -> Result<Bytes> {
        let mut request = Request::builder()
            .method(&method)
            .uri(format!("http://{}{path}", self.addr));
        if let Some(token) = self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let mut bytes = Bytes::new();
        if let Some(body) = body {
            request = request.header("content-type", "application/json");
            bytes = serde_json::to_vec(body)?.into();
        }
        let response = self.client.request(request.body(Full::new(bytes))?).await;
        let response = response.with_context(|| format!("{method} {path}"))?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        if !status.is_success() {
            bail!("{method} {path} answered {status}: {}", String::from_utf8_lossy(&body));
        }
        Ok(body)
    }

    /// The answer's JSON, `null` if it has none.
    pub async fn call<B: Serialize>(&self, method: Method, path: &str, body: Option<&B>) -> Result<Value> {
        let answer = self.send(method, path, body).await?;
        match answer.is_empty() {
            true => Ok(Value::Null),
            false => Ok(serde_json::from_slice(&answer)?),
        }
    }

    /// Asks for a session; its id once it is active. The rest of the answer is not made a value of: that would cost more than
    /// asking.
    pub async fn create(&self) -> Result<String> {
        let answer = self.send(Method::POST, "/v1/sessions", Some(&json!({}))).await?;
        let made: Made = serde_json::from_slice(&answer)?;
        Ok(made.id)
    }

    pub async fn release(&self, session: &str) -> Result<()> {
        let path = format!("/v1/sessions/{session}");
        self.send(Method::DELETE, &path, None::<&()>).await.map(drop)
    }

    /// What is taken, as this coordinator counts it. From its metrics: a look at the pool would list a thousand holders, and
    /// its memory is measured next.
    pub async fn occupied(&self) -> Result<Occupied> {
        let text = self.send(Method::GET, "/metrics", None::<&()>).await?;
        Occupied::parse(&String::from_utf8_lossy(&text))
    }
}

// === impl Occupied ===

impl Occupied {
    fn parse(metrics: &str) -> Result<Self> {
        let metrics = Metrics::parse(metrics)?;
        let count = |name: &str| {
            let value = metrics
                .get(name)
                .with_context(|| format!("there is no metric {name}"))?;
            anyhow::Ok(value.to_string().parse()?)
        };
        Ok(Self {
            running: count("wharf_slots_busy")?,
            queued: count("wharf_queue_depth")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn occupied_is_read_from_metrics() {
        let text = "# TYPE wharf_slots_busy gauge\nwharf_slots_busy 4872\nwharf_queue_depth 2000\n";
        let wanted = Occupied {
            running: 4872,
            queued: 2000,
        };
        assert_eq!(Occupied::parse(text).unwrap(), wanted);
        assert!(Occupied::parse("wharf_slots_busy 1\n").is_err());
    }
}
