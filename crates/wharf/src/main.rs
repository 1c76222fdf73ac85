//! The binary: command line, configuration, wiring of roles, exit codes. It knows everything and decides nothing.
//!
//! - `cli`: the command line, made from the table of keys.
//! - `config`: flag > environment > file > default.
//! - `up`, `coordinator`, `worker`: the roles: build, serve, drain, stop. `serving`: what they share; `host`: what it takes
//!   to run browsers; `stores`: opening the store that a URL names.
//! - `doctor`: `wharf doctor`: looks at this host and says how to mend it.
//! - `drivers`: which driver runs the sessions.
//! - `client`: the commands that call a grid: sessions, pool, queue, lock, key, top.
//! - `local`: the in-process links between coordinator and worker.
//! - `places`: data and run directories, the worker's stable id.
//! - `clock`: the system's clock. `logging`: log lines.

mod cli;
mod client;
mod clock;
mod config;
mod coordinator;
mod doctor;
mod drivers;
mod host;
mod local;
mod logging;
mod places;
mod serving;
mod stores;
mod up;
mod worker;

use std::process::ExitCode;

/// Wrong usage or configuration (as in sysexits: EX_USAGE, EX_CONFIG).
const EXIT_CONFIG: u8 = 78;
/// Wrong usage or configuration of the doctor, as clap has it for wrong flags: 1 is its word for a sick host.
const EXIT_USAGE: u8 = 2;
/// The grid could not start or did not stop cleanly.
const EXIT_FAILED: u8 = 1;

fn main() -> ExitCode {
    match cli::parse() {
        cli::Command::Serve(role, sources) => match config::Settings::load(&sources, role) {
            Ok(settings) => serving::run(role, settings),
            Err(problems) => refuse(&problems),
        },
        cli::Command::Doctor(sources, format) => {
            let settings = sources
                .map_err(|problem| vec![problem])
                .and_then(|sources| config::Settings::load(&sources, config::Role::Up));
            match settings {
                Ok(settings) => doctor::run(&settings, format),
                Err(problems) => {
                    refuse(&problems);
                    ExitCode::from(EXIT_USAGE)
                }
            }
        }
        cli::Command::ShowConfig(sources, format) => cli::show_config(&sources, format),
        cli::Command::Problem(problem) => refuse(&[problem]),
        cli::Command::OpenApi => cli::print(&wharf_coordinator::fronts::openapi()),
        cli::Command::Client(matches) => client::run(&matches),
        cli::Command::Completions(shell) => cli::completions(shell),
        cli::Command::Guard(run_dir) => guard(&run_dir),
    }
}

fn refuse(problems: &[config::Problem]) -> ExitCode {
    eprintln!(
        "wharf: {} with the configuration:",
        if problems.len() == 1 { "a problem" } else { "problems" }
    );
    for problem in problems {
        eprintln!("  - {problem}");
    }
    eprintln!("`wharf config show` prints every value with its origin; `wharf config show --help` lists every key.");
    ExitCode::from(EXIT_CONFIG)
}

/// Outlives Wharf by a moment, should Wharf be killed: ends its browsers and removes their files.
fn guard(run_dir: &std::path::Path) -> ExitCode {
    match wharf_process::guard::run(run_dir) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("wharf guard: {error}");
            ExitCode::from(EXIT_FAILED)
        }
    }
}
