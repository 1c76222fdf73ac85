//! Why a request was refused, with everything its answer needs: code, sentence, limit, retry time.
//!
//! Its own file because REST bodies, WebSocket rejections and (later) gRPC and WebDriver errors are all made from
//! this one value.

use std::time::Duration;

use wharf_core::{EndReason, ErrorCode, LockName, Retry, SessionId};
use wharf_store::{LockRecord, StoreError, TICKET_LAPSED};

/// A refused request.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// The stable code.
    pub code: ErrorCode,
    /// A sentence that names the thing and the value.
    pub message: Box<str>,
    /// The session, if there is one.
    pub session: Option<SessionId>,
    /// Why it ended.
    pub reason: Option<EndReason>,
    /// The limit that was reached and how much of it is used.
    pub limit: Option<(u64, u64)>,
    /// The lock that is in the way.
    pub lock: Option<Box<LockRecord>>,
    /// The place in the queue that the request had.
    pub position: Option<u64>,
    /// When to try again.
    pub retry_after: Option<Duration>,
    /// For 405: the methods there are.
    pub allow: Option<&'static str>,
}

// === impl Refusal ===

impl Refusal {
    /// A refusal with a sentence.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        // Whoever is told to come back is told when.
        let retry_after = (code.retry() == Retry::After && code.status() >= 500).then_some(Duration::from_secs(1));
        Self {
            code,
            message: message.into().into_boxed_str(),
            session: None,
            reason: None,
            limit: None,
            lock: None,
            position: None,
            retry_after,
            allow: None,
        }
    }

    /// The request makes no sense.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidRequest, message)
    }

    /// No such session was ever known (or its record has been pruned).
    pub fn unknown(session: SessionId) -> Self {
        Self {
            session: Some(session),
            ..Self::new(ErrorCode::SessionNotFound, format!("there is no session {session}"))
        }
    }

    /// The session is over.
    pub fn ended(session: SessionId, reason: EndReason, detail: Option<&str>) -> Self {
        let more = detail.map(|text| format!(" ({text})")).unwrap_or_default();
        let message = format!(
            "the session {session} has ended: {reason}: {}{more}",
            reason.close().sentence
        );
        Self {
            session: Some(session),
            reason: Some(reason),
            ..Self::new(ErrorCode::SessionEnded, message)
        }
    }

    /// The session was over before anybody had it. One whose place in the queue lapsed may be asked for again: nobody
    /// wanted its end, this coordinator stood still or was cut off from the store for too long.
    pub fn never_opened(session: SessionId, reason: EndReason, detail: Option<&str>) -> Self {
        if reason == EndReason::Cancelled && detail == Some(TICKET_LAPSED) {
            let message = format!("the session {session} lost its place in the queue: {TICKET_LAPSED}");
            return Self {
                reason: Some(reason),
                ..Self::new(ErrorCode::StoreUnavailable, message).about(session)
            };
        }
        Self::ended(session, reason, detail)
    }

    /// A lock is in the way.
    pub fn locked(lock: &LockRecord, why: &str) -> Self {
        let message = format!(
            "the lock `{}` is held by {} since {} until {}, and {why}",
            lock.name, lock.holder, lock.taken_at, lock.until
        );
        Self {
            lock: Some(Box::new(lock.clone())),
            ..Self::new(ErrorCode::LockHeld, message)
        }
    }

    /// Nobody holds the lock.
    pub fn no_lock(name: &LockName, why: &str) -> Self {
        Self::new(ErrorCode::LockNotFound, format!("there is no lock `{name}`: {why}"))
    }

    /// Shutting down.
    pub fn draining() -> Self {
        let message = "the grid is shutting down and takes no new sessions";
        Self {
            retry_after: Some(Duration::from_secs(5)),
            ..Self::new(ErrorCode::Draining, message)
        }
    }

    /// With the time to come back.
    #[must_use]
    pub fn retry_in(mut self, span: Duration) -> Self {
        self.retry_after = Some(span);
        self
    }

    /// With the session it is about.
    #[must_use]
    pub fn about(mut self, session: SessionId) -> Self {
        self.session = Some(session);
        self
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        tracing::error!(%error, "the store refused to answer");
        Self::new(ErrorCode::StoreUnavailable, error.to_string())
    }
}
