//! `cargo xtask`: everything a person or CI does with this workspace, one word each.
//!
//! A program and not a pile of scripts, so that it works the same everywhere and its parts can be read. It depends on
//! almost nothing because it is compiled before anything else can happen.
//!
//! - `setup`: what must be installed, and why
//! - `tasks`: up, test, bench, chaos, scale as lists of steps
//! - `steps`: running one command, timed and announced
//!
//! Invariant: CI runs nothing that is not here.

mod setup;
mod steps;
mod tasks;

use std::process::ExitCode;

use crate::{setup::Scope, steps::Failed};

const HELP: &str = "\
cargo xtask <task>

  setup [--only run]     install what is missing: browser, fonts, node and Python packages, test runner (with
                         --only run: just what `up` needs); does nothing when everything is there
  up [args...]           build the release binary and run `wharf up args...`
  test [--quick] [filter...]
                         format, lints, build, documentation, every test; arguments go to cargo nextest.
                         --quick: no documentation and no end-to-end tests
  bench [args...]        build release binaries and run the benchmark
  chaos [args...]        break a real fleet on purpose, with clients at work; ends with 1 if anything is lost that need
                         not be. `cargo xtask chaos --minutes 5 --seed 7 --store redis`; --help for all of it
  scale [args...]        build release binaries and measure a fleet with thousands of sessions.
                         `cargo xtask scale --store postgres --workers 50`; --help for all of it
  help                   this text
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (task, rest) = args
        .split_first()
        .map_or(("help", &[][..]), |(task, rest)| (task.as_str(), rest));
    let done = match task {
        "setup" => scope(rest).and_then(setup::setup),
        "up" => tasks::up(rest),
        "test" => tasks::test(rest),
        "bench" => tasks::bench(rest),
        "chaos" => tasks::chaos(rest),
        "scale" => tasks::scale(rest),
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(())
        }
        unknown => Err(anyhow::anyhow!("there is no task {unknown:?}\n\n{HELP}")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            // A step's own exit code is passed on, so that callers see what the tool said.
            error
                .downcast_ref::<Failed>()
                .map_or(ExitCode::FAILURE, |failed| ExitCode::from(failed.code))
        }
    }
}

fn scope(args: &[String]) -> anyhow::Result<Scope> {
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Ok(Scope::Everything),
        ["--only", "run"] | ["--only=run"] => Ok(Scope::Run),
        _ => anyhow::bail!("setup takes nothing or `--only run`, not {args:?}"),
    }
}
