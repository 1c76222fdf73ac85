//! `Grid`: what a test holds and does.
//!
//! Its own file because it is the kit's main type: addresses, clients, the process's life, and the end in one of two
//! ways, [`Grid::finish`] with all checks or `Drop` with none.
//!
//! Invariant: whichever way it ends, processes and directories are gone.

use std::{fs, net::SocketAddr, path::Path, path::PathBuf};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use tempfile::TempDir;

use super::{
    builder::{GridBuilder, Layout},
    running::{Running, Stopped, tail},
};
use crate::{
    cdp::{Cdp, CdpError},
    eventually::eventually_within,
    http_client::Http,
    metrics::Metrics,
    processes,
};

/// A running grid.
#[must_use = "a grid that is not finished is killed and its leaks go unnoticed"]
#[derive(Debug)]
pub struct Grid {
    pub(super) builder: GridBuilder,
    home: TempDir,
    pub(super) layout: Layout,
    pub(super) state: State,
    pub(super) finished: bool,
}

/// Where wharf's process stands.
#[derive(Debug)]
pub(super) enum State {
    Running(Running),
    /// Ended by SIGTERM: everything must be tidy.
    Terminated(Stopped),
    /// Ended by SIGKILL: its files may lie about until it is restarted.
    Killed,
}

// === impl Grid ===

impl Grid {
    /// A grid with two slots, one warm fake browser and a queue of a hundred, unless told otherwise.
    pub fn builder() -> GridBuilder {
        GridBuilder::new()
    }

    pub(super) async fn start(builder: GridBuilder) -> Result<Self> {
        let place = builder.home_in.clone().unwrap_or_else(std::env::temp_dir);
        let home = tempfile::Builder::new()
            .prefix("wharf-test-")
            .tempdir_in(&place)
            .with_context(|| format!("could not make a directory in {}", place.display()))?;
        // As the processes will carry it: a temporary directory behind a link has two names.
        let layout = Layout::below(&home.path().canonicalize()?);
        let running = Running::launch(&builder, &layout).await?;
        Ok(Self {
            builder,
            home,
            layout,
            state: State::Running(running),
            finished: false,
        })
    }

    pub(super) fn running(&self) -> Option<&Running> {
        match &self.state {
            State::Running(running) => Some(running),
            State::Terminated(_) | State::Killed => None,
        }
    }

    /// Where it listens; port 0 once it was stopped.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.running()
            .map_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)), |running| running.addr)
    }

    /// `http://127.0.0.1:PORT`
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr())
    }

    /// `ws://127.0.0.1:PORT`
    #[must_use]
    pub fn ws_url(&self) -> String {
        format!("ws://{}", self.addr())
    }

    /// The pid of wharf; 0 once it was stopped.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.running().map_or(0, Running::pid)
    }

    /// An HTTP client for this grid.
    #[must_use]
    pub fn http(&self) -> Http {
        self.builder
            .headers
            .iter()
            .fold(Http::new(self.addr()), |http, (name, value)| http.header(name, value))
    }

    /// From now on every request of [`Grid::http`] carries this header, the leak check's too.
    pub fn set_header(&mut self, name: &str, value: &str) {
        self.builder.headers.push((name.to_owned(), value.to_owned()));
    }

    /// A CDP connection to a path of this grid (`/`, `/devtools/browser/…`) or to a whole `ws://` URL.
    ///
    /// # Errors
    /// [`CdpError::Refused`] with the whole answer if there was one.
    pub async fn cdp(&self, path: &str) -> Result<Cdp, CdpError> {
        let url = if path.starts_with("ws://") {
            path.to_owned()
        } else {
            format!("{}{path}", self.ws_url())
        };
        Cdp::connect(&url).await
    }

    /// The metrics as they are now.
    ///
    /// # Errors
    /// When `/metrics` does not answer or makes no sense.
    pub async fn metrics(&self) -> Result<Metrics> {
        let reply = self.http().get("/metrics").await?;
        if reply.status != 200 {
            bail!("/metrics answered {}: {}", reply.status, reply.text());
        }
        Metrics::parse(&reply.text())
    }

    /// One metric as it is now, e.g. `wharf_browsers{state="warm"}`.
    ///
    /// # Errors
    /// When there is no such metric.
    pub async fn metric(&self, query: &str) -> Result<f64> {
        self.metrics()
            .await?
            .get(query)
            .with_context(|| format!("there is no metric {query}"))
    }

    /// Every process that carries this grid's run directory, except wharf.
    #[must_use]
    pub fn browser_pids(&self) -> Vec<u32> {
        let wharf = self.pid();
        processes::with_run_dir(&self.layout.run)
            .into_iter()
            .filter(|pid| *pid != wharf)
            .collect()
    }

    /// The directories of sessions and browsers that exist now.
    #[must_use]
    pub fn session_dirs(&self) -> Vec<PathBuf> {
        let containers = ["sessions", "browsers"].map(|name| self.layout.run.join(name));
        let top = directories(&self.layout.run)
            .into_iter()
            .filter(|dir| !containers.contains(dir));
        top.chain(containers.iter().flat_map(|dir| directories(dir))).collect()
    }

    /// The run directory given to wharf.
    #[must_use]
    pub fn run_dir(&self) -> &Path {
        &self.layout.run
    }

    /// The data directory given to wharf.
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        &self.layout.data
    }

    /// A directory for the test's own files, removed with the grid.
    #[must_use]
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// Everything wharf has printed.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.layout.log).unwrap_or_default()).into_owned()
    }

    /// Sends a signal to wharf without waiting.
    ///
    /// # Errors
    /// When it is not running.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.running().context("wharf is not running")?.signal(signal)
    }

    /// SIGTERM; waits for the end.
    ///
    /// # Errors
    /// When it is not running or does not end.
    pub async fn terminate(&mut self) -> Result<Stopped> {
        let State::Running(running) = &mut self.state else {
            bail!("wharf is not running")
        };
        let stopped = running.stop(Signal::TERM).await?;
        // Before the state changes: dropping `Running` would kill the survivors and hide the leak.
        self.note_survivors()?;
        self.state = State::Terminated(stopped);
        Ok(stopped)
    }

    fn note_survivors(&self) -> Result<()> {
        let survivors = self.browser_pids();
        if survivors.is_empty() {
            return Ok(());
        }
        let lines: Vec<_> = survivors
            .iter()
            .map(|pid| format!("{pid} {}", processes::command_line(*pid)))
            .collect();
        bail!("wharf ended and left {} processes:\n{}", lines.len(), lines.join("\n"))
    }

    /// Waits for the end that a signal of the test's own began.
    ///
    /// # Errors
    /// When it is not running or does not end.
    pub async fn wait_stopped(&mut self) -> Result<Stopped> {
        let State::Running(running) = &mut self.state else {
            bail!("wharf is not running")
        };
        let stopped = running.wait_end().await?;
        self.note_survivors()?;
        self.state = State::Terminated(stopped);
        Ok(stopped)
    }

    /// SIGKILL to wharf alone, as a power cut or the OOM killer would; waits for its end. Its browsers are for the
    /// test to look at.
    ///
    /// # Errors
    /// When it is not running.
    pub async fn kill9(&mut self) -> Result<Stopped> {
        let State::Running(running) = &mut self.state else {
            bail!("wharf is not running")
        };
        let stopped = running.stop(Signal::KILL).await?;
        // Its browsers must die by themselves: the leak would otherwise be cleaned up by the test kit's own drop.
        let what = "the browsers of a killed wharf to die with it";
        eventually_within(self.builder.patience, what, async || self.note_survivors()).await?;
        self.state = State::Killed;
        Ok(stopped)
    }

    /// Starts wharf again on the same directories, after a SIGTERM if it still runs. The port changes.
    ///
    /// # Errors
    /// When it does not end or does not get ready.
    pub async fn restart(&mut self) -> Result<()> {
        if self.running().is_some() {
            self.terminate().await?;
        }
        self.state = State::Running(Running::launch(&self.builder, &self.layout).await?);
        Ok(())
    }

    /// The exit status if wharf ended by itself, which it never should.
    ///
    /// # Errors
    /// When the system cannot tell.
    pub fn ended(&mut self) -> Result<Option<std::process::ExitStatus>> {
        match &mut self.state {
            State::Running(running) => running.try_wait(),
            State::Terminated(stopped) => Ok(Some(stopped.status)),
            State::Killed => Ok(None),
        }
    }
}

fn directories(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

impl Drop for Grid {
    fn drop(&mut self) {
        // A finished grid has nothing left. Otherwise the test failed or forgot: say what wharf said; the fields'
        // own drops then end the processes and remove the directories.
        if !self.finished {
            eprintln!(
                "--- the grid was not finished; the end of wharf's log:\n{}\n---",
                tail(&self.layout.log)
            );
        }
    }
}
