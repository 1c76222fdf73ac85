//! One request on one connection, bounded in time and size.
//!
//! Its own file because the program at the other end may be broken in every way: it may accept and say nothing, answer
//! nonsense, or answer without end. A connection of its own for every call, so that a call's failure says something about
//! the program and nothing about an earlier call. The invariant: [`Client::ask`] returns within its limit and keeps at
//! most [`LONGEST_BODY`].

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::CallFailed;

/// Seed 000's answers are a hundred bytes; a megabyte leaves room for a program with much to say.
const LONGEST_BODY: usize = 1 << 20;
/// How much of a wrong answer is quoted.
const QUOTED: usize = 200;

/// Where the program listens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Client {
    pub(super) addr: SocketAddr,
}

/// One call.
pub(super) struct Ask<'a> {
    pub(super) method: Method,
    pub(super) path: &'a str,
    pub(super) body: Option<&'a Value>,
    pub(super) limit: Duration,
}

/// What came back, whatever the status.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
}

// === impl Client ===

impl Client {
    pub(super) async fn ask(&self, ask: Ask<'_>) -> Result<Answer, CallFailed> {
        let call = ask.call();
        let timed = tokio::time::timeout(ask.limit, self.exchange(&ask, &call)).await;
        timed.unwrap_or(Err(CallFailed::TimedOut { call, limit: ask.limit }))
    }

    async fn exchange(&self, ask: &Ask<'_>, call: &str) -> Result<Answer, CallFailed> {
        let unreachable = |cause: String| CallFailed::Unreachable {
            call: call.to_owned(),
            cause,
        };
        let stream = TcpStream::connect(self.addr)
            .await
            .map_err(|e| unreachable(e.to_string()))?;
        stream.set_nodelay(true).map_err(|e| unreachable(e.to_string()))?;
        let request = ask.request(self.addr).map_err(|e| unreachable(e.to_string()))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| failed(call, &e))?;
        let answer = async move {
            let response = sender.send_request(request).await.map_err(|e| failed(call, &e))?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, LONGEST_BODY).collect().await.map_err(|error| {
                if error.downcast_ref::<LengthLimitError>().is_some() {
                    refused(call, format!("a body of more than {LONGEST_BODY} bytes"))
                } else {
                    unreachable(error.to_string())
                }
            })?;
            let (status, body) = (head.status, body.to_bytes());
            Ok(Answer { status, body })
        };
        let mut connection = std::pin::pin!(connection);
        let mut answer = std::pin::pin!(answer);
        tokio::select! {
            // Biased: an answer that is here is an answer, however the connection ended.
            biased;
            answer = &mut answer => answer,
            // The connection ends first when the program hangs up; the answer then knows what that means.
            _ended = &mut connection => answer.await,
        }
    }
}

/// Nonsense is an answer, a broken connection is none.
fn failed(call: &str, error: &hyper::Error) -> CallFailed {
    if error.is_parse() {
        return refused(call, format!("something that is not HTTP ({error})"));
    }
    CallFailed::Unreachable {
        call: call.to_owned(),
        cause: error.to_string(),
    }
}

fn refused(call: &str, answer: String) -> CallFailed {
    CallFailed::Refused {
        call: call.to_owned(),
        answer,
    }
}

// === impl Ask ===

impl Ask<'_> {
    /// As errors name it.
    pub(super) fn call(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    fn request(&self, addr: SocketAddr) -> Result<Request<Full<Bytes>>, http::Error> {
        let request = Request::builder()
            .method(self.method.clone())
            .uri(self.path)
            .header(header::HOST, addr.to_string())
            // The program closes: the side that closes keeps the port busy for a minute, and ours are needed again.
            .header(header::CONNECTION, "close")
            .header(header::ACCEPT, "application/json");
        match self.body {
            Some(body) => request
                .header(header::CONTENT_TYPE, "application/json")
                .body(Full::new(Bytes::from(body.to_string()))),
            None => request.body(Full::default()),
        }
    }
}

// === impl Answer ===

impl Answer {
    /// The body as an object, if the status is one of success.
    pub(super) fn object(&self, call: &str) -> Result<serde_json::Map<String, Value>, CallFailed> {
        if !self.status.is_success() {
            return Err(self.refusal(call));
        }
        match serde_json::from_slice(&self.body) {
            Ok(Value::Object(object)) => Ok(object),
            Ok(_) => Err(refused(call, format!("JSON that is no object: {}", self.quote()))),
            Err(error) => Err(refused(call, format!("what is not JSON ({error}): {}", self.quote()))),
        }
    }

    /// This answer as the wrong one.
    pub(super) fn refusal(&self, call: &str) -> CallFailed {
        refused(call, format!("status {}: {}", self.status, self.quote()))
    }

    fn quote(&self) -> String {
        let text = String::from_utf8_lossy(&self.body);
        match text.trim() {
            "" => "nothing".to_owned(),
            text => format!("`{}`", text.chars().take(QUOTED).collect::<String>()),
        }
    }
}
