//! Where profiles and records lie: which file system, how much room, may we write, is another grid there?
//!
//! Its own file because `run_dir` and `data_dir` are the two places that Wharf writes to. The invariant: neither is
//! created or locked for good by asking.

use std::path::{Path, PathBuf};

use super::{
    finding::{Finding, Group, Needs, size},
    host::{self, Lock, Mount, Process, Room},
};
use crate::config::StoreUrl;

const GROUP: Group = Group::Directories;
/// A used profile is tens of megabytes; the driver refuses to start below this (driver/chromium/launch.rs).
const PROFILE: u64 = 50 << 20;
/// Files of a used profile and its cache.
const PROFILE_FILES: u64 = 1000;
/// A history of a day and SQLite's log.
const RECORDS: u64 = 100 << 20;
/// Locks and memory maps there cannot be trusted; the store refuses most of them.
const NETWORK: &[&str] = &["nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "coda", "ceph", "9p"];

/// One directory.
#[derive(Debug, Clone)]
pub struct Place {
    pub path: PathBuf,
    /// The file system's kind, such as `tmpfs`.
    pub kind: String,
    pub room: Option<Room>,
    pub is_writable: bool,
}

/// What is known of both.
#[derive(Debug, Clone)]
pub struct Facts {
    pub run: Place,
    pub data: Place,
    /// Why the data directory could not be made, if so.
    pub data_trouble: Option<String>,
    pub run_lock: Lock,
    /// The store's file and its lock; `None` is a store in memory.
    pub store: Option<(PathBuf, Lock)>,
    /// Who listens on the configured address: if it is who holds the locks, it is this very grid.
    pub listener: Option<Process>,
}

// === impl Place ===

impl Place {
    /// Of a directory that need not exist yet: then the nearest above it answers.
    pub fn gather(path: &Path, mounts: &[Mount]) -> Self {
        let near = host::nearest(path);
        let real = std::fs::canonicalize(near).unwrap_or_else(|_| near.to_owned());
        Self {
            path: path.to_owned(),
            kind: host::mount_of(mounts, &real).map_or_else(|| "unknown".to_owned(), |mount| mount.kind.clone()),
            room: host::room(&real),
            is_writable: host::is_writable(&real),
        }
    }

    fn is_network(&self) -> bool {
        NETWORK.contains(&self.kind.as_str()) || self.kind.starts_with("fuse.sshfs")
    }
}

/// The store's file and its lock, as store-sqlite names it.
pub fn store_lock(store: &StoreUrl, data_dir: &Path) -> Option<(PathBuf, Lock)> {
    let path = match store {
        StoreUrl::Memory | StoreUrl::Postgres(_) | StoreUrl::Redis(_) => return None,
        StoreUrl::Sqlite(Some(path)) => path.clone(),
        StoreUrl::Sqlite(None) => data_dir.join("wharf.db"),
    };
    // A link in /proc is absolute.
    let path = match (path.parent().map(std::fs::canonicalize), path.file_name()) {
        (Some(Ok(folder)), Some(name)) => folder.join(name),
        _ => path,
    };
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let lock = host::lock_of(Path::new(&name));
    Some((path, lock))
}

pub fn judge(facts: &Facts, needs: &Needs) -> Vec<Finding> {
    let mut findings = vec![profiles(&facts.run, needs)];
    findings.extend(inodes(&facts.run, needs));
    findings.push(run_lock(facts));
    findings.push(data(&facts.data, facts.data_trouble.as_deref()));
    findings.push(store(facts));
    findings
}

fn profiles(run: &Place, needs: &Needs) -> Finding {
    let (path, kind) = (run.path.display(), &run.kind);
    if !run.is_writable {
        return GROUP
            .problem("profiles", format!("run_dir {path} cannot be written"))
            .fix(format!(
                "chown \"$(id -u)\" {path}, or choose another place with --run-dir"
            ));
    }
    let Some(room) = run.room else {
        return GROUP.note(
            "profiles",
            format!("run_dir {path} lies on {kind}, which does not tell its room"),
        );
    };
    let (free, wanted) = (size(room.free), needs.times(PROFILE));
    let fix = format!("free {} there, or choose another place with --run-dir", size(wanted));
    if room.free < PROFILE {
        let says = format!("run_dir {path} has {free} free on {kind}; one browser's profile needs about 50 MB");
        return GROUP.problem("profiles", says).fix(fix);
    }
    if room.free < wanted {
        let says = format!(
            "run_dir {path} has {free} free on {kind}; the profiles of {} browsers may need {}",
            needs.browsers(),
            size(wanted)
        );
        return GROUP.warning("profiles", says).fix(fix);
    }
    if run.is_network() {
        let says = format!("run_dir {path} lies on {kind}, a network file system: launches are slow there");
        return GROUP
            .warning("profiles", says)
            .fix("--run-dir on a tmpfs or a local disk");
    }
    let says = format!("run_dir {path} lies on {kind} with {free} free");
    if kind == "tmpfs" || kind == "ramfs" {
        return GROUP.ok("profiles", says);
    }
    GROUP
        .note("profiles", format!("{says}; profiles on a tmpfs launch faster"))
        .fix("--run-dir below /dev/shm, or leave run_dir out where /dev/shm has 256 MiB free")
}

fn inodes(run: &Place, needs: &Needs) -> Option<Finding> {
    let free = run.room?.free_inodes?;
    let wanted = needs.times(PROFILE_FILES);
    let says = format!(
        "{free} inodes are free at {}; {} browsers may need {wanted}",
        run.path.display(),
        needs.browsers()
    );
    let fix = "remove files there, or choose another place with --run-dir";
    Some(match free {
        free if free < PROFILE_FILES => GROUP.problem("inodes", says).fix(fix),
        free if free < wanted => GROUP.warning("inodes", says).fix(fix),
        _ => GROUP.ok("inodes", says),
    })
}

/// Held by this very grid is only news; held by another means that `wharf up` would refuse.
fn held(facts: &Facts, name: &'static str, what: &str, holder: Option<&Process>) -> Finding {
    let says = format!("{what} is in use by {}", host::named(holder));
    if holder.is_some() && holder == facts.listener.as_ref() {
        return GROUP.note(name, format!("{says}: this grid is running"));
    }
    let stop = holder.map_or(String::new(), |holder| format!("stop it (kill {}), or ", holder.pid));
    GROUP
        .problem(name, says)
        .fix(format!("{stop}give this grid a directory of its own with --data-dir"))
}

fn run_lock(facts: &Facts) -> Finding {
    let what = format!("run_dir {}", facts.run.path.display());
    match &facts.run_lock {
        Lock::Free => GROUP.ok("run lock", format!("{what} is free")),
        Lock::Held(holder) => held(facts, "run lock", &what, holder.as_ref()),
    }
}

fn data(data: &Place, trouble: Option<&str>) -> Finding {
    let path = data.path.display();
    if let Some(trouble) = trouble {
        return GROUP
            .problem("records", format!("there is no data directory: {trouble}"))
            .fix("--data-dir DIR, a directory that this user can write");
    }
    if !data.is_writable {
        return GROUP
            .problem("records", format!("data_dir {path} cannot be written"))
            .fix(format!(
                "chown \"$(id -u)\" {path}, or choose another place with --data-dir"
            ));
    }
    let says = format!("data_dir {path} can be written, on {}", data.kind);
    match data.room {
        Some(room) if room.free < RECORDS => GROUP
            .warning("records", format!("{says}, with only {} free", size(room.free)))
            .fix(format!(
                "free {} there, or choose another place with --data-dir",
                size(RECORDS)
            )),
        _ => GROUP.ok("records", says),
    }
}

fn store(facts: &Facts) -> Finding {
    match &facts.store {
        None => GROUP.note(
            "store",
            "records are kept in memory and are gone at the end, as store = memory: says",
        ),
        Some((path, _)) if facts.data.is_network() && path.starts_with(&facts.data.path) => GROUP
            .problem(
                "store",
                format!(
                    "{} lies on {}, a network file system, where SQLite may corrupt",
                    path.display(),
                    facts.data.kind
                ),
            )
            .fix("--data-dir on a local disk"),
        Some((path, Lock::Free)) => GROUP.ok("store", format!("{} is free", path.display())),
        Some((path, Lock::Held(holder))) => held(facts, "store", &path.display().to_string(), holder.as_ref()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::{Level, USUAL};

    fn place(path: &str, kind: &str, free: u64) -> Place {
        Place {
            path: path.into(),
            kind: kind.to_owned(),
            room: Some(Room {
                size: 100 << 30,
                free,
                free_inodes: Some(1 << 20),
            }),
            is_writable: true,
        }
    }

    fn wharf(pid: u32) -> Option<Process> {
        Some(Process {
            pid,
            name: "wharf".to_owned(),
        })
    }

    fn facts() -> Facts {
        Facts {
            run: place("/dev/shm/wharf-1", "tmpfs", 8 << 30),
            data: place("/var/lib/wharf", "ext4", 8 << 30),
            data_trouble: None,
            run_lock: Lock::Free,
            store: Some(("/var/lib/wharf/wharf.db".into(), Lock::Free)),
            listener: None,
        }
    }

    #[test]
    fn usual_places_are_fine() {
        assert!(judge(&facts(), &USUAL).iter().all(|finding| finding.level == Level::Ok));
    }

    #[test]
    fn profiles_on_a_disk_are_a_note_and_on_nfs_a_warning() {
        assert_eq!(profiles(&place("/r", "ext4", 8 << 30), &USUAL).level, Level::Note);
        assert_eq!(profiles(&place("/r", "nfs4", 8 << 30), &USUAL).level, Level::Warning);
    }

    #[test]
    fn room_for_some_is_a_warning_and_for_none_a_problem() {
        assert_eq!(profiles(&place("/r", "tmpfs", 200 << 20), &USUAL).level, Level::Warning);
        assert_eq!(profiles(&place("/r", "tmpfs", 20 << 20), &USUAL).level, Level::Problem);
        let mut few = place("/r", "ext4", 8 << 30);
        few.room.as_mut().unwrap().free_inodes = Some(5000);
        assert_eq!(inodes(&few, &USUAL).unwrap().level, Level::Warning);
        few.room.as_mut().unwrap().free_inodes = None;
        assert_eq!(inodes(&few, &USUAL), None);
    }

    #[test]
    fn unwritable_data_directory_is_a_problem() {
        let closed = Place {
            is_writable: false,
            ..place("/var/lib/wharf", "ext4", 8 << 30)
        };
        let finding = data(&closed, None);
        assert_eq!(finding.level, Level::Problem);
        assert!(finding.fix.unwrap().contains("chown"));
        let none = data(&closed, Some("neither XDG_STATE_HOME nor HOME is set"));
        assert!(none.says.contains("XDG_STATE_HOME") && none.fix.unwrap().contains("--data-dir"));
    }

    #[test]
    fn store_held_by_another_names_the_pid() {
        let mut facts = facts();
        facts.store = Some(("/var/lib/wharf/wharf.db".into(), Lock::Held(wharf(77))));
        let finding = store(&facts);
        assert_eq!(finding.level, Level::Problem);
        assert!(finding.says.contains("process 77 (wharf)") && finding.fix.unwrap().contains("kill 77"));
    }

    #[test]
    fn store_held_by_the_grid_that_listens_is_a_note() {
        let mut facts = facts();
        facts.store = Some(("/var/lib/wharf/wharf.db".into(), Lock::Held(wharf(77))));
        facts.run_lock = Lock::Held(wharf(77));
        facts.listener = wharf(77);
        assert_eq!(
            (store(&facts).level, run_lock(&facts).level),
            (Level::Note, Level::Note)
        );
        facts.listener = wharf(78);
        assert_eq!(store(&facts).level, Level::Problem);
    }

    #[test]
    fn store_on_a_network_file_system_is_a_problem() {
        let mut facts = facts();
        facts.data.kind = "nfs4".to_owned();
        assert_eq!(store(&facts).level, Level::Problem);
    }
}
