//! The wharf process of a grid under test: launch, readiness, signals, end.
//!
//! Its own file because it holds the one thing that must never be lost, the child. It is std's child and not an
//! asynchronous one, so that `Drop` can end and collect it without a runtime.
//!
//! Invariant: a `Running` that is dropped has no process left, neither wharf nor anything it started.

use std::{
    fs::{self, OpenOptions},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;

use super::builder::{GridBuilder, Layout};
use crate::processes;

/// Drain (30 s by default) and clean-up (10 s) come on top of patience.
const SHUTDOWN_EXTRA: Duration = Duration::from_secs(45);
const POLL: Duration = Duration::from_millis(2);
const LOG_TAIL_LINES: usize = 60;

/// How wharf ended.
#[derive(Debug, Clone, Copy)]
pub struct Stopped {
    pub status: ExitStatus,
    /// From the signal to the exit.
    pub took: Duration,
}

/// What wharf writes to the ready file.
#[derive(Debug, Deserialize)]
struct Ready {
    pid: u32,
    listen: SocketAddr,
}

#[derive(Debug)]
pub(super) struct Running {
    child: Child,
    pub addr: SocketAddr,
    run_dir: PathBuf,
    patience: Duration,
    collected: bool,
}

// === impl Running ===

impl Running {
    pub async fn launch(builder: &GridBuilder, layout: &Layout) -> Result<Self> {
        let program = builder.wharf()?;
        let line = builder.command_line(layout)?;
        fs::create_dir_all(&layout.data)?;
        fs::create_dir_all(&layout.run)?;
        if layout.ready.exists() {
            fs::remove_file(&layout.ready)?;
        }
        // One file for both streams, appended to: the log of a restarted grid continues.
        let log = OpenOptions::new().create(true).append(true).open(&layout.log)?;
        let mut command = Command::new(&program);
        command
            .args(line)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        // A developer's own settings must not decide a test.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("WHARF_")) {
            command.env_remove(name);
        }
        command.envs(builder.env.iter().map(|(name, value)| (name, value)));
        let child = command
            .spawn()
            .with_context(|| format!("could not start {}", program.display()))?;
        let unknown = SocketAddr::from(([127, 0, 0, 1], 0));
        // From here on a failure, even a cancelled test, ends the child.
        let mut running = Self {
            child,
            addr: unknown,
            run_dir: layout.run.clone(),
            patience: builder.patience,
            collected: false,
        };
        match running.wait_until_ready(&layout.ready).await {
            Ok(addr) => running.addr = addr,
            Err(error) => {
                return Err(error.context(format!("wharf did not get ready; its log:\n{}", tail(&layout.log))));
            }
        }
        Ok(running)
    }

    async fn wait_until_ready(&mut self, file: &Path) -> Result<SocketAddr> {
        let started = Instant::now();
        while started.elapsed() < self.patience {
            if let Ok(text) = fs::read(file) {
                let ready: Ready = serde_json::from_slice(&text).context("the ready file is not what was agreed")?;
                if ready.pid != self.pid() {
                    bail!("the ready file names pid {}, wharf is {}", ready.pid, self.pid());
                }
                return Ok(reachable(ready.listen));
            }
            if let Some(status) = self.try_wait()? {
                bail!("it ended with {status}");
            }
            tokio::time::sleep(POLL).await;
        }
        bail!("no ready file within {:?}", self.patience)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        let status = self.child.try_wait()?;
        self.collected |= status.is_some();
        Ok(status)
    }

    /// Sends a signal to wharf alone. The pid is ours until the child is collected.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.pid())
            .ok()
            .and_then(Pid::from_raw)
            .context("a child has a positive pid")?;
        if self.collected {
            return Err(anyhow!("wharf has ended already"));
        }
        kill_process(pid, signal).with_context(|| format!("could not send {signal:?} to wharf"))
    }

    /// Sends a signal and waits for the end.
    pub async fn stop(&mut self, signal: Signal) -> Result<Stopped> {
        self.signal(signal)?;
        let ended = self.wait_end().await;
        ended.with_context(|| format!("after {signal:?}"))
    }

    /// Waits for the end, whatever began it.
    pub async fn wait_end(&mut self) -> Result<Stopped> {
        let started = Instant::now();
        let limit = self.patience + SHUTDOWN_EXTRA;
        while started.elapsed() < limit {
            if let Some(status) = self.try_wait()? {
                return Ok(Stopped {
                    status,
                    took: started.elapsed(),
                });
            }
            tokio::time::sleep(POLL).await;
        }
        bail!("wharf still runs after {limit:?}")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.collected {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        processes::kill_all(&self.run_dir);
    }
}

/// The end of the log, for messages.
pub(super) fn tail(log: &Path) -> String {
    let bytes = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<_> = text.lines().collect();
    let from = lines.len().saturating_sub(LOG_TAIL_LINES);
    lines[from..].join("\n")
}

/// "All addresses" is where one listens, not where one calls.
fn reachable(addr: SocketAddr) -> SocketAddr {
    if addr.ip().is_unspecified() {
        return SocketAddr::from(([127, 0, 0, 1], addr.port()));
    }
    addr
}
