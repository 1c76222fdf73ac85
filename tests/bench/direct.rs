//! The other side of every comparison: the same browser, started by us.
//!
//! Its own file because fairness is decided here. The recipe is read from a browser that the grid itself launched
//! (its command line and environment in `/proc`), so both sides run the same binary with the same flags; only the
//! directories differ, and the control pipe, which a direct client does not use.
//!
//! Invariant: a `DirectBrowser` that is released or dropped has no process and no directory left.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;
use tokio::sync::oneshot;
use wharf_testkit::Grid;

const LIMIT: Duration = Duration::from_secs(60);

/// How the grid starts a browser, with `dir` as the directory to be replaced.
#[derive(Debug, Clone)]
pub struct Recipe {
    pub program: PathBuf,
    args: Vec<String>,
    env: Vec<(String, String)>,
    dir: String,
    home: PathBuf,
}

/// A browser of our own.
#[derive(Debug)]
pub struct DirectBrowser {
    pub url: String,
    process: Process,
}

#[derive(Debug)]
struct Process {
    child: Child,
    dir: Option<TempDir>,
}

// === impl Recipe ===

impl Recipe {
    /// Looks how a browser of this grid was started.
    pub fn learn(grid: &Grid, home: &Path) -> Result<Self> {
        let found = grid.browser_pids().into_iter().find_map(|pid| Self::of(pid, home));
        found.context("no browser of the grid to learn its flags from")
    }

    fn of(pid: u32, home: &Path) -> Option<Self> {
        let words = |file: &str| -> Option<Vec<String>> {
            let bytes = fs::read(format!("/proc/{pid}/{file}")).ok()?;
            let text = String::from_utf8(bytes).ok()?;
            Some(
                text.split('\0')
                    .filter(|word| !word.is_empty())
                    .map(str::to_owned)
                    .collect(),
            )
        };
        let args: Vec<_> = words("cmdline")?.into_iter().skip(1).collect();
        if args.iter().any(|arg| arg.starts_with("--type=")) {
            return None;
        }
        let profile = args.iter().find_map(|arg| arg.strip_prefix("--user-data-dir="))?;
        let dir = Path::new(profile).parent()?.to_str()?.to_owned();
        let args = args
            .into_iter()
            .filter(|arg| arg != "--remote-debugging-pipe")
            .collect();
        let pairs = words("environ")?;
        let env = pairs.iter().filter_map(|pair| pair.split_once('='));
        let env = env.filter(|(name, _)| !name.contains("WHARF_"));
        Some(Self {
            program: fs::read_link(format!("/proc/{pid}/exe")).ok()?,
            args,
            env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            dir,
            home: home.to_owned(),
        })
    }

    /// Starts one; returns when it says where it listens.
    pub async fn launch(&self) -> Result<DirectBrowser> {
        let dir = tempfile::Builder::new().prefix("bench-").tempdir_in(&self.home)?;
        let path = dir.path().to_str().context("a path in UTF-8")?.to_owned();
        for part in ["profile", "tmp", "downloads"] {
            fs::create_dir(dir.path().join(part))?;
        }
        let here = |text: &str| text.replace(&self.dir, &path);
        let mut child = Command::new(&self.program)
            .args(self.args.iter().map(|arg| here(arg)))
            .env_clear()
            .envs(self.env.iter().map(|(name, value)| (name, here(value))))
            .current_dir(dir.path().join("tmp"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .with_context(|| format!("could not start {}", self.program.display()))?;
        let stderr = child.stderr.take();
        // From here on a failure ends it.
        let process = Process { child, dir: Some(dir) };
        let address = listen(stderr.context("stderr is piped")?)?;
        match tokio::time::timeout(LIMIT, address).await {
            Ok(Ok(url)) => Ok(DirectBrowser { url, process }),
            _ => Err(anyhow!("{} did not say where it listens", self.program.display())),
        }
    }
}

/// Waits on a thread for the line that names the address, and reads on so that the browser never blocks.
fn listen(stderr: ChildStderr) -> Result<oneshot::Receiver<String>> {
    let (tell, told) = oneshot::channel();
    let mut tell = Some(tell);
    thread::Builder::new().stack_size(128 * 1024).spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            if let Some(url) = line.strip_prefix("DevTools listening on ")
                && let Some(tell) = tell.take()
            {
                let _ = tell.send(url.trim().to_owned());
            }
        }
    })?;
    Ok(told)
}

// === impl DirectBrowser ===

impl DirectBrowser {
    /// Kills it and waits until it is gone. Its files go afterwards, off the path, as the grid does it.
    pub async fn release(self) -> Result<()> {
        let mut process = self.process;
        tokio::task::spawn_blocking(move || {
            process.kill();
            thread::spawn(move || drop(process));
        })
        .await?;
        Ok(())
    }
}

// === impl Process ===

impl Process {
    fn kill(&mut self) {
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
            && self.dir.is_some()
            && matches!(self.child.try_wait(), Ok(None))
        {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        let Some(dir) = self.dir.take() else { return };
        // Children of the browser may still write for a moment after it.
        let path = dir.keep();
        for _ in 0..50 {
            if fs::remove_dir_all(&path).is_ok() || !path.exists() {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}
