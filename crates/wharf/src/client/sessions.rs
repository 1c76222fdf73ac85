//! `wharf sessions`: list, make, show and end sessions.

use std::time::Duration;

use clap::ArgMatches;
use serde_json::{Map, Value, json};

use super::{
    Failure, Outcome, Output, given,
    http::{Call, Grid, encoded, query},
    span,
    table::{Column, short, span as shown, table, time, word},
};

/// The grid answers within the queue timeout; this is for the way there and back.
const SLACK: Duration = Duration::from_secs(30);
/// The grid's own default.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(300);

const LIVE: &[Column] = &[
    ("SESSION", |row| word(&row["id"])),
    ("STATUS", |row| word(&row["status"])),
    ("OPERATION", |row| word(&row["operation"])),
    ("AGE", |row| {
        let ran = row["run_time"].as_f64().unwrap_or_default();
        shown(&json!(row["wait_time"].as_f64().unwrap_or_default() + ran))
    }),
    ("WAITED", |row| shown(&row["wait_time"])),
    ("RAN", |row| shown(&row["run_time"])),
    ("DESCRIPTION", |row| short(word(&row["description"]), 40)),
];
pub(super) const ENDED: &[Column] = &[
    ("SESSION", |row| word(&row["id"])),
    ("REASON", |row| word(&row["reason"])),
    ("OPERATION", |row| word(&row["operation"])),
    ("ENDED", |row| time(&row["ended_at"])),
    ("WAITED", |row| shown(&row["wait_time"])),
    ("RAN", |row| shown(&row["run_time"])),
    ("DETAIL", |row| short(word(&row["detail"]), 50)),
];

pub(super) fn run(grid: &Grid, matches: &ArgMatches) -> Outcome {
    match matches.subcommand() {
        Some(("create", matches)) => create(grid, matches),
        Some(("show", matches)) => {
            let id = super::operand(matches, "ID");
            let answer = grid.call(&Call::Get, &format!("/v1/sessions/{}", encoded(id)))?;
            let text = sheet(&answer);
            Ok(Output::new(answer, text))
        }
        Some(("end", matches)) => end(grid, matches),
        Some((_, matches)) => list(grid, Some(matches)),
        None => list(grid, None),
    }
}

fn list(grid: &Grid, matches: Option<&ArgMatches>) -> Outcome {
    let text = |name| matches.and_then(|matches| given(matches, name));
    let limit = matches.and_then(|matches| matches.get_one::<u32>("limit").map(ToString::to_string));
    let is_history = matches.is_some_and(|matches| matches.get_flag("history")) || text("reason").is_some();
    let query = query(&[
        ("status", text("status")),
        ("operation", text("operation")),
        ("pool", text("pool")),
        ("reason", text("reason")),
        ("limit", limit.as_deref()),
    ]);
    let path = if is_history {
        "/v1/sessions/history"
    } else {
        "/v1/sessions"
    };
    let answer = grid.call(&Call::Get, &format!("{path}{query}"))?;
    let rows = answer["sessions"].as_array().cloned().unwrap_or_default();
    let mut text = match is_history {
        true => table(&rows, ENDED, "no session has ended so"),
        false => table(&rows, LIVE, "no session waits or runs"),
    };
    if !answer["next"].is_null() {
        text.push_str(&format!("… and more; the first {} are shown (--limit)\n", rows.len()));
    }
    Ok(Output::new(answer, text))
}

fn create(grid: &Grid, matches: &ArgMatches) -> Outcome {
    let mut body = Map::new();
    for (name, field) in [
        ("operation", "operation"),
        ("description", "description"),
        ("pool", "pool"),
        ("browser", "browser"),
        ("idle-timeout", "idle_timeout"),
        ("queue-timeout", "queue_timeout"),
        ("max-duration", "max_duration"),
    ] {
        if let Some(text) = given(matches, name) {
            body.insert(field.to_owned(), json!(text));
        }
    }
    if let Some(priority) = matches.get_one::<i64>("priority") {
        body.insert("priority".to_owned(), json!(priority));
    }
    if let Some(text) = given(matches, "data") {
        let data: Value =
            serde_json::from_str(text).map_err(|error| Failure::Usage(format!("--data is not JSON: {error}")))?;
        body.insert("data".to_owned(), data);
    }
    let queue_timeout = match given(matches, "queue-timeout") {
        Some(text) => span("queue-timeout", text)?,
        None => QUEUE_TIMEOUT,
    };
    let body = Value::Object(body);
    let answer = grid.call_within(&Call::Post(Some(&body)), "/v1/sessions", queue_timeout + SLACK)?;
    let text = sheet(&answer);
    Ok(Output::new(answer, text))
}

fn end(grid: &Grid, matches: &ArgMatches) -> Outcome {
    let ids: Vec<_> = matches.get_many::<String>("ID").into_iter().flatten().collect();
    let mut text = String::new();
    for id in &ids {
        grid.call(&Call::Delete, &format!("/v1/sessions/{}", encoded(id)))?;
        text.push_str(&format!("ended {id}\n"));
    }
    Ok(Output::new(json!({"ended": ids}), text))
}

/// One session, a line each.
fn sheet(answer: &Value) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        if value != "-" {
            text.push_str(&format!("{name:<12} {value}\n"));
        }
    };
    line("session", word(&answer["id"]));
    line("status", word(&answer["status"]));
    line("cdp", word(&answer["connect"]["cdp"]));
    line("http", word(&answer["connect"]["http"]));
    line("operation", word(&answer["operation"]));
    line("description", word(&answer["description"]));
    line("pool", word(&answer["pool"]));
    line("browser", word(&answer["browser"]));
    line("worker", word(&answer["worker"]));
    line("key", word(&answer["key"]));
    line("position", word(&answer["position"]));
    line("created", time(&answer["created_at"]));
    line("waited", shown(&answer["wait_time"]));
    line("ran", shown(&answer["run_time"]));
    text
}
