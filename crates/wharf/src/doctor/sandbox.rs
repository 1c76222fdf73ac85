//! Do pages run in Chromium's sandbox, and if not, what stands in the way?
//!
//! Its own file because the answer is spread over the user, three kernel settings and the container's system call
//! filter. The invariant: the driver decides whether pages are sandboxed; this file only explains its decision.

use wharf_driver::{BrowserKind, DriverProblem, DriverReport, Sandbox};

use super::{
    finding::{Finding, Group},
    host,
    trial::Failure,
};

const GROUP: Group = Group::Sandbox;

/// What the sandbox depends on.
#[derive(Debug, Clone)]
pub struct Facts {
    pub outcome: Outcome,
    pub wanted: Sandbox,
    pub is_root: bool,
    /// `kernel.unprivileged_userns_clone`, of Debian's kernels.
    pub userns_clone: Option<u64>,
    /// `kernel.apparmor_restrict_unprivileged_userns`, of Ubuntu's.
    pub apparmor_restricts: Option<u64>,
    /// `user.max_user_namespaces`.
    pub max_user_namespaces: Option<u64>,
    /// Whether the kernel has system call filters at all.
    pub has_seccomp: bool,
    pub is_container: bool,
}

/// What the driver's trial told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Sandboxed,
    NotSandboxed,
    /// A program of the driver `command` sees to it itself.
    Foreign,
    /// The browser ended because of it.
    Unusable,
    /// There was no trial to tell.
    Unknown,
}

// === impl Facts ===

impl Facts {
    pub fn gather(outcome: &Result<DriverReport, Failure>, wanted: Sandbox) -> Self {
        Self {
            outcome: match outcome {
                Ok(report) if report.kind == BrowserKind::Command => Outcome::Foreign,
                Ok(report) if report.sandboxed => Outcome::Sandboxed,
                Ok(_) => Outcome::NotSandboxed,
                Err(Failure::Driver(DriverProblem::SandboxUnusable)) => Outcome::Unusable,
                Err(_) => Outcome::Unknown,
            },
            wanted,
            is_root: rustix::process::geteuid().is_root(),
            userns_clone: host::number("/proc/sys/kernel/unprivileged_userns_clone"),
            apparmor_restricts: host::number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
            max_user_namespaces: host::number("/proc/sys/user/max_user_namespaces"),
            has_seccomp: host::text("/proc/sys/kernel/seccomp/actions_avail").is_some(),
            is_container: host::is_container(),
        }
    }
}

pub fn judge(facts: &Facts) -> Vec<Finding> {
    vec![pages(facts), namespaces(facts), filters(facts)]
}

fn pages(facts: &Facts) -> Finding {
    let as_user = "run Wharf as its own user: useradd --system --create-home wharf && runuser -u wharf -- wharf up";
    match (facts.outcome, facts.wanted) {
        (Outcome::Sandboxed, _) => GROUP.ok("pages", "pages run in Chromium's sandbox"),
        (Outcome::Foreign, _) => GROUP.note(
            "pages",
            "with driver = command the program decides; Wharf does not sandbox it",
        ),
        (Outcome::Unknown, _) => {
            let finding = GROUP.note("pages", "not known, because no browser was started");
            finding.fix("mend the browser above, then ask again")
        }
        (Outcome::Unusable, _) if facts.is_root => GROUP
            .problem(
                "pages",
                "sandbox = on, but Wharf runs as root, where Chromium's sandbox refuses to work",
            )
            .fix(as_user),
        (Outcome::Unusable, _) => GROUP
            .problem("pages", "Chromium's sandbox cannot be used on this host")
            .fix(unusable_fix(facts)),
        (Outcome::NotSandboxed, Sandbox::Off) => GROUP
            .note("pages", "pages run without Chromium's sandbox, as sandbox = off says")
            .fix("--sandbox auto, unless the container is the wall you rely on"),
        (Outcome::NotSandboxed, _) if facts.is_root => GROUP
            .warning(
                "pages",
                "pages run without Chromium's sandbox, because Wharf runs as root",
            )
            .fix(as_user),
        (Outcome::NotSandboxed, _) => GROUP
            .warning(
                "pages",
                "pages run without Chromium's sandbox, because user namespaces are forbidden",
            )
            .fix(closed(facts).map_or_else(
                || "allow unprivileged user namespaces".to_owned(),
                |(_, command)| command,
            )),
    }
}

/// Where every setting allows it and it still fails, a container's filter forbids it.
fn unusable_fix(facts: &Facts) -> String {
    match closed(facts) {
        Some((_, command)) => format!("{command}, or --sandbox off if the container is the wall you rely on"),
        None if facts.is_container => "the container's filter forbids user namespaces: docker run --security-opt \
                                       seccomp=PROFILE with one that allows clone and unshare, or --sandbox off to \
                                       rely on the container"
            .to_owned(),
        None => "allow unprivileged user namespaces for the browser (see its last words), or --sandbox off".to_owned(),
    }
}

/// The first setting that forbids user namespaces, and the command that allows them.
fn closed(facts: &Facts) -> Option<(&'static str, String)> {
    let settings = [
        (
            facts.userns_clone == Some(0),
            "kernel.unprivileged_userns_clone = 0",
            "kernel.unprivileged_userns_clone=1",
        ),
        (
            facts.max_user_namespaces == Some(0),
            "user.max_user_namespaces = 0",
            "user.max_user_namespaces=15000",
        ),
        (
            facts.apparmor_restricts == Some(1),
            "kernel.apparmor_restrict_unprivileged_userns = 1",
            "kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    ];
    let (_, is, should) = settings.into_iter().find(|(forbids, ..)| *forbids)?;
    let whose = if facts.is_container { " (on the host)" } else { "" };
    Some((is, format!("sysctl -w {should}{whose}")))
}

fn namespaces(facts: &Facts) -> Finding {
    match closed(facts) {
        None => {
            let most = facts
                .max_user_namespaces
                .map_or(String::new(), |most| format!(" (user.max_user_namespaces = {most})"));
            GROUP.ok(
                "user namespaces",
                format!("the kernel's settings allow unprivileged ones{most}"),
            )
        }
        // Said with its weight by `pages`; a setuid helper may make up for it.
        Some((is, command)) => GROUP
            .note("user namespaces", format!("{is} forbids unprivileged ones"))
            .fix(command),
    }
}

fn filters(facts: &Facts) -> Finding {
    if facts.has_seccomp {
        return GROUP.ok("seccomp", "the kernel has system call filters");
    }
    let says = "the kernel does not say that it has system call filters (no kernel.seccomp.actions_avail)";
    GROUP.note("seccomp", says).fix("a kernel with CONFIG_SECCOMP_FILTER=y")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Level;

    fn facts(outcome: Outcome) -> Facts {
        Facts {
            outcome,
            wanted: Sandbox::Auto,
            is_root: false,
            userns_clone: None,
            apparmor_restricts: None,
            max_user_namespaces: Some(1000),
            has_seccomp: true,
            is_container: false,
        }
    }

    #[test]
    fn sandboxed_pages_are_fine() {
        assert!(
            judge(&facts(Outcome::Sandboxed))
                .iter()
                .all(|finding| finding.level == Level::Ok)
        );
    }

    #[test]
    fn root_is_told_to_be_somebody_else() {
        let finding = pages(&Facts {
            is_root: true,
            ..facts(Outcome::NotSandboxed)
        });
        assert_eq!(finding.level, Level::Warning);
        assert!(finding.fix.unwrap().contains("runuser -u wharf"));
    }

    #[test]
    fn ubuntu_restriction_names_its_setting() {
        let findings = judge(&Facts {
            apparmor_restricts: Some(1),
            ..facts(Outcome::NotSandboxed)
        });
        assert_eq!((findings[0].level, findings[1].level), (Level::Warning, Level::Note));
        let fix = "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0";
        assert_eq!(findings[0].fix.as_deref(), Some(fix));
    }

    #[test]
    fn container_filter_is_suspected_when_every_setting_allows() {
        let finding = pages(&Facts {
            is_container: true,
            ..facts(Outcome::Unusable)
        });
        assert_eq!(finding.level, Level::Problem);
        assert!(finding.fix.unwrap().contains("--security-opt"));
    }

    #[test]
    fn sandbox_switched_off_is_a_note() {
        let finding = pages(&Facts {
            wanted: Sandbox::Off,
            ..facts(Outcome::NotSandboxed)
        });
        assert_eq!(finding.level, Level::Note);
    }
}
