//! Server-sent events, read one at a time.
//!
//! Its own file because a stream of events is not a reply: it has no end, and a test waits for one event among many.
//!
//! Invariant: events come in order, none is skipped silently; dropping the stream closes the connection.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{net::TcpStream, task::JoinSet};

use crate::eventually::patience;

/// One event of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SseEvent {
    pub id: String,
    pub event: String,
    pub data: String,
}

/// An open `text/event-stream`; see [`crate::Http::events`].
#[derive(Debug)]
pub struct EventStream {
    body: Incoming,
    buffer: Vec<u8>,
    /// Drives the connection, and ends with the stream.
    _connection: JoinSet<()>,
}

// === impl SseEvent ===

impl SseEvent {
    /// The data as JSON.
    ///
    /// # Errors
    /// When it is something else.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.data).with_context(|| format!("not JSON: {}", self.data))
    }

    fn parse(block: &str) -> Option<Self> {
        let mut event = Self::default();
        for line in block.lines() {
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "id" => value.clone_into(&mut event.id),
                "event" => value.clone_into(&mut event.event),
                "data" if event.data.is_empty() => value.clone_into(&mut event.data),
                "data" => event.data = format!("{}\n{value}", event.data),
                _ => {}
            }
        }
        // A block without data is a keep-alive: it may say how far the stream is, but it is no event (WHATWG HTML §9.2.6).
        (!event.data.is_empty()).then_some(event)
    }
}

// === impl EventStream ===

impl EventStream {
    pub(crate) async fn open(addr: SocketAddr, path: &str, headers: &[(String, String)]) -> Result<Self> {
        let stream = TcpStream::connect(addr)
            .await
            .with_context(|| format!("could not connect to {addr}"))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            // Its end is seen as the end of the body.
            let _ = connection.await;
        });
        let mut request = Request::get(path)
            .header("host", addr.to_string())
            .header("accept", "text/event-stream");
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let response = sender.send_request(request.body(Empty::<Bytes>::new())?).await?;
        if response.status() != 200 {
            bail!("GET {path} answered {}", response.status());
        }
        Ok(Self {
            body: response.into_body(),
            buffer: Vec::new(),
            _connection: tasks,
        })
    }

    /// The next event.
    ///
    /// # Errors
    /// When the stream ends or patience runs out.
    pub async fn next(&mut self) -> Result<SseEvent> {
        let limit = patience();
        self.next_within(limit)
            .await?
            .with_context(|| format!("no event within {limit:?}"))
    }

    /// The next event, or `None` if there was none for so long.
    ///
    /// # Errors
    /// When the stream ends.
    pub async fn next_within(&mut self, limit: Duration) -> Result<Option<SseEvent>> {
        tokio::time::timeout(limit, self.read())
            .await
            .map_or(Ok(None), |event| event.map(Some))
    }

    /// The next event of this name; others before it are dropped.
    ///
    /// # Errors
    /// When the stream ends or patience runs out.
    pub async fn next_named(&mut self, name: &str) -> Result<SseEvent> {
        let search = async {
            loop {
                let event = self.read().await?;
                if event.event == name {
                    return Ok(event);
                }
            }
        };
        let limit = patience();
        tokio::time::timeout(limit, search)
            .await
            .map_err(|_| anyhow!("no event {name} within {limit:?}"))?
    }

    /// Cancel-safe: what was read stays in the buffer until an event is complete.
    async fn read(&mut self) -> Result<SseEvent> {
        loop {
            while let Some(at) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let block: Vec<_> = self.buffer.drain(..at + 2).collect();
                if let Some(event) = SseEvent::parse(&String::from_utf8_lossy(&block)) {
                    return Ok(event);
                }
            }
            let frame = self.body.frame().await.context("the stream of events ended")??;
            let data = frame.into_data().unwrap_or_default();
            // Lines may end with CR LF as well.
            self.buffer.extend(data.iter().filter(|byte| **byte != b'\r'));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sse_block_becomes_an_event_and_comments_do_not() {
        let event = SseEvent::parse("id: 7\nevent: session_ended\ndata: {\"a\":\ndata: 1}\n\n").unwrap();
        assert_eq!((event.id.as_str(), event.event.as_str()), ("7", "session_ended"));
        assert_eq!(event.json().unwrap()["a"], 1);
        assert_eq!(SseEvent::parse(": keep-alive\nid: 9\n\n"), None);
    }
}
