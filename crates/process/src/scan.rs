//! One pass over /proc: who exists, in which session and state, how much memory and CPU a tree uses.
//!
//! Its own file because it is the only place that parses the kernel's text. A tree is recognised by its session id:
//! every child calls `setsid`, so the session's number is the main process's pid. The invariant: a process that
//! vanishes between two reads is skipped, never an error.

use std::{fs, io::Read as _, time::Duration};

/// USER_HZ: fixed at 100 in the kernel's ABI for every architecture that Wharf runs on.
const TICKS_PER_SECOND: u64 = 100;
/// In less than this even the smallest `pid_max` (32,768) does not go all the way round unnoticed.
const WRAP_SECONDS: u64 = 60;

/// From the kernel's sched.h; proc(5) shows the flags and points there.
const PF_EXITING: u64 = 0x4;

/// What the kernel's one-letter process states mean for us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessState {
    /// Running or runnable (`R`).
    Running,
    /// Waiting, interruptible or not (`S`, `D`, `I`).
    Sleeping,
    /// Stopped by a signal or a debugger (`T`, `t`).
    Stopped,
    /// Dead but not yet reaped (`Z`, `X`).
    Zombie,
}

/// One line of `/proc/<pid>/stat`, the fields we need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessInfo {
    /// The process id.
    pub pid: u32,
    /// Its parent.
    pub parent: u32,
    /// Its process group.
    pub group: u32,
    /// Its session.
    pub session: u32,
    /// What it is doing.
    pub state: ProcessState,
    /// On its way out: a zombie, or about to be one.
    pub is_exiting: bool,
    /// Start time in ticks since boot: with the pid, a name that is never reused.
    pub started: u64,
    /// User and system time of this process.
    pub cpu: Duration,
}

/// All processes that can be seen.
pub(crate) fn processes() -> Vec<ProcessInfo> {
    processes_where(|_| true)
}

/// All processes that may have been started after `pid` was, at `started` ticks since boot: those with a higher number,
/// or all of them when the numbers may have begun again since. Older ones are not even looked at.
pub(crate) fn processes_after(pid: u32, started: u64) -> Vec<ProcessInfo> {
    let words = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let last = words("/proc/loadavg")
        .split_ascii_whitespace()
        .last()
        .and_then(|word| word.parse::<u32>().ok());
    let seconds = words("/proc/uptime")
        .split(['.', ' '])
        .next()
        .and_then(|word| word.parse::<u64>().ok());
    let age = seconds.map(|seconds| seconds.saturating_sub(started / TICKS_PER_SECOND));
    let may_have_wrapped = last.is_none_or(|last| last < pid) || age.is_none_or(|age| age > WRAP_SECONDS);
    processes_where(|other| may_have_wrapped || other > pid)
}

fn processes_where(wanted: impl Fn(u32) -> bool) -> Vec<ProcessInfo> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let mut text = Vec::with_capacity(512);
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| wanted(*pid))
        .filter_map(|pid| read_stat(pid, &mut text))
        .collect()
}

/// One process, if it exists.
pub fn process(pid: u32) -> Option<ProcessInfo> {
    read_stat(pid, &mut Vec::with_capacity(512))
}

/// The caller itself. From /proc and not from `getsid` and `getpgrp`: in a container entered from outside, session and
/// group have no number there (0), which rustix takes for a broken promise.
pub(crate) fn own() -> Option<ProcessInfo> {
    process(std::process::id())
}

/// The processes of the tree whose main process is (or was) `root`.
pub fn tree_processes(root: u32) -> Vec<ProcessInfo> {
    processes()
        .into_iter()
        .filter(|p| p.session == root || p.group == root)
        .collect()
}

/// Proportional set size of one process; `None` if it is gone or not ours to read.
pub(crate) fn pss_bytes(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()
        .map(|kb| kb * 1024)
}

fn read_stat(pid: u32, text: &mut Vec<u8>) -> Option<ProcessInfo> {
    text.clear();
    fs::File::open(format!("/proc/{pid}/stat"))
        .ok()?
        .read_to_end(text)
        .ok()?;
    parse_stat(pid, &String::from_utf8_lossy(text))
}

fn parse_stat(pid: u32, text: &str) -> Option<ProcessInfo> {
    // The name in parentheses may itself hold spaces and parentheses: fields count from the last one.
    let fields: Vec<&str> = text.get(text.rfind(')')? + 1..)?.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let id = |at: usize| number(at).and_then(|n| u32::try_from(n).ok());
    let state = match fields.first()?.bytes().next()? {
        b'R' => ProcessState::Running,
        b'T' | b't' => ProcessState::Stopped,
        b'Z' | b'X' => ProcessState::Zombie,
        _ => ProcessState::Sleeping,
    };
    let ticks = number(11)? + number(12)?;
    Some(ProcessInfo {
        pid,
        parent: id(1)?,
        group: id(2)?,
        session: id(3)?,
        state,
        is_exiting: state == ProcessState::Zombie || number(6)? & PF_EXITING != 0,
        started: number(19)?,
        cpu: Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_with_a_hostile_name_is_parsed() {
        let text = "42 (a) R 9 (b) S 7 5 6 0 -1 0 0 0 0 0 120 30 0 0 20 0 1 0 777 0 0";
        let info = parse_stat(42, text).unwrap();
        assert_eq!((info.parent, info.group, info.session, info.started), (7, 5, 6, 777));
        assert_eq!(
            (info.state, info.cpu),
            (ProcessState::Sleeping, Duration::from_millis(1500))
        );
    }

    #[test]
    fn own_process_is_seen_with_memory() {
        let own = std::process::id();
        assert!(processes().iter().any(|p| p.pid == own));
        assert!(pss_bytes(own).unwrap() > 100_000);
    }
}
