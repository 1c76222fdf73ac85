//! A running program: probe, session, end.
//!
//! Its own file because launching is over when this begins. The invariant: the program's own id of the session never
//! leaves this file; whoever asks names the browser.

use std::time::Duration;

use async_trait::async_trait;
use http::{Method, StatusCode};
use parking_lot::Mutex;
use serde_json::Value;
use wharf_core::BrowserId;
use wharf_process::{ExitStatus, Priority};

use super::{
    http::{Answer, Ask, Client},
    port::Reserved,
};
use crate::{
    Browser, BrowserVersion, CallFailed, ControlError, Endpoint, Exit, PageTarget, ProbeFailed, Program,
    process::Process,
};

/// What a probe asks.
const HEALTH: &str = "/health";
const PROBE: &str = "GET /health";

/// What a program can be asked about.
#[derive(Debug, Default)]
pub(super) enum Session {
    /// None has begun.
    #[default]
    None,
    /// One has, and this is the program's own id of it.
    Begun(String),
    /// One had, and then the program let a call pass in silence: it is not asked again.
    Silent,
}

/// A program that is ready.
#[derive(Debug)]
pub(super) struct CommandBrowser {
    pub(super) id: BrowserId,
    pub(super) version: BrowserVersion,
    pub(super) endpoint: Endpoint,
    pub(super) client: Client,
    pub(super) process: Process,
    pub(super) session: Mutex<Session>,
    /// Given back when the program is gone.
    pub(super) _port: Reserved,
}

// === impl Client ===

impl Client {
    /// `GET /health`: 200 or the reason why not.
    pub(super) async fn health(&self, limit: Duration) -> Result<(), CallFailed> {
        let answer = self
            .ask(Ask {
                method: Method::GET,
                path: HEALTH,
                body: None,
                limit,
            })
            .await?;
        match answer.status {
            StatusCode::OK => Ok(()),
            _ => Err(answer.refusal(PROBE)),
        }
    }
}

// === impl CommandBrowser ===

impl CommandBrowser {
    /// A call about the session that has begun; `None` if none has, or the program has fallen silent.
    async fn about_session(&self, method: Method, limit: Duration) -> Option<(String, Result<Answer, CallFailed>)> {
        let path = match &*self.session.lock() {
            Session::Begun(id) => format!("/sessions/{}", encode(id)),
            Session::None | Session::Silent => return None,
        };
        let ask = Ask {
            method,
            path: &path,
            body: None,
            limit,
        };
        let call = ask.call();
        let answer = self.client.ask(ask).await;
        if matches!(answer, Err(CallFailed::TimedOut { .. })) {
            *self.session.lock() = Session::Silent;
        }
        Some((call, answer))
    }
}

#[async_trait]
impl Program for CommandBrowser {
    async fn begin(&self, data: &Value, limit: Duration) -> Result<Value, CallFailed> {
        let ask = Ask {
            method: Method::POST,
            path: "/sessions",
            body: Some(data),
            limit,
        };
        let call = ask.call();
        let object = self.client.ask(ask).await?.object(&call)?;
        let id = match object.get("id") {
            Some(Value::String(id)) if !id.is_empty() => id.clone(),
            Some(Value::Number(id)) => id.to_string(),
            _ => {
                let answer = "an object without an `id` (a text or a number)".to_owned();
                return Err(CallFailed::Refused { call, answer });
            }
        };
        *self.session.lock() = Session::Begun(id);
        Ok(Value::Object(object))
    }

    async fn look(&self, limit: Duration) -> Result<Value, CallFailed> {
        match self.about_session(Method::GET, limit).await {
            Some((call, answer)) => answer?.object(&call).map(Value::Object),
            None => Err(CallFailed::Refused {
                call: "GET /sessions".to_owned(),
                answer: "nothing: no session has begun, or it did not answer before".to_owned(),
            }),
        }
    }

    async fn finish(&self, limit: Duration) -> Result<(), CallFailed> {
        let Some((call, answer)) = self.about_session(Method::DELETE, limit).await else {
            return Ok(());
        };
        let answer = answer?;
        // A session that the program does not know any more is over, too.
        if answer.status.is_success() || answer.status == StatusCode::NOT_FOUND {
            return Ok(());
        }
        Err(answer.refusal(&call))
    }
}

#[async_trait]
impl Browser for CommandBrowser {
    fn id(&self) -> BrowserId {
        self.id
    }

    fn pid(&self) -> u32 {
        self.process.tree.pid()
    }

    fn version(&self) -> &BrowserVersion {
        &self.version
    }

    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    async fn probe(&self, limit: Duration) -> Result<(), ProbeFailed> {
        let failed = |failed: CallFailed| match failed {
            CallFailed::TimedOut { limit, .. } => ControlError::Timeout { method: PROBE, limit },
            other => ControlError::Unreadable {
                method: PROBE,
                problem: other.to_string(),
            },
        };
        self.client.health(limit).await.map_err(failed).map_err(ProbeFailed)
    }

    async fn exited(&self) -> Exit {
        let exited = self.process.tree.exited().await;
        match self.process.describe(exited).await {
            // Nobody can close a program through its API: leaving is its own doing, whatever the code.
            Exit::Clean => Exit::Crashed {
                status: ExitStatus::Code(0),
                detail: self.process.last_words().await,
            },
            exit => exit,
        }
    }

    async fn kill(&self) {
        self.process.tree.kill().await;
    }

    async fn files_removed(&self) {
        self.process.tree.files_removed().await;
    }

    fn pss_bytes(&self) -> Option<u64> {
        self.process.tree.pss_bytes()
    }

    async fn pages(&self, _: Duration) -> Result<Vec<PageTarget>, ControlError> {
        Ok(Vec::new())
    }

    async fn open_page(&self, _: &str, _: Duration) -> Result<PageTarget, ControlError> {
        Err(ControlError::Unreadable {
            method: "open a page",
            problem: "a program of the driver `command` has no pages".to_owned(),
        })
    }

    fn promote(&self) {
        self.process.tree.set_priority(Priority::Normal);
    }

    fn program(&self) -> Option<&dyn Program> {
        Some(self)
    }
}

/// An id as one segment of a path (RFC 3986 §2.3: everything but the unreserved is escaped).
fn encode(id: &str) -> String {
    id.bytes().fold(String::new(), |mut path, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            path.push(char::from(byte));
        } else {
            path.push_str(&format!("%{byte:02X}"));
        }
        path
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_stays_one_segment_of_the_path() {
        assert_eq!(encode("3f-A_9.~"), "3f-A_9.~");
        assert_eq!(encode("a/../b?c d\r\n"), "a%2F..%2Fb%3Fc%20d%0D%0A");
    }
}
