//! cgroup v2, where the host delegates a writable subtree: one child group per tree.
//!
//! Its own file because all of it is optional: nothing escapes a cgroup, `cgroup.kill` is one atomic write, and its
//! `memory.events` is the one exact witness of an out-of-memory kill; but most hosts give none, and everything else in
//! this crate works without. The invariant: a directory made here is removed when its tree is gone.

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::sync::watch;

use crate::{escape::Held, scan, tree::pause};

/// A writable cgroup under which trees get their own.
#[derive(Debug, Clone)]
pub struct Cgroups {
    base: PathBuf,
}

/// One tree's cgroup.
#[derive(Debug)]
pub(crate) struct TreeCgroup {
    dir: PathBuf,
}

// === impl Cgroups ===

impl Cgroups {
    /// Finds our own cgroup v2 and tries whether children can be made and killed there.
    pub fn detect() -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let mount = mounts.lines().find_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            right.starts_with("cgroup2 ").then(|| left.split(' ').nth(4))?
        })?;
        Self::under(&Path::new(mount).join(path.trim_start_matches('/')))
    }

    /// Uses a given cgroup directory, if it serves.
    pub fn under(parent: &Path) -> Option<Self> {
        // Best effort: refused where the parent itself has processes; then only the killing is gained.
        let _without = fs::write(parent.join("cgroup.subtree_control"), "+memory");
        remove_stale(parent);
        let base = parent.join(format!("wharf-{}", std::process::id()));
        match fs::create_dir(&base) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return None,
            _ => {}
        }
        let _without = fs::write(base.join("cgroup.subtree_control"), "+memory");
        let usable = base.join("cgroup.kill").exists()
            && fs::OpenOptions::new()
                .write(true)
                .open(base.join("cgroup.procs"))
                .is_ok();
        if !usable {
            let _left = fs::remove_dir(&base);
            return None;
        }
        Some(Self { base })
    }

    /// Whether the kernel counts memory here, and so tells out-of-memory from a crash. Where it does not, a cgroup brings
    /// little and costs much: moving a process into one takes a lock that stops every fork on the host for an RCU grace
    /// period.
    pub fn counts_memory(&self) -> bool {
        fs::read_to_string(self.base.join("cgroup.subtree_control"))
            .is_ok_and(|on| on.split_whitespace().any(|controller| controller == "memory"))
    }

    /// Removes the base; fails quietly while a tree still lives in it.
    pub fn remove(&self) {
        let _left = fs::remove_dir(&self.base);
    }

    pub(crate) fn make(&self, name: &str) -> Option<TreeCgroup> {
        let dir = self.base.join(name);
        fs::create_dir(&dir).ok()?;
        Some(TreeCgroup { dir })
    }
}

/// What a Wharf that was killed left; the kernel refuses to remove what still has processes.
fn remove_stale(parent: &Path) {
    let subdirs = |dir: &Path| {
        fs::read_dir(dir)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
    };
    for base in subdirs(parent) {
        let pid = base
            .file_name()
            .and_then(|name| name.to_str()?.strip_prefix("wharf-")?.parse::<u32>().ok());
        if pid.is_some_and(|pid| crate::process(pid).is_none()) {
            subdirs(&base).for_each(|dir| drop(fs::remove_dir(dir)));
            let _left = fs::remove_dir(&base);
        }
    }
}

// === impl TreeCgroup ===

impl TreeCgroup {
    /// For the child to write itself into, before it can fork.
    pub(crate) fn procs(&self) -> Option<OwnedFd> {
        fs::OpenOptions::new()
            .write(true)
            .open(self.dir.join("cgroup.procs"))
            .ok()
            .map(OwnedFd::from)
    }

    pub(crate) fn kill(&self) {
        let _gone = fs::write(self.dir.join("cgroup.kill"), "1");
    }

    /// Its processes now, pinned down.
    pub(crate) fn members(&self) -> Vec<Held> {
        let procs = fs::read_to_string(self.dir.join("cgroup.procs")).unwrap_or_default();
        let pids = procs.lines().filter_map(|line| line.parse().ok());
        pids.filter_map(scan::process).filter_map(Held::pin).collect()
    }

    pub(crate) fn oom_kills(&self) -> Option<u64> {
        let events = fs::read_to_string(self.dir.join("memory.events")).ok()?;
        events
            .lines()
            .find_map(|line| line.strip_prefix("oom_kill "))?
            .trim()
            .parse()
            .ok()
    }

    pub(crate) fn memory_peak(&self) -> Option<u64> {
        self.number("memory.peak").or_else(|| self.number("memory.current"))
    }

    /// `max` means none.
    pub(crate) fn memory_limit(&self) -> Option<u64> {
        self.number("memory.max")
    }

    fn number(&self, file: &str) -> Option<u64> {
        fs::read_to_string(self.dir.join(file)).ok()?.trim().parse().ok()
    }

    fn populated(&self) -> bool {
        fs::read_to_string(self.dir.join("cgroup.events")).is_ok_and(|events| events.contains("populated 1"))
    }

    /// Waits until it is empty; the directory goes when the value does.
    pub(crate) async fn emptied(&self, mut chld: watch::Receiver<u64>) {
        let mut tick = Duration::from_millis(1);
        while self.populated() {
            chld.mark_unchanged();
            self.kill();
            pause(&mut chld, &mut tick).await;
        }
        // The last task leaves the group a moment after it is counted out: busy until then.
        for _ in 0..20 {
            if fs::remove_dir(&self.dir).is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Drop for TreeCgroup {
    fn drop(&mut self) {
        // Already removed after a normal end; this is for a spawn that failed.
        let _left = fs::remove_dir(&self.dir);
    }
}
