//! What `/v1/events` tells: the data of each event, and the few words of the stream itself.
//!
//! Its own file because a stream of events is a contract with whoever kept its numbers: names and fields only ever grow.
//! Every event is one JSON object on one line; what does not apply to it is left out.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use wharf_core::{EndReason, KeyId, LockName, Operation, PoolName, SessionId, Timestamp, WorkerId};

/// The names of all events, by which `?type=` chooses. The stream's own (`gap`, `slow`, `end`) are not among them: they
/// cannot be left out.
pub const EVENT_NAMES: &[&str] = &[
    "session.queued",
    "session.placed",
    "session.active",
    "session.ended",
    "worker.registered",
    "worker.available",
    "worker.circuit_opened",
    "worker.circuit_closed",
    "worker.draining",
    "worker.lost",
    "worker.gone",
    "worker.removed",
    "lock.acquired",
    "lock.renewed",
    "lock.released",
    "lock.forced",
    "lock.expired",
    "queue.changed",
];

/// One event: the `data` of a block whose `event` is its `type`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventBody {
    /// Its number: the `id` of the block. Send it as `Last-Event-ID` to go on after it, on any coordinator.
    pub id: u64,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// What.
    #[serde(rename = "type")]
    #[schema(example = "session.ended")]
    pub kind: String,
    /// Which session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub session: Option<SessionId>,
    /// In which pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub pool: Option<PoolName>,
    /// What the session is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub operation: Option<Operation>,
    /// On which worker; or which worker it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub worker: Option<WorkerId>,
    /// Why the session ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub reason: Option<EndReason>,
    /// The API key of the session or of the lock's holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub key: Option<KeyId>,
    /// Which lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub lock: Option<LockName>,
    /// Who holds or held it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// How many wait in the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<u64>,
}

/// A word of the stream itself: the `data` of a block whose `event` is `gap`, `slow` or `end`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StreamNote {
    /// `gap`: some events cannot be told. `slow`: the client took nothing for too long. `end`: it is over here.
    #[serde(rename = "type")]
    pub kind: NoteKind,
    /// Why, for people; for `end` a stable word: `draining`, `unauthorized`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The first number that cannot be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed_from: Option<u64>,
    /// The last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed_to: Option<u64>,
}

/// What a stream says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NoteKind {
    /// Some events cannot be told.
    Gap,
    /// The client took nothing for too long.
    Slow,
    /// It is over here; elsewhere it may go on.
    End,
}

// === impl NoteKind ===

impl NoteKind {
    /// The one spelling.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gap => "gap",
            Self::Slow => "slow",
            Self::End => "end",
        }
    }
}

// === impl StreamNote ===

impl StreamNote {
    /// These numbers are no longer kept.
    pub fn missed(from: u64, to: u64) -> Self {
        Self {
            missed_from: Some(from),
            missed_to: Some(to),
            ..Self::because(NoteKind::Gap, "these events are no longer kept")
        }
    }

    /// A word with its reason.
    pub fn because(kind: NoteKind, reason: impl Into<String>) -> Self {
        Self {
            kind,
            reason: Some(reason.into()),
            missed_from: None,
            missed_to: None,
        }
    }
}

/// One block of `text/event-stream`, as WHATWG HTML §9.2.6 has it. The data must be one line, as JSON is.
pub fn block(id: u64, event: &str, data: &str) -> String {
    format!("id: {id}\nevent: {event}\ndata: {data}\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_apply_is_left_out() {
        let event = EventBody {
            id: 7,
            at: Timestamp::from_micros(0),
            kind: "queue.changed".to_owned(),
            session: None,
            pool: Some(PoolName::default()),
            operation: None,
            worker: None,
            reason: None,
            key: None,
            lock: None,
            holder: None,
            waiting: Some(3),
        };
        let json = serde_json::to_string(&event).unwrap();
        assert_eq!(
            json,
            r#"{"id":7,"at":"1970-01-01T00:00:00.000000Z","type":"queue.changed","pool":"default","waiting":3}"#
        );
        assert_eq!(serde_json::from_str::<EventBody>(&json).unwrap(), event);
        assert_eq!(
            block(7, "queue.changed", "{}"),
            "id: 7\nevent: queue.changed\ndata: {}\n\n"
        );
    }

    #[test]
    fn notes_say_what_is_missing() {
        let json = serde_json::to_string(&StreamNote::missed(3, 9)).unwrap();
        assert_eq!(
            json,
            r#"{"type":"gap","reason":"these events are no longer kept","missed_from":3,"missed_to":9}"#
        );
    }
}
