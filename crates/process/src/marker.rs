//! The marker: two environment variables by which a tree's processes are found again, whoever their parent is now.
//!
//! Its own file because the sweep at start, the orphan count and the guard all ask the same question. Chromium's
//! zygotes write their title over their environment, so a process also counts if it is a helper (`--type=`) of a
//! profile in our run directory, or shares a session with one that counts. The invariant: nothing of the caller's own
//! session, and for the sweep nothing descended from the caller, is ever touched.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs::File,
    io::Read as _,
    os::{
        fd::AsFd as _,
        unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    },
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::getpid,
};

use crate::{
    ProcessState,
    escape::Held,
    scan::{self, ProcessInfo},
    tree::raw,
};

/// Names the run directory of the Wharf that started a process.
pub const RUN_DIR_ENV: &str = "_WHARF_OWNER_RUN_DIR";
/// Names the browser a process belongs to.
pub const BROWSER_ENV: &str = "_WHARF_OWNER_BROWSER";

/// How long a sweep waits for the dead to be gone; a killed process needs milliseconds, a stuck disk seconds.
const SWEEP_LIMIT: Duration = Duration::from_secs(10);
/// An environment is at most this long for us; the marker is written first to last by `execve`, ours are small.
const ENVIRON_LIMIT: u64 = 256 * 1024;

/// How often, and how far apart, a process without an environment is asked again: an `execve` takes a millisecond.
const EXEC_LOOKS: u32 = 25;
const EXEC_PAUSE: Duration = Duration::from_millis(2);

/// Whose process it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    /// The run directory, as [`crate::RunDir::path`] gives it.
    pub run_dir: PathBuf,
    /// The browser's id.
    pub browser: String,
}

/// What a sweep did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SweepReport {
    /// Processes that were killed.
    pub killed: Vec<u32>,
    /// Processes that were still there at the limit.
    pub survivors: Vec<u32>,
}

// === impl Marker ===

impl Marker {
    pub(crate) fn env(&self) -> [(OsString, OsString); 2] {
        [
            (RUN_DIR_ENV.into(), self.run_dir.clone().into_os_string()),
            (BROWSER_ENV.into(), OsString::from(&self.browser)),
        ]
    }
}

/// Ends every process of `run_dir` that is not descended from the caller: what a past life left. Blocks until they are
/// gone, at most ten seconds.
pub fn sweep_leftovers(run_dir: &Path) -> SweepReport {
    end_all(|| {
        let all = scan::processes();
        let parents: BTreeMap<u32, u32> = all.iter().map(|p| (p.pid, p.parent)).collect();
        marked(&all, run_dir)
            .into_iter()
            .filter(|p| !descends(p.pid, raw(getpid()), &parents))
            .collect()
    })
}

/// Processes of `run_dir` that belong to none of the trees with these main pids. Must be none, always.
pub fn orphans(run_dir: &Path, known: &[u32]) -> Vec<u32> {
    find_orphans(run_dir, known).iter().map(|p| p.pid).collect()
}

/// Ends what [`orphans`] finds. Blocks until they are gone, at most ten seconds.
pub fn kill_orphans(run_dir: &Path, known: &[u32]) -> SweepReport {
    end_all(|| find_orphans(run_dir, known))
}

fn find_orphans(run_dir: &Path, known: &[u32]) -> Vec<ProcessInfo> {
    let all = scan::processes();
    let parents: BTreeMap<u32, u32> = all.iter().map(|p| (p.pid, p.parent)).collect();
    let owners: BTreeSet<Vec<u8>> = known.iter().filter_map(|root| browser_of(*root, run_dir)).collect();
    let mut found = marked(&all, run_dir);
    found.retain(|p| !known.contains(&p.session) && !known.contains(&p.pid));
    found.retain(|p| !known.iter().any(|root| descends(p.pid, *root, &parents)));
    // A helper in a session of its own (Chromium's crash handler) is its living browser's, not an orphan.
    found.retain(|p| browser_of(p.pid, run_dir).is_none_or(|browser| !owners.contains(&browser)));
    found
}

fn marked(all: &[ProcessInfo], run_dir: &Path) -> Vec<ProcessInfo> {
    let own_session = scan::own().map(|own| own.session).unwrap_or_default();
    let own = raw(getpid());
    let eligible =
        |p: &&ProcessInfo| p.pid > 1 && p.pid != own && p.session != own_session && p.state != ProcessState::Zombie;
    let carriers = all.iter().filter(eligible).filter(|p| carries(p, run_dir));
    // Session 0 is the kernel's and of processes in other pid namespaces: it groups nothing.
    let sessions: BTreeSet<u32> = carriers.map(|p| p.session).filter(|session| *session > 1).collect();
    all.iter()
        .filter(eligible)
        .filter(|p| sessions.contains(&p.session))
        .copied()
        .collect()
}

fn descends(mut pid: u32, from: u32, parents: &BTreeMap<u32, u32>) -> bool {
    // Bounded: the snapshot is not atomic and could, in theory, hold a loop.
    for _ in 0..parents.len() {
        match parents.get(&pid) {
            _ if pid == from => return true,
            Some(parent) if *parent > 0 => pid = *parent,
            _ => return false,
        }
    }
    false
}

fn carries(process: &ProcessInfo, run_dir: &Path) -> bool {
    matches!(owner(process, run_dir), Owner::Browser(_)) || is_helper(process.pid, run_dir)
}

/// Whose a process is, by its environment.
pub(crate) enum Owner {
    /// This browser of the run directory in question.
    Browser(Vec<u8>),
    /// It has no environment: it is dying or dead, or in the middle of an `execve`.
    Empty,
    /// Not ours to read: the environment does not tell.
    Unreadable,
    /// Somebody else's.
    Other,
}

/// Whose a process is, as far as its environment tells. One in the middle of `execve` has none for a moment: it is asked
/// again, or it would get away.
pub(crate) fn owner(process: &ProcessInfo, run_dir: &Path) -> Owner {
    for _ in 0..EXEC_LOOKS {
        let owner = owner_now(process.pid, run_dir);
        // Threads of the kernel (session 0) never have one.
        let may_be_in_exec = matches!(owner, Owner::Empty) && process.session > 0;
        if !may_be_in_exec || scan::process(process.pid).is_none_or(|now| now.is_exiting) {
            return owner;
        }
        thread::sleep(EXEC_PAUSE);
    }
    Owner::Empty
}

fn owner_now(pid: u32, run_dir: &Path) -> Owner {
    match read(pid, "environ") {
        Some(environ) if environ.is_empty() => Owner::Empty,
        Some(environ) => browser_in(&environ, pid, run_dir).map_or(Owner::Other, Owner::Browser),
        None => Owner::Unreadable,
    }
}

/// The browser id in the environment of a process that carries this run directory.
pub(crate) fn browser_of(pid: u32, run_dir: &Path) -> Option<Vec<u8>> {
    browser_in(&read(pid, "environ")?, pid, run_dir)
}

fn browser_in(environ: &[u8], pid: u32, run_dir: &Path) -> Option<Vec<u8>> {
    let value = |name: &str| {
        environ
            .split(|byte| *byte == 0)
            .find_map(|var| var.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    };
    let ours = value(RUN_DIR_ENV)? == run_dir.as_os_str().as_bytes() && is_same_place(pid, run_dir);
    ours.then(|| value(BROWSER_ENV).unwrap_or_default().to_vec())
}

/// A Wharf in a container may have a run directory of the same name: seen from the host, its browsers carry the same
/// text. The directory behind the name, in the process's own root, tells them apart.
fn is_same_place(pid: u32, run_dir: &Path) -> bool {
    let relative = run_dir.strip_prefix("/").unwrap_or(run_dir);
    let theirs = Path::new("/proc").join(pid.to_string()).join("root").join(relative);
    match (std::fs::metadata(run_dir), std::fs::metadata(theirs)) {
        (Ok(ours), Ok(theirs)) => (ours.dev(), ours.ino()) == (theirs.dev(), theirs.ino()),
        // Not ours to look at, or a chroot of Chromium's sandbox: the text decides.
        _ => true,
    }
}

fn is_helper(pid: u32, run_dir: &Path) -> bool {
    let Some(cmdline) = read(pid, "cmdline") else {
        return false;
    };
    let mut profile = b"--user-data-dir=".to_vec();
    profile.extend_from_slice(run_dir.join("browsers").as_os_str().as_bytes());
    profile.push(b'/');
    let has = |needle: &[u8]| cmdline.windows(needle.len()).any(|window| window == needle);
    has(b"--type=") && has(&profile) && is_same_place(pid, run_dir)
}

fn read(pid: u32, file: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(format!("/proc/{pid}/{file}"))
        .ok()?
        .take(ENVIRON_LIMIT)
        .read_to_end(&mut bytes)
        .ok()?;
    Some(bytes)
}

/// Kills what `find` finds until it finds nothing, or the limit passes.
fn end_all(find: impl Fn() -> Vec<ProcessInfo>) -> SweepReport {
    let limit = Instant::now() + SWEEP_LIMIT;
    let mut report = SweepReport::default();
    loop {
        let found = find();
        if found.is_empty() {
            return report;
        }
        if Instant::now() >= limit {
            report.survivors = found.iter().map(|p| p.pid).collect();
            return report;
        }
        let held: Vec<Held> = found.into_iter().filter_map(Held::pin).collect();
        held.iter().for_each(Held::kill);
        for process in &held {
            let left = limit.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).ok();
            let _timed_out = poll(
                &mut [PollFd::from_borrowed_fd(process.pidfd.as_fd(), PollFlags::IN)],
                timeout.as_ref(),
            );
            let _ours = process.gone();
            if !report.killed.contains(&process.info.pid) {
                report.killed.push(process.info.pid);
            }
        }
    }
}
