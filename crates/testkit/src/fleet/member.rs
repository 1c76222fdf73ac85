//! One process of a fleet: launch, readiness, signals, end, and again.
//!
//! Its own file because it holds what must never be lost, the child. It is std's child and not an asynchronous one, so that
//! `Drop` can end and collect it without a runtime.
//!
//! Invariant: a member that is dropped has no process left, neither wharf nor anything it started.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{Read as _, Seek as _, SeekFrom},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;

use crate::{binaries::built_binary, eventually::patience, http_client::Http, processes};

/// Drain (30 s by default) and clean-up (10 s) come on top of patience.
const SHUTDOWN_EXTRA: Duration = Duration::from_secs(45);
const POLL: Duration = Duration::from_millis(2);
const LOG_TAIL_LINES: usize = 40;
const LOG_TAIL_BYTES: u64 = 128 << 10;

/// A coordinator or a worker.
#[derive(Debug)]
pub struct Member {
    name: String,
    /// What goes before the program, to have it executed elsewhere; it must keep its process id.
    enter: Vec<OsString>,
    line: Vec<OsString>,
    env: Vec<(String, String)>,
    home: PathBuf,
    child: Option<Child>,
    /// Where it listened when it was last ready.
    addr: SocketAddr,
    ended: Option<ExitStatus>,
    was_killed: bool,
}

/// What wharf writes to the ready file.
#[derive(Debug, Deserialize)]
struct Ready {
    pid: u32,
    listen: SocketAddr,
}

// === impl Member ===

impl Member {
    /// `line` is everything after `wharf`, directories and ready file apart.
    pub(super) fn new(name: String, home: &Path, line: Vec<OsString>, env: Vec<(String, String)>) -> Self {
        Self {
            home: home.join(&name),
            name,
            enter: Vec::new(),
            line,
            env,
            child: None,
            addr: SocketAddr::from(([127, 0, 0, 1], 0)),
            ended: None,
            was_killed: false,
        }
    }

    /// Has it executed by another program, such as `nsenter`, which becomes it.
    pub(super) fn through(mut self, enter: Vec<OsString>) -> Self {
        self.enter = enter;
        self
    }

    /// Starts the process without waiting until it serves.
    ///
    /// # Errors
    /// When it still runs, or the binary is missing.
    pub fn spawn(&mut self) -> Result<()> {
        if self.is_running() {
            bail!("{} still runs", self.name);
        }
        self.collect();
        let program = built_binary("wharf")?;
        for dir in [self.data_dir(), self.run_dir()] {
            fs::create_dir_all(dir)?;
        }
        let ready = self.ready_file();
        if ready.exists() {
            fs::remove_file(&ready)?;
        }
        // One file for both streams, appended to: the log of a restarted member continues.
        let log = OpenOptions::new().create(true).append(true).open(self.log_file())?;
        let words = self.enter.iter().map(OsString::as_os_str);
        let mut words = words.chain([program.as_os_str()]);
        let mut command = Command::new(words.next().unwrap_or(program.as_os_str()));
        command.args(words).args(&self.line);
        command.arg("--data-dir").arg(self.data_dir());
        command.arg("--ready-file").arg(&ready).args(["--log-format", "json"]);
        if self.is_worker() {
            command.arg("--run-dir").arg(self.run_dir());
        }
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // A developer's own settings must not decide a test.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("WHARF_")) {
            command.env_remove(name);
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        let child = command
            .spawn()
            .with_context(|| format!("could not start {}", program.display()))?;
        (self.child, self.ended, self.was_killed) = (Some(child), None, false);
        Ok(())
    }

    /// Waits until it serves.
    ///
    /// # Errors
    /// When it ends or patience runs out; with the end of its log.
    pub async fn ready(&mut self) -> Result<()> {
        let started = Instant::now();
        while started.elapsed() < patience() {
            if let Some(addr) = self.announced() {
                self.addr = addr;
                return Ok(());
            }
            if let Some(status) = self.collect() {
                bail!("{} ended with {status}; its log:\n{}", self.name, self.log_tail());
            }
            tokio::time::sleep(POLL).await;
        }
        bail!(
            "{} is not ready after {:?}; its log:\n{}",
            self.name,
            patience(),
            self.log_tail()
        )
    }

    fn announced(&self) -> Option<SocketAddr> {
        let ready: Ready = serde_json::from_slice(&fs::read(self.ready_file()).ok()?).ok()?;
        (ready.pid == self.pid()).then_some(ready.listen)
    }

    fn collect(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        self.child = None;
        self.ended = Some(status);
        Some(status)
    }

    /// `coordinator-0`, `worker-2`, …
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    fn is_worker(&self) -> bool {
        self.name.starts_with("worker")
    }

    /// Its process id; 0 when it does not run.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Where it listens (a worker: its gateway), also after it began anew by itself.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.announced().unwrap_or(self.addr)
    }

    /// `http://127.0.0.1:PORT`
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr())
    }

    /// A client of it alone.
    #[must_use]
    pub fn http(&self) -> Http {
        Http::new(self.addr())
    }

    /// A worker's id, which it keeps in its data directory.
    ///
    /// # Errors
    /// When it has none.
    pub fn id(&self) -> Result<String> {
        let path = self.data_dir().join("worker-id");
        let text = fs::read_to_string(&path).with_context(|| format!("{} has no id", self.name))?;
        Ok(text.trim().to_owned())
    }

    /// Whether the process exists; one that is paused does.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.child.as_ref().is_some_and(|child| processes::is_alive(child.id()))
    }

    /// How it ended, once it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.collect();
        self.ended
    }

    /// Whether its last end was a SIGKILL of ours.
    #[must_use]
    pub fn was_killed(&self) -> bool {
        self.was_killed
    }

    /// Everything it has printed, over all its lives.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log_file()).unwrap_or_default()).into_owned()
    }

    /// The end of the log, for messages.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let text = tail(&self.log_file()).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }

    /// Where its log is.
    #[must_use]
    pub fn log_file(&self) -> PathBuf {
        self.home.join("wharf.log")
    }

    fn ready_file(&self) -> PathBuf {
        self.home.join("ready.json")
    }

    /// The data directory given to it.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        self.home.join("data")
    }

    /// The run directory given to it.
    #[must_use]
    pub fn run_dir(&self) -> PathBuf {
        self.home.join("run")
    }

    /// Every process that carries its run directory, except itself.
    #[must_use]
    pub fn browser_pids(&self) -> Vec<u32> {
        let own = self.pid();
        let all = processes::with_run_dir(&self.run_dir());
        all.into_iter().filter(|pid| *pid != own).collect()
    }

    /// The directories of sessions and browsers that exist now.
    #[must_use]
    pub fn session_dirs(&self) -> Vec<PathBuf> {
        let run = self.run_dir();
        let containers = ["sessions", "browsers"].map(|name| run.join(name));
        let top = directories(&run).into_iter().filter(|dir| !containers.contains(dir));
        top.chain(containers.iter().flat_map(|dir| directories(dir))).collect()
    }

    /// A flag with another value from the next start on, e.g. `--drain-timeout`.
    pub fn set_flag(&mut self, flag: &str, value: &str) {
        let mut rest = std::mem::take(&mut self.line).into_iter();
        while let Some(word) = rest.next() {
            if word == flag {
                rest.next();
            } else if !word.to_string_lossy().starts_with(&format!("{flag}=")) {
                self.line.push(word);
            }
        }
        self.line.push(format!("{flag}={value}").into());
    }

    /// A variable with another value from the next start on.
    pub fn set_env(&mut self, name: &str, value: &str) {
        self.env.push((name.to_owned(), value.to_owned()));
    }

    /// Sends a signal to it alone, without waiting. The pid is ours until the child is collected.
    ///
    /// # Errors
    /// When it does not run.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        let pid = pid.with_context(|| format!("{} does not run", self.name))?;
        kill_process(pid, signal).with_context(|| format!("could not send {signal:?} to {}", self.name))
    }

    /// SIGKILL to it alone, as the OOM killer would; its browsers are for the test to look at.
    ///
    /// # Errors
    /// When it does not run.
    pub fn kill9(&mut self) -> Result<()> {
        self.signal(Signal::KILL)?;
        if let Some(mut child) = self.child.take() {
            self.ended = Some(child.wait()?);
        }
        self.was_killed = true;
        Ok(())
    }

    /// SIGSTOP: it is there and does nothing.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// SIGCONT.
    ///
    /// # Errors
    /// When it does not run.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// SIGTERM; waits for the end.
    ///
    /// # Errors
    /// When it does not run or does not end.
    pub async fn terminate(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.wait_end().await
    }

    /// Waits for the end, whatever began it.
    ///
    /// # Errors
    /// When it does not end.
    pub async fn wait_end(&mut self) -> Result<ExitStatus> {
        let (started, limit) = (Instant::now(), patience() + SHUTDOWN_EXTRA);
        while started.elapsed() < limit {
            self.collect();
            if self.child.is_none() {
                return self.ended.with_context(|| format!("{} was never started", self.name));
            }
            tokio::time::sleep(POLL).await;
        }
        bail!(
            "{} still runs after {limit:?}; its log:\n{}",
            self.name,
            self.log_tail()
        )
    }

    /// Starts it again on the same directories, and waits until it serves.
    ///
    /// # Errors
    /// When it still runs or does not get ready.
    pub async fn start_again(&mut self) -> Result<()> {
        self.spawn()?;
        self.ready().await
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // SIGKILL also ends what is paused.
            let _ = child.kill();
            let _ = child.wait();
        }
        if self.is_worker() {
            processes::kill_all(&self.run_dir());
        }
    }
}

/// The end of a file that may have grown for hours.
fn tail(path: &Path) -> Result<String> {
    let mut file = File::open(path)?;
    let end = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(end.saturating_sub(LOG_TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn directories(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_is_replaced_in_either_spelling() {
        let line = ["worker", "--a", "1", "--b=2", "--c"].map(OsString::from).to_vec();
        let mut member = Member::new("worker-0".to_owned(), Path::new("/nowhere"), line, Vec::new());
        member.set_flag("--a", "3");
        member.set_flag("--b", "4");
        assert_eq!(member.line.join(" ".as_ref()), "worker --c --a=3 --b=4");
    }
}
