//! `wharf workers`: list, drain, remove.

use std::time::Duration;

use clap::ArgMatches;
use serde_json::Value;

use super::{
    Failure, Outcome, Output, given,
    http::{Call, Grid, encoded, query},
    operand,
    pool::rows,
    span,
    table::{Column, short, table, time, word},
};

/// For the way there and back, beyond the wait itself.
const SLACK: Duration = Duration::from_secs(30);

const WORKERS: &[Column] = &[
    ("WORKER", |row| word(&row["id"])),
    ("POOL", |row| word(&row["pool"])),
    ("STATE", |row| match row["is_circuit_open"] == true {
        true => format!("{} (launches fail)", word(&row["state"])),
        false => word(&row["state"]),
    }),
    ("BUSY", |row| format!("{}/{}", row["busy"], row["slots"])),
    ("WARM", |row| word(&row["warm"])),
    ("SERVED", |row| word(&row["lifetime"])),
    ("CPU", |row| percent(&row["load"]["cpu"])),
    ("MEMORY", |row| memory(&row["load"])),
    ("PRESSURE", |row| percent(&row["load"]["pressure"])),
    ("HEARD", |row| time(&row["heard_at"])),
    ("ADDRESS", |row| short(word(&row["address"]), 40)),
];

pub(super) fn run(grid: &Grid, matches: &ArgMatches) -> Outcome {
    match matches.subcommand() {
        Some(("drain", matches)) => drain(grid, matches),
        Some(("remove", matches)) => {
            let force = matches.get_flag("force").then_some("true");
            let path = format!(
                "/v1/workers/{}{}",
                encoded(operand(matches, "ID")),
                query(&[("force", force)])
            );
            let answer = grid.call(&Call::Delete, &path)?;
            let mut text = format!("removed {}\n", word(&answer["worker"]["id"]));
            for session in rows(&answer["ended"]) {
                text.push_str(&format!("ended {}\n", word(&session)));
            }
            Ok(Output::new(answer, text))
        }
        other => {
            let pool = other.and_then(|(_, matches)| given(matches, "pool"));
            let answer = grid.call(&Call::Get, &format!("/v1/workers{}", query(&[("pool", pool)])))?;
            let text = table(&rows(&answer["workers"]), WORKERS, "there is no worker");
            Ok(Output::new(answer, text))
        }
    }
}

fn drain(grid: &Grid, matches: &ArgMatches) -> Outcome {
    let worker = operand(matches, "ID");
    let wait = given(matches, "wait").map(|text| span("wait", text)).transpose()?;
    let seconds = wait.map(|wait| wait.as_secs_f64().to_string());
    let path = format!(
        "/v1/workers/{}/drain{}",
        encoded(worker),
        query(&[("wait", seconds.as_deref())])
    );
    let answer = grid.call_within(&Call::Post(None), &path, wait.unwrap_or_default() + SLACK)?;
    let busy = answer["busy"].as_u64().unwrap_or_default();
    let is_given_up = ["gone", "lost"].contains(&answer["state"].as_str().unwrap_or_default());
    match wait {
        Some(wait) if busy > 0 && !is_given_up => Err(Failure::Local(format!(
            "{worker} drains, but still holds {busy} session{} after {wait:?}",
            if busy == 1 { "" } else { "s" }
        ))),
        Some(_) => Ok(Output::new(answer, format!("{worker} is drained\n"))),
        None => Ok(Output::new(answer, format!("{worker} drains; it holds {busy}\n"))),
    }
}

fn percent(share: &Value) -> String {
    share
        .as_f64()
        .map_or_else(|| "-".to_owned(), |share| format!("{:.0}%", share * 100.0))
}

fn memory(load: &Value) -> String {
    let giga = |value: &Value| value.as_f64().unwrap_or_default() / f64::from(1 << 30);
    match load["memory_limit"].as_u64() {
        None | Some(0) => "-".to_owned(),
        Some(_) => format!("{:.1}/{:.1}G", giga(&load["memory_used"]), giga(&load["memory_limit"])),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn load_is_shown_in_percent_and_gigabytes() {
        assert_eq!(percent(&json!(0.256)), "26%");
        assert_eq!(percent(&Value::Null), "-");
        let load = json!({"memory_used": 3_u64 << 29, "memory_limit": 16_u64 << 30});
        assert_eq!(memory(&load), "1.5/16.0G");
        assert_eq!(memory(&json!({"memory_used": 0, "memory_limit": 0})), "-");
    }
}
