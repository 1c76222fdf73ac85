//! Where things live: the data directory (records, identity) and the run directory (browsers' files while they run).
//!
//! Its own file because a restarted Wharf must find what its past life left, so both are told from settings alone:
//! the run directory's name is made from the data directory's.

use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    io,
    path::{Path, PathBuf},
};

use anyhow::Context;
use uuid::Uuid;
use wharf_core::WorkerId;

use crate::config::Settings;

/// A tmpfs with less room than this is not worth using: one browser's profile and cache need some tens of megabytes.
const ENOUGH: u64 = 256 << 20;

/// The directories of one grid.
pub struct Places {
    pub data_dir: PathBuf,
    pub run_dir: PathBuf,
}

impl Places {
    pub fn tell(settings: &Settings) -> anyhow::Result<Self> {
        let data_dir = match &settings.data_dir {
            Some(dir) => dir.clone(),
            None => default_data_dir().context("neither XDG_STATE_HOME nor HOME is set: say where with --data-dir")?,
        };
        fs::create_dir_all(&data_dir)
            .with_context(|| format!("could not make the data directory {}", data_dir.display()))?;
        let data_dir = fs::canonicalize(&data_dir).with_context(|| format!("could not open {}", data_dir.display()))?;
        let run_dir = match &settings.run_dir {
            Some(dir) => dir.clone(),
            None => default_run_dir(&data_dir),
        };
        Ok(Self { data_dir, run_dir })
    }

    /// The worker's id, made once and kept.
    pub fn worker_id(&self) -> anyhow::Result<WorkerId> {
        let path = self.data_dir.join("worker-id");
        match fs::read_to_string(&path) {
            Ok(text) => text
                .trim()
                .parse()
                .with_context(|| format!("{} does not hold a worker id", path.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let id = WorkerId::from_uuid(Uuid::now_v7());
                write_whole(&path, &format!("{id}\n"))?;
                Ok(id)
            }
            Err(error) => Err(error).with_context(|| format!("could not read {}", path.display())),
        }
    }
}

/// Writes a file so that a reader sees all of it or nothing.
pub fn write_whole(path: &Path, text: &str) -> anyhow::Result<()> {
    let part = path.with_extension("part");
    fs::write(&part, text).with_context(|| format!("could not write {}", part.display()))?;
    fs::rename(&part, path).with_context(|| format!("could not write {}", path.display()))
}

fn default_data_dir() -> Option<PathBuf> {
    let set = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    set("XDG_STATE_HOME")
        .map(|dir| dir.join("wharf"))
        .or_else(|| set("HOME").map(|dir| dir.join(".local/state/wharf")))
}

/// On tmpfs where there is one with room: profiles there launch faster and wear no disk.
fn default_run_dir(data_dir: &Path) -> PathBuf {
    let shm = Path::new("/dev/shm");
    let room = rustix::fs::statvfs(shm)
        .map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize))
        .unwrap_or(0);
    let is_writable = rustix::fs::access(shm, rustix::fs::Access::WRITE_OK).is_ok();
    if room < ENOUGH || !is_writable {
        return data_dir.join("run");
    }
    let mut hasher = DefaultHasher::new();
    data_dir.hash(&mut hasher);
    rustix::process::getuid().as_raw().hash(&mut hasher);
    shm.join(format!("wharf-{:016x}", hasher.finish()))
}
