//! What it costs: processor time, memory and store queries, read before and after.
//!
//! Its own file because each engine counts its queries in its own place. All of it is asked from outside: the kernel, and
//! the server's own statistics.

use std::{fs, process::Command};

use anyhow::{Context, Result};
use wharf_e2e::machine::{cpu_seconds, pss_kb};
use wharf_testkit::{FleetStore, processes};

/// Where to look.
pub struct Gauge {
    store: FleetStore,
    url: String,
    coordinators: Vec<u32>,
}

/// One look.
#[derive(Debug, Clone, Copy, Default)]
pub struct Look {
    /// Of all coordinators, in seconds.
    pub coordinators: f64,
    /// Of the store's server, in seconds.
    pub store: f64,
    /// Transactions (PostgreSQL: every statement is one) or commands (Redis).
    pub queries: f64,
}

// === impl Gauge ===

impl Gauge {
    pub fn new(store: FleetStore, url: String, coordinators: Vec<u32>) -> Self {
        Self {
            store,
            url,
            coordinators,
        }
    }

    pub fn look(&self) -> Result<Look> {
        Ok(Look {
            coordinators: self.coordinators.iter().map(|pid| cpu_seconds(*pid)).sum(),
            store: self.store_cpu(),
            queries: self.queries()?,
        })
    }

    /// The mean of the coordinators, in kB.
    pub fn coordinator_pss(&self) -> f64 {
        let sum: f64 = self.coordinators.iter().map(|pid| pss_kb(*pid)).sum();
        sum / self.coordinators.len() as f64
    }

    fn port(&self) -> Option<&str> {
        let rest = self.url.rsplit_once(':')?.1;
        rest.split('/').next()
    }

    /// The server and all its children: those that carry its port on their command line, and their descendants.
    fn store_cpu(&self) -> f64 {
        let Some(port) = self.port() else { return f64::NAN };
        let name = if self.store == FleetStore::Redis {
            "redis-server"
        } else {
            "postgres"
        };
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids: Vec<u32> = entries
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect();
        let is_server = |pid: &u32| {
            let line = processes::command_line(*pid);
            line.contains(name) && (line.contains(&format!("-p {port}")) || line.contains(&format!(":{port}")))
        };
        let Some(server) = pids.iter().copied().find(is_server) else {
            return f64::NAN;
        };
        let own = pids.into_iter().filter(|pid| processes::descends_from(*pid, server));
        own.map(cpu_seconds).sum()
    }

    fn queries(&self) -> Result<f64> {
        let text = match self.store {
            FleetStore::Redis => {
                let info = printed(Command::new("redis-cli").args(["-u", &self.url, "INFO", "stats"]))?;
                let mut lines = info.lines();
                let line = lines.find_map(|line| line.strip_prefix("total_commands_processed:"));
                line.context("Redis counts no commands")?.to_owned()
            }
            _ => {
                let query =
                    "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()";
                printed(Command::new("psql").args([&self.url, "-Atc", query]))?
            }
        };
        Ok(text.trim().parse()?)
    }
}

fn printed(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("could not run {:?}", command.get_program()))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

// === impl Look ===

impl Look {
    /// What was used since.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            coordinators: self.coordinators - earlier.coordinators,
            store: self.store - earlier.store,
            queries: self.queries - earlier.queries,
        }
    }
}
