//! A small HTTP client: one request per connection, JSON in and out, nothing hidden.
//!
//! Its own file, and not a client library, because tests want to see status, headers and raw body as they came, and
//! want no pool or retry to paper over what the grid does.
//!
//! Invariant: a reply is returned whatever its status; only transport failures are errors.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result, anyhow};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::events::EventStream;

/// Longer than any queue a test waits in; a hang of the grid must not become a hang of the test.
const LIMIT: Duration = Duration::from_secs(60);

/// A client of one grid.
#[derive(Debug, Clone)]
pub struct Http {
    addr: SocketAddr,
    headers: Vec<(String, String)>,
    limit: Duration,
}

/// Status, headers and body of an answer.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

// === impl Http ===

impl Http {
    #[must_use]
    pub fn new(addr: SocketAddr) -> Self {
        Self {
            addr,
            headers: Vec::new(),
            limit: LIMIT,
        }
    }

    /// The same client with one more header on every request.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same client with another limit for a whole request.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// # Errors
    /// When no answer came.
    pub async fn get(&self, path: &str) -> Result<Reply> {
        self.request(Method::GET, path, None).await
    }

    /// # Errors
    /// When no answer came.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Reply> {
        self.request(Method::POST, path, Some(body)).await
    }

    /// # Errors
    /// When no answer came.
    pub async fn put(&self, path: &str, body: &Value) -> Result<Reply> {
        self.request(Method::PUT, path, Some(body)).await
    }

    /// # Errors
    /// When no answer came.
    pub async fn delete(&self, path: &str) -> Result<Reply> {
        self.request(Method::DELETE, path, None).await
    }

    /// Opens a stream of server-sent events.
    ///
    /// # Errors
    /// When the answer is not 200.
    pub async fn events(&self, path: &str) -> Result<EventStream> {
        EventStream::open(self.addr, path, &self.headers).await
    }

    async fn request(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Reply> {
        let bytes = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        self.raw(method, path, body.map(|_| "application/json"), bytes).await
    }

    /// A request with any body.
    ///
    /// # Errors
    /// When no answer came.
    pub async fn raw(&self, method: Method, path: &str, content_type: Option<&str>, body: Bytes) -> Result<Reply> {
        let what = format!("{method} {path}");
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", self.addr.to_string());
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        if let Some(kind) = content_type {
            request = request.header("content-type", kind);
        }
        let request = request.body(Full::new(body)).with_context(|| what.clone())?;
        match tokio::time::timeout(self.limit, self.exchange(request)).await {
            Ok(reply) => reply.with_context(|| what),
            Err(_) => Err(anyhow!("{what}: no answer within {:?}", self.limit)),
        }
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Reply> {
        let stream = TcpStream::connect(self.addr)
            .await
            .with_context(|| format!("could not connect to {}", self.addr))?;
        stream.set_nodelay(true)?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let exchange = async move {
            let response = sender.send_request(request).await?;
            let (head, body) = response.into_parts();
            // A stream of events has no end: its head is the reply.
            let is_stream = head
                .headers
                .get("content-type")
                .is_some_and(|kind| kind == "text/event-stream");
            let body = match is_stream {
                true => Bytes::new(),
                false => body.collect().await?.to_bytes(),
            };
            Ok(Reply {
                status: head.status,
                headers: head.headers,
                body,
            })
        };
        tokio::pin!(exchange);
        tokio::select! {
            // Whoever has its reply hangs up: a stream's connection would not end by itself.
            reply = &mut exchange => reply,
            _ = connection => exchange.await,
        }
    }
}

// === impl Reply ===

impl Reply {
    /// The body as JSON; `null` if it is empty.
    ///
    /// # Errors
    /// When the body is something else.
    pub fn json(&self) -> Result<Value> {
        if self.body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&self.body).with_context(|| format!("not JSON: {}", self.text()))
    }

    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// A header's text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// `error.code` of an error body.
    #[must_use]
    pub fn error_code(&self) -> Option<String> {
        self.json().ok()?["error"]["code"].as_str().map(str::to_owned)
    }

    /// The JSON body if the status is the expected one.
    ///
    /// # Errors
    /// With the body, when the status is another.
    pub fn expect(&self, status: u16) -> Result<Value> {
        if self.status.as_u16() != status {
            return Err(anyhow!(
                "expected status {status}, got {}: {}",
                self.status,
                self.text()
            ));
        }
        self.json()
    }
}
