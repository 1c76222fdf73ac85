//! What the kernel says of the workers' browsers: trees, leftovers, directories.
//!
//! Its own file because the leak check must not believe the grid's own account. Every process of a browser carries the
//! run directory of its worker and the browser's id in its environment, however it was forked or re-parented.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use wharf_testkit::processes::{self, RUN_DIR_ENV};

use crate::book::{Book, Sort};

const BROWSER_ENV: &str = "_WHARF_OWNER_BROWSER";
/// The guard of a killed worker sweeps within this time.
const SWEPT_WITHIN: Duration = Duration::from_secs(5);
/// A directory whose processes are gone is removed within this time, also on a busy machine.
const REMOVED_WITHIN: Duration = Duration::from_secs(15);

/// Browsers by id, each with its processes.
pub type Browsers = BTreeMap<String, Vec<u32>>;

/// The workers as the conductor last left them.
pub struct Roster(Mutex<Vec<Post>>);

/// One worker.
#[derive(Debug, Clone)]
pub struct Post {
    pub run_dir: PathBuf,
    pub slots: usize,
    /// Since when it does not run; `None` while it does.
    pub down_since: Option<Instant>,
    /// Held by a signal: it cannot tidy up now.
    pub is_held: bool,
}

/// Directories that were seen without a process, and since when.
#[derive(Default)]
pub struct Lonely(HashMap<PathBuf, Instant>);

// === impl Roster ===

impl Roster {
    pub fn new(posts: Vec<Post>) -> Self {
        Self(Mutex::new(posts))
    }

    pub fn change(&self, worker: usize, change: impl FnOnce(&mut Post)) {
        if let Some(post) = self.0.lock().get_mut(worker) {
            change(post);
        }
    }

    pub fn all(&self) -> Vec<Post> {
        self.0.lock().clone()
    }
}

/// The browsers of one worker now.
pub fn browsers(run_dir: &Path) -> Browsers {
    let mut found = Browsers::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        if processes::variable(pid, RUN_DIR_ENV).is_none_or(|dir| dir != run_dir) {
            continue;
        }
        if let Some(id) = processes::variable(pid, BROWSER_ENV).filter(|_| processes::is_alive(pid)) {
            found.entry(id.display().to_string()).or_default().push(pid);
        }
    }
    found
}

/// Looks at every worker once; findings go to the book.
pub fn inspect(roster: &Roster, lonely: &mut Lonely, book: &Book) {
    for (worker, post) in roster.all().iter().enumerate() {
        let seen = browsers(&post.run_dir);
        if post.down_since.is_some_and(|since| since.elapsed() > SWEPT_WITHIN) && !seen.is_empty() {
            // It may have been started this very moment.
            let is_still_down = roster.all()[worker].down_since == post.down_since;
            let again = browsers(&post.run_dir);
            if is_still_down && again.keys().any(|id| seen.contains_key(id)) {
                book.finding(
                    Sort::Leak,
                    format!("worker {worker} is gone and its browsers are there: {}", told(&again)),
                );
            }
        }
        if seen.len() > post.slots {
            // A look takes a while: one may have ended and another begun meanwhile. Those seen twice were there at once.
            let again = browsers(&post.run_dir);
            let both = seen.keys().filter(|id| again.contains_key(*id)).count();
            if both > post.slots {
                let text = format!(
                    "worker {worker} has {both} browsers on {} slots: {}",
                    post.slots,
                    told(&again)
                );
                book.finding(Sort::Leak, text);
            }
        }
        if post.down_since.is_none() && !post.is_held {
            lonely.look(worker, post, &seen, book);
        }
    }
}

// === impl Lonely ===

impl Lonely {
    fn look(&mut self, worker: usize, post: &Post, seen: &Browsers, book: &Book) {
        let dirs: BTreeSet<_> = directories(&post.run_dir).into_iter().collect();
        let is_own = |dir: &PathBuf| dir.starts_with(&post.run_dir);
        self.0.retain(|dir, _| !is_own(dir) || dirs.contains(dir));
        for dir in dirs {
            let id = dir
                .file_name()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default();
            if seen.contains_key(&id) {
                self.0.remove(&dir);
                continue;
            }
            let since = *self.0.entry(dir.clone()).or_insert_with(Instant::now);
            if since.elapsed() > REMOVED_WITHIN {
                let text = format!(
                    "worker {worker}: {} is there without a process for {:?}",
                    dir.display(),
                    since.elapsed()
                );
                book.finding(Sort::Leak, text);
                self.0.insert(dir, Instant::now() + Duration::from_secs(3600));
            }
        }
    }

    /// After a worker was held or down: what it had no time for is not held against it.
    pub fn forgive(&mut self, run_dir: &Path) {
        self.0.retain(|dir, _| !dir.starts_with(run_dir));
    }
}

/// The directories of a worker's browsers.
pub fn directories(run_dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(run_dir.join("browsers")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

fn told(browsers: &Browsers) -> String {
    let each = browsers.iter().map(|(id, pids)| {
        let line = pids
            .first()
            .map(|pid| processes::command_line(*pid))
            .unwrap_or_default();
        format!("{id} {pids:?} {}", line.chars().take(60).collect::<String>())
    });
    each.collect::<Vec<_>>().join("; ")
}

/// A handle on one process, so that a signal later cannot reach a stranger.
pub struct Handle(rustix::fd::OwnedFd);

// === impl Handle ===

impl Handle {
    pub fn on(pid: u32) -> Option<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
        pidfd_open(pid, PidfdFlags::empty()).ok().map(Self)
    }

    pub fn send(&self, signal: Signal) -> bool {
        pidfd_send_signal(&self.0, signal).is_ok()
    }
}
