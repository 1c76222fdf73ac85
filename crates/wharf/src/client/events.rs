//! `wharf events`: follows what happens, and comes back by itself when it is cut off.
//!
//! Its own file because it is a command without an end. A stream that is silent for longer than the grid ever is, is given
//! up, whatever the socket says. Nothing is printed twice and nothing is lost: it comes back with the number of the last
//! event that it printed.

mod show;
mod sse;

use std::{
    io::{BufReader, IsTerminal as _, Write as _},
    process::ExitCode,
    thread,
    time::Duration,
};

use clap::ArgMatches;

use super::{
    Failure, given,
    http::{CallError, Grid, query},
};
use show::Style;
use sse::Blocks;

const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// For the line that is being printed when Ctrl-C comes.
const LAST_LINE: Duration = Duration::from_millis(200);

/// Why following stopped.
enum Stop {
    /// Whoever read our output has left.
    Unread,
    /// The stream ended; try again.
    CutOff(String),
}

/// Follows until Ctrl-C.
pub(super) fn run(grid: &Grid, matches: &ArgMatches) -> ExitCode {
    on_interrupt();
    let style = Style::choose(
        super::deepest(matches).get_flag("json"),
        std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|text| text.is_empty()),
    );
    match follow(grid, matches, style) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.tell(),
    }
}

fn follow(grid: &Grid, matches: &ArgMatches, style: Style) -> Result<(), Failure> {
    let mut last = None;
    let mut pause = FIRST_PAUSE;
    let mut was_connected = false;
    loop {
        let path = path(matches, last.is_some());
        let id: Option<String> = last.map(|number: u64| number.to_string());
        let cause = match grid.stream(&path, id.as_deref()) {
            Ok(reader) => {
                if was_connected {
                    tell("connected again");
                }
                was_connected = true;
                let before = last;
                match listen(reader, style, &mut last) {
                    Stop::Unread => return Ok(()),
                    Stop::CutOff(cause) => {
                        // A stream that told nothing is no reason to come back faster.
                        if last != before {
                            pause = FIRST_PAUSE;
                        }
                        cause
                    }
                }
            }
            // A grid that was never there, or a request that makes no sense, will not get better by waiting.
            Err(error) if !was_connected || !is_passing(&error) => return Err(error.into()),
            Err(error) => error.to_string(),
        };
        tell(&format!("cut off ({cause}); trying again in {pause:?}"));
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// `--after` is for the first time; from then on the number of the last event is.
fn path(matches: &ArgMatches, is_resumed: bool) -> String {
    let after = given(matches, "after").filter(|_| !is_resumed);
    let filters = query(&[
        ("type", given(matches, "type")),
        ("session", given(matches, "session")),
        ("pool", given(matches, "pool")),
        ("after", after),
    ]);
    format!("/v1/events{filters}")
}

/// Whether the grid may answer otherwise later.
fn is_passing(error: &CallError) -> bool {
    match error {
        CallError::Unreachable { .. } | CallError::Strange(_) => true,
        CallError::Refused { status, .. } => *status >= 500,
    }
}

/// Prints until the stream ends.
fn listen(reader: impl std::io::Read, style: Style, last: &mut Option<u64>) -> Stop {
    let mut blocks = Blocks::new(BufReader::new(reader));
    let mut reason = None;
    loop {
        let block = match blocks.next() {
            Ok(Some(block)) => block,
            Ok(None) => return Stop::CutOff(reason.unwrap_or_else(|| "the stream ended".to_owned())),
            Err(error) => return Stop::CutOff(reason.unwrap_or_else(|| error.to_string())),
        };
        if let Some(line) = style.line(&block) {
            let mut out = std::io::stdout().lock();
            if out.write_all(line.as_bytes()).and_then(|()| out.flush()).is_err() {
                return Stop::Unread;
            }
        }
        if ["end", "slow"].contains(&block.event.as_str()) {
            reason = Some(format!("the grid says: {}", show::reason(&block)));
        }
        // Only what was printed, or was not to be, counts as told.
        *last = block.id.or(*last);
    }
}

fn tell(what: &str) {
    // Nobody to tell is nobody to tell.
    let _ = writeln!(std::io::stderr(), "wharf: {what}");
}

/// Ctrl-C is how one leaves, and no failure.
fn on_interrupt() {
    thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let Ok(runtime) = runtime else { return };
        if runtime.block_on(tokio::signal::ctrl_c()).is_ok() {
            thread::sleep(LAST_LINE);
            std::process::exit(0);
        }
    });
}
