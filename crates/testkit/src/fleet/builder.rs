//! How a fleet under test is made.
//!
//! Its own file because it is the part that every test reads: one call per wish, in any order. Defaults make a test's
//! timing its own: one warm browser per worker, no spare, nobody recycles.
//!
//! Invariant: everything becomes a flag or a variable of the documented command line; no private door into the binary.

use std::ffi::OsString;

use anyhow::{Result, ensure};

use super::handle::Fleet;
use crate::binaries::BrowserUnderTest;

/// What workers and coordinators of a fleet under test share.
pub(super) const TOKEN: &str = "a-token-for-tests-of-forty-characters-00";

/// The engine behind a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FleetStore {
    /// A PostgreSQL server of its own.
    #[default]
    Postgres,
    /// A Redis server of its own that forgets nothing.
    Redis,
    /// Three primaries and three replicas.
    RedisCluster,
    /// A file: one coordinator only.
    Sqlite,
}

/// See [`Fleet::builder`].
#[must_use = "a builder does nothing until `start`"]
#[derive(Debug, Clone)]
pub struct FleetBuilder {
    pub(super) store: FleetStore,
    pub(super) coordinators: usize,
    pub(super) workers: usize,
    pub(super) slots: u32,
    pub(super) has_balancer: bool,
    pub(super) has_cutters: bool,
    pub(super) has_hosts: bool,
    browser: BrowserUnderTest,
    browsers_at: Vec<(usize, BrowserUnderTest)>,
    faults: Vec<String>,
    coordinator_flags: Vec<OsString>,
    worker_flags: Vec<OsString>,
    coordinator_env: Vec<(Option<usize>, String, String)>,
    worker_env: Vec<(Option<usize>, String, String)>,
}

// === impl FleetBuilder ===

impl FleetBuilder {
    pub(super) fn new() -> Self {
        Self {
            store: FleetStore::default(),
            coordinators: 2,
            workers: 2,
            slots: 2,
            has_balancer: false,
            has_cutters: false,
            has_hosts: false,
            browser: BrowserUnderTest::default(),
            browsers_at: Vec::new(),
            faults: Vec::new(),
            coordinator_flags: Vec::new(),
            worker_flags: Vec::new(),
            coordinator_env: Vec::new(),
            worker_env: Vec::new(),
        }
    }

    /// The engine; PostgreSQL unless set.
    pub fn store(mut self, store: FleetStore) -> Self {
        self.store = store;
        self
    }

    /// How many coordinators; two unless set.
    pub fn coordinators(mut self, count: usize) -> Self {
        self.coordinators = count;
        self
    }

    /// How many workers; two unless set.
    pub fn workers(mut self, count: usize) -> Self {
        self.workers = count;
        self
    }

    /// Sessions at once on each worker; two unless set.
    pub fn slots(mut self, slots: u32) -> Self {
        self.slots = slots;
        self
    }

    /// A real nginx in front, with the configuration of `deploy/`.
    pub fn balancer(mut self, wanted: bool) -> Self {
        self.has_balancer = wanted;
        self
    }

    /// Lines that can be cut: to every worker's gateway, from every worker to the coordinators, from every coordinator to
    /// the store (unless that is a cluster or a file).
    pub fn cutters(mut self, wanted: bool) -> Self {
        self.has_cutters = wanted;
        self
    }

    /// Each worker on a host of its own (see [`super::hosts`]): its lines are that host's then, and no proxies. The program
    /// must be in its private namespace, and there must be a balancer.
    pub fn hosts(mut self, wanted: bool) -> Self {
        self.has_hosts = wanted;
        self
    }

    /// Which browser the workers run; the fake unless set.
    pub fn browser(mut self, browser: BrowserUnderTest) -> Self {
        self.browser = browser;
        self
    }

    /// Which browser one worker runs instead.
    pub fn browser_at(mut self, index: usize, browser: BrowserUnderTest) -> Self {
        self.browsers_at.push((index, browser));
        self
    }

    /// A fault of the fake browser or the fake program, e.g. `crash_after:2s`; may be given several times.
    pub fn fault(mut self, fault: &str) -> Self {
        self.faults.push(fault.to_owned());
        self
    }

    /// A flag of `wharf coordinator`, with its value: `--queue-timeout=5s`.
    pub fn coordinator_flag(mut self, flag: &str) -> Self {
        self.coordinator_flags.push(flag.into());
        self
    }

    /// A flag of `wharf worker`, with its value: `--recycle-sessions=3`.
    pub fn worker_flag(mut self, flag: &str) -> Self {
        self.worker_flags.push(flag.into());
        self
    }

    /// A flag that both roles have, such as `--liveness-ttl=3s`.
    pub fn flag(self, flag: &str) -> Self {
        self.coordinator_flag(flag).worker_flag(flag)
    }

    /// A variable in every coordinator's environment.
    pub fn coordinator_env(mut self, name: &str, value: &str) -> Self {
        self.coordinator_env.push((None, name.to_owned(), value.to_owned()));
        self
    }

    /// A variable in every worker's environment.
    pub fn worker_env(mut self, name: &str, value: &str) -> Self {
        self.worker_env.push((None, name.to_owned(), value.to_owned()));
        self
    }

    /// A variable in one coordinator's environment.
    pub fn coordinator_env_at(mut self, index: usize, name: &str, value: &str) -> Self {
        self.coordinator_env
            .push((Some(index), name.to_owned(), value.to_owned()));
        self
    }

    /// A variable in one worker's environment.
    pub fn worker_env_at(mut self, index: usize, name: &str, value: &str) -> Self {
        self.worker_env.push((Some(index), name.to_owned(), value.to_owned()));
        self
    }

    /// Starts all of it; returns when every worker is available on every coordinator.
    ///
    /// # Errors
    /// When a program is missing or something does not get ready; then with the end of its log.
    pub async fn start(self) -> Result<Fleet> {
        ensure!(
            self.store != FleetStore::Sqlite || self.coordinators == 1,
            "a SQLite file serves one coordinator only"
        );
        ensure!(self.coordinators > 0, "a fleet needs a coordinator");
        ensure!(
            !self.has_hosts || self.has_balancer,
            "hosts reach their coordinators through a balancer"
        );
        Fleet::start(self).await
    }

    pub(super) fn coordinator_line(&self, listen: &str, store: &str) -> Vec<OsString> {
        let mut line: Vec<OsString> = vec!["coordinator".into()];
        let mut pair = |flag: &str, value: &str| line.extend([flag.into(), value.into()]);
        pair("--listen", listen);
        pair("--store", store);
        if self.browser == BrowserUnderTest::Program {
            pair("--driver", "command");
        }
        if self.has_balancer {
            pair("--trusted-proxy", "127.0.0.1/32");
        }
        line.extend(self.coordinator_flags.iter().cloned());
        line
    }

    pub(super) fn worker_line(
        &self,
        index: usize,
        gateway: &str,
        advertise: Option<String>,
        to: &[String],
    ) -> Result<Vec<OsString>> {
        let mut line: Vec<OsString> = vec!["worker".into()];
        let mut pair = |flag: &str, value: OsString| line.extend([flag.into(), value]);
        pair("--gateway", gateway.into());
        if let Some(url) = advertise {
            pair("--advertise", url.into());
        }
        for url in to {
            pair("--coordinator", url.into());
        }
        pair("--min", 1.min(self.slots).to_string().into());
        pair("--max", self.slots.to_string().into());
        pair("--spare", "0".into());
        let has_wish = |flag: &OsString| flag.to_string_lossy().starts_with("--recycle-sessions");
        if !self.worker_flags.iter().any(has_wish) {
            pair("--recycle-sessions", "0".into());
        }
        line.extend(self.browser_line(index)?);
        line.extend(self.worker_flags.iter().cloned());
        Ok(line)
    }

    /// Which browser or program, with its faults.
    fn browser_line(&self, index: usize) -> Result<Vec<OsString>> {
        let own = self.browsers_at.iter().rev().find(|(at, _)| *at == index);
        let browser = own.map_or(self.browser, |(_, browser)| *browser);
        let (which, arg, fault): (&[&str], _, _) = match browser {
            BrowserUnderTest::Program => (&["--driver", "command", "--command"], "--command-args", "--fault"),
            _ => (&["--binary"], "--browser-arg", "--fake-fault"),
        };
        let mut line: Vec<OsString> = which.iter().map(OsString::from).collect();
        line.push(browser.executable()?.into());
        // Real browsers know no faults.
        let faults = self.faults.iter().filter(|_| browser.is_stand_in());
        line.extend(faults.map(|text| format!("{arg}={fault}={text}").into()));
        Ok(line)
    }

    pub(super) fn coordinator_variables(&self, index: usize) -> Vec<(String, String)> {
        variables(&self.coordinator_env, index)
    }

    pub(super) fn worker_variables(&self, index: usize) -> Vec<(String, String)> {
        variables(&self.worker_env, index)
    }
}

/// Those for everybody and those for this one, after the token.
fn variables(wishes: &[(Option<usize>, String, String)], index: usize) -> Vec<(String, String)> {
    let token = ("WHARF_WORKER_TOKEN".to_owned(), TOKEN.to_owned());
    let own = wishes.iter().filter(|(of, ..)| of.is_none_or(|of| of == index));
    std::iter::once(token)
        .chain(own.map(|(_, name, value)| (name.clone(), value.clone())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fleet_sentence_becomes_the_documented_command_lines() {
        let builder = FleetBuilder::new()
            .slots(3)
            .browser(BrowserUnderTest::Program)
            .flag("--liveness-ttl=3s")
            .worker_flag("--recycle-sessions=3")
            .worker_env_at(1, "A", "b");
        let text = |line: Vec<OsString>| line.join(" ".as_ref()).to_string_lossy().into_owned();
        assert_eq!(
            text(builder.coordinator_line("127.0.0.1:1", "redis://127.0.0.1:2")),
            "coordinator --listen 127.0.0.1:1 --store redis://127.0.0.1:2 --driver command --liveness-ttl=3s"
        );
        assert_eq!(builder.worker_variables(0).len(), 1);
        assert_eq!(builder.worker_variables(1)[1], ("A".to_owned(), "b".to_owned()));
    }

    #[tokio::test]
    async fn fleet_on_a_file_has_one_coordinator() {
        let refused = FleetBuilder::new()
            .store(FleetStore::Sqlite)
            .coordinators(2)
            .start()
            .await;
        assert!(refused.is_err_and(|error| error.to_string().contains("one coordinator")));
        let refused = FleetBuilder::new().hosts(true).start().await;
        assert!(refused.is_err_and(|error| error.to_string().contains("balancer")));
    }
}
