//! What it costs: processor time of everybody, memory and store queries, read before and after.
//!
//! Its own file because each engine counts its queries in its own place. All of it is asked from outside: the kernel, and
//! the server's own statistics. Nothing here lags: a look is taken the moment a load ends.

use std::{fs, process::Command};

use anyhow::{Context, Result, ensure};
use wharf_e2e::machine::{cpu_seconds, pss_kb};
use wharf_testkit::processes;

use crate::{
    engine::{Engine, Server},
    options::Store,
};

/// Where to look.
pub struct Gauge {
    store: Store,
    url: String,
    server: u32,
    coordinators: Vec<u32>,
}

/// One look. Processor times are in seconds.
#[derive(Debug, Clone, Copy, Default)]
pub struct Look {
    /// This process: clients and simulated workers.
    pub generator: f64,
    /// All coordinators.
    pub coordinators: f64,
    /// The store's server with its children.
    pub store: f64,
    pub machine: Machine,
    /// Statements (PostgreSQL) or commands, those of scripts included (Redis).
    pub queries: f64,
}

/// All cores together, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Machine {
    /// Used by anybody.
    pub busy: f64,
    /// Used or not.
    pub total: f64,
}

// === impl Gauge ===

impl Gauge {
    pub fn new(engine: Engine, server: &Server, coordinators: Vec<u32>) -> Result<Self> {
        Ok(Self {
            store: engine.store,
            url: server.url(),
            server: find_server(engine.store, server.port()).context("the store's process is not to be found")?,
            coordinators,
        })
    }

    pub fn look(&self) -> Result<Look> {
        Ok(Look {
            generator: cpu_seconds(std::process::id()),
            coordinators: self.coordinators.iter().map(|pid| cpu_seconds(*pid)).sum(),
            store: self.store_cpu(),
            machine: Machine::parse(&fs::read_to_string("/proc/stat")?)
                .context("/proc/stat has no line for the cores")?,
            queries: self.queries()?,
        })
    }

    /// The mean of the coordinators, in kB.
    pub fn coordinator_pss(&self) -> f64 {
        let sum: f64 = self.coordinators.iter().map(|pid| pss_kb(*pid)).sum();
        sum / self.coordinators.len() as f64
    }

    fn store_cpu(&self) -> f64 {
        let own = pids()
            .into_iter()
            .filter(|pid| processes::descends_from(*pid, self.server));
        own.map(cpu_seconds).sum()
    }

    fn queries(&self) -> Result<f64> {
        let text = match self.store {
            Store::Redis => {
                let info = printed(Command::new("redis-cli").args(["-u", &self.url, "INFO", "stats"]))?;
                let mut lines = info.lines();
                let line = lines.find_map(|line| line.strip_prefix("total_commands_processed:"));
                line.context("Redis counts no commands")?.to_owned()
            }
            Store::Postgres => psql(&self.url, "select sum(calls) from pg_stat_statements")?,
        };
        Ok(text.trim().parse()?)
    }
}

/// The process that carries the port on its command line, as the kit and the server itself write it.
fn find_server(store: Store, port: u16) -> Option<u32> {
    let (name, sign) = match store {
        Store::Postgres => ("postgres", format!(" -p {port} ")),
        Store::Redis => ("redis-server", format!(":{port} ")),
    };
    let is_server = |pid: &u32| {
        let line = format!("{} ", processes::command_line(*pid));
        line.contains(name) && line.contains(&sign)
    };
    pids().into_iter().find(is_server)
}

fn pids() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// What one statement answers.
pub fn psql(url: &str, statement: &str) -> Result<String> {
    printed(Command::new("psql").args([url, "-Atqc", statement]))
}

fn printed(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("could not run {:?}", command.get_program()))?;
    ensure!(
        output.status.success(),
        "{:?} failed: {}",
        command.get_program(),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

// === impl Look ===

impl Look {
    /// What was used since.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            generator: self.generator - earlier.generator,
            coordinators: self.coordinators - earlier.coordinators,
            store: self.store - earlier.store,
            machine: Machine {
                busy: self.machine.busy - earlier.machine.busy,
                total: self.machine.total - earlier.machine.total,
            },
            queries: self.queries - earlier.queries,
        }
    }

    /// What neither we nor what we started used.
    pub fn others(self) -> f64 {
        (self.machine.busy - self.ours()).max(0.0)
    }

    /// What nobody used.
    pub fn idle(self) -> f64 {
        (self.machine.total - self.machine.busy).max(0.0)
    }

    /// What we and what we started used.
    pub fn ours(self) -> f64 {
        self.generator + self.coordinators + self.store
    }

    /// As a part of all there was, in per cent.
    pub fn share(self, seconds: f64) -> f64 {
        100.0 * seconds / self.machine.total
    }
}

// === impl Machine ===

impl Machine {
    /// The first line of `/proc/stat`, in the kernel's hundredths of a second. Guests are counted in `user` already.
    fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<f64> = line
            .split_whitespace()
            .take(8)
            .filter_map(|text| text.parse().ok())
            .collect();
        let (idle, waiting) = (ticks.get(3)?, ticks.get(4)?);
        let total: f64 = ticks.iter().sum();
        Some(Self {
            busy: (total - idle - waiting) / 100.0,
            total: total / 100.0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_waiting_are_not_busy_and_guests_count_once() {
        let stat = "cpu  100 0 50 800 50 0 0 0 90 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(Machine::parse(stat), Some(Machine { busy: 1.5, total: 10.0 }));
        assert_eq!(Machine::parse("intr 1 2 3"), None);
    }

    #[test]
    fn shares_are_of_the_whole_machine() {
        let look = Look {
            generator: 4.0,
            coordinators: 3.0,
            store: 2.0,
            machine: Machine {
                busy: 10.0,
                total: 20.0,
            },
            queries: 0.0,
        };
        assert_eq!((look.others(), look.share(look.generator)), (1.0, 20.0));
        assert_eq!((look.ours(), look.idle()), (9.0, 10.0));
    }
}
