//! A real nginx in front of a fleet, with the configuration that `deploy/` ships.
//!
//! Its own file because it is the one process of a fleet that is not ours: what is tested is that the shipped template
//! works in front of real coordinators.
//!
//! Invariant: dropped, neither nginx nor its children are left.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr},
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::net::TcpStream;

use super::ports;
use crate::{binaries::workspace_root, eventually::patience};

/// Somebody else may take the port between our look and nginx's.
const STARTS: usize = 5;

/// A running nginx.
#[derive(Debug)]
pub(super) struct Balancer {
    child: Child,
    pub(super) addr: SocketAddr,
}

// === impl Balancer ===

impl Balancer {
    /// In front of these. It is called at 127.0.0.1; it listens there or, for hosts that call from elsewhere, everywhere.
    pub(super) async fn start(home: &Path, coordinators: &[SocketAddr], listen: Ipv4Addr) -> Result<Self> {
        let dir = home.join("nginx");
        fs::create_dir_all(&dir)?;
        let path = workspace_root().join("deploy/nginx.conf.template");
        let template = fs::read_to_string(&path).with_context(|| format!("could not read {}", path.display()))?;
        let servers = coordinators
            .iter()
            .map(|addr| format!("server {addr} max_fails=1 fail_timeout=2s;"));
        let text = template
            .replace("${UPSTREAM_SERVERS}", &servers.collect::<Vec<_>>().join(" "))
            .replace("${ACCESS_LOG}", "access.log wharf");
        let mut last = anyhow::anyhow!("never tried");
        for _ in 0..STARTS {
            let addr = SocketAddr::from(([127, 0, 0, 1], ports::free()?));
            let listen = SocketAddr::from((listen, addr.port()));
            fs::write(dir.join("nginx.conf"), text.replace("${LISTEN}", &listen.to_string()))?;
            match Self::launch(&dir, addr).await {
                Ok(balancer) => return Ok(balancer),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn launch(dir: &Path, addr: SocketAddr) -> Result<Self> {
        let log = File::create(dir.join("log"))?;
        let mut command = Command::new("nginx");
        command.args(["-e", "stderr", "-c", "nginx.conf", "-p"]).arg(dir);
        // A group of its own: a master that is killed leaves its children.
        command.process_group(0);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command
            .spawn()
            .context("could not start nginx; run `cargo xtask setup` (package nginx)")?;
        let mut balancer = Self { child, addr };
        let started = Instant::now();
        while started.elapsed() < patience() {
            if let Some(status) = balancer.child.try_wait()? {
                let said = fs::read_to_string(dir.join("log")).unwrap_or_default();
                bail!("nginx ended at once ({status}): {said}");
            }
            if TcpStream::connect(addr).await.is_ok() {
                return Ok(balancer);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        bail!("nginx takes no connections on {addr}")
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        // Only while the leader is uncollected is the group's number surely ours.
        if matches!(self.child.try_wait(), Ok(None))
            && let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
        {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}
