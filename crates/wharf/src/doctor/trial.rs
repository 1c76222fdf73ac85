//! The trial: the driver's own check, in a directory of its own.
//!
//! Its own file because it is the only part of the doctor that starts something. It uses a directory inside `run_dir`,
//! so that it sees the same file system without touching a running grid, whose browsers carry another marker. The
//! invariant: when [`run`] returns, no process and no file of the trial is left, and directories made for it are gone.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::signal::unix::{SignalKind, signal};
use wharf_driver::{AllowList, Driver, DriverProblem, DriverReport};
use wharf_process::{Cgroups, RunDir, RunDirError};

use crate::{
    config::Settings,
    drivers::{self, Ground},
};

/// What an abandoned launch may take to be gone.
const CLEAN_UP: Duration = Duration::from_secs(10);

/// Why there is no report.
#[derive(Debug)]
pub enum Failure {
    /// The driver's verdict.
    Driver(DriverProblem),
    /// It did not come so far.
    Setup(String),
}

/// How the trial ended.
pub enum Ended {
    /// With the driver's answer.
    Told(Result<DriverReport, Failure>),
    /// Somebody wants us to leave: the signal's number.
    Interrupted(u8),
}

/// Directories that were missing before and are removed again, unless something lies in them by then.
#[derive(Debug, Default)]
pub struct Made(Vec<PathBuf>);

// === impl Made ===

impl Made {
    /// Remembers which of these and of those above them do not exist yet.
    pub fn note(&mut self, path: &Path) {
        let missing = path
            .ancestors()
            .take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists());
        self.0.extend(missing.map(Path::to_owned));
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // The deepest first; a directory that is in use by now is not empty, and stays.
        self.0.sort_by_key(|dir| std::cmp::Reverse(dir.components().count()));
        for dir in &self.0 {
            let _in_use = fs::remove_dir(dir);
        }
    }
}

/// Runs it. The caller has noted `run_dir` in a [`Made`].
pub async fn run(settings: &Settings, run_dir: &Path, cgroups: Option<Cgroups>) -> Ended {
    let place = match open(run_dir) {
        Ok(place) => Arc::new(place),
        Err(error) => return Ended::Told(Err(Failure::Setup(error.to_string()))),
    };
    let ended = check(settings, &place, cgroups).await;
    let gone = async {
        while !(wharf_process::live_roots().is_empty() && place.session_ids().is_empty()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    // An abandoned launch is killed in the background.
    let _late = tokio::time::timeout(CLEAN_UP, gone).await;
    let _left = fs::remove_dir_all(place.path());
    ended
}

/// A fixed name, so that what a killed doctor left is swept by the next; two at once get their own.
fn open(run_dir: &Path) -> Result<RunDir, RunDirError> {
    match RunDir::open(&run_dir.join("doctor")) {
        Err(RunDirError::InUse { .. }) => RunDir::open(&run_dir.join(format!("doctor-{}", std::process::id()))),
        other => other,
    }
}

async fn check(settings: &Settings, place: &Arc<RunDir>, cgroups: Option<Cgroups>) -> Ended {
    let driver = match driver(settings, place, cgroups) {
        Ok(driver) => driver,
        Err(failure) => return Ended::Told(Err(failure)),
    };
    let (terminate, interrupt) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    let (Ok(mut terminate), Ok(mut interrupt)) = (terminate, interrupt) else {
        return Ended::Told(Err(Failure::Setup("signals cannot be waited for".to_owned())));
    };
    let number = |kind: SignalKind| u8::try_from(kind.as_raw_value()).unwrap_or_default();
    tokio::select! {
        // Dropping the check calls its launch off.
        report = driver.check() => Ended::Told(report.map_err(Failure::Driver)),
        _ = terminate.recv() => Ended::Interrupted(number(SignalKind::terminate())),
        _ = interrupt.recv() => Ended::Interrupted(number(SignalKind::interrupt())),
    }
}

/// As `wharf up` makes it.
fn driver(settings: &Settings, place: &Arc<RunDir>, cgroups: Option<Cgroups>) -> Result<Arc<dyn Driver>, Failure> {
    let allow_list = AllowList::default().with(&settings.allow_flags).map_err(|forbidden| {
        Failure::Setup(format!(
            "allow_flag: --{} can never be allowed: it would give a client the host",
            forbidden.join(", --")
        ))
    })?;
    let ground = Ground {
        run_dir: place.clone(),
        cgroups: cgroups.filter(Cgroups::counts_memory),
        allow_list,
    };
    drivers::open(settings, ground).map_err(Failure::Driver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_directories_go_unless_they_are_in_use() {
        let home = tempfile::tempdir().unwrap();
        let (kept, deep) = (home.path().join("kept"), home.path().join("a/b"));
        let mut made = Made::default();
        made.note(&kept);
        made.note(&deep);
        made.note(home.path());
        for dir in [&kept, &deep] {
            fs::create_dir_all(dir).unwrap();
        }
        fs::write(kept.join("file"), "").unwrap();
        drop(made);
        assert!(kept.exists() && home.path().exists());
        assert!(!home.path().join("a").exists());
    }
}
