//! The uplink of a worker whose coordinators are elsewhere: tells any of them.
//!
//! Its own file because it is the second implementation of the port. Coordinators are alike: the one that answered last is
//! asked first, the next one when it does not answer. A coordinator without its store has answered: the grid is there, and
//! nothing is to be given up.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use http::{Method, StatusCode};
use serde::{Serialize, de::DeserializeOwned};
use wharf_coordinator::WorkerToken;
use wharf_core::{EndReason, Epoch, ErrorCode, SessionId, WorkerId};
use wharf_store::{Heartbeat, HeartbeatReply, Registration};
use wharf_wire::internal::{BrowserEnded, DEREGISTER, ENDED, Goodbye, HEARTBEAT, REGISTER, SlotVacated, VACATED};
use wharf_worker::{Uplink, UplinkError};

use crate::client::{Call, CallError, HttpClient};

/// How long a coordinator may take. Its store has its own patience, which is longer: then it answers 503.
const LIMIT: Duration = Duration::from_secs(8);
/// How long it may take for a report, which it answers within 2 s whatever its store does. One that hangs must not make the
/// grid lose us: the next one is told well within the liveness time.
const REPORT_LIMIT: Duration = Duration::from_secs(3);
/// How long an end or a free slot is told for, before the next report has to do.
const TOLD_FOR: Duration = Duration::from_secs(10);
/// Between attempts.
const PAUSE: Duration = Duration::from_millis(100);

/// The uplink.
pub struct HttpUplink {
    /// `host:port` of each coordinator.
    coordinators: Vec<String>,
    token: WorkerToken,
    client: HttpClient,
    /// Which one answered last.
    current: AtomicUsize,
}

// === impl HttpUplink ===

impl HttpUplink {
    /// To these coordinators: `http://host:port` each.
    pub fn new(urls: &[String], token: WorkerToken) -> Result<Self, String> {
        let authority = |url: &String| {
            let rest = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
            match rest {
                Some(rest) if !rest.is_empty() && !rest.contains(['/', '@', '?', '#']) => Ok(rest.to_owned()),
                _ => Err(format!("expected http://host:port, got `{url}`")),
            }
        };
        let coordinators = urls.iter().map(authority).collect::<Result<Vec<_>, _>>()?;
        if coordinators.is_empty() {
            return Err("no coordinator is named".to_owned());
        }
        Ok(Self {
            coordinators,
            token,
            client: HttpClient::new(),
            current: AtomicUsize::new(0),
        })
    }

    /// Asks each coordinator once, beginning with the one that answered last.
    async fn call<B: Serialize + Sync, A: DeserializeOwned>(&self, path: &str, body: &B) -> Result<A, UplinkError> {
        let first = self.current.load(Ordering::Relaxed);
        let mut failures = Vec::new();
        let mut is_there = false;
        for offset in 0..self.coordinators.len() {
            let index = (first + offset) % self.coordinators.len();
            let authority = &self.coordinators[index];
            let call = Call {
                method: Method::POST,
                authority,
                path,
                token: self.token.reveal(),
                limit: if path == HEARTBEAT { REPORT_LIMIT } else { LIMIT },
            };
            match self.client.json(call, Some(body)).await {
                Ok(answer) => {
                    self.current.store(index, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(CallError::Refused { status, text }) => {
                    let message = message(&text);
                    // What a balancer says for itself is nobody's answer.
                    let code = code(&text);
                    if code.as_deref() == Some(ErrorCode::WorkerUnreachable.as_str()) {
                        return Err(UplinkError::NotCalledBack(message));
                    }
                    if status.is_client_error()
                        && status != StatusCode::REQUEST_TIMEOUT
                        && status != StatusCode::TOO_MANY_REQUESTS
                    {
                        return Err(UplinkError::Refused(format!("http://{authority}: {message}")));
                    }
                    is_there |= code.is_some();
                    failures.push(format!("http://{authority}: {message}"));
                }
                Err(error) => failures.push(format!("http://{authority}: {error}")),
            }
        }
        let told = failures.join("; ");
        Err(match is_there {
            true => UplinkError::Unavailable(told),
            false => UplinkError::Unreachable(told),
        })
    }

    /// Tells until somebody has heard it, for a while.
    async fn tell<B: Serialize + Sync>(&self, path: &str, body: &B, what: &'static str) {
        let deadline = tokio::time::Instant::now() + TOLD_FOR;
        let mut pause = PAUSE;
        loop {
            match self.call::<B, Option<()>>(path, body).await {
                Ok(_) => return,
                Err(error @ (UplinkError::Refused(_) | UplinkError::NotCalledBack(_))) => {
                    tracing::warn!(%error, what, "not told; the next report will");
                    return;
                }
                Err(error) if tokio::time::Instant::now() >= deadline => {
                    tracing::warn!(%error, what, "not told; the next report will");
                    return;
                }
                Err(_) => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_secs(1));
                }
            }
        }
    }
}

/// The code of an error body, if it is one of ours.
fn code(text: &str) -> Option<String> {
    let parsed: serde_json::Value = serde_json::from_str(text).ok()?;
    parsed["error"]["code"].as_str().map(str::to_owned)
}

/// The sentence of an error body, or the body.
fn message(text: &str) -> String {
    let parsed: Option<serde_json::Value> = serde_json::from_str(text).ok();
    let said = parsed.as_ref().and_then(|body| body["error"]["message"].as_str());
    said.unwrap_or(text.trim()).to_owned()
}

#[async_trait]
impl Uplink for HttpUplink {
    async fn register(&self, registration: Registration) -> Result<(), UplinkError> {
        self.call::<_, Option<()>>(REGISTER, &registration).await.map(drop)
    }

    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatReply, UplinkError> {
        self.call(HEARTBEAT, &heartbeat).await
    }

    async fn deregister(&self, worker: WorkerId) -> Result<(), UplinkError> {
        self.call::<_, Option<()>>(DEREGISTER, &Goodbye { worker })
            .await
            .map(drop)
    }

    async fn ended(&self, session: SessionId, epoch: Epoch, reason: EndReason, detail: Option<String>) {
        let said = BrowserEnded {
            session,
            epoch,
            reason,
            detail,
        };
        self.tell(ENDED, &said, "the end of a browser").await;
    }

    async fn vacated(&self, session: SessionId, epoch: Epoch) {
        self.tell(VACATED, &SlotVacated { session, epoch }, "a free slot").await;
    }
}
