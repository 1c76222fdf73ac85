//! What a client was told in the end, by cause.
//!
//! Its own file because "every client got its answer or a precise error" is decided here: whatever is neither one of our
//! error codes, nor one of our close reasons, nor plainly the balancer's or the network's doing, is a finding.

use std::{str::FromStr, time::Instant};

use wharf_core::{EndReason, ErrorCode};
use wharf_testkit::{CdpEnd, CdpError, Reply};

/// How a visit ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Everything it wanted.
    Done,
    /// It left on purpose.
    Left,
    /// One of our error codes.
    Refused(String),
    /// One of our reasons, in a close frame.
    Closed(String),
    /// The balancer's own page: it had nobody to ask, or lost whom it asked; and when. A visit goes on after that, and what
    /// explains it must have been there then.
    Balancer(u16, Instant),
    /// The connection broke without a word, and when.
    Broken(String, Instant),
    /// Nothing came in time. Must not happen.
    Unanswered(String),
    /// Something came that is none of the above. Must not happen.
    Strange(String),
}

/// The reason of a coordinator that goes: the session lives on.
const SENT_AWAY: &str = "coordinator_drained";
/// The connection between coordinator and worker broke: the session lives on if its worker does.
const UNREACHABLE: &str = "browser_unreachable";

// === impl Outcome ===

impl Outcome {
    /// For the table.
    pub fn cause(&self) -> String {
        match self {
            Self::Done => "done".to_owned(),
            Self::Left => "left on purpose".to_owned(),
            Self::Refused(code) => format!("refused: {code}"),
            Self::Closed(reason) => format!("closed: {reason}"),
            Self::Balancer(status, _) => format!("balancer: {status}"),
            Self::Broken(..) => "connection broke".to_owned(),
            Self::Unanswered(_) => "UNANSWERED".to_owned(),
            Self::Strange(_) => "STRANGE".to_owned(),
        }
    }

    /// An answer of the API.
    pub fn of_reply(reply: &Reply) -> Self {
        let status = reply.status.as_u16();
        // A refused upgrade is told in one line, since WebSocket clients show no body: `code: message`.
        let text = reply.text();
        let word = text.split_once(": ").map(|(word, _)| word.to_owned());
        let word = word.filter(|word| ErrorCode::ALL.iter().any(|known| known.as_str() == word));
        if let Some(code) = reply.error_code().or(word) {
            return match ErrorCode::ALL.iter().find(|known| known.as_str() == code) {
                // A session that ended is told with its reason.
                Some(ErrorCode::SessionEnded) => match ended(reply) {
                    Some(reason) => Self::Closed(reason),
                    None => Self::Strange(format!("an end without a reason: {}", reply.text())),
                },
                Some(ErrorCode::Internal) => Self::Strange(reply.text()),
                Some(known) => Self::Refused(known.as_str().to_owned()),
                None => Self::Strange(format!("{status} with an unknown code: {}", reply.text())),
            };
        }
        let is_balancers = reply.text().contains("nginx");
        match status {
            200..=299 => Self::Done,
            502..=504 if is_balancers => Self::Balancer(status, Instant::now()),
            _ => Self::Strange(format!("{status}: {}", reply.text())),
        }
    }

    /// The end of a WebSocket.
    pub fn of_end(end: &CdpEnd) -> Self {
        let word = end.reason.split(':').next().unwrap_or_default();
        let is_known = [SENT_AWAY, UNREACHABLE].contains(&word) || EndReason::from_str(word).is_ok();
        match end.code {
            None | Some(1006) => Self::Broken(end.reason.clone(), Instant::now()),
            Some(_) if is_known => Self::Closed(word.to_owned()),
            Some(code) => Self::Strange(format!("closed with {code}: {}", end.reason)),
        }
    }

    pub fn of_error(error: &CdpError) -> Self {
        match error {
            CdpError::Refused(reply) => match Self::of_reply(reply) {
                Self::Done => Self::Strange(format!("an upgrade answered with {}", reply.status)),
                other => other,
            },
            CdpError::Connect { problem, .. } => Self::Broken(problem.clone(), Instant::now()),
            CdpError::Ended(end) => Self::of_end(end),
            CdpError::Method { .. } => Self::Strange(error.to_string()),
            CdpError::Timeout { .. } => Self::Unanswered(error.to_string()),
        }
    }

    /// A request without an answer: too late, or cut off.
    pub fn of_transport(error: &anyhow::Error) -> Self {
        let text = format!("{error:#}");
        match text.contains("no answer within") {
            true => Self::Unanswered(text),
            false => Self::Broken(text, Instant::now()),
        }
    }

    /// Whether asking again (or attaching again) may help: nothing final was said.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Balancer(..) | Self::Broken(..) => true,
            Self::Closed(reason) => reason == SENT_AWAY || reason == UNREACHABLE,
            Self::Refused(code) => matches!(
                code.as_str(),
                "store_unavailable" | "draining" | "queue_full" | "queue_timeout" | "session_not_active" | "lock_held"
            ),
            _ => false,
        }
    }

    /// Whether it must not happen.
    #[cfg(test)]
    pub fn is_finding(&self) -> bool {
        matches!(self, Self::Unanswered(_) | Self::Strange(_))
    }
}

fn ended(reply: &Reply) -> Option<String> {
    let told = reply
        .json()
        .ok()
        .and_then(|body| body["error"]["reason"].as_str().map(str::to_owned));
    let text = reply.text();
    let mut words = text.split([':', ' ']);
    let reason = told.or_else(|| words.find(|word| EndReason::from_str(word).is_ok()).map(str::to_owned))?;
    EndReason::from_str(&reason).ok().map(|_| reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(status: u16, body: &str) -> Reply {
        Reply {
            status: status.try_into().unwrap(),
            headers: http::HeaderMap::new(),
            body: body.to_owned().into(),
        }
    }

    #[test]
    fn only_known_words_are_precise() {
        let of = |status, body: &str| Outcome::of_reply(&reply(status, body));
        assert_eq!(
            of(503, r#"{"error":{"code":"store_unavailable"}}"#).cause(),
            "refused: store_unavailable"
        );
        assert_eq!(
            of(404, r#"{"error":{"code":"session_ended","reason":"worker_lost"}}"#).cause(),
            "closed: worker_lost"
        );
        assert!(of(404, r#"{"error":{"code":"session_ended"}}"#).is_finding());
        let text = "session_ended: the session ses_1 has ended: worker_lost: the worker was lost";
        assert_eq!(of(404, text).cause(), "closed: worker_lost");
        assert_eq!(
            of(503, "draining: the grid is shutting down").cause(),
            "refused: draining"
        );
        assert!(of(500, r#"{"error":{"code":"internal"}}"#).is_finding());
        assert!(of(502, "upstream").is_finding());
        assert_eq!(of(502, "<center>nginx</center>").cause(), "balancer: 502");
        let end = |code, reason: &str| {
            Outcome::of_end(&CdpEnd {
                code,
                reason: reason.to_owned(),
            })
        };
        assert_eq!(
            end(Some(1011), "worker_lost: the worker was lost").cause(),
            "closed: worker_lost"
        );
        assert!(end(Some(1001), "coordinator_drained: going").is_passing());
        assert!(end(Some(1011), "").is_finding());
        assert!(end(None, "reset").is_passing());
    }
}
