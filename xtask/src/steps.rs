//! Running one command as a step: announced, timed, its output untouched.
//!
//! Its own file because every task is a list of these. The commands write straight to our output, so that a tool's own
//! closing lines (nextest's summary above all) stay readable by people and machines.
//!
//! Invariant: the first step that fails ends the list, with its exit code.

use std::{
    fmt,
    io::{IsTerminal, stdout},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

/// A step that ended with a failure.
#[derive(Debug)]
pub struct Failed {
    step: String,
    pub code: u8,
}

/// The steps taken so far.
#[derive(Default)]
pub struct Steps {
    taken: Vec<(String, Duration)>,
}

// === impl Failed ===

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step `{}` failed with code {}", self.step, self.code)
    }
}

impl std::error::Error for Failed {}

// === impl Steps ===

impl Steps {
    /// Runs one command; fails with its code.
    pub fn run(&mut self, name: &str, command: &mut Command) -> Result<()> {
        say(name, &shown(command));
        let started = Instant::now();
        let done = run(name, command);
        let took = started.elapsed();
        self.taken.push((name.to_owned(), took));
        if done.is_err() {
            say(name, &format!("FAILED after {:.1} s", took.as_secs_f64()));
            self.summary();
        } else {
            say(name, &format!("done in {:.1} s", took.as_secs_f64()));
        }
        done
    }

    /// Does something that is not one command.
    pub fn act(&mut self, name: &str, act: impl FnOnce() -> Result<()>) -> Result<()> {
        let started = Instant::now();
        act()?;
        self.taken.push((name.to_owned(), started.elapsed()));
        Ok(())
    }

    /// What was done, with durations.
    pub fn summary(&self) {
        let total: Duration = self.taken.iter().map(|(_, took)| *took).sum();
        let steps: Vec<_> = self
            .taken
            .iter()
            .map(|(name, took)| format!("{name} {:.1} s", took.as_secs_f64()))
            .collect();
        say(
            "summary",
            &format!(
                "{} steps in {:.1} s: {}",
                steps.len(),
                total.as_secs_f64(),
                steps.join(", ")
            ),
        );
    }
}

/// Runs a command to its end.
pub fn run(name: &str, command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("could not start {}", shown(command)))?;
    if status.success() {
        return Ok(());
    }
    // As shells do for a command that died of a signal.
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    let code = code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Err(Failed {
        step: name.to_owned(),
        code,
    }
    .into())
}

/// One line of ours, told apart from the tools' lines by its mark; coloured only for a person.
pub fn say(name: &str, text: &str) {
    let coloured = stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let (on, off) = if coloured { ("\x1b[1;36m", "\x1b[0m") } else { ("", "") };
    println!("{on}==> {name}:{off} {text}");
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// The cargo that runs us, in the workspace.
pub fn cargo<'a>(args: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    command
}

/// The workspace's root.
pub fn root() -> PathBuf {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let manifest = Path::new(&manifest);
    manifest.parent().unwrap_or(manifest).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(script: &str) -> Option<u8> {
        let error = Steps::default()
            .run("step", Command::new("sh").args(["-c", script]))
            .err()?;
        error.downcast_ref::<Failed>().map(|failed| failed.code)
    }

    #[test]
    fn step_failure_carries_the_commands_code() {
        assert_eq!(code("exit 0"), None);
        assert_eq!(code("exit 101"), Some(101));
        assert_eq!(code("kill -9 $$"), Some(137));
    }

    #[test]
    fn step_that_cannot_start_names_the_command() {
        let error = run("step", &mut Command::new("no-such-command-anywhere")).unwrap_err();
        assert!(error.to_string().contains("no-such-command-anywhere"));
    }

    #[test]
    fn root_is_the_workspace() {
        assert!(root().join("Cargo.lock").is_file());
    }
}
