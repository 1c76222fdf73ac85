//! Thin readers of the host that several groups share.
//!
//! Their own file so that each way of asking the kernel exists once. The invariant: they only read, and what the host
//! does not tell is `None`, never a made-up number.

use std::{
    fs,
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
};

use rustix::fs::{Access, FlockOperation, access, flock, statvfs};

/// A line of `/proc/self/mountinfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The directory of the file system that is seen at `point`.
    pub root: PathBuf,
    pub point: PathBuf,
    pub kind: String,
    /// The file system's own options, such as a cgroup's controllers.
    pub options: String,
}

/// How much a file system holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    pub size: u64,
    pub free: u64,
    /// `None` where the file system does not count them.
    pub free_inodes: Option<u64>,
}

/// A process, by what may be shown of it: never its arguments, which may hold secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    pub name: String,
}

/// Whether a lock file is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lock {
    Free,
    /// By whom, if it can be told.
    Held(Option<Process>),
}

// === impl Process ===

impl std::fmt::Display for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {} ({})", self.pid, self.name)
    }
}

/// `process 7 (wharf)`, or that it cannot be told.
pub fn named(holder: Option<&Process>) -> String {
    holder.map_or_else(
        || "a process that cannot be told from here".to_owned(),
        Process::to_string,
    )
}

/// A small file's text, trimmed.
pub fn text(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// A small file's number; `max` is none.
pub fn number(path: impl AsRef<Path>) -> Option<u64> {
    text(path)?.parse().ok()
}

/// Whether this is a container, which decides whose setting is the fix.
pub fn is_container() -> bool {
    let marks = ["/.dockerenv", "/run/.containerenv"];
    marks.iter().any(|mark| Path::new(mark).exists()) || std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}

pub fn mounts() -> Vec<Mount> {
    parse_mounts(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
}

/// Reads `36 35 98:0 /root /point options … - kind source options`, see proc_pid_mountinfo(5).
pub fn parse_mounts(text: &str) -> Vec<Mount> {
    let line = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let (mut left, mut right) = (left.split(' '), right.split(' '));
        Some(Mount {
            root: unescape(left.nth(3)?),
            point: unescape(left.next()?),
            kind: right.next()?.to_owned(),
            options: right.nth(1).unwrap_or_default().to_owned(),
        })
    };
    text.lines().filter_map(line).collect()
}

/// Spaces and the like are written as three octal digits.
fn unescape(field: &str) -> PathBuf {
    let mut parts = field.split('\\');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        match part.get(..3).and_then(|octal| u8::from_str_radix(octal, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                bytes.extend(&part.as_bytes()[3..]);
            }
            None => bytes.extend([b"\\", part.as_bytes()].concat()),
        }
    }
    std::ffi::OsString::from_vec(bytes).into()
}

/// The mount a path lies on: the deepest, and of those the last, which covers the others.
pub fn mount_of<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    let above = mounts.iter().filter(|mount| path.starts_with(&mount.point));
    above.max_by_key(|mount| mount.point.components().count())
}

/// The path itself, or the nearest directory above it that exists.
pub fn nearest(path: &Path) -> &Path {
    let exists = path.ancestors().find(|dir| dir.exists());
    exists.unwrap_or(Path::new("/"))
}

pub fn room(path: &Path) -> Option<Room> {
    let stat = statvfs(path).ok()?;
    Some(Room {
        size: stat.f_blocks.saturating_mul(stat.f_frsize),
        free: stat.f_bavail.saturating_mul(stat.f_frsize),
        free_inodes: (stat.f_files > 0).then_some(stat.f_favail),
    })
}

pub fn is_writable(dir: &Path) -> bool {
    access(dir, Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

/// Whether somebody holds this lock file. Nothing is created; a free lock is held for the moment of asking.
pub fn lock_of(path: &Path) -> Lock {
    let Ok(file) = fs::File::open(path) else {
        return Lock::Free;
    };
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(rustix::io::Errno::WOULDBLOCK) => {
            drop(file);
            Lock::Held(holder_of(|target| target == path))
        }
        _ => Lock::Free,
    }
}

/// The first process with an open descriptor like this, as far as we may look.
pub fn holder_of(is_it: impl Fn(&Path) -> bool) -> Option<Process> {
    let pids = fs::read_dir("/proc").ok()?.flatten();
    let mut pids: Vec<u32> = pids
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    let has = |pid: &u32| {
        let fds = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        fds.filter_map(|fd| fs::read_link(fd.path()).ok())
            .any(|link| is_it(&link))
    };
    let pid = pids.into_iter().find(has)?;
    let name = text(format!("/proc/{pid}/comm")).unwrap_or_else(|| "unknown".to_owned());
    Some(Process { pid, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read_and_the_deepest_wins() {
        let text = "21 1 8:1 / / rw - ext4 /dev/sda rw\n\
                    22 21 0:5 / /dev rw shared:2 - tmpfs udev rw,mode=755\n\
                    23 22 0:6 / /dev/shm rw - tmpfs shm rw,size=65536k\n\
                    24 21 0:7 /docker/1 /mnt/a\\040b rw - cgroup cgroup rw,memory\n";
        let mounts = parse_mounts(text);
        assert_eq!(
            mount_of(&mounts, Path::new("/dev/shm/wharf")).unwrap().point,
            Path::new("/dev/shm")
        );
        assert_eq!(mount_of(&mounts, Path::new("/home")).unwrap().kind, "ext4");
        assert_eq!(mounts[3].point, Path::new("/mnt/a b"));
        assert_eq!(
            (mounts[3].root.to_str(), &*mounts[3].options),
            (Some("/docker/1"), "rw,memory")
        );
    }

    #[test]
    fn held_lock_names_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let path = fs::canonicalize(dir.path()).unwrap().join("x.lock");
        assert_eq!(lock_of(&path), Lock::Free);
        let file = fs::File::create(&path).unwrap();
        assert_eq!(lock_of(&path), Lock::Free);
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        let Lock::Held(Some(holder)) = lock_of(&path) else {
            panic!("the lock is held by this test")
        };
        assert_eq!(holder.pid, std::process::id());
    }

    #[test]
    fn nearest_existing_directory_is_found() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(nearest(&dir.path().join("a/b")), dir.path());
    }
}
