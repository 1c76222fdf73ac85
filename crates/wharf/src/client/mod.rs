//! The commands that call a grid: tables for people, `--json` for programs, exit codes for scripts.
//!
//! - `commands`: their words, help and examples.
//! - `http`: one call and everything that can go wrong with it.
//! - `sessions`, `pool` (with `queue`), `lock`, `key`, `workers`: what each does.
//! - `events`: following what happens.
//! - `top`: the live view.
//! - `table`: answers as people read them.
//!
//! Exit codes: 0 done, 1 the grid refused, 2 wrong usage, 69 no grid there (EX_UNAVAILABLE).

mod commands;
mod events;
mod http;
mod key;
mod lock;
mod pool;
mod sessions;
mod table;
mod top;
mod workers;

use std::{io::Write as _, process::ExitCode, time::Duration};

use clap::ArgMatches;
use serde_json::Value;
use wharf_wire::span::Span;

pub use commands::commands;
use http::{CallError, Grid};

const EXIT_REFUSED: u8 = 1;
const EXIT_USAGE: u8 = 2;
const EXIT_UNAVAILABLE: u8 = 69;
const DEFAULT_URL: &str = "http://127.0.0.1:8080";

/// Why a command came to nothing.
enum Failure {
    /// The call did.
    Call(CallError),
    /// The words made no sense.
    Usage(String),
    /// Something of this machine's.
    Local(String),
}

/// What a command has to say.
struct Output {
    /// The grid's answer, for programs.
    answer: Value,
    /// The same for people.
    text: String,
}

type Outcome = Result<Output, Failure>;

/// Runs one of [`commands()`].
pub fn run(matches: &ArgMatches) -> ExitCode {
    let Some((name, matches)) = matches.subcommand() else {
        unreachable!("clap requires a subcommand");
    };
    let is_json = deepest(matches).get_flag("json");
    let grid = grid(matches);
    let outcome = match name {
        // It prints as it goes.
        "events" => return events::run(&grid, matches),
        "workers" => workers::run(&grid, matches),
        "sessions" => sessions::run(&grid, matches),
        "pool" => pool::run(&grid, matches),
        "queue" => pool::queue(&grid, matches),
        "lock" => lock::run(&grid, matches),
        "key" => key::run(matches),
        _ => top::run(&grid, matches),
    };
    match outcome {
        Ok(output) => {
            let text = if is_json {
                format!("{}\n", output.answer)
            } else {
                output.text
            };
            crate::cli::print(&text)
        }
        Err(failure) => failure.tell(),
    }
}

/// The grid that is meant.
fn grid(matches: &ArgMatches) -> Grid {
    let matches = deepest(matches);
    let given = |name: &str, variable: &str| {
        let flag = matches.get_one::<String>(name).cloned();
        flag.or_else(|| std::env::var(variable).ok().filter(|text| !text.is_empty()))
    };
    let url = given("url", "WHARF_URL").unwrap_or_else(|| DEFAULT_URL.to_owned());
    Grid::new(&url, given("token", "WHARF_TOKEN"))
}

/// The matches of the innermost subcommand: there the global flags are.
fn deepest(matches: &ArgMatches) -> &ArgMatches {
    matches.subcommand().map_or(matches, |(_, inner)| deepest(inner))
}

fn given<'a>(matches: &'a ArgMatches, name: &str) -> Option<&'a str> {
    matches.get_one::<String>(name).map(String::as_str)
}

/// An operand that clap has required.
fn operand<'a>(matches: &'a ArgMatches, name: &str) -> &'a str {
    given(matches, name).unwrap_or_default()
}

fn span(what: &str, text: &str) -> Result<Duration, Failure> {
    let Span(span) = text
        .parse()
        .map_err(|error| Failure::Usage(format!("--{what}: {error}")))?;
    Ok(span)
}

/// A number, or `none`.
fn count(text: &str) -> Result<Value, Failure> {
    match text {
        "none" => Ok(Value::Null),
        _ => text
            .parse::<u64>()
            .map(Value::from)
            .map_err(|_| Failure::Usage(format!("expected a number of sessions or `none`, got `{text}`"))),
    }
}

/// Names separated by commas.
fn names(text: Option<&str>) -> Vec<&str> {
    text.unwrap_or_default()
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .collect()
}

// === impl Failure ===

impl Failure {
    fn tell(&self) -> ExitCode {
        let (code, text) = match self {
            Self::Call(error @ CallError::Unreachable { .. }) => (EXIT_UNAVAILABLE, error.to_string()),
            Self::Call(error) => (EXIT_REFUSED, error.to_string()),
            Self::Usage(text) => (EXIT_USAGE, text.clone()),
            Self::Local(text) => (EXIT_REFUSED, text.clone()),
        };
        // Nobody to tell is nobody to tell.
        let _ = writeln!(std::io::stderr(), "wharf: {text}");
        ExitCode::from(code)
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

// === impl Output ===

impl Output {
    fn new(answer: Value, text: impl Into<String>) -> Self {
        Self {
            answer,
            text: text.into(),
        }
    }
}
