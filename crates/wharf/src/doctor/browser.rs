//! Is there a browser, and does it start? The driver's own check answers; this file only puts it into words.
//!
//! Its own file because a missing browser is the most frequent reason for a grid that does not start. The invariant:
//! the trial is the one that `wharf up` makes, so what is found here is what would be found there.

use std::time::Duration;

use wharf_driver::{DriverProblem, DriverReport, Engine};

use super::{
    finding::{Finding, Group, size},
    trial::Failure,
};

const GROUP: Group = Group::Browser;

/// What the trial is judged by.
pub struct Facts<'a> {
    pub outcome: &'a Result<DriverReport, Failure>,
    pub engine: Engine,
    pub launch_timeout: Duration,
}

pub fn judge(facts: &Facts<'_>) -> Vec<Finding> {
    match facts.outcome {
        Ok(report) => vec![found(report), launched(report, facts.launch_timeout)],
        Err(failure) => vec![failed(failure, facts.engine)],
    }
}

fn found(report: &DriverReport) -> Finding {
    let (product, binary) = (&report.version.product, report.binary.display());
    GROUP.ok("found", format!("{product} at {binary}"))
}

fn launched(report: &DriverReport, limit: Duration) -> Finding {
    let took = report.launch_time.as_millis();
    if report.launch_time <= limit {
        return GROUP.ok("launch", format!("its first page answered after {took} ms"));
    }
    let says = format!(
        "its first page answered after {took} ms; launch_timeout allows {} ms for each step",
        limit.as_millis()
    );
    let enough = report.launch_time.as_secs().saturating_mul(2).max(1);
    GROUP.warning("launch", says).fix(format!(
        "wharf up --launch-timeout {enough}s, or a host with more free CPU"
    ))
}

fn failed(failure: &Failure, engine: Engine) -> Finding {
    let problem = match failure {
        Failure::Driver(problem) => problem,
        Failure::Setup(cause) => {
            return GROUP
                .problem("launch", format!("no trial could be made: {cause}"))
                .fix("see the directories below; another place is set with --run-dir");
        }
    };
    let package = match engine {
        Engine::Chromium => "chromium",
        Engine::Auto | Engine::HeadlessShell => "chromium-headless-shell",
    };
    match problem {
        DriverProblem::NotFound { searched } => GROUP
            .problem("found", format!("no browser found; looked for {}", searched.join(", ")))
            .fix(format!(
                "apt-get install {package} (Debian), or name a binary with --binary PATH"
            )),
        DriverProblem::NotExecutable { path, reason } => GROUP
            .problem("found", format!("{} cannot be executed: {reason}", path.display()))
            .fix(format!(
                "correct --binary, or leave it out and apt-get install {package} (Debian); \
                 for a file that is there: chmod +x {}",
                path.display()
            )),
        DriverProblem::MissingLibrary { path, library } => GROUP
            .problem(
                "launch",
                format!("{} needs {library}, which is not installed", path.display()),
            )
            .fix(format!(
                "apt-get install --fix-broken (Debian); ldd {} | grep 'not found' lists all",
                path.display()
            )),
        DriverProblem::SandboxUnusable => GROUP
            .problem(
                "launch",
                "the browser ended at once: its sandbox cannot be used on this host",
            )
            .fix("see the sandbox below"),
        DriverProblem::NoSpace { path, free } => GROUP
            .problem("launch", format!("only {} are free at {}", size(*free), path.display()))
            .fix("free at least 50 MB there, or choose another place with --run-dir"),
        DriverProblem::Launch { path, source } => GROUP
            .problem(
                "launch",
                format!("{} was found, but its trial launch failed: {source}", path.display()),
            )
            .fix(format!(
                "{} --headless --no-sandbox --dump-dom about:blank shows the cause",
                path.display()
            )),
        DriverProblem::ProgramNotFound { program, searched } => GROUP
            .problem(
                "found",
                format!("no program {program} found; looked in {}", searched.join(", ")),
            )
            .fix(format!(
                "give its path: --command ./{program}, or install it somewhere in PATH"
            )),
        DriverProblem::NotReady { path, source } => GROUP
            .problem(
                "launch",
                format!("{} was started, but did not get ready: {source}", path.display()),
            )
            .fix(format!(
                "PORT=9000 {} & curl -i http://127.0.0.1:9000/health must answer 200 within launch_timeout",
                path.display()
            )),
        other => GROUP
            .problem("launch", other.to_string())
            .fix("wharf up --log debug tells more"),
    }
}

#[cfg(test)]
pub mod tests {
    use std::path::PathBuf;

    use wharf_driver::{BrowserKind, BrowserVersion};

    use super::*;
    use crate::doctor::finding::Level;

    pub fn report() -> DriverReport {
        DriverReport {
            kind: BrowserKind::Chromium,
            binary: PathBuf::from("/usr/lib/chromium/chromium-headless-shell"),
            version: BrowserVersion {
                product: "HeadlessChrome/156.0".to_owned(),
                revision: String::new(),
                user_agent: String::new(),
                js_version: String::new(),
                protocol_version: String::new(),
            },
            sandboxed: true,
            launch_time: Duration::from_millis(130),
            notes: Vec::new(),
        }
    }

    fn judged(outcome: Result<DriverReport, Failure>, engine: Engine) -> Vec<Finding> {
        judge(&Facts {
            outcome: &outcome,
            engine,
            launch_timeout: Duration::from_secs(6),
        })
    }

    #[test]
    fn found_browser_says_path_version_and_time() {
        let findings = judged(Ok(report()), Engine::Auto);
        assert!(findings.iter().all(|finding| finding.level == Level::Ok));
        assert_eq!(
            findings[0].says,
            "HeadlessChrome/156.0 at /usr/lib/chromium/chromium-headless-shell"
        );
        assert!(findings[1].says.contains("130 ms"));
    }

    #[test]
    fn slow_launch_is_a_warning() {
        let slow = DriverReport {
            launch_time: Duration::from_secs(9),
            ..report()
        };
        let findings = judged(Ok(slow), Engine::Auto);
        assert_eq!(findings[1].level, Level::Warning);
        assert!(findings[1].fix.as_deref().unwrap().contains("--launch-timeout 18s"));
    }

    #[test]
    fn missing_browser_names_the_package_of_its_engine() {
        for (engine, package) in [
            (Engine::Auto, "apt-get install chromium-headless-shell"),
            (Engine::Chromium, "apt-get install chromium (Debian)"),
        ] {
            let searched = vec!["`chromium`".to_owned()];
            let findings = judged(Err(Failure::Driver(DriverProblem::NotFound { searched })), engine);
            assert_eq!((findings.len(), findings[0].level), (1, Level::Problem));
            assert!(findings[0].fix.as_deref().unwrap().contains(package), "{findings:?}");
        }
    }

    #[test]
    fn missing_library_is_named() {
        let problem = DriverProblem::MissingLibrary {
            path: "/x".into(),
            library: "libnss3.so".into(),
        };
        let findings = judged(Err(Failure::Driver(problem)), Engine::Auto);
        assert!(findings[0].says.contains("libnss3.so"));
    }

    #[test]
    fn trial_without_a_place_points_at_the_directories() {
        let findings = judged(Err(Failure::Setup("no room".into())), Engine::Auto);
        assert_eq!(findings[0].level, Level::Problem);
        assert!(findings[0].says.contains("no room"));
    }
}
