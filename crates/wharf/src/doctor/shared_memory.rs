//! `/dev/shm`: is it there, and does it hold what `max` browsers put into it?
//!
//! Its own file because it is the best-known trap of browsers in containers: Docker gives 64 MB, a page of images fills
//! that, and its renderer crashes. The invariant: the limit below which the driver avoids it is the driver's own.

use std::path::Path;

use super::{
    finding::{Finding, Group, Needs, size},
    host::{self, Mount, Room},
};

const GROUP: Group = Group::SharedMemory;
const PLACE: &str = "/dev/shm";
/// Shared bitmaps of a session with a few image-heavy pages.
const EACH: u64 = 64 << 20;
/// Below this the driver passes `--disable-dev-shm-usage` (driver/chromium/flags.rs).
const AVOIDED_BELOW: u64 = 512 << 20;

/// What is known of `/dev/shm`.
#[derive(Debug, Clone, Copy)]
pub struct Facts {
    /// A mount of its own, and not a plain directory.
    pub is_mounted: bool,
    pub room: Option<Room>,
    pub is_container: bool,
}

// === impl Facts ===

impl Facts {
    pub fn gather(mounts: &[Mount]) -> Self {
        Self {
            is_mounted: mounts.iter().any(|mount| mount.point == Path::new(PLACE)),
            room: host::room(Path::new(PLACE)),
            is_container: host::is_container(),
        }
    }
}

pub fn judge(facts: &Facts, needs: &Needs) -> Vec<Finding> {
    let wanted = needs.times(EACH).max(AVOIDED_BELOW);
    let Some(room) = facts.room else {
        let finding = GROUP.problem(
            "mount",
            format!("{PLACE} does not exist, and Chromium does not start without it"),
        );
        let mount = format!(
            "mkdir -p {PLACE} && mount -t tmpfs -o mode=1777,size={}m tmpfs {PLACE}",
            wanted >> 20
        );
        return vec![finding.fix(mount)];
    };
    let mount = if facts.is_mounted {
        GROUP.ok("mount", format!("{PLACE} is mounted"))
    } else {
        GROUP
            .note("mount", format!("{PLACE} is a plain directory, not a mount of its own"))
            .fix(format!(
                "mount -t tmpfs -o mode=1777,size={}m tmpfs {PLACE}",
                wanted >> 20
            ))
    };
    vec![mount, space(facts, room, needs)]
}

fn space(facts: &Facts, room: Room, needs: &Needs) -> Finding {
    let wanted = needs.times(EACH).max(AVOIDED_BELOW);
    let (all, free, browsers) = (size(room.size), size(room.free), needs.browsers());
    let fix = if facts.is_container {
        format!("docker run --shm-size={}m, or --ipc=host", wanted >> 20)
    } else {
        format!("mount -o remount,size={}m {PLACE}", wanted >> 20)
    };
    if room.size < AVOIDED_BELOW {
        let says = format!(
            "{PLACE} has {all} (Docker's default is 64 MB), too little for {browsers} browsers: Wharf keeps their shared \
             memory in run_dir instead, which is slower on a disk"
        );
        return GROUP.warning("size", says).fix(fix);
    }
    if room.free < needs.times(EACH) {
        let says = format!(
            "{PLACE} has {free} free of {all}; {browsers} browsers may need {}, and a page that gets none crashes",
            size(needs.times(EACH))
        );
        return GROUP.warning("size", says).fix(fix);
    }
    GROUP.ok(
        "size",
        format!("{PLACE} has {free} free of {all}, enough for {browsers} browsers"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::{Level, USUAL};

    fn facts(size: u64, free: u64) -> Facts {
        Facts {
            is_mounted: true,
            room: Some(Room {
                size,
                free,
                free_inodes: None,
            }),
            is_container: true,
        }
    }

    #[test]
    fn dockers_64_megabytes_are_a_warning_with_the_flag() {
        let findings = judge(&facts(64 << 20, 64 << 20), &USUAL);
        assert_eq!(findings[1].level, Level::Warning);
        assert!(findings[1].says.contains("64.0 MiB"), "{}", findings[1].says);
        assert_eq!(
            findings[1].fix.as_deref(),
            Some("docker run --shm-size=704m, or --ipc=host")
        );
    }

    #[test]
    fn full_shared_memory_is_a_warning() {
        let on_a_host = Facts {
            is_container: false,
            ..facts(8 << 30, 100 << 20)
        };
        let findings = judge(&on_a_host, &USUAL);
        assert_eq!(findings[1].level, Level::Warning);
        assert!(findings[1].fix.as_deref().unwrap().starts_with("mount -o remount"));
    }

    #[test]
    fn large_shared_memory_is_fine() {
        assert!(
            judge(&facts(8 << 30, 8 << 30), &USUAL)
                .iter()
                .all(|finding| finding.level == Level::Ok)
        );
    }

    #[test]
    fn missing_shared_memory_is_a_problem() {
        let findings = judge(
            &Facts {
                room: None,
                ..facts(0, 0)
            },
            &USUAL,
        );
        assert_eq!(findings[0].level, Level::Problem);
        assert!(findings[0].fix.as_deref().unwrap().contains("mount -t tmpfs"));
    }
}
