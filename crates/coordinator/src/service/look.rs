//! Looking at a session through its program: forwarded, counted as activity, and the end of the session if it fails.
//!
//! Its own file because it is the one call that a client makes to a browser without being attached. The rule is seed
//! 000's: a program that does not answer for its session has lost it. The invariant: a failed look leaves the session
//! ended with a reason, and the answer is that reason, the supervisor's if it knows better.

use std::time::Duration;

use wharf_core::{BrowserKind, EndReason, ErrorCode, Seat, SessionId};

use super::Service;
use crate::{LinkError, Refusal};

/// A connection breaks a moment before the supervisor has said why; its word has the exit and the last words.
const SUPERVISOR_SPEAKS: Duration = Duration::from_millis(250);

// === impl Service ===

impl Service {
    /// What the program of an active session says of it. Keeps the session alive.
    pub async fn look(&self, session: SessionId, seat: Seat) -> Result<serde_json::Value, Refusal> {
        // Before the call: it is the client that is active, and a slow answer must not cost it the session.
        self.touch(session).await?;
        match self
            .inner()
            .link
            .look(session, seat, self.config().forward_timeout)
            .await
        {
            Ok(answer) => Ok(answer),
            Err(error @ LinkError::Unreachable(_)) => {
                Err(Refusal::new(ErrorCode::WorkerUnreachable, error.to_string()).about(session))
            }
            Err(error) => Err(self.lost(session, &error).await),
        }
    }

    /// The program has lost its session: it ends, and the client learns why.
    async fn lost(&self, session: SessionId, error: &LinkError) -> Refusal {
        let reason = match error {
            LinkError::BrowserHung(_) => EndReason::BrowserHung,
            _ => {
                if let Some(live) = self.inner().live.get(session) {
                    let _late = tokio::time::timeout(SUPERVISOR_SPEAKS, live.ending()).await;
                }
                EndReason::BrowserCrashed
            }
        };
        // The first reason wins.
        if let Err(refusal) = self.end(session, reason, Some(error.to_string())).await {
            return refusal;
        }
        match self.session(session).await {
            Ok(record) => Refusal::ended(session, record.reason().unwrap_or(reason), record.detail.as_deref()),
            Err(refusal) => refusal,
        }
    }

    /// Refuses a WebSocket where there is a program at the other end.
    pub(crate) fn check_is_driven(&self, kind: BrowserKind, session: Option<SessionId>) -> Result<(), Refusal> {
        if kind != BrowserKind::Command {
            return Ok(());
        }
        let message = match session {
            Some(session) => format!(
                "the session {session} is served by a program (driver `command`), which is used over HTTP at \
                 /sessions/{session} and has no DevTools WebSocket"
            ),
            None => {
                "this grid runs programs (driver `command`), which have no DevTools WebSocket: make a session with \
                     POST /sessions and use it over HTTP"
                    .to_owned()
            }
        };
        let refusal = Refusal::invalid(message);
        Err(match session {
            Some(session) => refusal.about(session),
            None => refusal,
        })
    }
}
