//! `wharf pool` and `wharf queue`: what runs and waits, limits, forced release.

use clap::ArgMatches;
use serde_json::{Map, Value, json};

use super::{
    Outcome, Output, count, given,
    http::{Call, Grid, query},
    operand, sessions, span,
    table::{Column, short, span as shown, table, word},
};

pub(super) const HOLDERS: &[Column] = &[
    ("SESSION", |row| word(&row["session"])),
    ("STATUS", |row| word(&row["status"])),
    ("OPERATION", |row| word(&row["operation"])),
    ("HELD", |row| shown(&row["held_for"])),
    ("LIMIT", |row| shown(&row["max_duration"])),
    ("KEY", |row| short(word(&row["key"]), 16)),
    ("DESCRIPTION", |row| short(word(&row["description"]), 40)),
];
const OPERATIONS: &[Column] = &[
    ("OPERATION", |row| word(&row["operation"])),
    ("RUNNING", |row| word(&row["running"])),
    ("QUEUED", |row| word(&row["queued"])),
    ("LIMIT", |row| word(&row["limit"])),
];
pub(super) const WAITERS: &[Column] = &[
    ("PLACE", |row| word(&row["position"])),
    ("SESSION", |row| word(&row["session"])),
    ("OPERATION", |row| word(&row["operation"])),
    ("PRIORITY", |row| word(&row["priority"])),
    ("WAITED", |row| shown(&row["wait_time"])),
    ("AT MOST", |row| shown(&row["queue_timeout"])),
    ("DESCRIPTION", |row| short(word(&row["description"]), 40)),
];

pub(super) fn run(grid: &Grid, matches: &ArgMatches) -> Outcome {
    match matches.subcommand() {
        Some(("recent", matches)) => {
            let limit = matches.get_one::<u32>("limit").map(ToString::to_string);
            let query = query(&[("pool", given(matches, "pool")), ("limit", limit.as_deref())]);
            let answer = grid.call(&Call::Get, &format!("/v1/pool/recent{query}"))?;
            let text = table(&rows(&answer["sessions"]), sessions::ENDED, "no session has ended yet");
            Ok(Output::new(answer, text))
        }
        Some(("cleanup", matches)) => {
            let mut body = Map::new();
            if let Some(pool) = given(matches, "pool") {
                body.insert("pool".to_owned(), json!(pool));
            }
            if let Some(text) = given(matches, "max-age") {
                body.insert("max_age".to_owned(), json!(span("max-age", text)?.as_secs_f64()));
            }
            let answer = grid.call(&Call::Post(Some(&Value::Object(body))), "/v1/pool/cleanup")?;
            let text = ended(&answer, "nothing runs for that long");
            Ok(Output::new(answer, text))
        }
        Some(("limit", matches)) => {
            let mut body = json!({"max": count(operand(matches, "MAX"))?});
            for name in ["pool", "operation"] {
                if let Some(text) = given(matches, name) {
                    body[name] = json!(text);
                }
            }
            let answer = grid.call(&Call::Put(&body), "/v1/pool/limits")?;
            let text = summary(&answer);
            Ok(Output::new(answer, text))
        }
        other => {
            let pool = other.and_then(|(_, matches)| given(matches, "pool"));
            let answer = grid.call(&Call::Get, &format!("/v1/pool{}", query(&[("pool", pool)])))?;
            let text = status(&answer);
            Ok(Output::new(answer, text))
        }
    }
}

pub(super) fn queue(grid: &Grid, matches: &ArgMatches) -> Outcome {
    if let Some(("clear", matches)) = matches.subcommand() {
        let query = query(&[
            ("pool", given(matches, "pool")),
            ("operation", given(matches, "operation")),
        ]);
        let answer = grid.call(&Call::Delete, &format!("/v1/queue{query}"))?;
        let text = ended(&answer, "nobody waited");
        return Ok(Output::new(answer, text));
    }
    let matches = matches.subcommand().map(|(_, matches)| matches);
    let limit = matches.and_then(|matches| matches.get_one::<u32>("limit").map(ToString::to_string));
    let pool = matches.and_then(|matches| given(matches, "pool"));
    let query = query(&[("pool", pool), ("limit", limit.as_deref())]);
    let answer = grid.call(&Call::Get, &format!("/v1/queue{query}"))?;
    let text = table(&rows(&answer["waiting"]), WAITERS, "nobody waits");
    Ok(Output::new(answer, text))
}

pub(super) fn rows(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

fn ended(answer: &Value, none: &str) -> String {
    let ids = rows(&answer["ended"]);
    match ids.is_empty() {
        true => format!("{none}\n"),
        false => ids.iter().map(|id| format!("ended {}\n", word(id))).collect(),
    }
}

/// The counts in one line.
pub(super) fn summary(pool: &Value) -> String {
    let limit = match pool["limit"].as_u64() {
        Some(limit) => format!(" (limit {limit})"),
        None => String::new(),
    };
    let n = |name: &str| word(&pool[name]);
    format!(
        "pool {}: {} of {} running{limit}, {} queued, {} available; {} warm, {} launching on {} worker{}\n",
        n("pool"),
        n("running"),
        n("max"),
        n("queued"),
        n("available"),
        n("warm"),
        n("launching"),
        n("workers"),
        if pool["workers"] == 1 { "" } else { "s" },
    )
}

fn status(pool: &Value) -> String {
    let mut text = summary(pool);
    for lock in rows(&pool["locks"]) {
        text.push_str(&format!(
            "locked: `{}` is held by {} until {}\n",
            word(&lock["name"]),
            word(&lock["holder"]),
            super::table::time(&lock["until"])
        ));
    }
    let operations = rows(&pool["operations"]);
    if !operations.is_empty() {
        text.push('\n');
        text.push_str(&table(&operations, OPERATIONS, ""));
    }
    text.push('\n');
    text.push_str(&table(&rows(&pool["holders"]), HOLDERS, "nobody holds a slot"));
    text
}
