//! The command line: Chromium's flags that matter, and the fault switches.
//!
//! Its own file because this is the interface that tests write against. Chromium ignores flags it does not know, and
//! so does this parser; but an unknown *fault* is refused loudly, since a test with a misspelt fault tests nothing.
//!
//! Invariant: parsing has no effect; every fault takes effect in [`crate::faults`] or in the connection code.

use std::{path::PathBuf, time::Duration};

use wharf_testkit::misbehave::{counted, duration};

/// Faults may also come from here, separated by commas: for launchers whose flags a test cannot reach.
pub const FAULTS_ENV: &str = "FAKE_BROWSER_FAULTS";
/// Set by the program itself when it starts again with SIGTERM ignored.
pub const SIGTERM_IGNORED: &str = "--fake-sigterm-is-ignored";
/// Set by the program itself for the child that outlives it.
pub const LEAKED_CHILD: &str = "--fake-leaked-child";

pub const HELP: &str = "\
fake-browser: takes Chromium's command line, fails on request

  --version                     print the version
  --user-data-dir=DIR           write DevToolsActivePort there
  --remote-debugging-port=0     serve HTTP and WebSocket on a port of 127.0.0.1
  --remote-debugging-pipe       speak NUL-terminated JSON on fds 3 (in) and 4 (out)
  --remote-allow-origins=LIST   accept these origins, or *
  --user-agent=TEXT
  --fake-fault=NAME[:ARG]       may be repeated; also FAKE_BROWSER_FAULTS=NAME[:ARG],...
      crash_at_start  crash_after:5s  exit_code:N
      hang_at_start   hang_after:5s   slow_start:2s   hang_on_connect   refuse_connect
      garbage  ignore_sigterm  leak_child  fill_profile:MB
      fail_first:N@COUNTER_FILE  fail_every:N@COUNTER_FILE

CDP methods that misbehave: Fake.crash, Fake.abort, Fake.exit{code}, Fake.hang, Fake.sleep{ms}, Fake.allocate{mb},
Fake.garbage, Fake.leakChild, Fake.flood{messages,bytes}. Other flags are ignored.
";

/// One way to misbehave, as written in `--fake-fault=<name>[:arg]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    CrashAtStart,
    CrashAfter(Duration),
    ExitCode(i32),
    HangAtStart,
    HangAfter(Duration),
    SlowStart(Duration),
    IgnoreSigterm,
    LeakChild,
    Garbage,
    HangOnConnect,
    RefuseConnect,
    FillProfile { megabytes: u64 },
    FailEvery { n: u64, counter: PathBuf },
    FailFirst { n: u64, counter: PathBuf },
}

#[derive(Debug, Default)]
pub struct Options {
    pub version: bool,
    pub help: bool,
    pub user_data_dir: Option<PathBuf>,
    pub port: Option<u16>,
    pub pipe: bool,
    pub allow_origins: Option<String>,
    pub user_agent: Option<String>,
    /// The page opened at start, as Chromium takes it: the argument that is no flag.
    pub url: Option<String>,
    pub faults: Vec<Fault>,
    pub sigterm_is_ignored: bool,
    pub leaked_child: bool,
}

// === impl Options ===

impl Options {
    pub fn parse(args: impl Iterator<Item = String>, faults_env: Option<&str>) -> Result<Self, String> {
        let mut options = Self::default();
        for arg in args {
            options.take(arg)?;
        }
        for fault in faults_env
            .unwrap_or_default()
            .split(',')
            .filter(|fault| !fault.is_empty())
        {
            options.faults.push(Fault::parse(fault)?);
        }
        Ok(options)
    }

    fn take(&mut self, arg: String) -> Result<(), String> {
        let (name, value) = arg.split_once('=').unwrap_or((arg.as_str(), ""));
        match name {
            "--version" => self.version = true,
            "--help" => self.help = true,
            "--user-data-dir" => self.user_data_dir = Some(PathBuf::from(value)),
            "--remote-debugging-port" => {
                self.port = Some(value.parse().map_err(|_| format!("{value:?} is no port"))?);
            }
            "--remote-debugging-pipe" => self.pipe = true,
            "--remote-allow-origins" => self.allow_origins = Some(value.to_owned()),
            "--user-agent" => self.user_agent = Some(value.to_owned()),
            "--fake-fault" => self.faults.push(Fault::parse(value)?),
            SIGTERM_IGNORED => self.sigterm_is_ignored = true,
            LEAKED_CHILD => self.leaked_child = true,
            _ if name.starts_with('-') => {}
            _ => self.url = Some(arg),
        }
        Ok(())
    }

    pub fn refuses_connections(&self) -> bool {
        self.faults.contains(&Fault::RefuseConnect)
    }
}

// === impl Fault ===

impl Fault {
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, arg) = text.split_once(':').unwrap_or((text, ""));
        let number = || {
            arg.parse::<u64>()
                .map_err(|_| format!("fault {name:?} needs a number, not {arg:?}"))
        };
        Ok(match name {
            "crash_at_start" => Self::CrashAtStart,
            "crash_after" => Self::CrashAfter(duration(arg)?),
            "exit_code" => Self::ExitCode(i32::try_from(number()?).map_err(|_| format!("{arg:?} is no exit code"))?),
            "hang_at_start" => Self::HangAtStart,
            "hang_after" => Self::HangAfter(duration(arg)?),
            "slow_start" => Self::SlowStart(duration(arg)?),
            "ignore_sigterm" => Self::IgnoreSigterm,
            "leak_child" => Self::LeakChild,
            "garbage" => Self::Garbage,
            "hang_on_connect" => Self::HangOnConnect,
            "refuse_connect" => Self::RefuseConnect,
            "fill_profile" => Self::FillProfile { megabytes: number()? },
            "fail_every" => counted(arg).map(|(n, counter)| Self::FailEvery { n, counter })?,
            "fail_first" => counted(arg).map(|(n, counter)| Self::FailFirst { n, counter })?,
            _ => return Err(format!("unknown fault {text:?}")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str], env: Option<&str>) -> Result<Options, String> {
        Options::parse(args.iter().map(|arg| (*arg).to_owned()), env)
    }

    #[test]
    fn options_unknown_flags_are_ignored() {
        let options = parse(
            &[
                "--no-sandbox",
                "--user-data-dir=/d",
                "--remote-debugging-port=0",
                "--headless=new",
                "about:blank",
            ],
            None,
        )
        .unwrap();
        assert_eq!(options.user_data_dir.as_deref(), Some(std::path::Path::new("/d")));
        assert_eq!(options.port, Some(0));
        assert_eq!(options.url.as_deref(), Some("about:blank"));
        assert!(!options.pipe && options.faults.is_empty());
    }

    #[test]
    fn options_faults_come_from_flags_and_environment() {
        let options = parse(
            &["--fake-fault=crash_after:200ms", "--fake-fault=garbage"],
            Some("fail_first:3@/c,slow_start:2s"),
        )
        .unwrap();
        assert_eq!(
            options.faults,
            [
                Fault::CrashAfter(Duration::from_millis(200)),
                Fault::Garbage,
                Fault::FailFirst {
                    n: 3,
                    counter: "/c".into()
                },
                Fault::SlowStart(Duration::from_secs(2)),
            ]
        );
    }

    #[test]
    fn options_misspelt_fault_is_refused() {
        for bad in [
            "crahs_at_start",
            "crash_after:soon",
            "fail_first:3",
            "fail_every:0@/c",
            "exit_code:x",
        ] {
            assert!(
                parse(&[&format!("--fake-fault={bad}")], None).is_err(),
                "{bad} was accepted"
            );
        }
    }
}
