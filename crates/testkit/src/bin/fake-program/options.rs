//! The command line: the fault switches, each with its probability.
//!
//! Its own file because this is the interface that tests write against. Unlike a browser's, an unknown flag is refused:
//! a test with a misspelt fault tests nothing.
//!
//! Invariant: parsing has no effect; every fault takes effect in [`crate::faults`] or in [`crate::http`].

use std::{path::PathBuf, time::Duration};

use wharf_testkit::misbehave::{counted, duration};

/// Faults may also come from here, separated by commas.
pub const FAULTS_ENV: &str = "FAKE_PROGRAM_FAULTS";
/// Set by the program itself when it starts again with SIGTERM ignored.
pub const SIGTERM_IGNORED: &str = "--sigterm-is-ignored";
/// Set by the program itself for the child that outlives it.
pub const LEAKED_CHILD: &str = "--leaked-child";

pub const HELP: &str = "\
fake-program: serves one session at $PORT, fails on request

  --fault=NAME[:ARG][%P]        may be repeated; also FAKE_PROGRAM_FAULTS=NAME[:ARG][%P],...
                                %P: in this share of the launches, e.g. hang_on_create%0.1
      crash_at_start  exit_code:N  hang_at_start  slow_start:2s  wrong_port
      fail_first:N@COUNTER_FILE
      slow_health:500ms  sick
      crash_after:5s  crash_after:3calls  hang_after:5s  hang_after:3calls
      crash_on_create  refuse_create  hang_on_create  hang_on_get  hang_on_delete  forget
      garbage[:http|json|list|no_id|huge|health]
      ignore_sigterm  leak_child
  --seed=N@COUNTER_FILE         the draws of %P follow from N and the number of the launch
";

/// One way to misbehave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    CrashAtStart,
    ExitCode(i32),
    HangAtStart,
    SlowStart(Duration),
    WrongPort,
    FailFirst { n: u64, counter: PathBuf },
    SlowHealth(Duration),
    Sick,
    CrashAfter(When),
    HangAfter(When),
    CrashOnCreate,
    RefuseCreate,
    HangOn(&'static str),
    Forget,
    Garbage(Garbage),
    IgnoreSigterm,
    LeakChild,
}

/// After a time, or after so many calls about sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    Time(Duration),
    Calls(u64),
}

/// Which nonsense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Garbage {
    /// Not HTTP.
    Http,
    /// HTTP, but not JSON.
    Json,
    /// JSON, but no object.
    List,
    /// An object without an id.
    NoId,
    /// More than anybody wants.
    Huge,
    /// Not HTTP, at `/health` already.
    Health,
}

/// A fault and how often it is drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct Chance {
    pub fault: Fault,
    pub probability: f64,
}

#[derive(Debug, Default)]
pub struct Options {
    pub help: bool,
    pub faults: Vec<Chance>,
    pub seed: Option<(u64, PathBuf)>,
    pub sigterm_is_ignored: bool,
    pub leaked_child: bool,
}

// === impl Options ===

impl Options {
    pub fn parse(args: impl Iterator<Item = String>, faults_env: Option<&str>) -> Result<Self, String> {
        let mut options = Self::default();
        for arg in args {
            let (name, value) = arg.split_once('=').unwrap_or((arg.as_str(), ""));
            match name {
                "--help" => options.help = true,
                "--fault" => options.faults.push(Chance::parse(value)?),
                "--seed" => options.seed = Some(counted(value)?),
                SIGTERM_IGNORED => options.sigterm_is_ignored = true,
                LEAKED_CHILD => options.leaked_child = true,
                _ => return Err(format!("unknown argument {arg:?}; try --help")),
            }
        }
        for fault in faults_env.unwrap_or_default().split(',').filter(|f| !f.is_empty()) {
            options.faults.push(Chance::parse(fault)?);
        }
        Ok(options)
    }
}

// === impl Chance ===

impl Chance {
    fn parse(text: &str) -> Result<Self, String> {
        let (fault, probability) = match text.rsplit_once('%') {
            None => (text, 1.0),
            Some((fault, share)) => {
                let share = share.parse().ok().filter(|share| (0.0..=1.0).contains(share));
                (
                    fault,
                    share.ok_or_else(|| format!("{text:?}: expected a share from 0 to 1 after %"))?,
                )
            }
        };
        let fault = Fault::parse(fault)?;
        Ok(Self { fault, probability })
    }
}

// === impl Fault ===

impl Fault {
    fn parse(text: &str) -> Result<Self, String> {
        let (name, arg) = text.split_once(':').unwrap_or((text, ""));
        Ok(match name {
            "crash_at_start" => Self::CrashAtStart,
            "exit_code" => Self::ExitCode(arg.parse().map_err(|_| format!("{arg:?} is no exit code"))?),
            "hang_at_start" => Self::HangAtStart,
            "slow_start" => Self::SlowStart(duration(arg)?),
            "wrong_port" => Self::WrongPort,
            "fail_first" => counted(arg).map(|(n, counter)| Self::FailFirst { n, counter })?,
            "slow_health" => Self::SlowHealth(duration(arg)?),
            "sick" => Self::Sick,
            "crash_after" => Self::CrashAfter(When::parse(arg)?),
            "hang_after" => Self::HangAfter(When::parse(arg)?),
            "crash_on_create" => Self::CrashOnCreate,
            "refuse_create" => Self::RefuseCreate,
            "hang_on_create" => Self::HangOn("POST"),
            "hang_on_get" => Self::HangOn("GET"),
            "hang_on_delete" => Self::HangOn("DELETE"),
            "forget" => Self::Forget,
            "garbage" => Self::Garbage(match arg {
                "" | "http" => Garbage::Http,
                "json" => Garbage::Json,
                "list" => Garbage::List,
                "no_id" => Garbage::NoId,
                "huge" => Garbage::Huge,
                "health" => Garbage::Health,
                _ => return Err(format!("unknown garbage {arg:?}")),
            }),
            "ignore_sigterm" => Self::IgnoreSigterm,
            "leak_child" => Self::LeakChild,
            _ => return Err(format!("unknown fault {text:?}")),
        })
    }
}

// === impl When ===

impl When {
    fn parse(text: &str) -> Result<Self, String> {
        match text.strip_suffix("calls").or_else(|| text.strip_suffix("call")) {
            Some(calls) => calls
                .parse()
                .map(Self::Calls)
                .map_err(|_| format!("{text:?} is no number of calls")),
            None => duration(text).map(Self::Time),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str], env: Option<&str>) -> Result<Options, String> {
        Options::parse(args.iter().map(|arg| (*arg).to_owned()), env)
    }

    #[test]
    fn faults_come_from_flags_and_environment_with_their_shares() {
        let options = parse(
            &[
                "--fault=crash_after:3calls",
                "--fault=hang_on_create%0.1",
                "--seed=7@/c",
            ],
            Some("garbage:json,slow_health:200ms"),
        )
        .unwrap();
        let found: Vec<_> = options
            .faults
            .iter()
            .map(|c| (c.fault.clone(), c.probability))
            .collect();
        assert_eq!(
            found,
            [
                (Fault::CrashAfter(When::Calls(3)), 1.0),
                (Fault::HangOn("POST"), 0.1),
                (Fault::Garbage(Garbage::Json), 1.0),
                (Fault::SlowHealth(Duration::from_millis(200)), 1.0),
            ]
        );
        assert_eq!(options.seed, Some((7, "/c".into())));
    }

    #[test]
    fn misspelt_faults_and_flags_are_refused() {
        for bad in [
            "hang_on_creat",
            "crash_after:soon",
            "hang_on_create%2",
            "garbage:x",
            "exit_code:x",
        ] {
            assert!(parse(&[&format!("--fault={bad}")], None).is_err(), "{bad} was accepted");
        }
        assert!(parse(&["--port=1"], None).is_err());
    }
}
