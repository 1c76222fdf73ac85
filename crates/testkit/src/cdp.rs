//! A raw CDP client: JSON over one WebSocket, nothing typed, nothing swallowed.
//!
//! Its own file because tests of the grid ask about the wire: which close code came, what the refused upgrade said,
//! whether a reply of 100 MB arrives. It reads only while a call or a wait is under way, so a test can also be the
//! client that does not read.
//!
//! Invariant: every event is kept until somebody asks for it; after the end every call returns the same end.

use std::{collections::VecDeque, net::SocketAddr, time::Duration};

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, connect_async_with_config,
    tungstenite::{Error as WsError, Message, client::IntoClientRequest, protocol::WebSocketConfig},
};

use crate::{eventually::patience, http_client::Reply};

/// How the connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CdpEnd {
    /// The close frame's code; `None` if the connection broke off without one.
    pub code: Option<u16>,
    /// The close frame's reason, or the transport's error.
    pub reason: String,
}

#[derive(Debug, thiserror::Error)]
pub enum CdpError {
    /// The upgrade was answered with something else.
    #[error("upgrade refused with {}: {}", .0.status, .0.text())]
    Refused(Box<Reply>),
    /// The connection could not be made.
    #[error("could not connect to {url}: {problem}")]
    Connect { url: String, problem: String },
    /// The connection ended.
    #[error("connection ended with code {:?}: {}", .0.code, .0.reason)]
    Ended(CdpEnd),
    /// The browser answered with an error.
    #[error("{method} failed with {code}: {message}")]
    Method { method: String, code: i64, message: String },
    /// Nothing came in time.
    #[error("no {waiting_for} within {after:?}")]
    Timeout { waiting_for: String, after: Duration },
}

/// One CDP connection.
#[derive(Debug)]
pub struct Cdp {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    url: String,
    next_id: u64,
    events: VecDeque<Value>,
    end: Option<CdpEnd>,
    limit: Duration,
}

// === impl Cdp ===

impl Cdp {
    /// Connects to `ws://…`.
    ///
    /// # Errors
    /// [`CdpError::Refused`] with the whole answer if there was one.
    pub async fn connect(url: &str) -> Result<Self, CdpError> {
        Self::connect_with(url, &[]).await
    }

    /// Connects with additional headers.
    ///
    /// # Errors
    /// As [`Cdp::connect`].
    pub async fn connect_with(url: &str, headers: &[(&'static str, &str)]) -> Result<Self, CdpError> {
        let problem = |problem: String| CdpError::Connect {
            url: url.to_owned(),
            problem,
        };
        let mut request = url.into_client_request().map_err(|error| problem(error.to_string()))?;
        for (name, value) in headers {
            let value = value.parse().map_err(|_| problem(format!("bad header {name}")))?;
            request.headers_mut().insert(*name, value);
        }
        // The grid has no size limit of its own, so its test client must have none.
        let config = WebSocketConfig::default().max_message_size(None).max_frame_size(None);
        match connect_async_with_config(request, Some(config), true).await {
            Ok((socket, _)) => Ok(Self {
                socket,
                url: url.to_owned(),
                next_id: 0,
                events: VecDeque::new(),
                end: None,
                limit: patience(),
            }),
            Err(WsError::Http(response)) => {
                let (head, body) = response.into_parts();
                let body = Bytes::from(body.unwrap_or_default());
                Err(CdpError::Refused(Box::new(Reply {
                    status: head.status,
                    headers: head.headers,
                    body,
                })))
            }
            Err(error) => Err(problem(error.to_string())),
        }
    }

    /// The URL it is connected to.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The client's own address, to find the connection in logs and lists.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match self.socket.get_ref() {
            MaybeTlsStream::Plain(stream) => stream.local_addr().ok(),
            _ => None,
        }
    }

    /// How long a call or wait may take; [`patience`] unless set.
    pub fn set_limit(&mut self, limit: Duration) {
        self.limit = limit;
    }

    /// Calls a method on the connection's own target and returns its result.
    ///
    /// # Errors
    /// The method's error, the end of the connection, or a time-out.
    pub async fn call(&mut self, method: &str, params: Value) -> Result<Value, CdpError> {
        self.call_in("", method, params).await
    }

    /// Calls a method in a flat session.
    ///
    /// # Errors
    /// As [`Cdp::call`].
    pub async fn call_in(&mut self, session: &str, method: &str, params: Value) -> Result<Value, CdpError> {
        let id = self.send(session, method, params).await?;
        let mut reply = self
            .until(&format!("answer to {method}"), |message| message["id"] == id)
            .await?;
        if let Some(error) = reply.get("error") {
            return Err(CdpError::Method {
                method: method.to_owned(),
                code: error["code"].as_i64().unwrap_or_default(),
                message: error["message"].as_str().unwrap_or_default().to_owned(),
            });
        }
        Ok(reply["result"].take())
    }

    /// Sends a request without waiting; returns its id.
    ///
    /// # Errors
    /// When the connection has ended.
    pub async fn send(&mut self, session: &str, method: &str, params: Value) -> Result<u64, CdpError> {
        self.next_id += 1;
        let mut request = json!({"id": self.next_id, "method": method, "params": params});
        if !session.is_empty() {
            request["sessionId"] = json!(session);
        }
        self.send_text(request.to_string()).await?;
        Ok(self.next_id)
    }

    /// Sends any text as one message.
    ///
    /// # Errors
    /// When the connection has ended.
    pub async fn send_text(&mut self, text: String) -> Result<(), CdpError> {
        if let Err(error) = self.socket.send(Message::text(text)).await {
            // The close frame that explains the failure may still be unread.
            return Err(CdpError::Ended(self.drain_end(error.to_string()).await));
        }
        Ok(())
    }

    /// Opens a page and attaches to it; returns the session id.
    ///
    /// # Errors
    /// As [`Cdp::call`].
    pub async fn new_page(&mut self, url: &str) -> Result<String, CdpError> {
        let created = self.call("Target.createTarget", json!({"url": url})).await?;
        let attach = json!({"targetId": created["targetId"], "flatten": true});
        let attached = self.call("Target.attachToTarget", attach).await?;
        Ok(attached["sessionId"].as_str().unwrap_or_default().to_owned())
    }

    /// Waits for the next event of this name, or takes one that came earlier.
    ///
    /// # Errors
    /// The end of the connection, or a time-out.
    pub async fn event(&mut self, method: &str) -> Result<Value, CdpError> {
        if let Some(at) = self.events.iter().position(|event| event["method"] == method) {
            return Ok(self.events.remove(at).unwrap_or_default());
        }
        self.until(&format!("event {method}"), |message| message["method"] == method)
            .await
    }

    /// Reads until the other side ends the connection, and tells how.
    ///
    /// # Errors
    /// A time-out.
    pub async fn closed(&mut self) -> Result<CdpEnd, CdpError> {
        match self.until("end of the connection", |_| false).await {
            Err(CdpError::Ended(end)) => Ok(end),
            Err(error) => Err(error),
            Ok(_) => unreachable!("no message satisfies the condition above"),
        }
    }

    /// Closes with code 1000 and waits for the answer.
    pub async fn close(mut self) {
        if self.end.is_none() && self.socket.close(None).await.is_ok() {
            let _ = self.closed().await;
        }
    }

    /// Breaks off without a close frame, as a killed client does.
    pub fn abandon(self) {}

    async fn until(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value, CdpError> {
        let limit = self.limit;
        let search = async {
            loop {
                let message = self.next().await?;
                if wanted(&message) {
                    return Ok(message);
                }
                if message.get("method").is_some() {
                    self.events.push_back(message);
                }
            }
        };
        let timeout = CdpError::Timeout {
            waiting_for: what.to_owned(),
            after: limit,
        };
        tokio::time::timeout(limit, search).await.unwrap_or(Err(timeout))
    }

    /// The next message; pings are answered by the library while we read.
    async fn next(&mut self) -> Result<Value, CdpError> {
        if let Some(end) = &self.end {
            return Err(CdpError::Ended(end.clone()));
        }
        loop {
            let end = match self.socket.next().await {
                Some(Ok(Message::Text(text))) => match serde_json::from_str(&text) {
                    Ok(value) => return Ok(value),
                    Err(error) => CdpEnd {
                        code: None,
                        reason: format!("not JSON: {error}"),
                    },
                },
                Some(Ok(Message::Close(Some(frame)))) => CdpEnd {
                    code: Some(frame.code.into()),
                    reason: frame.reason.to_string(),
                },
                Some(Ok(Message::Close(None))) => CdpEnd {
                    code: Some(1005),
                    reason: String::new(),
                },
                Some(Ok(_)) => continue,
                Some(Err(error)) => CdpEnd {
                    code: None,
                    reason: error.to_string(),
                },
                None => CdpEnd {
                    code: None,
                    reason: "end of stream".to_owned(),
                },
            };
            self.end = Some(end.clone());
            return Err(CdpError::Ended(end));
        }
    }

    async fn drain_end(&mut self, fallback: String) -> CdpEnd {
        match self.closed().await {
            Ok(end) => end,
            Err(_) => CdpEnd {
                code: None,
                reason: fallback,
            },
        }
    }
}
