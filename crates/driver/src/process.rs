//! A browser's process tree and its output: what every driver's launch and end have in common.
//!
//! Its own file because drivers differ in how they speak to a browser and not in how one is started, named, killed and
//! explained. The invariant: dropping a [`Process`] kills the tree and removes its directory; an end has one cause.

use std::{fs, io, os::unix::fs::PermissionsExt as _, path::Path, sync::Arc};

use wharf_process::{
    Cgroups, ExitStatus, Exited, Marker, Output, Priority, RunDir, SessionDir, SpawnRequest, Spawner, Tree,
};

use crate::{DriverProblem, Exit, LaunchError, LaunchSpec, Urgency, stderr::Stderr};

/// Below Chromium's own 300 for renderers, above our 0: pages go first, browsers next, Wharf last.
const OOM_SCORE_ADJ: i16 = 200;
/// A fresh profile is 2 MB, a used one tens.
const LEAST_SPACE: u64 = 50 << 20;

/// A started tree, ready or not. Dropping it kills the tree and removes its directory.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) tree: Tree,
    pub(crate) stderr: Stderr,
}

/// Makes the browser's own directory, off the async threads.
pub(crate) async fn make_dir(run_dir: &Arc<RunDir>, id: &str) -> Result<SessionDir, LaunchError> {
    let (run_dir, id) = (Arc::clone(run_dir), id.to_owned());
    let made = tokio::task::spawn_blocking(move || run_dir.session_dir(&id)).await;
    made.map_err(io::Error::other)
        .and_then(|made| made)
        .map_err(LaunchError::Disk)
}

/// What is the same for every kind; program, arguments, environment and directories are the driver's to set.
pub(crate) fn request(program: &Path, spec: &LaunchSpec, run_dir: &RunDir, cgroups: Option<&Cgroups>) -> SpawnRequest {
    SpawnRequest {
        program: program.to_owned(),
        args: Vec::new(),
        env: Vec::new(),
        cwd: None,
        fds: Vec::new(),
        stdout: Output::Null,
        stderr: Output::Piped,
        priority: if spec.urgency == Urgency::Refill {
            Priority::Background
        } else {
            Priority::Normal
        },
        oom_score_adj: Some(OOM_SCORE_ADJ),
        marker: Marker {
            run_dir: run_dir.path().to_owned(),
            browser: spec.id.to_string(),
        },
        dir: None,
        cgroups: cgroups.cloned(),
    }
}

/// Whether this file can be executed, as far as its mode tells.
pub(crate) fn check_executable(path: &Path) -> Result<(), DriverProblem> {
    let not = |reason: String| DriverProblem::NotExecutable {
        path: path.to_owned(),
        reason,
    };
    let meta = fs::metadata(path).map_err(|e| not(e.to_string()))?;
    if !meta.is_file() {
        return Err(not("not a file".into()));
    }
    if meta.permissions().mode() & 0o111 == 0 {
        return Err(not("it has no execute permission".into()));
    }
    Ok(())
}

/// Whether there is room for a browser's files.
pub(crate) fn check_space(run_dir: &RunDir) -> Result<(), DriverProblem> {
    let path = run_dir.path();
    match rustix::fs::statvfs(path) {
        Ok(stat) if stat.f_bavail.saturating_mul(stat.f_frsize) < LEAST_SPACE => Err(DriverProblem::NoSpace {
            path: path.to_owned(),
            free: stat.f_bavail.saturating_mul(stat.f_frsize),
        }),
        _ => Ok(()),
    }
}

/// The dynamic loader's words: `…: error while loading shared libraries: libnss3.so: cannot open …`.
pub(crate) fn missing_library(stderr: &str) -> Option<String> {
    let (_, rest) = stderr.split_once("error while loading shared libraries: ")?;
    rest.split(':').next().map(str::to_owned)
}

// === impl Process ===

impl Process {
    /// Starts the tree and drains what it prints.
    pub(crate) async fn start(spawner: Spawner, request: SpawnRequest) -> Result<Self, LaunchError> {
        let spawned = spawner.spawn(request).await?;
        let streams = spawned.stderr.into_iter().chain(spawned.stdout);
        let stderr = Stderr::drain(streams).map_err(LaunchError::Disk)?;
        Ok(Self {
            tree: spawned.tree,
            stderr,
        })
    }

    /// Undoes a launch: returns when neither process nor file is left.
    pub(crate) async fn undo(&self) {
        self.tree.kill().await;
        self.tree.files_removed().await;
    }

    /// Its last words, once they are all here.
    pub(crate) async fn last_words(&self) -> String {
        self.stderr.settled().await;
        self.stderr.tail()
    }

    /// Why the launch failed of a browser that has left.
    pub(crate) async fn left_early(&self, exited: Exited) -> LaunchError {
        if exited.out_of_memory.is_some() {
            return LaunchError::OutOfMemory;
        }
        LaunchError::ExitedEarly {
            exit: exited.status,
            stderr: self.last_words().await,
        }
    }

    /// How a browser that was ready has ended.
    pub(crate) async fn describe(&self, exited: Exited) -> Exit {
        if exited.killed_by_us {
            return Exit::Killed;
        }
        if let Some(memory) = exited.out_of_memory {
            return Exit::OutOfMemory {
                used: memory.used,
                limit: memory.limit,
            };
        }
        match exited.status {
            ExitStatus::Code(0) => Exit::Clean,
            status => Exit::Crashed {
                status,
                detail: self.last_words().await,
            },
        }
    }
}
