//! Processes that left their tree's group: found by the marker, killed and reaped.
//!
//! Its own file because it is the exception: Chromium's crash handler and anything that daemonises calls `setsid` after
//! a double fork and survives a kill of the group. They keep the environment they were born with, and being orphans
//! they become our children. The invariant: a process is signalled only through a pidfd opened while its start time
//! was the one that was judged, so a reused number is never hit.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    time::Duration,
};

use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpid, pidfd_open, pidfd_send_signal, waitid};
use tokio::sync::watch;

use crate::{
    Marker, ProcessState,
    marker::{self, Owner},
    scan::{self, ProcessInfo},
    tree::{live_roots, pause, raw},
};

/// A process that is certainly the one that was judged.
pub(crate) struct Held {
    pub(crate) info: ProcessInfo,
    pub(crate) pidfd: OwnedFd,
}

// === impl Held ===

impl Held {
    /// Pins a process down; `None` if it is gone or its number means another one now.
    pub(crate) fn pin(info: ProcessInfo) -> Option<Self> {
        if info.pid <= 1 || info.pid == raw(getpid()) {
            return None;
        }
        let pid = Pid::from_raw(i32::try_from(info.pid).ok()?)?;
        let pidfd = pidfd_open(pid, PidfdFlags::NONBLOCK).ok()?;
        (scan::process(info.pid)?.started == info.started).then_some(Self { info, pidfd })
    }

    pub(crate) fn kill(&self) {
        let _gone = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Reaps it if it is our child, and says whether it is gone. A zombie of another parent is that parent's affair.
    pub(crate) fn gone(&self) -> bool {
        let _other = waitid(
            WaitId::PidFd(self.pidfd.as_fd()),
            WaitIdOptions::EXITED | WaitIdOptions::NOHANG,
        );
        scan::process(self.info.pid).is_none_or(|now| {
            now.started != self.info.started || (now.state == ProcessState::Zombie && now.parent != raw(getpid()))
        })
    }
}

/// Ends what has left the tree of `root`; returns when a search finds nothing more.
pub(crate) async fn end(marker: Marker, root: u32, started: u64, chld: watch::Receiver<u64>) {
    loop {
        let wanted = marker.clone();
        let found = tokio::task::spawn_blocking(move || find(&wanted, root, started))
            .await
            .unwrap_or_default();
        if found.is_empty() {
            return;
        }
        tracing::debug!(browser = %marker.browser, count = found.len(), "processes had left their group");
        found.iter().for_each(Held::kill);
        collect(&found, chld.clone()).await;
    }
}

/// Waits until the killed are gone, reaping those that are our children.
pub(crate) async fn collect(killed: &[Held], mut chld: watch::Receiver<u64>) {
    let mut tick = Duration::from_millis(2);
    loop {
        chld.mark_unchanged();
        if killed.iter().all(Held::gone) {
            return;
        }
        pause(&mut chld, &mut tick).await;
    }
}

/// Looks only at processes younger than the tree, and reads the environment only of those in no living tree's session.
fn find(marker: &Marker, root: u32, started: u64) -> Vec<Held> {
    let (roots, own_session) = (live_roots(), scan::own().map(|own| own.session).unwrap_or_default());
    // The dying and the dead have no environment any more. An orphan among them that came to us from a session that is
    // neither ours nor a living tree's can only have left a tree (Chromium's crash handlers end by themselves when
    // their browser does), and nobody else will reap it.
    let is_adopted = |p: &ProcessInfo| p.is_exiting && p.parent == raw(getpid()) && p.session != own_session;
    scan::processes_after(root, started)
        .into_iter()
        .filter(|p| p.started >= started && p.group != root && p.pid != root && !roots.contains(&p.pid))
        .filter(|p| p.session == root || !roots.contains(&p.session))
        .filter(|p| match marker::owner(p, &marker.run_dir) {
            Owner::Browser(browser) => browser == marker.browser.as_bytes(),
            Owner::Empty | Owner::Unreadable => is_adopted(p),
            Owner::Other => false,
        })
        .filter_map(Held::pin)
        .collect()
}
