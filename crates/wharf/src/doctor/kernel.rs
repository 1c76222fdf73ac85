//! The two things of the kernel that Wharf cannot do without: handles on processes, and adopting orphans.
//!
//! Its own file because both are asked of the running kernel and not of its version: containers and emulations differ.

use rustix::process::{PidfdFlags, child_subreaper, getpid, pidfd_open};

use super::finding::{Finding, Group};

const GROUP: Group = Group::Kernel;

#[derive(Debug, Clone)]
pub struct Facts {
    /// Name and release.
    pub release: String,
    /// Why pidfd_open(2) does not work, if so.
    pub pidfd: Result<(), String>,
    /// Why PR_SET_CHILD_SUBREAPER does not, if so.
    pub subreaper: Result<(), String>,
}

// === impl Facts ===

impl Facts {
    pub fn gather() -> Self {
        let name = rustix::system::uname();
        let reason = |errno: rustix::io::Errno| std::io::Error::from(errno).to_string();
        Self {
            release: format!(
                "{} {}",
                name.sysname().to_string_lossy(),
                name.release().to_string_lossy()
            ),
            pidfd: pidfd_open(getpid(), PidfdFlags::empty()).map(drop).map_err(reason),
            // To read it is to know it; to set it would be the grid's business.
            subreaper: child_subreaper().map(drop).map_err(reason),
        }
    }
}

pub fn judge(facts: &Facts) -> Vec<Finding> {
    let release = &facts.release;
    let pidfd = match &facts.pidfd {
        Ok(()) => GROUP.ok("pidfd", format!("{release} gives handles on processes (pidfd_open)")),
        Err(reason) => GROUP
            .problem(
                "pidfd",
                format!("{release} gives no handles on processes (pidfd_open: {reason}); no browser can be started"),
            )
            .fix("Linux 5.4 or newer; in a container, a runtime whose seccomp profile allows pidfd_open (Docker 20.10 on)"),
    };
    let subreaper = match &facts.subreaper {
        Ok(()) => GROUP.ok(
            "subreaper",
            "orphans of browsers can be adopted (PR_SET_CHILD_SUBREAPER)",
        ),
        Err(reason) => GROUP
            .problem(
                "subreaper",
                format!("orphans of browsers cannot be adopted (PR_SET_CHILD_SUBREAPER: {reason})"),
            )
            .fix("Linux 5.4 or newer; in a container, a runtime whose seccomp profile allows prctl"),
    };
    vec![pidfd, subreaper]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Level;

    #[test]
    fn kernel_without_pidfd_is_a_problem_that_names_the_version() {
        let facts = Facts {
            release: "Linux 4.19.0".to_owned(),
            pidfd: Err("Function not implemented".to_owned()),
            subreaper: Ok(()),
        };
        let findings = judge(&facts);
        assert_eq!((findings[0].level, findings[1].level), (Level::Problem, Level::Ok));
        assert!(findings[0].says.contains("4.19.0") && findings[0].fix.as_deref().unwrap().contains("5.4"));
    }

    #[test]
    fn this_kernel_serves() {
        assert!(judge(&Facts::gather()).iter().all(|finding| finding.level == Level::Ok));
    }
}
