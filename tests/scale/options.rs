//! The command line.
//!
//! Its own file so that the help text and what is parsed stand side by side. By hand: a handful of flags needs no library.

use std::time::Duration;

use wharf_testkit::FleetStore;

pub const HELP: &str = "\
cargo xtask scale: what coordinators and store do with thousands of sessions, and how it grows

  --store ENGINE   postgres, redis or both (default)
  --workers N      simulated workers of the middle step (50); measured with half, with these, and with twice as many
  --slots N        sessions at once on each (100)
  --waiting N      requests that wait while everything is busy (2000)
  --in-flight N    requests at once (128)
  --seconds N      length of each measurement (10)
  --only WHAT      raw (stores in this process, without coordinators) or fleet
  --one            only the middle step

Examples:
  cargo xtask scale
  cargo xtask scale --store redis --one
  cargo xtask scale --store postgres --workers 20 --slots 50 --waiting 500 --seconds 5
  cargo xtask scale --only raw

Real coordinators and a real store; the workers are simulated in this process (they answer the gateway's calls, report
and free slots as real ones do, without browsers), so that 5,000 sessions fit one machine.
";

#[derive(Debug, Clone)]
pub struct Options {
    pub stores: Vec<FleetStore>,
    pub workers: usize,
    pub slots: u32,
    pub waiting: usize,
    pub in_flight: usize,
    pub span: Duration,
    pub raw: bool,
    pub fleet: bool,
    pub one: bool,
    pub help: bool,
}

// === impl Options ===

impl Options {
    pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            stores: vec![FleetStore::Postgres, FleetStore::Redis],
            workers: 50,
            slots: 100,
            waiting: 2000,
            in_flight: 128,
            span: Duration::from_secs(10),
            raw: true,
            fleet: true,
            one: false,
            help: false,
        };
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
                "--store" => options.stores = stores(&value()?)?,
                "--workers" => options.workers = number(&flag, &value()?)?,
                "--slots" => options.slots = number(&flag, &value()?)?,
                "--waiting" => options.waiting = number(&flag, &value()?)?,
                "--in-flight" => options.in_flight = number(&flag, &value()?)?,
                "--seconds" => options.span = Duration::from_secs(number(&flag, &value()?)?),
                "--only" => match value()?.as_str() {
                    "raw" => options.fleet = false,
                    "fleet" => options.raw = false,
                    other => return Err(format!("--only: expected raw or fleet, got {other}")),
                },
                "--one" => options.one = true,
                "--help" | "-h" => options.help = true,
                _ => return Err(format!("unknown argument {flag}")),
            }
        }
        match options.workers == 0 || options.slots == 0 || options.in_flight == 0 || options.span.is_zero() {
            true => Err("workers, slots, requests in flight and seconds must be above zero".to_owned()),
            false => Ok(options),
        }
    }

    /// The numbers of workers to measure with.
    pub fn steps(&self) -> Vec<usize> {
        match self.one {
            true => vec![self.workers],
            false => vec![self.workers.div_ceil(2), self.workers, self.workers * 2],
        }
    }
}

fn number<T: std::str::FromStr>(flag: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{flag}: {text:?} is no number"))
}

fn stores(text: &str) -> Result<Vec<FleetStore>, String> {
    match text {
        "postgres" => Ok(vec![FleetStore::Postgres]),
        "redis" => Ok(vec![FleetStore::Redis]),
        "both" => Ok(vec![FleetStore::Postgres, FleetStore::Redis]),
        _ => Err(format!("--store: expected postgres, redis or both, got {text}")),
    }
}

pub fn name(store: FleetStore) -> &'static str {
    match store {
        FleetStore::Postgres => "postgres",
        FleetStore::Redis => "redis",
        FleetStore::RedisCluster => "redis-cluster",
        FleetStore::Sqlite => "sqlite",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn steps_halve_and_double() {
        assert_eq!(parse("--workers 50").unwrap().steps(), [25, 50, 100]);
        assert_eq!(parse("--workers=8 --one").unwrap().steps(), [8]);
    }

    #[test]
    fn mistakes_are_named() {
        assert!(parse("--store mysql").unwrap_err().contains("mysql"));
        assert!(parse("--only all").unwrap_err().contains("all"));
        assert!(parse("--slots 0").is_err());
    }
}
