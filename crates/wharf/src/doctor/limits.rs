//! How many files, processes and watches this process may have, against what the settings need.
//!
//! Its own file because such limits show themselves late and far from their cause: as a browser that does not start.
//! The invariant: what counts is the limit `wharf up` would work under; it raises the soft limit of files itself.

use rustix::process::{Resource, getrlimit};

use super::{
    cgroups::Hierarchy,
    finding::{Finding, Group, Needs},
    host,
};

const GROUP: Group = Group::Limits;
/// Libraries, the store, pipes of the keeper threads, the listener.
const OWN_FILES: u64 = 128;
/// A session holds half a dozen descriptors (crates/wharf/src/up.rs), and two more while it is launched.
const SESSION_FILES: u64 = 8;
/// A browser with a blank page has about 60 threads; each further site brings a process of 15.
const BROWSER_TASKS: u64 = 150;
/// A browser watches its configuration with one or two.
const BROWSER_WATCHES: u64 = 2;

/// A limit of tasks (processes and threads) by one of its many names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskLimit {
    pub name: &'static str,
    pub value: u64,
    pub fix: &'static str,
}

/// Every limit; `None` is unlimited or not told.
#[derive(Debug, Clone)]
pub struct Facts {
    pub soft_files: Option<u64>,
    pub hard_files: Option<u64>,
    pub tasks: Vec<TaskLimit>,
    /// `fs.inotify.max_user_instances`.
    pub watches: Option<u64>,
}

// === impl Facts ===

impl Facts {
    pub fn gather(hierarchy: &Hierarchy) -> Self {
        let files = getrlimit(Resource::Nofile);
        // The kernel does not hold root to it.
        let own = getrlimit(Resource::Nproc)
            .current
            .filter(|_| !rustix::process::geteuid().is_root());
        let limits = [
            (
                "RLIMIT_NPROC",
                own,
                "ulimit -u unlimited (systemd: LimitNPROC=infinity)",
            ),
            (
                "cgroup pids.max",
                hierarchy.least("pids", "pids.max"),
                "docker run --pids-limit=-1 (systemd: TasksMax=infinity)",
            ),
            (
                "kernel.pid_max",
                host::number("/proc/sys/kernel/pid_max"),
                "sysctl -w kernel.pid_max=4194304",
            ),
            (
                "kernel.threads-max",
                host::number("/proc/sys/kernel/threads-max"),
                "sysctl -w kernel.threads-max=200000",
            ),
        ];
        let known = limits.into_iter().filter_map(|(name, value, fix)| {
            Some(TaskLimit {
                name,
                value: value?,
                fix,
            })
        });
        Self {
            soft_files: files.current,
            hard_files: files.maximum,
            tasks: known.collect(),
            watches: host::number("/proc/sys/fs/inotify/max_user_instances"),
        }
    }
}

pub fn judge(facts: &Facts, needs: &Needs) -> Vec<Finding> {
    let mut findings = vec![files(facts, needs), tasks(&facts.tasks, needs)];
    findings.extend(watches(facts.watches, needs));
    findings
}

fn files(facts: &Facts, needs: &Needs) -> Finding {
    let told = |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
    let (soft, hard) = (told(facts.soft_files), told(facts.hard_files));
    let is = format!("RLIMIT_NOFILE is {soft} (soft), {hard} (hard)");
    let raised = if facts.soft_files == facts.hard_files {
        ""
    } else {
        "; wharf up raises soft to hard"
    };
    let Some(limit) = facts.hard_files else {
        return GROUP.ok("open files", format!("{is}{raised}"));
    };
    let sessions = OWN_FILES.saturating_add(needs.times(SESSION_FILES));
    let waiting = sessions.saturating_add(needs.queue);
    let all = sessions.saturating_add(needs.connections);
    let fix = |least: u64| {
        let enough = least.next_power_of_two().max(65_536);
        format!("ulimit -Hn {enough} before wharf up (systemd: LimitNOFILE={enough}; docker: --ulimit nofile={enough})")
    };
    if limit < sessions {
        let says = format!("{is}, but {} sessions need {sessions}", needs.max);
        return GROUP.problem("open files", says).fix(fix(all));
    }
    if limit < waiting {
        let says = format!(
            "{is}, but {} sessions and {} in the queue need {waiting}",
            needs.max, needs.queue
        );
        return GROUP.warning("open files", says).fix(fix(all));
    }
    if limit < all {
        let says = format!("{is}; connections = {} would need {all}", needs.connections);
        let fewer = limit - sessions;
        return GROUP
            .note("open files", says)
            .fix(format!("{}, or --connections {fewer}", fix(all)));
    }
    GROUP.ok("open files", format!("{is}{raised}"))
}

fn tasks(limits: &[TaskLimit], needs: &Needs) -> Finding {
    let wanted = needs.times(BROWSER_TASKS);
    let Some(tightest) = limits.iter().min_by_key(|limit| limit.value) else {
        return GROUP.ok("processes", "no limit of processes and threads is told");
    };
    let TaskLimit { name, value, fix } = tightest;
    let says = format!(
        "{name} allows {value} processes and threads; {} browsers may need {wanted}",
        needs.browsers()
    );
    match *value {
        value if value < BROWSER_TASKS => GROUP.problem("processes", says).fix(*fix),
        value if value < wanted => GROUP.warning("processes", says).fix(*fix),
        _ => GROUP.ok("processes", says),
    }
}

fn watches(limit: Option<u64>, needs: &Needs) -> Option<Finding> {
    let limit = limit?;
    let wanted = needs.times(BROWSER_WATCHES);
    let says = format!(
        "fs.inotify.max_user_instances is {limit}; {} browsers may use {wanted}",
        needs.browsers()
    );
    if limit >= wanted {
        return Some(GROUP.ok("inotify", says));
    }
    let enough = wanted.saturating_mul(2).next_power_of_two();
    Some(
        GROUP
            .note("inotify", format!("{says}; browsers work without"))
            .fix(format!("sysctl -w fs.inotify.max_user_instances={enough}")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::{Level, USUAL};

    fn files_at(soft: u64, hard: u64) -> Finding {
        let facts = Facts {
            soft_files: Some(soft),
            hard_files: Some(hard),
            tasks: Vec::new(),
            watches: None,
        };
        files(&facts, &USUAL)
    }

    fn limit(name: &'static str, value: u64) -> TaskLimit {
        TaskLimit {
            name,
            value,
            fix: "raise it",
        }
    }

    #[test]
    fn soft_limit_of_256_is_fine_because_it_is_raised() {
        let finding = files_at(256, 1 << 20);
        assert_eq!(finding.level, Level::Ok);
        assert!(finding.says.contains("256 (soft)") && finding.says.contains("raises"));
    }

    #[test]
    fn hard_limits_below_sessions_queue_and_connections_differ_in_weight() {
        for (hard, level) in [
            (64, Level::Problem),
            (1024, Level::Warning),
            (20_000, Level::Note),
            (65_536, Level::Ok),
        ] {
            let finding = files_at(hard, hard);
            assert_eq!(finding.level, level, "{hard}: {}", finding.says);
            assert_eq!(finding.fix.is_some(), level != Level::Ok);
        }
    }

    #[test]
    fn tightest_limit_of_tasks_is_named() {
        let finding = tasks(
            &[limit("kernel.pid_max", 32_768), limit("cgroup pids.max", 512)],
            &USUAL,
        );
        assert_eq!(finding.level, Level::Warning);
        assert!(finding.says.contains("cgroup pids.max allows 512"));
        assert_eq!(tasks(&[limit("RLIMIT_NPROC", 100)], &USUAL).level, Level::Problem);
        assert_eq!(tasks(&[], &USUAL).level, Level::Ok);
    }

    #[test]
    fn few_watches_are_a_note() {
        assert_eq!(watches(Some(8), &USUAL).unwrap().level, Level::Note);
        assert_eq!(watches(Some(128), &USUAL).unwrap().level, Level::Ok);
    }
}
