//! Starting a fake browser the way the grid does, and ending it with everything it started.
//!
//! Its own file because all tests here need it.
//!
//! Invariant: dropping a `Fake` leaves no process, however the test ended.

use std::{
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;
use wharf_testkit::{Cdp, Http, eventually, patience, processes};

pub const EXECUTABLE: &str = env!("CARGO_BIN_EXE_fake-browser");

pub struct Fake {
    pub child: Child,
    pub home: TempDir,
    lines: Receiver<String>,
}

// === impl Fake ===

impl Fake {
    /// Starts it with a port and these faults.
    pub fn start(faults: &[&str]) -> Self {
        let faults: Vec<_> = faults.iter().map(|fault| format!("--fake-fault={fault}")).collect();
        Self::start_with(|command| {
            command.arg("--remote-debugging-port=0").args(&faults);
        })
    }

    pub fn start_with(adjust: impl FnOnce(&mut Command)) -> Self {
        let home = tempfile::tempdir().expect("a temporary directory");
        let mut command = Command::new(EXECUTABLE);
        command
            .arg(format!("--user-data-dir={}", home.path().join("profile").display()))
            .args(["--no-sandbox", "--headless=new"])
            .env(processes::RUN_DIR_ENV, home.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0);
        adjust(&mut command);
        let mut child = command.spawn().expect("the fake browser starts");
        let stderr = BufReader::new(child.stderr.take().expect("stderr is piped"));
        let (sender, lines) = channel();
        thread::spawn(move || {
            stderr
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| sender.send(line))
        });
        Self { child, home, lines }
    }

    /// The URL in the ready line, if one is printed in time.
    pub fn ready_within(&self, limit: Duration) -> Option<String> {
        loop {
            let line = self.lines.recv_timeout(limit).ok()?;
            if let Some(url) = line.strip_prefix("DevTools listening on ") {
                return Some(url.to_owned());
            }
        }
    }

    pub fn ready(&self) -> String {
        self.ready_within(patience()).expect("the ready line")
    }

    pub async fn cdp(&self) -> Cdp {
        Cdp::connect(&self.ready())
            .await
            .expect("a browser that is ready takes connections")
    }

    pub fn http(&self, ws_url: &str) -> Http {
        let authority = ws_url.split('/').nth(2).unwrap_or_default();
        Http::new(authority.parse().expect("the ready line names an address"))
    }

    pub fn is_alive(&self) -> bool {
        processes::is_alive(self.child.id())
    }

    /// Waits for the end.
    pub async fn ended(&mut self) -> Result<ExitStatus> {
        eventually("the fake browser to end", async || {
            self.child.try_wait()?.context("it runs")
        })
        .await
    }

    /// Processes it started that live on.
    pub async fn children(&self, count: usize) -> Result<Vec<u32>> {
        eventually(format!("{count} children"), async || {
            let mut pids = processes::with_run_dir(self.home.path());
            pids.retain(|pid| *pid != self.child.id());
            if pids.len() == count {
                Ok(pids)
            } else {
                bail!("{pids:?}")
            }
        })
        .await
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        processes::kill_all(self.home.path());
    }
}
