//! What `/proc` says about the processes of one grid.
//!
//! Its own file because the leak check must not believe the grid's own account. Every process a grid starts inherits
//! `_WHARF_OWNER_RUN_DIR`; whatever carries a grid's run directory belongs to it, however it was forked or re-parented.
//!
//! Invariant: a signal goes only to a process that was checked through its pidfd, never to a recycled pid.

use std::{
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The variable by which a grid marks its processes.
pub const RUN_DIR_ENV: &str = "_WHARF_OWNER_RUN_DIR";

/// The processes that carry this run directory in their environment. Zombies have no environment and are not among
/// them; see [`zombie_children`].
#[must_use]
pub fn with_run_dir(run_dir: &Path) -> Vec<u32> {
    all_pids().filter(|pid| carries(*pid, run_dir)).collect()
}

fn all_pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn carries(pid: u32, run_dir: &Path) -> bool {
    variable(pid, RUN_DIR_ENV).is_some_and(|value| value == run_dir)
}

/// A variable of another process's environment, as it was at exec.
#[must_use]
pub fn variable(pid: u32, name: &str) -> Option<PathBuf> {
    let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut entries = environ.split(|byte| *byte == 0);
    let value = entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(value)))
}

/// The command line, for messages.
#[must_use]
pub fn command_line(pid: u32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes).replace('\0', " ");
    text.chars().take(200).collect()
}

/// Whether the process exists and is not a zombie.
#[must_use]
pub fn is_alive(pid: u32) -> bool {
    stat(pid).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X'))
}

/// The dead children that `parent` has not collected.
#[must_use]
pub fn zombie_children(parent: u32) -> Vec<u32> {
    all_pids().filter(|pid| stat(*pid) == Some(('Z', parent))).collect()
}

/// Whether `pid` is `ancestor` or comes from it, by the chain of parents.
#[must_use]
pub fn descends_from(pid: u32, ancestor: u32) -> bool {
    let mut chain = std::iter::successors(Some(pid), |pid| stat(*pid).map(|(_, parent)| parent).filter(|p| *p > 1));
    chain.any(|pid| pid == ancestor)
}

/// State and parent from `/proc/<pid>/stat`; the name before them may hold spaces and parentheses.
fn stat(pid: u32) -> Option<(char, u32)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Processes of the grid that belong to no browser it still has: started by none of its descendants, or working in a
/// session directory that is gone.
#[must_use]
pub fn orphans(run_dir: &Path, wharf: u32) -> Vec<u32> {
    let all: Vec<_> = with_run_dir(run_dir).into_iter().filter(|pid| *pid != wharf).collect();
    let home = |pid: u32| variable(pid, "TMPDIR");
    // Crashpad detaches itself from its browser on purpose: it is no orphan while a relative works in the same place.
    let homes: Vec<_> = all
        .iter()
        .filter(|pid| descends_from(**pid, wharf))
        .map(|pid| home(*pid))
        .collect();
    let lost = |pid: u32| !homes.contains(&home(pid)) || home(pid).is_some_and(|dir| !dir.exists());
    all.into_iter().filter(|pid| lost(*pid) && is_alive(*pid)).collect()
}

/// Kills every process of the run directory, again and again until none appears: a dying one may still fork.
pub fn kill_all(run_dir: &Path) {
    const ROUNDS: usize = 50;
    for _ in 0..ROUNDS {
        let pids = with_run_dir(run_dir);
        if pids.is_empty() {
            return;
        }
        for pid in pids {
            kill_checked(pid, run_dir);
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

fn kill_checked(pid: u32, run_dir: &Path) {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return;
    };
    let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else {
        return;
    };
    // Checked after the handle was taken: the pid cannot have changed hands in between unnoticed.
    if carries(pid.as_raw_nonzero().get().unsigned_abs(), run_dir) {
        let _ = pidfd_send_signal(&handle, Signal::KILL);
    }
}
