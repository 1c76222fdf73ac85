//! A CDP connection that does as little as possible: text out, text in, no JSON tree.
//!
//! Its own file because (c), (d) and (j) measure microseconds and megabytes, where parsing on our side would be the larger
//! part of both sides and hide the difference.

use anyhow::{Context, Result, bail};
use futures_util::{SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio_tungstenite::{
    WebSocketStream, client_async_with_config,
    tungstenite::{Message, Utf8Bytes, protocol::WebSocketConfig},
};

pub struct Wire {
    socket: WebSocketStream<TcpStream>,
    next: u64,
    /// The flat session of the page, as it appears in a request.
    session: String,
}

// === impl Wire ===

impl Wire {
    /// Connects and attaches to the browser's first page.
    pub async fn to_first_page(url: &str) -> Result<Self> {
        let host = url.strip_prefix("ws://").and_then(|rest| rest.split('/').next());
        let stream = TcpStream::connect(host.with_context(|| format!("no host in {url}"))?).await?;
        stream.set_nodelay(true)?;
        let config = WebSocketConfig::default().max_message_size(None).max_frame_size(None);
        let (socket, _) = client_async_with_config(url, stream, Some(config)).await?;
        let mut wire = Self {
            socket,
            next: 0,
            session: String::new(),
        };
        let targets: serde_json::Value = serde_json::from_str(&wire.call("Target.getTargets", "{}").await?)?;
        let all = targets["result"]["targetInfos"]
            .as_array()
            .context("a list of targets")?;
        let page = all
            .iter()
            .find(|target| target["type"] == "page")
            .context("a first page")?;
        let attach = format!("{{\"targetId\":{},\"flatten\":true}}", page["targetId"]);
        let attached: serde_json::Value = serde_json::from_str(&wire.call("Target.attachToTarget", &attach).await?)?;
        wire.session = format!(",\"sessionId\":{}", attached["result"]["sessionId"]);
        Ok(wire)
    }

    /// A request to the page.
    async fn feed(&mut self, method: &str, params: &str) -> Result<()> {
        self.next += 1;
        let (id, session) = (self.next, &self.session);
        let text = format!("{{\"id\":{id},\"method\":\"{method}\",\"params\":{params}{session}}}");
        self.socket.feed(Message::text(text)).await?;
        Ok(())
    }

    /// One request and the text of its answer.
    pub async fn call(&mut self, method: &str, params: &str) -> Result<Utf8Bytes> {
        self.feed(method, params).await?;
        self.answer().await
    }

    /// The same to the browser itself.
    pub async fn call_browser(&mut self, method: &str, params: &str) -> Result<Utf8Bytes> {
        self.next += 1;
        let text = format!("{{\"id\":{},\"method\":\"{method}\",\"params\":{params}}}", self.next);
        self.socket.feed(Message::text(text)).await?;
        self.answer().await
    }

    async fn answer(&mut self) -> Result<Utf8Bytes> {
        self.socket.flush().await?;
        let wanted = format!("{{\"id\":{},", self.next);
        loop {
            let text = self.text().await?;
            if text.starts_with(&wanted) {
                return Ok(text);
            }
        }
    }

    /// Many requests with at most `window` unanswered.
    pub async fn pipelined(&mut self, count: usize, window: usize, method: &str, params: &str) -> Result<()> {
        let mut sent = 0;
        let mut answered = 0;
        while answered < count {
            while sent < count && sent - answered < window {
                self.feed(method, params).await?;
                sent += 1;
            }
            self.socket.flush().await?;
            if self.text().await?.starts_with("{\"id\":") {
                answered += 1;
            }
        }
        Ok(())
    }

    async fn text(&mut self) -> Result<Utf8Bytes> {
        loop {
            match self.socket.next().await {
                Some(Ok(Message::Text(text))) => return Ok(text),
                Some(Ok(Message::Close(frame))) => bail!("closed: {frame:?}"),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error.into()),
                None => bail!("the connection ended"),
            }
        }
    }
}
