//! Running Python programs: the conformance tester, its selftest, schemathesis.
//!
//! Its own file because a program in another language is a process with its own ways to hang: a time limit ends it with
//! everything it started, and what it printed is part of every failure.
//!
//! Invariant: when [`run`] returns, or its future is dropped, the process is gone.

use std::{
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Command;
use wharf_testkit::binaries::workspace_root;

/// What came of it.
#[derive(Debug)]
pub struct Printed {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

/// The interpreter of the system.
pub fn python3() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|dir| dir.join("python3"))
        .find(|file| file.is_file())
        .context("there is no python3 in PATH; run `cargo xtask setup` (package python3)")
}

/// A program of the virtual environment that `cargo xtask setup` made.
pub fn installed(name: &str) -> Result<PathBuf> {
    let program = workspace_root().join("target/python/bin").join(name);
    if !program.is_file() {
        bail!("{} is missing; run `cargo xtask setup`", program.display());
    }
    Ok(program)
}

/// Runs a program in a directory and returns what it printed, whatever its exit status.
pub async fn run(program: &Path, arguments: &[&str], dir: &Path, limit: Duration) -> Result<Printed> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(dir)
        // The working tree stays as it was.
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PYTHONIOENCODING", "utf-8")
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    let child = command
        .spawn()
        .with_context(|| format!("could not start {}", program.display()))?;
    let group = Group(child.id());
    let output = tokio::time::timeout(limit, child.wait_with_output())
        .await
        .with_context(|| format!("{} {arguments:?} ran longer than {limit:?}", program.display()))??;
    group.collected();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Ok(Printed {
        status: output.status,
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
    })
}

/// Ends a process group when it goes out of scope, unless its leader has ended: then the number may be somebody else's.
struct Group(Option<u32>);

// === impl Group ===

impl Group {
    fn collected(mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let pid = self.0.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        if let Some(group) = pid {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}
