//! The leak check: the proof, after every end-to-end test, that sessions, slots, processes and files are gone.
//!
//! Its own file because it is the one assertion that all tests share. It asks the grid (metrics, API) and then the
//! system (`/proc`, the directories), and believes only the second.
//!
//! Invariant: `finish` returns `Ok` only if nothing is left; whatever it returns, nothing is left afterwards.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::handle::{Grid, State};
use crate::{eventually_within, processes};

/// Must be present and zero when no client uses the grid.
const ZERO_AT_REST: [&str; 4] = [
    "wharf_sessions_active",
    "wharf_queue_depth",
    "wharf_slots_busy",
    "wharf_orphan_processes",
];

// === impl Grid ===

impl Grid {
    /// Waits until the grid is at rest: no session, no waiter, no slot in use, no orphan, no zombie.
    ///
    /// # Errors
    /// With everything that is still there when patience runs out.
    pub async fn leak_check(&self) -> Result<()> {
        // Nothing becomes true by waiting for a process that is dead.
        ensure!(processes::is_alive(self.pid()), "wharf is not running");
        eventually_within(self.builder.patience, "the grid to be at rest", async || {
            let leaks = self.leaks().await?;
            if leaks.is_empty() {
                Ok(())
            } else {
                bail!("{}", leaks.join("; "))
            }
        })
        .await
    }

    async fn leaks(&self) -> Result<Vec<String>> {
        let mut leaks = Vec::new();
        let metrics = self.metrics().await?;
        for name in ZERO_AT_REST {
            match metrics.get(name) {
                Some(0.0) => {}
                Some(value) => leaks.push(format!("{name} is {value}")),
                None => leaks.push(format!("{name} is missing from /metrics")),
            }
        }
        let active = self.http().get("/v1/sessions?status=active").await?.expect(200)?;
        let active = listed(&active).context("GET /v1/sessions answered no list")?;
        if !active.is_empty() {
            leaks.push(format!("active sessions: {active:?}"));
        }
        let wharf = self.pid();
        for pid in processes::orphans(self.run_dir(), wharf) {
            leaks.push(format!("orphan {pid}: {}", processes::command_line(pid)));
        }
        for pid in processes::zombie_children(wharf) {
            leaks.push(format!("zombie {pid}"));
        }
        Ok(leaks)
    }

    /// Ends a test: leak check, SIGTERM, exit 0, and then no process, no session directory, no panic in the log.
    ///
    /// # Errors
    /// With the first of these that does not hold; the log's end is printed.
    pub async fn finish(mut self) -> Result<()> {
        if self.running().is_some() {
            self.leak_check().await?;
            self.terminate().await?;
        }
        if let State::Terminated(stopped) = &self.state {
            if !stopped.status.success() {
                bail!("wharf ended with {} after SIGTERM", stopped.status);
            }
            let dirs = self.session_dirs();
            if !dirs.is_empty() {
                bail!("session directories are left: {dirs:?}");
            }
        }
        let left = self.browser_pids();
        if !left.is_empty() {
            let lines: Vec<_> = left.iter().map(|pid| processes::command_line(*pid)).collect();
            bail!("processes are left: {lines:?}");
        }
        if let Some(line) = self.log().lines().find(|line| line.contains("panicked at")) {
            bail!("wharf panicked: {line}");
        }
        self.finished = true;
        Ok(())
    }
}

/// The sessions of a list answer: a bare array, or the array under its name.
fn listed(answer: &Value) -> Option<&Vec<Value>> {
    answer.as_array().or_else(|| answer["sessions"].as_array())
}
