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
use serde::Serialize;
use serde_json::{Value, json};

/// To one process.
#[derive(Clone)]
pub struct Api {
    addr: SocketAddr,
    client: Client<HttpConnector, Full<Bytes>>,
    token: Option<&'static str>,
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

    /// The answer's JSON, `null` if it has none; an error for every status but 2xx.
    pub async fn call<B: Serialize>(&self, method: Method, path: &str, body: Option<&B>) -> Result<Value> {
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
        match body.is_empty() {
            true => Ok(Value::Null),
            false => Ok(serde_json::from_slice(&body)?),
        }
    }

    /// Asks for a session; its id once it is active.
    pub async fn create(&self) -> Result<String> {
        let made = self.call(Method::POST, "/v1/sessions", Some(&json!({}))).await?;
        let id = made["id"].as_str().context("a session without an id")?;
        Ok(id.to_owned())
    }

    pub async fn release(&self, session: &str) -> Result<()> {
        let path = format!("/v1/sessions/{session}");
        self.call(Method::DELETE, &path, None::<&()>).await.map(drop)
    }
}
