//! `wharf lock`: take, renew, release, force, list.

use std::time::Duration;

use clap::ArgMatches;
use serde_json::{Value, json};

use super::{
    Failure, Outcome, Output, given,
    http::{Call, Grid, encoded, query},
    names, operand, span,
    table::{Column, short, table, time, word},
};

/// For the way there and back, beyond the drain itself.
const SLACK: Duration = Duration::from_secs(30);

const LOCKS: &[Column] = &[
    ("LOCK", |row| word(&row["name"])),
    ("HOLDER", |row| short(word(&row["holder"]), 30)),
    ("COVERS", |row| {
        let list = |value: &Value, all: &str| {
            let names: Vec<_> = value.as_array().into_iter().flatten().map(word).collect();
            if names.is_empty() {
                all.to_owned()
            } else {
                names.join(",")
            }
        };
        format!(
            "{} in {}",
            list(&row["operations"], "all"),
            list(&row["pools"], "all pools")
        )
    }),
    ("RUNNING", |row| word(&row["running"])),
    ("SINCE", |row| time(&row["since"])),
    ("UNTIL", |row| time(&row["until"])),
    ("DESCRIPTION", |row| short(word(&row["description"]), 40)),
];

pub(super) fn run(grid: &Grid, matches: &ArgMatches) -> Outcome {
    let (name, matches) = match matches.subcommand() {
        Some((name, matches)) => (name, matches),
        None => ("list", matches),
    };
    let path = |matches| format!("/v1/locks/{}", encoded(operand(matches, "NAME")));
    match name {
        "take" => take(grid, matches, &path(matches)),
        "renew" => {
            let mut body = json!({"token": operand(matches, "TOKEN")});
            if let Some(text) = given(matches, "ttl") {
                body["ttl"] = json!(span("ttl", text)?.as_secs_f64());
            }
            let answer = grid.call(&Call::Put(&body), &path(matches))?;
            let text = format!("holds until {}\n", time(&answer["until"]));
            Ok(Output::new(answer, text))
        }
        "release" => {
            let query = query(&[("lock_token", Some(operand(matches, "TOKEN")))]);
            let answer = grid.call(&Call::Delete, &format!("{}{query}", path(matches)))?;
            Ok(Output::new(answer, "released\n"))
        }
        "force-unlock" => {
            let answer = grid.call(&Call::Post(None), &format!("{}/force-unlock", path(matches)))?;
            let text = format!("taken away from {}\n", word(&answer["holder"]));
            Ok(Output::new(answer, text))
        }
        _ => {
            let answer = grid.call(&Call::Get, "/v1/locks")?;
            let text = table(&super::pool::rows(&answer["locks"]), LOCKS, "no lock is held");
            Ok(Output::new(answer, text))
        }
    }
}

fn take(grid: &Grid, matches: &ArgMatches, path: &str) -> Outcome {
    let mut body = json!({
        "holder": given(matches, "holder"),
        "pools": names(given(matches, "pools")),
        "operations": names(given(matches, "operations")),
    });
    if let Some(text) = given(matches, "description") {
        body["description"] = json!(text);
    }
    if let Some(text) = given(matches, "ttl") {
        body["ttl"] = json!(span("ttl", text)?.as_secs_f64());
    }
    let drain = given(matches, "drain").map(|text| span("drain", text)).transpose()?;
    if let Some(drain) = drain {
        body["drain"] = json!(drain.as_secs_f64());
    }
    let answer = grid.call_within(&Call::Post(Some(&body)), path, drain.unwrap_or_default() + SLACK)?;
    let Some(token) = answer["token"].as_str() else {
        return Err(Failure::Local("the grid took the lock but gave no token".to_owned()));
    };
    // The token alone on standard output, so that a script can keep it; the rest is for people.
    eprintln!(
        "lock `{}` is yours until {}; {} covered sessions still run",
        word(&answer["name"]),
        time(&answer["until"]),
        word(&answer["running"])
    );
    let text = format!("{token}\n");
    Ok(Output::new(answer, text))
}
