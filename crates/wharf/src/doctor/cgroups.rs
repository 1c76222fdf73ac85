//! Control groups: which version, whether a subtree is ours to use, and whether it counts memory.
//!
//! Its own file because groups are both a check (one per browser makes killing atomic and out-of-memory exact) and the
//! place where other limits stand. Everything works without them, so nothing here is worse than a note.

use std::path::{Path, PathBuf};

use wharf_process::Cgroups;

use super::{
    finding::{Finding, Group},
    host::{self, Mount},
};

const GROUP: Group = Group::Cgroups;

/// Which version(s) the host has mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    None,
    V1,
    /// Version 1 with an empty version 2 beside it.
    Hybrid,
    V2,
}

/// What a browser's own group could be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subtree {
    /// Groups can be made, killed and count memory.
    Counting,
    /// Groups can be made and killed.
    Plain,
    /// None is ours.
    Closed,
}

#[derive(Debug, Clone, Copy)]
pub struct Facts {
    pub version: Version,
    pub subtree: Subtree,
    pub is_container: bool,
}

/// Our own place in every hierarchy.
#[derive(Debug, Clone, Default)]
pub struct Hierarchy {
    /// Mount point and own directory of version 2.
    unified: Option<(PathBuf, PathBuf)>,
    /// Controllers, mount point and own directory of version 1.
    old: Vec<(Vec<String>, PathBuf, PathBuf)>,
}

// === impl Hierarchy ===

impl Hierarchy {
    pub fn gather(mounts: &[Mount]) -> Self {
        Self::parse(&host::text("/proc/self/cgroup").unwrap_or_default(), mounts)
    }

    /// Reads `id:controllers:path` lines, see cgroups(7).
    pub fn parse(own: &str, mounts: &[Mount]) -> Self {
        let mut found = Self::default();
        for line in own.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
                continue;
            };
            let names: Vec<String> = controllers.split(',').map(str::to_owned).collect();
            let is_it = |mount: &&Mount| match controllers {
                "" => mount.kind == "cgroup2",
                _ => mount.kind == "cgroup" && names.iter().all(|name| mount.options.split(',').any(|o| o == name)),
            };
            let Some(mount) = mounts.iter().find(is_it) else {
                continue;
            };
            // In a container the mount may show only our own part of the hierarchy.
            let below = Path::new(path).strip_prefix(&mount.root).unwrap_or(Path::new(""));
            let dir = mount.point.join(below);
            if controllers.is_empty() {
                found.unified = Some((mount.point.clone(), dir));
            } else {
                found.old.push((names, mount.point.clone(), dir));
            }
        }
        found
    }

    pub fn version(&self) -> Version {
        let is_old = self.old.iter().any(|(names, ..)| names.iter().any(|n| n == "memory"));
        match (&self.unified, is_old) {
            (Some(_), true) => Version::Hybrid,
            (Some(_), false) => Version::V2,
            (None, true) => Version::V1,
            (None, false) => Version::None,
        }
    }

    /// The least number that this file has in our group or in one above it.
    pub fn least(&self, controller: &str, file: &str) -> Option<u64> {
        let has = |(names, ..): &&(Vec<String>, PathBuf, PathBuf)| names.iter().any(|name| name == controller);
        let old = self.old.iter().find(has).map(|(_, top, dir)| (top, dir));
        let (top, dir) = old.or_else(|| self.unified.as_ref().map(|(top, dir)| (top, dir)))?;
        let groups = dir.ancestors().take_while(|group| group.starts_with(top));
        groups.filter_map(|group| host::number(group.join(file))).min()
    }
}

// === impl Facts ===

impl Facts {
    /// `cgroups` is what `wharf up` would have found.
    pub fn new(hierarchy: &Hierarchy, cgroups: Option<&Cgroups>) -> Self {
        Self {
            version: hierarchy.version(),
            subtree: match cgroups {
                Some(cgroups) if cgroups.counts_memory() => Subtree::Counting,
                Some(_) => Subtree::Plain,
                None => Subtree::Closed,
            },
            is_container: host::is_container(),
        }
    }
}

pub fn judge(facts: &Facts) -> Vec<Finding> {
    let unified = "boot with systemd.unified_cgroup_hierarchy=1 for version 2";
    let version = match facts.version {
        Version::V2 => GROUP.ok("version", "cgroup version 2"),
        Version::Hybrid => GROUP
            .note("version", "cgroup version 1 keeps the controllers, version 2 is empty")
            .fix(unified),
        Version::V1 => GROUP
            .note("version", "cgroup version 1, which Wharf makes no use of")
            .fix(unified),
        Version::None => GROUP.note("version", "no cgroups are mounted"),
    };
    vec![version, subtree(facts)]
}

fn subtree(facts: &Facts) -> Finding {
    let without = "trees are killed process by process, and out-of-memory is told by the kernel's counter";
    let fix = match (facts.version, facts.is_container) {
        (Version::V2, true) => {
            "docker run --cgroupns=private with a writable /sys/fs/cgroup (podman does so by itself)"
        }
        (Version::V2, false) => {
            "a systemd unit with Delegate=yes, or systemd-run --user --scope -p Delegate=yes wharf up"
        }
        _ => "a host with cgroup version 2",
    };
    match facts.subtree {
        Subtree::Counting => GROUP.ok("subtree", "a subtree is ours and counts memory: one group per browser"),
        Subtree::Plain => GROUP
            .note(
                "subtree",
                format!("a subtree is ours, but does not count memory: {without}"),
            )
            .fix(fix),
        Subtree::Closed => GROUP.note("subtree", format!("no subtree is ours: {without}")).fix(fix),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::{finding::Level, host::parse_mounts};

    const V1: &str = "31 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      32 24 0:28 /docker/1 /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n";

    #[test]
    fn version_1_is_a_note_with_the_boot_parameter() {
        let hierarchy = Hierarchy::parse("4:memory:/a\n8:pids:/docker/1\n", &parse_mounts(V1));
        assert_eq!(hierarchy.version(), Version::V1);
        assert_eq!(hierarchy.old[1].2, Path::new("/sys/fs/cgroup/pids"));
        let facts = Facts {
            version: Version::V1,
            subtree: Subtree::Closed,
            is_container: false,
        };
        let findings = judge(&facts);
        assert!(findings.iter().all(|finding| finding.level == Level::Note));
        assert!(
            findings[0]
                .fix
                .as_deref()
                .unwrap()
                .contains("unified_cgroup_hierarchy=1")
        );
    }

    #[test]
    fn version_2_without_delegation_names_the_unit_setting() {
        let mounts = parse_mounts("30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        let hierarchy = Hierarchy::parse("0::/user.slice/x\n", &mounts);
        assert_eq!(hierarchy.version(), Version::V2);
        let facts = Facts {
            version: Version::V2,
            subtree: Subtree::Closed,
            is_container: false,
        };
        assert!(judge(&facts)[1].fix.as_deref().unwrap().contains("Delegate=yes"));
    }

    #[test]
    fn least_limit_of_the_groups_above_counts() {
        let top = tempfile::tempdir().unwrap();
        let own = top.path().join("a/b");
        std::fs::create_dir_all(&own).unwrap();
        std::fs::write(own.join("pids.max"), "max\n").unwrap();
        std::fs::write(top.path().join("a/pids.max"), "512\n").unwrap();
        let hierarchy = Hierarchy {
            unified: Some((top.path().to_owned(), own)),
            old: Vec::new(),
        };
        assert_eq!(hierarchy.least("pids", "pids.max"), Some(512));
        assert_eq!(hierarchy.least("pids", "nothing"), None);
    }
}
