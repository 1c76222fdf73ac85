//! The run directory: one per Wharf process, locked, with one directory per browser inside.
//!
//! Its own file because it ties files to processes: whoever holds the lock may kill what carries the directory's name
//! and may remove what lies in it. The invariant: a [`SessionDir`] is removed exactly once, after its tree is gone,
//! whatever path the code takes; what a power cut left is removed at the next start.

use std::{
    fs, io,
    io::{Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rustix::fs::{FlockOperation, flock};

use crate::{SweepReport, keeper::keeper, sweep_leftovers};

/// A guard that is sweeping needs milliseconds to seconds; it is worth waiting for, another Wharf is not.
const GUARD_PATIENCE: Duration = Duration::from_secs(15);
/// A directory in use by a dying process needs milliseconds; then a warning is worth more than waiting.
const REMOVE_ATTEMPTS: u32 = 40;

/// A locked run directory.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    swept: SweepReport,
    _lock: fs::File,
}

/// Why a run directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    /// Another Wharf works there.
    #[error("run directory `{}` is in use by process {holder}; stop it or choose another `run_dir`", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The pid written in its lock file.
        holder: String,
    },
    /// The file system refused.
    #[error("could not {action} `{}`: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// One browser's directory: `profile`, `tmp` and `downloads`. Removed when dropped, in the background.
#[derive(Debug)]
pub struct SessionDir {
    path: Option<PathBuf>,
}

// === impl RunDir ===

impl RunDir {
    /// Creates and locks the directory, ends what a past life left running and removes what it left lying. Blocks.
    pub fn open(path: &Path) -> Result<Self, RunDirError> {
        let failed = |action, path: &Path| {
            let path = path.to_owned();
            move |source| RunDirError::Io { action, path, source }
        };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(failed("create", path))?;
        // Canonical, so that the marker is one text however the path was spelled.
        let path = fs::canonicalize(path).map_err(failed("resolve", path))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).map_err(failed("make private", &path))?;
        let lock = lock(&path, "wharf", GUARD_PATIENCE)?;
        let browsers = path.join("browsers");
        let swept = clean_up(&path).map_err(failed("empty", &browsers))?;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&browsers)
            .map_err(failed("create", &browsers))?;
        Ok(Self {
            path,
            swept,
            _lock: lock,
        })
    }

    /// The canonical path, which is also the marker.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the sweep at [`RunDir::open`] found.
    pub fn swept(&self) -> &SweepReport {
        &self.swept
    }

    /// Makes the directory of one browser. Blocks, briefly.
    pub fn session_dir(&self, id: &str) -> io::Result<SessionDir> {
        if id.is_empty() || !id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-') {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("`{id}` is not a browser id"),
            ));
        }
        let path = self.path.join("browsers").join(id);
        let mut builder = fs::DirBuilder::new();
        builder.mode(0o700).create(&path)?;
        // From here on the value removes what was made, also if the next line fails.
        let dir = SessionDir { path: Some(path) };
        for part in ["profile", "tmp", "downloads"] {
            builder.create(dir.path().join(part))?;
        }
        Ok(dir)
    }

    /// The ids of the browser directories that exist now, for leak checks.
    pub fn session_ids(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path.join("browsers")) else {
            return Vec::new();
        };
        entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    }
}

/// Takes the lock and writes who we are into it. A holder that calls itself `guard` is waited for.
pub(crate) fn lock(run_dir: &Path, role: &str, patience: Duration) -> Result<fs::File, RunDirError> {
    let path = run_dir.join("lock");
    let failed = |source| RunDirError::Io {
        action: "open",
        path: path.clone(),
        source,
    };
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(failed)?;
    let limit = Instant::now() + patience;
    while let Err(refused) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
        if refused != rustix::io::Errno::WOULDBLOCK {
            return Err(RunDirError::Io {
                action: "lock",
                path,
                source: refused.into(),
            });
        }
        let holder = lock_holder(run_dir);
        if !holder.starts_with("guard") || Instant::now() >= limit {
            let holder = holder.split_whitespace().nth(1).unwrap_or("unknown").to_owned();
            return Err(RunDirError::InUse {
                path: run_dir.to_owned(),
                holder,
            });
        }
        thread::sleep(Duration::from_millis(20));
    }
    let mut old = String::new();
    let _old = file.read_to_string(&mut old);
    file.set_len(0)
        .and_then(|()| io::Seek::rewind(&mut file))
        .map_err(failed)?;
    writeln!(file, "{role} {}", std::process::id()).map_err(failed)?;
    Ok(file)
}

/// Who wrote itself into the lock file last: role and pid.
pub(crate) fn lock_holder(run_dir: &Path) -> String {
    fs::read_to_string(run_dir.join("lock")).unwrap_or_default()
}

/// Ends every process of a past life and removes every browser directory; only for the holder of the lock. A process
/// that was being forked when its Wharf died may carry the marker, and write, a moment after the first look: a directory
/// that fills again means that there is more to end.
pub(crate) fn clean_up(run_dir: &Path) -> io::Result<SweepReport> {
    let mut report = SweepReport::default();
    for attempt in 1..=REMOVE_ATTEMPTS {
        let SweepReport { killed, survivors } = sweep_leftovers(run_dir);
        report.killed.extend(killed);
        report.survivors = survivors;
        match fs::remove_dir_all(run_dir.join("browsers")) {
            Err(e) if e.kind() == io::ErrorKind::NotFound && !run_dir.join("browsers").exists() => return Ok(report),
            Err(e) if attempt == REMOVE_ATTEMPTS => return Err(e),
            Err(_) => thread::sleep(Duration::from_millis(u64::from(attempt.min(20)))),
            Ok(()) => return Ok(report),
        }
    }
    Ok(report)
}

// === impl SessionDir ===

impl SessionDir {
    /// Where it is.
    pub fn path(&self) -> &Path {
        self.path.as_deref().unwrap_or(Path::new(""))
    }

    /// Removes it, off this thread; resolves when it is gone or cannot be removed (then logged).
    pub async fn remove(mut self) {
        if let (Some(path), Ok(keeper)) = (self.path.take(), keeper()) {
            let _removed = keeper.reaper().spawn_blocking(move || remove_stubbornly(&path)).await;
        }
    }

    /// Removes it here and now; for threads that may block.
    pub fn remove_now(mut self) {
        if let Some(path) = self.path.take() {
            remove_stubbornly(&path);
        }
    }
}

impl Drop for SessionDir {
    fn drop(&mut self) {
        let Some(path) = self.path.take() else { return };
        match keeper() {
            Ok(keeper) => drop(keeper.reaper().spawn_blocking(move || remove_stubbornly(&path))),
            Err(_) => drop(thread::spawn(move || remove_stubbornly(&path))),
        }
    }
}

fn remove_stubbornly(path: &Path) {
    for attempt in 1..=REMOVE_ATTEMPTS {
        match fs::remove_dir_all(path) {
            Ok(()) => return,
            Err(e) if e.kind() == io::ErrorKind::NotFound && !path.exists() => return,
            Err(error) if attempt == REMOVE_ATTEMPTS => {
                tracing::warn!(path = %path.display(), %error, "could not remove a browser's directory; the next start will");
            }
            // ENOTEMPTY: something was written during the removal.
            Err(_) => thread::sleep(Duration::from_millis(u64::from(attempt.min(20)))),
        }
    }
}
