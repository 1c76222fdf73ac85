//! Running puppeteer and Playwright scripts with the packages that `cargo xtask setup` installed.
//!
//! Its own file because a client library in another language is a process with its own ways to hang: output goes to
//! files, a time limit ends it with everything it started.
//!
//! Invariant: when [`node_script`] returns, or its future is dropped, the process is gone.

use std::{
    fs::{self, File},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use crate::binaries::workspace_root;

const LIMIT: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(5);

/// What to run.
#[derive(Debug, Clone, Copy)]
pub enum Script<'a> {
    /// A file below `tests/clients`, by its path from there, so that imports find the packages.
    File(&'a Path),
    /// The text of an ES module.
    Source(&'a str),
}

/// What came of it.
#[derive(Debug, Clone)]
pub struct NodeOutput {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

/// Ends the whole process group when it goes out of scope.
struct Guard(Child);

/// Runs a script with node in `tests/clients` and returns its output, whatever its exit status.
///
/// # Errors
/// When node or the packages are missing, or the script ran longer than 90 s.
pub async fn node_script(script: Script<'_>, env: &[(&str, &str)]) -> Result<NodeOutput> {
    let clients = workspace_root().join("tests/clients");
    if !clients.join("node_modules").is_dir() {
        bail!("{}/node_modules is missing; run `cargo xtask setup`", clients.display());
    }
    let output = tempfile::tempdir()?;
    let (stdout, stderr) = (output.path().join("stdout"), output.path().join("stderr"));
    let mut command = Command::new("node");
    match script {
        Script::File(path) => command.arg(path),
        Script::Source(text) => command.args(["--input-type=module", "--eval", text]),
    };
    command
        .current_dir(&clients)
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .stdout(File::create(&stdout)?)
        .stderr(File::create(&stderr)?)
        .process_group(0);
    let mut guard = Guard(
        command
            .spawn()
            .context("could not start node; run `cargo xtask setup`")?,
    );
    let status = guard.wait(LIMIT).await?;
    let read = |path| fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let (stdout, stderr) = (read(&stdout)?, read(&stderr)?);
    match status {
        Some(status) => Ok(NodeOutput { status, stdout, stderr }),
        None => bail!("the script ran longer than {LIMIT:?}\nstdout:\n{stdout}\nstderr:\n{stderr}"),
    }
}

// === impl NodeOutput ===

impl NodeOutput {
    /// The last line of standard output as JSON, if the script succeeded.
    ///
    /// # Errors
    /// With all output, when it failed or printed something else.
    pub fn json(&self) -> Result<Value> {
        if !self.status.success() {
            bail!(
                "node ended with {}\nstdout:\n{}\nstderr:\n{}",
                self.status,
                self.stdout,
                self.stderr
            );
        }
        let line = self.stdout.lines().last().unwrap_or_default();
        serde_json::from_str(line).with_context(|| format!("the last line is not JSON: {line:?}"))
    }
}

// === impl Guard ===

impl Guard {
    async fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        let started = Instant::now();
        while started.elapsed() < limit {
            if let Some(status) = self.0.try_wait()? {
                return Ok(Some(status));
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(None)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Only while the leader is uncollected is the group's number surely ours.
        if matches!(self.0.try_wait(), Ok(None)) {
            if let Some(group) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            let _ = self.0.wait();
        }
    }
}
