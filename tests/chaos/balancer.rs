//! The fleet's nginx, to be reloaded, killed and started again.
//!
//! Its own file because the kit starts it but does not disturb it. The one that replaces a killed one is a child of ours.
//!
//! Invariant: dropped, none that we started is left.

use std::{
    fs::{self, File},
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::{net::TcpStream, time::sleep};
use wharf_testkit::{Fleet, patience};

pub struct Balancer {
    dir: PathBuf,
    addr: std::net::SocketAddr,
    /// Ours, once the kit's own was killed.
    child: Option<Child>,
}

// === impl Balancer ===

impl Balancer {
    pub fn of(fleet: &Fleet) -> Self {
        Self {
            dir: fleet.home().join("nginx"),
            addr: fleet.front(),
            child: None,
        }
    }

    /// The master, by its own pid file.
    fn master(&self) -> Result<Pid> {
        let text = fs::read_to_string(self.dir.join("nginx.pid")).context("nginx has no pid file")?;
        Pid::from_raw(text.trim().parse()?).context("nginx's pid file is empty")
    }

    /// SIGHUP: new children with the same configuration, the old ones finish what they have.
    pub fn reload(&self) -> Result<()> {
        kill_process(self.master()?, Signal::HUP).context("could not reload nginx")
    }

    /// SIGKILL to the master and its children: it leads a group of its own.
    pub fn kill(&mut self) -> Result<()> {
        kill_process_group(self.master()?, Signal::KILL).context("could not kill nginx")?;
        if let Some(mut child) = self.child.take() {
            child.wait()?;
        }
        Ok(())
    }

    /// Starts one in the same place.
    pub async fn start(&mut self) -> Result<()> {
        let started = Instant::now();
        while started.elapsed() < patience() {
            let log = File::options().append(true).create(true).open(self.dir.join("log"))?;
            let mut command = Command::new("nginx");
            command.args(["-e", "stderr", "-c", "nginx.conf", "-p"]).arg(&self.dir);
            command
                .process_group(0)
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log);
            let mut child = command.spawn().context("could not start nginx")?;
            while child.try_wait()?.is_none() && started.elapsed() < patience() {
                if TcpStream::connect(self.addr).await.is_ok() {
                    self.child = Some(child);
                    return Ok(());
                }
                sleep(Duration::from_millis(10)).await;
            }
            // The port may need a moment to be free.
            let _ = child.kill();
            child.wait()?;
            sleep(Duration::from_millis(50)).await;
        }
        bail!("nginx does not come back")
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        let Some(child) = &mut self.child else { return };
        if matches!(child.try_wait(), Ok(None))
            && let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw)
        {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = child.wait();
    }
}
