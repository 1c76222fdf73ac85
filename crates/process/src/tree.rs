//! A process tree as one value: watched, killed and reaped as a whole.
//!
//! Its own file because the order of the last steps is the crate's hardest rule. The group is killed while the main
//! process is still unreaped, because until then the kernel cannot give its number to anybody else; one kill is enough,
//! because `fork` fails in a process with a pending `SIGKILL`. Then the main process is reaped by its pidfd, the
//! orphans by their group, and the tree is gone when the group has no member. The invariant: `gone` is published only
//! when no process of the tree is left, zombies included.

use std::{
    collections::BTreeSet,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, getpid, waitid},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{Notify, watch},
    time::sleep,
};

use crate::{
    Listener, Marker, Priority, SessionDir, cgroup::TreeCgroup, escape, keeper::keeper, listener, scan, spawn, system,
};

/// The fallback look while a tree is dying; SIGCHLD normally comes first.
const FIRST_TICK: Duration = Duration::from_millis(5);
const LAST_TICK: Duration = Duration::from_millis(100);

static ROOTS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// How the main process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// It left with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

/// The kernel took the process because memory ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfMemory {
    /// What the tree used, if anybody measured: the cgroup's peak, else the last PSS.
    pub used: Option<u64>,
    /// The cgroup's limit, if the tree has one.
    pub limit: Option<u64>,
}

/// The end of the main process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exited {
    /// Code or signal.
    pub status: ExitStatus,
    /// We had asked for it ([`Tree::kill`], or the tree was dropped).
    pub killed_by_us: bool,
    /// The kernel did it for want of memory.
    pub out_of_memory: Option<OutOfMemory>,
}

/// A process tree. Dropping it kills it and everything it wrote, in the background.
#[derive(Debug)]
pub struct Tree {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    pid: Pid,
    marker: Marker,
    started: u64,
    oom_kills_before: Option<u64>,
    cgroup: Option<TreeCgroup>,
    last_pss: AtomicU64,
    kill: Notify,
    exit: watch::Sender<Option<Exited>>,
    gone: watch::Sender<bool>,
    files_removed: watch::Sender<bool>,
}

/// A child fresh from the fork, not yet watched.
pub(crate) struct Newborn {
    pub(crate) pid: Pid,
    pub(crate) pidfd: OwnedFd,
    pub(crate) marker: Marker,
    pub(crate) dir: Option<SessionDir>,
    pub(crate) cgroup: Option<TreeCgroup>,
}

/// The main pids of all trees that are not gone yet.
pub fn live_roots() -> Vec<u32> {
    ROOTS.lock().iter().copied().collect()
}

// === impl Tree ===

impl Tree {
    pub(crate) fn adopt(newborn: Newborn) -> Self {
        let pid = newborn.pid;
        ROOTS.lock().insert(raw(pid));
        let shared = Arc::new(Shared {
            pid,
            marker: newborn.marker,
            started: scan::process(raw(pid)).map_or(0, |info| info.started),
            oom_kills_before: system::oom_kills(),
            cgroup: newborn.cgroup,
            last_pss: AtomicU64::new(0),
            kill: Notify::new(),
            exit: watch::Sender::new(None),
            gone: watch::Sender::new(false),
            files_removed: watch::Sender::new(false),
        });
        if let Ok(keeper) = keeper() {
            keeper.reaper().spawn(watch_tree(
                Arc::clone(&shared),
                newborn.pidfd,
                newborn.dir,
                keeper.sigchld(),
            ));
        }
        Self { shared }
    }

    /// The main process.
    pub fn pid(&self) -> u32 {
        raw(self.shared.pid)
    }

    /// The marker its processes carry.
    pub fn marker(&self) -> &Marker {
        &self.shared.marker
    }

    /// Waits for the main process to end. Cancel-safe; any number of callers; answers for ever after.
    pub async fn exited(&self) -> Exited {
        let mut exit = self.shared.exit.subscribe();
        match exit.wait_for(Option::is_some).await.map(|exited| *exited) {
            Ok(Some(exited)) => exited,
            // The sender lives in `self`.
            _ => std::future::pending().await,
        }
    }

    /// The end, if it came already.
    pub fn try_exited(&self) -> Option<Exited> {
        *self.shared.exit.borrow()
    }

    /// Kills the whole tree and returns when nothing of it is left. Idempotent; dropping the future stops only the
    /// waiting. Files are removed afterwards, see [`Tree::files_removed`].
    pub async fn kill(&self) {
        self.shared.kill.notify_one();
        self.gone().await;
    }

    /// Waits until no process is left, without asking for it.
    pub async fn gone(&self) {
        let mut gone = self.shared.gone.subscribe();
        let _closed = gone.wait_for(|gone| *gone).await;
    }

    /// Waits until the directory given at the spawn is removed too.
    pub async fn files_removed(&self) {
        let mut files_removed = self.shared.files_removed.subscribe();
        let _closed = files_removed.wait_for(|removed| *removed).await;
    }

    /// Proportional memory of all its processes. Costs a /proc pass and a page-table walk per process (milliseconds):
    /// not for an async thread's hot path. `None` when the tree is gone.
    pub fn pss_bytes(&self) -> Option<u64> {
        if *self.shared.gone.borrow() {
            return None;
        }
        let total = scan::tree_processes(self.pid())
            .iter()
            .filter_map(|p| scan::pss_bytes(p.pid))
            .sum::<u64>();
        self.shared.last_pss.store(total, Ordering::Relaxed);
        (total > 0).then_some(total)
    }

    /// Who listens on a loopback port: this tree, somebody else, or nobody. Reads the kernel's tables (milliseconds), off
    /// the async threads.
    pub async fn listener(&self, port: u16) -> Listener {
        let shared = Arc::clone(&self.shared);
        let look = move || {
            let tree = listener::Tree {
                root: raw(shared.pid),
                started: shared.started,
                marker: &shared.marker,
            };
            listener::listener(&tree, port)
        };
        // A look that was lost says nothing; whoever asks asks again.
        tokio::task::spawn_blocking(look).await.unwrap_or(Listener::Nobody)
    }

    /// CPU time of its living processes.
    pub fn cpu(&self) -> Duration {
        scan::tree_processes(self.pid()).iter().map(|p| p.cpu).sum()
    }

    /// Raises or lowers the whole tree. Silent where the host forbids it; the spawn did not lower it there either.
    pub fn set_priority(&self, priority: Priority) {
        // A reaped number may be somebody else's.
        if self.try_exited().is_some() {
            return;
        }
        let nice = if priority == Priority::Normal { 0 } else { 5 };
        if !spawn::autogroup_enabled() {
            let _kept = rustix::process::setpriority_pgrp(Some(self.shared.pid), nice);
            return;
        }
        let path = format!("/proc/{}/autogroup", self.pid());
        if std::fs::write(&path, nice.to_string()).is_err_and(|e| e.raw_os_error() == Some(Errno::AGAIN.raw_os_error()))
            && let Ok(keeper) = keeper()
        {
            // The unprivileged may write one autogroup per 100 ms, system-wide (sched/autogroup.c).
            keeper.reaper().spawn(retry_autogroup(path, nice));
        }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        self.shared.kill.notify_one();
    }
}

async fn retry_autogroup(path: String, nice: i32) {
    for _ in 0..10 {
        sleep(Duration::from_millis(110)).await;
        match std::fs::write(&path, nice.to_string()) {
            Err(e) if e.raw_os_error() == Some(Errno::AGAIN.raw_os_error()) => {}
            _ => return,
        }
    }
}

// === impl Shared ===

impl Shared {
    fn describe(&self, status: ExitStatus, killed_by_us: bool) -> Exited {
        let killed = status == ExitStatus::Signal(Signal::KILL.as_raw());
        let out_of_memory = (killed && !killed_by_us && self.memory_ran_out()).then(|| {
            let last = Some(self.last_pss.load(Ordering::Relaxed)).filter(|pss| *pss > 0);
            OutOfMemory {
                used: self.cgroup.as_ref().and_then(TreeCgroup::memory_peak).or(last),
                limit: self.cgroup.as_ref().and_then(TreeCgroup::memory_limit),
            }
        });
        Exited {
            status,
            killed_by_us,
            out_of_memory,
        }
    }

    fn memory_ran_out(&self) -> bool {
        match self.cgroup.as_ref().and_then(TreeCgroup::oom_kills) {
            Some(own) => own > 0,
            None => self
                .oom_kills_before
                .zip(system::oom_kills())
                .is_some_and(|(before, now)| now > before),
        }
    }
}

/// The life of one tree, on the reaper's thread.
async fn watch_tree(shared: Arc<Shared>, pidfd: OwnedFd, dir: Option<SessionDir>, chld: watch::Receiver<u64>) {
    let mut main = Main::new(pidfd, chld.clone());
    let killed_by_us = tokio::select! {
        // Biased: an exit that is already there was not our doing.
        biased;
        _ = main.exit() => false,
        () = shared.kill.notified() => true,
    };
    // Before the main process is reaped: until then its number cannot mean anybody else.
    let mut members = Vec::new();
    if let Some(cgroup) = &shared.cgroup {
        // Whoever left the process group becomes our child when its parent dies, and is ours to collect.
        members = cgroup.members();
        cgroup.kill();
    }
    kill_group(shared.pid);
    let status = main.exit().await;
    shared.exit.send_replace(Some(shared.describe(status, killed_by_us)));
    main.reap();
    let group = reap_group(shared.pid, chld.clone());
    match &shared.cgroup {
        // Nothing escapes a cgroup.
        Some(cgroup) => {
            group.await;
            cgroup.emptied(chld.clone()).await;
            escape::collect(&members, chld).await;
        }
        // After the group: every process that is looked at costs the kernel again when it dies, and the dead are not there.
        None => {
            group.await;
            escape::end(shared.marker.clone(), raw(shared.pid), shared.started, chld).await;
        }
    }
    ROOTS.lock().remove(&raw(shared.pid));
    shared.gone.send_replace(true);
    if let Some(dir) = dir {
        dir.remove().await;
    }
    shared.files_removed.send_replace(true);
}

/// The main process, by its pidfd.
struct Main {
    pidfd: Result<AsyncFd<OwnedFd>, OwnedFd>,
    chld: watch::Receiver<u64>,
}

// === impl Main ===

impl Main {
    fn new(pidfd: OwnedFd, chld: watch::Receiver<u64>) -> Self {
        // Without room in epoll, SIGCHLD wakes us just as well.
        #[expect(unsafe_code, reason = "tokio's only constructor that is not deprecated")]
        // SAFETY: `OwnedFd` is open, always gives the same descriptor, and is owned by the `AsyncFd` until it is dropped.
        let registered = unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) };
        let pidfd = registered.map_err(|refused| refused.into_parts().0);
        Self { pidfd, chld }
    }

    fn fd(&self) -> &OwnedFd {
        match &self.pidfd {
            Ok(watched) => watched.get_ref(),
            Err(bare) => bare,
        }
    }

    /// Waits for the end and leaves the zombie. Cancel-safe.
    async fn exit(&mut self) -> ExitStatus {
        loop {
            self.chld.mark_unchanged();
            let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            match waitid(WaitId::PidFd(self.fd().as_fd()), look) {
                Ok(Some(status)) => return exit_status(&status),
                // Somebody else reaped our child (a foreign `waitpid(-1)`); its status is lost, its end is not.
                Err(Errno::CHILD) => return ExitStatus::Code(-1),
                Ok(None) | Err(_) => {}
            }
            match &self.pidfd {
                Ok(watched) => {
                    if let Ok(mut ready) = watched.readable().await {
                        ready.clear_ready();
                    }
                }
                Err(_) => tokio::select! {
                    _ = self.chld.changed() => {}
                    () = sleep(LAST_TICK) => {}
                },
            }
        }
    }

    fn reap(&self) {
        let _status = waitid(
            WaitId::PidFd(self.fd().as_fd()),
            WaitIdOptions::EXITED | WaitIdOptions::NOHANG,
        );
        tracing::trace!(pidfd = self.fd().as_raw_fd(), "main process reaped");
    }
}

fn exit_status(status: &WaitIdStatus) -> ExitStatus {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => ExitStatus::Code(code),
        (None, Some(signal)) => ExitStatus::Signal(signal),
        (None, None) => ExitStatus::Code(-1),
    }
}

/// Collects the orphans that the kernel hands to us, until the group has no member.
async fn reap_group(group: Pid, mut chld: watch::Receiver<u64>) {
    let mut tick = FIRST_TICK;
    loop {
        // Marked before looking, so that a signal during the look wakes us.
        chld.mark_unchanged();
        let collect = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        while let Ok(Some(_)) = waitid(WaitId::Pgid(Some(group)), collect) {}
        if rustix::process::test_kill_process_group(group) == Err(Errno::SRCH) {
            return;
        }
        pause(&mut chld, &mut tick).await;
    }
}

/// Until the next SIGCHLD, or a tick that grows.
pub(crate) async fn pause(chld: &mut watch::Receiver<u64>, tick: &mut Duration) {
    tokio::select! {
        _ = chld.changed() => {}
        () = sleep(*tick) => *tick = (*tick * 2).min(LAST_TICK),
    }
}

/// SIGKILL to a group of ours. Never to "every process" (-1), init's or our own.
pub(crate) fn kill_group(group: Pid) {
    let own = scan::own().map(|own| own.group).unwrap_or_default();
    if !group.is_init() && raw(group) != own && group != getpid() {
        let _gone = rustix::process::kill_process_group(group, Signal::KILL);
    }
}

pub(crate) fn raw(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get().unsigned_abs()
}
