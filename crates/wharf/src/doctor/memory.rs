//! Is there memory for `max` browsers?
//!
//! Its own file because memory is what a grid is sized by (docs/guide/sizing.md). The invariant: what counts is the less
//! of the machine's memory and of what a cgroup allows.

use wharf_process::system;

use super::{
    cgroups::Hierarchy,
    finding::{Finding, Group, Needs, size},
};

const GROUP: Group = Group::Memory;
/// PSS of a browser with a blank page, as docs/guide/sizing.md measured it.
const SHELL: u64 = 200 << 20;
const FULL: u64 = 335 << 20;
/// Version 1 writes "no limit" as a number near 2^63.
const NO_LIMIT: u64 = 1 << 62;

/// Which browser's appetite counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appetite {
    Shell,
    Full,
}

/// In bytes; `None` where the host does not tell.
#[derive(Debug, Clone, Copy)]
pub struct Facts {
    pub total: Option<u64>,
    pub available: Option<u64>,
    pub swap: Option<u64>,
    pub cgroup_limit: Option<u64>,
    pub has_pressure: bool,
    pub appetite: Appetite,
}

// === impl Appetite ===

impl Appetite {
    pub fn bytes(self) -> u64 {
        match self {
            Self::Shell => SHELL,
            Self::Full => FULL,
        }
    }
}

// === impl Facts ===

impl Facts {
    pub fn gather(hierarchy: &Hierarchy, appetite: Appetite) -> Self {
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let limit = hierarchy
            .least("memory", "memory.max")
            .or_else(|| hierarchy.least("memory", "memory.limit_in_bytes"));
        Self {
            total: line(&meminfo, "MemTotal:"),
            available: system::available_memory(),
            swap: line(&meminfo, "SwapTotal:"),
            cgroup_limit: limit.filter(|limit| *limit < NO_LIMIT),
            has_pressure: system::pressure(system::Resource::Memory).is_some(),
            appetite,
        }
    }
}

/// `MemTotal:   1024 kB`.
fn line(meminfo: &str, name: &str) -> Option<u64> {
    let text = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: u64 = text.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

pub fn judge(facts: &Facts, needs: &Needs) -> Vec<Finding> {
    vec![sized(facts, needs), available(facts, needs), pressure(facts)]
}

fn sized(facts: &Facts, needs: &Needs) -> Finding {
    let each = facts.appetite.bytes();
    let wanted = needs.times(each);
    let told = [
        ("the machine has", facts.total),
        ("the cgroup allows", facts.cgroup_limit),
    ];
    let known = told.into_iter().filter_map(|(who, bytes)| Some((who, bytes?)));
    let Some((who, least)) = known.min_by_key(|(_, bytes)| *bytes) else {
        return GROUP.note("size", "the host does not tell its memory");
    };
    let swap = match facts.swap {
        Some(0) => ", no swap".to_owned(),
        Some(swap) => format!(", {} swap", size(swap)),
        None => String::new(),
    };
    let says = format!(
        "{who} {}{swap}; {} browsers with blank pages need about {}",
        size(least),
        needs.browsers(),
        size(wanted)
    );
    if least >= wanted {
        return GROUP.ok("size", says);
    }
    let raise = if who == "the cgroup allows" {
        format!("docker run --memory={}m (systemd: MemoryMax=)", wanted >> 20)
    } else {
        "a machine with more memory".to_owned()
    };
    match needs.fitting(least, each) {
        Some(max) => GROUP.warning("size", says).fix(format!("--max {max}, or {raise}")),
        None if least < each => GROUP.problem("size", says).fix(raise),
        None => GROUP
            .warning("size", says)
            .fix(format!("--max 1 --spare 0 --min 1, or {raise}")),
    }
}

fn available(facts: &Facts, needs: &Needs) -> Finding {
    let each = facts.appetite.bytes();
    let Some(bytes) = facts.available else {
        return GROUP.note("available", "the host does not tell how much memory is available");
    };
    let says = format!("{} are available now", size(bytes));
    let fix = "stop what else runs here (ps -eo rss,comm --sort=-rss | head), or lower --max";
    match bytes {
        bytes if bytes < each => GROUP
            .problem(
                "available",
                format!("{says}, less than one browser needs ({})", size(each)),
            )
            .fix(fix),
        bytes if bytes < needs.times(each) => GROUP
            .warning(
                "available",
                format!("{says}, enough for {} of {} browsers", bytes / each, needs.browsers()),
            )
            .fix(fix),
        _ => GROUP.ok("available", says),
    }
}

fn pressure(facts: &Facts) -> Finding {
    if facts.has_pressure {
        return GROUP.ok(
            "pressure",
            "the kernel tells pressure (PSI), by which launches are paced",
        );
    }
    GROUP
        .note(
            "pressure",
            "the kernel does not tell pressure (no /proc/pressure), by which launches would be paced",
        )
        .fix("boot with psi=1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::{Level, USUAL};

    fn facts(total: u64, cgroup_limit: Option<u64>) -> Facts {
        Facts {
            total: Some(total),
            available: Some(total),
            swap: Some(0),
            cgroup_limit,
            has_pressure: true,
            appetite: Appetite::Shell,
        }
    }

    #[test]
    fn large_machine_is_fine() {
        assert!(
            judge(&facts(16 << 30, None), &USUAL)
                .iter()
                .all(|finding| finding.level == Level::Ok)
        );
    }

    #[test]
    fn cgroup_limit_below_the_machines_memory_counts_and_max_is_proposed() {
        let finding = sized(&facts(16 << 30, Some(1 << 30)), &USUAL);
        assert_eq!(finding.level, Level::Warning);
        assert!(
            finding.says.starts_with("the cgroup allows 1.0 GiB"),
            "{}",
            finding.says
        );
        assert!(finding.fix.unwrap().starts_with("--max 4, or docker run --memory="));
    }

    #[test]
    fn no_room_for_one_browser_is_a_problem() {
        let findings = judge(&facts(100 << 20, None), &USUAL);
        assert_eq!((findings[0].level, findings[1].level), (Level::Problem, Level::Problem));
    }

    #[test]
    fn full_browser_needs_more() {
        let full = Facts {
            appetite: Appetite::Full,
            ..facts(3 << 30, None)
        };
        assert_eq!(sized(&full, &USUAL).level, Level::Warning);
        assert_eq!(sized(&facts(3 << 30, None), &USUAL).level, Level::Ok);
    }

    #[test]
    fn host_without_pressure_is_a_note() {
        let silent = Facts {
            has_pressure: false,
            ..facts(16 << 30, None)
        };
        assert_eq!(pressure(&silent).level, Level::Note);
    }

    #[test]
    fn meminfo_is_read() {
        assert_eq!(line("MemTotal:   2 kB\nSwapTotal: 0 kB\n", "SwapTotal:"), Some(0));
        assert_eq!(line("MemTotal:   2 kB\n", "MemTotal:"), Some(2048));
    }
}
