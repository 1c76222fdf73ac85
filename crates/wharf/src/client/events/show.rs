//! Events as people read them: one line each, coloured by kind on a terminal.
//!
//! Its own file because it is pure: a block goes in, a line comes out.

use serde_json::Value;

use super::sse::Block;
use crate::client::table::{time, word};

/// How events are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// The data, as it came.
    Json,
    Plain,
    Coloured,
}

/// What a line shows after time, number and type, in this order.
const FIELDS: [&str; 11] = [
    "session",
    "reason",
    "waiting",
    "lock",
    "holder",
    "operation",
    "pool",
    "worker",
    "key",
    "missed_from",
    "missed_to",
];

/// The longest type, so that what follows is aligned.
const TYPE_WIDTH: usize = 21;

// === impl Style ===

impl Style {
    pub(super) fn choose(is_json: bool, is_terminal: bool) -> Self {
        match (is_json, is_terminal) {
            (true, _) => Self::Json,
            (false, true) => Self::Coloured,
            (false, false) => Self::Plain,
        }
    }

    /// The line for a block; none for one without data.
    pub(super) fn line(self, block: &Block) -> Option<String> {
        if block.data.is_empty() {
            return None;
        }
        if self == Self::Json {
            return Some(format!("{}\n", block.data));
        }
        let data: Value = serde_json::from_str(&block.data).unwrap_or_default();
        let mut line = format!(
            "{}  {:>6}  {:<TYPE_WIDTH$}",
            match data["at"].is_string() {
                true => time(&data["at"]),
                false => " ".repeat("2026-11-16 00:00:00".len()),
            },
            block.id.map(|id| id.to_string()).unwrap_or_default(),
            word(&Value::from(block.event.as_str())),
        );
        for name in FIELDS.iter().filter(|name| !data[**name].is_null()) {
            line.push_str(&match *name {
                "session" | "reason" => format!("  {}", word(&data[*name])),
                _ => format!("  {name}={}", word(&data[*name])),
            });
        }
        let line = line.trim_end();
        Some(match (self, colour(&block.event, &data)) {
            (Self::Coloured, Some(code)) => format!("\u{1b}[{code}m{line}\u{1b}[0m\n"),
            _ => format!("{line}\n"),
        })
    }
}

/// Why, in the stream's own word.
pub(super) fn reason(block: &Block) -> String {
    let data: Value = serde_json::from_str(&block.data).unwrap_or_default();
    word(&data["reason"])
}

/// Green begins, red went wrong, yellow is worth a look, blue is a lock's, grey is the queue's.
fn colour(event: &str, data: &Value) -> Option<u8> {
    match event {
        "session.active" | "worker.available" | "worker.circuit_closed" => Some(32),
        "session.ended" => match data["reason"].as_str() {
            Some("released" | "client_disconnected" | "cancelled") => None,
            Some("idle_timeout" | "max_duration" | "connect_timeout" | "worker_drained" | "killed") => Some(33),
            _ => Some(31),
        },
        "worker.lost" | "worker.circuit_opened" | "gap" => Some(31),
        "worker.draining" | "worker.gone" | "worker.removed" | "lock.forced" | "lock.expired" | "slow" | "end" => {
            Some(33)
        }
        "queue.changed" => Some(90),
        _ if event.starts_with("lock.") => Some(34),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(event: &str, data: &str) -> Block {
        Block {
            id: Some(12),
            event: event.to_owned(),
            data: data.to_owned(),
        }
    }

    #[test]
    fn line_has_time_number_type_and_what_applies() {
        let data = r#"{"id":12,"at":"2026-11-16T03:00:01.5Z","type":"session.ended","session":"ses_1","pool":"default","reason":"browser_crashed"}"#;
        let ended = block("session.ended", data);
        let plain = "2026-11-16 03:00:01      12  session.ended          ses_1  browser_crashed  pool=default\n";
        assert_eq!(Style::Plain.line(&ended).unwrap(), plain);
        assert_eq!(Style::Json.line(&ended).unwrap(), format!("{data}\n"));
        let coloured = Style::Coloured.line(&ended).unwrap();
        assert_eq!(coloured, format!("\u{1b}[31m{}\u{1b}[0m\n", plain.trim_end()));
        assert_eq!(Style::Plain.line(&Block::default()), None);
    }

    #[test]
    fn hostile_holder_does_not_steer_the_terminal() {
        let lock = block("lock.acquired", "{\"holder\":\"me\\u001b[2J\\nyou\"}");
        let line = Style::Plain.line(&lock).unwrap();
        assert!(line.ends_with("holder=me·[2J·you\n"), "{line}");
    }

    #[test]
    fn only_terminals_get_colours() {
        assert_eq!(Style::choose(false, false), Style::Plain);
        assert_eq!(Style::choose(true, true), Style::Json);
        assert_eq!(Style::choose(false, true), Style::Coloured);
    }
}
