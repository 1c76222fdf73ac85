//! How a grid under test is configured.
//!
//! Its own file because it is the part of the kit that every test reads: one call per wish, in any order, and
//! defaults that make a test's timing its own (one browser warm, no spare, a queue that does not fill by accident).
//!
//! Invariant: everything becomes a flag of the documented command line; no private door into the binary.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Result, ensure};

use super::handle::Grid;
use crate::{
    binaries::{BrowserUnderTest, built_binary},
    eventually::patience,
};

/// See [`Grid::builder`].
#[must_use = "a builder does nothing until `start`"]
#[derive(Debug, Clone)]
pub struct GridBuilder {
    listen: String,
    slots: u32,
    min: Option<u32>,
    spare: u32,
    queue: u32,
    store: Option<String>,
    browser: BrowserUnderTest,
    binary: Option<PathBuf>,
    program: Option<PathBuf>,
    pub(super) home_in: Option<PathBuf>,
    faults: Vec<String>,
    args: Vec<OsString>,
    browser_args: Vec<String>,
    pub(super) env: Vec<(String, String)>,
    pub(super) headers: Vec<(String, String)>,
    pub(super) patience: Duration,
}

/// The directories of one grid, all below one temporary directory.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub data: PathBuf,
    pub run: PathBuf,
    pub ready: PathBuf,
    pub log: PathBuf,
}

// === impl Layout ===

impl Layout {
    pub fn below(home: &Path) -> Self {
        let at = |name| home.join(name);
        Self {
            data: at("data"),
            run: at("run"),
            ready: at("ready.json"),
            log: at("wharf.log"),
        }
    }
}

// === impl GridBuilder ===

impl GridBuilder {
    pub(super) fn new() -> Self {
        Self {
            listen: "127.0.0.1:0".to_owned(),
            slots: 2,
            min: None,
            spare: 0,
            queue: 100,
            store: None,
            browser: BrowserUnderTest::default(),
            binary: None,
            program: None,
            home_in: None,
            faults: Vec::new(),
            args: Vec::new(),
            browser_args: Vec::new(),
            env: Vec::new(),
            headers: Vec::new(),
            patience: patience(),
        }
    }

    /// Where it listens, if not on loopback; the kit calls it by loopback all the same.
    pub fn listen(mut self, addr: &str) -> Self {
        self.listen = addr.to_owned();
        self
    }

    /// Sessions at once (`--max`).
    pub fn slots(mut self, slots: u32) -> Self {
        self.slots = slots;
        self
    }

    /// Browsers kept up; one unless set, or none without slots.
    pub fn min(mut self, min: u32) -> Self {
        self.min = Some(min);
        self
    }

    /// Warm browsers beyond the slots; none unless set.
    pub fn spare(mut self, spare: u32) -> Self {
        self.spare = spare;
        self
    }

    /// Places in the queue.
    pub fn queue(mut self, places: u32) -> Self {
        self.queue = places;
        self
    }

    /// A store URL such as `memory:`; SQLite in the grid's data directory unless set.
    pub fn store(mut self, url: &str) -> Self {
        self.store = Some(url.to_owned());
        self
    }

    /// Which browser it runs; the fake unless set.
    pub fn browser(mut self, browser: BrowserUnderTest) -> Self {
        self.browser = browser;
        self
    }

    /// Another executable as the browser, e.g. one that does not exist.
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.binary = Some(path.into());
        self
    }

    /// Another wharf than the one just built, e.g. the last release in a test of an upgrade.
    pub fn program(mut self, path: impl Into<PathBuf>) -> Self {
        self.program = Some(path.into());
        self
    }

    /// Where the grid's directory is made, e.g. on tmpfs; the system's temporary directory unless set.
    pub fn home_in(mut self, dir: impl Into<PathBuf>) -> Self {
        self.home_in = Some(dir.into());
        self
    }

    /// A fault of the fake browser or the fake program, e.g. `crash_after:2s`; may be given several times.
    pub fn fault(mut self, fault: &str) -> Self {
        self.faults.push(fault.to_owned());
        self
    }

    /// A flag of `wharf up` with its value.
    pub fn arg(mut self, flag: &str, value: impl Into<OsString>) -> Self {
        self.args.extend([flag.into(), value.into()]);
        self
    }

    /// A flag of `wharf up` without a value.
    pub fn flag(mut self, flag: &str) -> Self {
        self.args.push(flag.into());
        self
    }

    /// A flag for the browser or the program itself.
    pub fn browser_arg(mut self, flag: &str) -> Self {
        self.browser_args.push(flag.to_owned());
        self
    }

    /// A variable in wharf's environment.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A header on everything that [`Grid::http`] sends, e.g. an admin key.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// How long readiness, rest and shutdown are waited for; [`patience`] unless set.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Starts it and waits until it serves.
    ///
    /// # Errors
    /// When a binary is missing or wharf does not get ready; then with the tail of its log.
    pub async fn start(self) -> Result<Grid> {
        ensure!(
            self.browser.is_stand_in() || self.faults.is_empty(),
            "faults {:?} need BrowserUnderTest::Fake or BrowserUnderTest::Program",
            self.faults
        );
        Grid::start(self).await
    }

    /// Everything after `wharf`.
    pub(super) fn command_line(&self, layout: &Layout) -> Result<Vec<OsString>> {
        let binary = match &self.binary {
            Some(path) => path.clone(),
            None => self.browser.executable()?,
        };
        let store = self
            .store
            .clone()
            .unwrap_or_else(|| format!("sqlite:{}", layout.data.join("wharf.db").display()));
        let min = self.min.unwrap_or(1.min(self.slots));
        let mut line: Vec<OsString> = vec!["up".into()];
        let mut pair = |flag: &str, value: OsString| line.extend([flag.into(), value]);
        pair("--listen", self.listen.clone().into());
        pair("--min", min.to_string().into());
        pair("--max", self.slots.to_string().into());
        pair("--spare", self.spare.to_string().into());
        pair("--queue", self.queue.to_string().into());
        pair("--store", store.into());
        pair("--data-dir", layout.data.clone().into());
        pair("--run-dir", layout.run.clone().into());
        pair("--ready-file", layout.ready.clone().into());
        pair("--log-format", "json".into());
        line.extend(self.browser_line(binary));
        line.extend(self.args.iter().cloned());
        Ok(line)
    }

    /// Which browser or program, with its arguments and faults.
    fn browser_line(&self, binary: PathBuf) -> Vec<OsString> {
        let (which, arg, fault): (&[&str], _, _) = match self.browser {
            BrowserUnderTest::Program => (&["--driver", "command", "--command"], "--command-args", "--fault"),
            _ => (&["--binary"], "--browser-arg", "--fake-fault"),
        };
        let mut line: Vec<OsString> = which.iter().map(OsString::from).collect();
        line.push(binary.into());
        let faults = self.faults.iter().map(|text| format!("{fault}={text}"));
        let args = self.browser_args.iter().cloned().chain(faults);
        line.extend(args.map(|value| format!("{arg}={value}").into()));
        line
    }

    pub(super) fn wharf(&self) -> Result<PathBuf> {
        self.program.clone().map_or_else(|| built_binary("wharf"), Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builder_sentence_becomes_the_documented_command_line() {
        let builder = GridBuilder::new()
            .slots(4)
            .min(2)
            .queue(7)
            .store("memory:")
            .binary("/b")
            .fault("crash_after:2s")
            .browser_arg("--x")
            .arg("--idle-timeout", "2s");
        let line = builder.command_line(&Layout::below(Path::new("/t"))).unwrap();
        let line: Vec<_> = line.iter().map(|word| word.to_str().unwrap()).collect();
        assert_eq!(
            line.join(" "),
            "up --listen 127.0.0.1:0 --min 2 --max 4 --spare 0 --queue 7 --store memory: --data-dir /t/data \
             --run-dir /t/run --ready-file /t/ready.json --log-format json --binary /b --browser-arg=--x \
             --browser-arg=--fake-fault=crash_after:2s --idle-timeout 2s"
        );
    }

    #[test]
    fn builder_program_becomes_the_driver_command() {
        let builder = GridBuilder::new()
            .browser(BrowserUnderTest::Program)
            .binary("/p")
            .browser_arg("--seed=1@/c")
            .fault("hang_on_create%0.1");
        let line = builder.command_line(&Layout::below(Path::new("/t"))).unwrap();
        let line: Vec<_> = line.iter().map(|word| word.to_str().unwrap()).collect();
        assert!(line.join(" ").ends_with(
            "--driver command --command /p --command-args=--seed=1@/c --command-args=--fault=hang_on_create%0.1"
        ));
    }

    #[tokio::test]
    async fn builder_fault_on_a_real_browser_is_refused() {
        let refused = GridBuilder::new()
            .browser(BrowserUnderTest::Chromium)
            .fault("garbage")
            .start()
            .await;
        assert!(refused.is_err_and(|error| error.to_string().contains("BrowserUnderTest::Fake")));
    }
}
