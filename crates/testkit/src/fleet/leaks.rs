//! The end of a fleet, and the proof that nothing is left of it.
//!
//! Its own file because it is the assertion that all tests share. It asks the fleet whether it is at rest, ends it in the
//! order in which an operator would, and then believes only the kernel.
//!
//! Invariant: `finish` returns `Ok` only if nothing is left; whatever it returns, nothing is left afterwards.

use std::{
    fs::File,
    io::{BufRead as _, BufReader},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use tokio::net::TcpStream;

use super::{Fleet, Member};
use crate::{eventually::eventually, processes};

// === impl Fleet ===

impl Fleet {
    /// Waits until no session is live and nobody waits, as a coordinator that runs sees it.
    ///
    /// # Errors
    /// With what is still there when patience runs out.
    pub async fn at_rest(&self) -> Result<()> {
        let mut running = self.members().filter(|member| member.name().starts_with("coordinator"));
        let Some(member) = running.find(|member| member.is_running()) else {
            return Ok(());
        };
        eventually("the fleet to be at rest", async || {
            let list = member.http().get("/v1/sessions?limit=5").await?.expect(200)?;
            let live = list["sessions"].as_array().context("no list of sessions")?;
            ensure!(live.is_empty(), "{} live sessions, the first: {}", live.len(), live[0]);
            let pool = member.http().get("/v1/pool").await?.expect(200)?;
            ensure!(pool["running"] == 0, "slots are in use: {pool}");
            Ok(())
        })
        .await
    }

    /// Rest, then SIGTERM to the workers, then to the coordinators: exit 0, no process, no session directory, no panic.
    /// The store goes on, to be looked into; [`Self::finish`] ends it, too.
    ///
    /// # Errors
    /// With the first of these that does not hold.
    pub async fn stop(&mut self) -> Result<()> {
        self.heal_all();
        for member in self.members().filter(|member| member.is_running()) {
            member.resume()?;
        }
        self.at_rest().await?;
        // Workers say goodbye to coordinators.
        for members in [true, false] {
            let group = |member: &&mut Member| member.name().starts_with("worker") == members;
            for member in self.members_mut().filter(group).filter(|member| member.is_running()) {
                member.signal(Signal::TERM)?;
            }
            for member in self.members_mut().filter(group) {
                member.wait_end().await?;
            }
        }
        for member in self.members_mut() {
            is_tidy(member).await?;
        }
        Ok(())
    }

    /// Ends a test: [`Self::stop`], then the balancer, the store and the directories.
    ///
    /// # Errors
    /// With the first thing that is left.
    pub async fn finish(mut self) -> Result<()> {
        self.stop().await?;
        self.finished = true;
        let home = self.home().to_owned();
        drop(self);
        ensure!(!home.exists(), "{} is left", home.display());
        Ok(())
    }
}

async fn is_tidy(member: &mut Member) -> Result<()> {
    let name = member.name().to_owned();
    let status = member.ended().with_context(|| format!("{name} still runs"))?;
    if !status.success() && !member.was_killed() {
        bail!("{name} ended with {status}; its log:\n{}", member.log_tail());
    }
    // A killed one's guard needs a moment.
    eventually(format!("nothing to be left of {name}"), async || {
        let left: Vec<_> = member
            .browser_pids()
            .iter()
            .map(|pid| format!("{pid} {}", processes::command_line(*pid)))
            .collect();
        ensure!(left.is_empty(), "processes: {left:?}");
        let dirs = member.session_dirs();
        ensure!(dirs.is_empty(), "directories: {dirs:?}");
        let addr = member.addr();
        ensure!(
            !name.starts_with("coordinator") || TcpStream::connect(addr).await.is_err(),
            "{addr} takes connections"
        );
        Ok(())
    })
    .await?;
    // Line by line: after hours it may not fit.
    let log = BufReader::new(File::open(member.log_file())?);
    let mut lines = log.split(b'\n').map_while(Result::ok);
    let panicked = lines.find_map(|line| {
        let line = String::from_utf8_lossy(&line);
        line.contains("panicked at").then(|| line.into_owned())
    });
    match panicked {
        Some(line) => bail!("{name} panicked: {line}"),
        None => Ok(()),
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // A finished fleet has nothing left. Otherwise the test failed or forgot: say what its members said; the fields' own
        // drops then end the processes and remove the directories.
        if !self.finished {
            for member in self.members() {
                eprintln!(
                    "--- the fleet was not finished; the end of {}'s log:\n{}",
                    member.name(),
                    member.log_tail()
                );
            }
        }
    }
}
