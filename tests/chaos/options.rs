//! The command line.
//!
//! Its own file so that the help text and what is parsed stand side by side. By hand: a handful of flags needs no library.

use std::{path::PathBuf, time::Duration};

use wharf_testkit::FleetStore;

pub const HELP: &str = "\
cargo xtask chaos: breaks a real fleet on this machine on purpose, and proves that nothing was lost that need not be

  --minutes N      how long faults happen (2; fractions too)
  --seed S         which faults and which clients (1); the same seed, the same schedule
  --store ENGINE   postgres (default), redis or redis-cluster
  --clients N      clients at work at once (24)
  --coordinators N (3)   --workers N (4)   --slots N (2)
  --browsers WHICH mixed (default: the last worker runs the real headless shell, the others the fake), fake or real
  --real           short for --browsers real (fewer clients)
  --lines MEANS    how partitions are made: namespaces (each worker is a host of its own; needs root, ip, unshare and
                   nsenter), proxies (in each line), or auto (default): namespaces if this machine lets us
  --logs DIR       keep every log there, whatever happens; else they are kept only when something is wrong
  --schedule       print the faults of this seed and end

Examples:
  cargo xtask chaos --minutes 5 --seed 7
  cargo xtask chaos --minutes 1 --seed 7 --store redis
  cargo xtask chaos --minutes 3 --store redis-cluster --clients 12
  cargo xtask chaos --minutes 2 --real --clients 8
  cargo xtask chaos --minutes 60 --seed 42 --schedule

Ends with 1 if anything leaked, an invariant was broken, a client was not answered or told something imprecise.
";

/// How partitions are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Means {
    Namespaces,
    Proxies,
}

/// Which browsers there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Browsers {
    /// The real one on the last worker.
    Mixed,
    Fake,
    Real,
}

#[derive(Debug, Clone)]
pub struct Options {
    pub length: Duration,
    pub seed: u64,
    pub store: FleetStore,
    pub clients: usize,
    pub coordinators: usize,
    pub workers: usize,
    pub slots: u32,
    pub browsers: Browsers,
    /// `None` leaves it to the machine.
    pub lines: Option<Means>,
    pub logs: Option<PathBuf>,
    pub schedule_only: bool,
    pub help: bool,
    /// As it was given, to be given again.
    pub line: String,
}

// === impl Means ===

impl Means {
    pub fn name(self) -> &'static str {
        match self {
            Self::Namespaces => "namespaces",
            Self::Proxies => "proxies",
        }
    }
}

// === impl Browsers ===

impl Browsers {
    /// How many of so many workers, the last ones, run the real browser.
    pub fn real_workers(self, workers: usize) -> usize {
        match self {
            Self::Mixed => 1.min(workers),
            Self::Fake => 0,
            Self::Real => workers,
        }
    }
}

// === impl Options ===

impl Options {
    pub fn parse(words: impl Iterator<Item = String>) -> Result<Self, String> {
        let words: Vec<_> = words.collect();
        let mut options = Self {
            length: Duration::from_secs(120),
            seed: 1,
            store: FleetStore::Postgres,
            clients: 0,
            coordinators: 3,
            workers: 4,
            slots: 2,
            browsers: Browsers::Mixed,
            lines: None,
            logs: None,
            schedule_only: false,
            help: false,
            line: words.join(" "),
        };
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let (flag, inline) = match word.split_once('=') {
                Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
                None => (word, None),
            };
            let mut value = || {
                inline
                    .clone()
                    .or_else(|| words.next())
                    .ok_or(format!("{flag} needs a value"))
            };
            match flag.as_str() {
                "--minutes" => options.length = Duration::from_secs_f64(60.0 * number::<f64>(&flag, &value()?)?.abs()),
                "--seed" => options.seed = number(&flag, &value()?)?,
                "--store" => options.store = store(&value()?)?,
                "--clients" => options.clients = number(&flag, &value()?)?,
                "--coordinators" => options.coordinators = number(&flag, &value()?)?,
                "--workers" => options.workers = number(&flag, &value()?)?,
                "--slots" => options.slots = number(&flag, &value()?)?,
                "--logs" => options.logs = Some(value()?.into()),
                "--real" => options.browsers = Browsers::Real,
                "--browsers" => options.browsers = browsers(&value()?)?,
                "--lines" => options.lines = lines(&value()?)?,
                "--schedule" => options.schedule_only = true,
                "--help" | "-h" => options.help = true,
                _ => return Err(format!("unknown argument {flag}")),
            }
        }
        if options.clients == 0 {
            options.clients = if options.browsers == Browsers::Real { 8 } else { 24 };
        }
        if options.coordinators == 0 || options.workers == 0 || options.slots == 0 {
            return Err("a fleet has at least one coordinator, one worker and one slot".to_owned());
        }
        Ok(options)
    }
}

fn number<T: std::str::FromStr>(flag: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{flag}: {text:?} is no number"))
}

fn browsers(text: &str) -> Result<Browsers, String> {
    match text {
        "mixed" => Ok(Browsers::Mixed),
        "fake" => Ok(Browsers::Fake),
        "real" => Ok(Browsers::Real),
        _ => Err(format!("--browsers: expected mixed, fake or real, got {text}")),
    }
}

fn lines(text: &str) -> Result<Option<Means>, String> {
    match text {
        "auto" => Ok(None),
        "namespaces" => Ok(Some(Means::Namespaces)),
        "proxies" => Ok(Some(Means::Proxies)),
        _ => Err(format!("--lines: expected namespaces, proxies or auto, got {text}")),
    }
}

fn store(text: &str) -> Result<FleetStore, String> {
    match text {
        "postgres" => Ok(FleetStore::Postgres),
        "redis" => Ok(FleetStore::Redis),
        "redis-cluster" => Ok(FleetStore::RedisCluster),
        _ => Err(format!(
            "--store: expected postgres, redis or redis-cluster, got {text}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn line_is_read_and_mistakes_are_named() {
        let options = parse("--minutes 0.5 --seed=9 --store redis --real").unwrap();
        assert_eq!(
            (options.length, options.seed, options.clients),
            (Duration::from_secs(30), 9, 8)
        );
        assert_eq!(options.store, FleetStore::Redis);
        assert_eq!(options.line, "--minutes 0.5 --seed=9 --store redis --real");
        assert!(parse("--store mysql").unwrap_err().contains("mysql"));
        assert!(parse("--seed x").unwrap_err().contains("--seed"));
        assert!(parse("--workers 0").is_err());
        assert!(parse("--lines rope").unwrap_err().contains("rope"));
        assert!(parse("--browsers lynx").unwrap_err().contains("lynx"));
    }

    #[test]
    fn lines_and_browsers_are_chosen() {
        let options = parse("").unwrap();
        assert_eq!(
            (options.lines, options.browsers, options.clients),
            (None, Browsers::Mixed, 24)
        );
        assert_eq!(options.browsers.real_workers(4), 1);
        let options = parse("--lines=namespaces --browsers fake").unwrap();
        assert_eq!(
            (options.lines, options.browsers.real_workers(4)),
            (Some(Means::Namespaces), 0)
        );
        assert_eq!(parse("--real").unwrap().browsers.real_workers(4), 4);
        assert_eq!(parse("--lines auto").unwrap().lines, None);
    }
}
