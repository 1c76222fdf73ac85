//! The command line.
//!
//! Its own file so that the help text and what is parsed stand side by side. By hand: a handful of flags needs no library.

use std::time::Duration;

use crate::engine::Engine;

pub const HELP: &str = "\
cargo xtask scale: what coordinators and store do with thousands of sessions, and how it grows

  --store ENGINE   postgres, redis or both (default)
  --disk HOW       ignored (PostgreSQL: fsync off; Redis: appendfsync everysec), awaited (fsync on; always) or both
                   (default: all steps ignored, the largest also awaited)
  --workers N      simulated workers of the largest step (50); also measured with a quarter and with half of them
  --slots N        sessions at once on each (100)
  --waiting N      requests that wait while everything is busy (2000)
  --in-flight N    requests at once (128)
  --seconds N      length of each measurement (10)
  --only WHAT      raw (stores in this process, without coordinators) or fleet
  --one            only the largest step

Examples:
  cargo xtask scale
  cargo xtask scale --store redis --disk ignored --one
  cargo xtask scale --store postgres --workers 20 --slots 50 --waiting 500 --seconds 5
  cargo xtask scale --only raw

Real coordinators and a real store; the workers are simulated in this process (they answer the gateway's calls, report
and free slots as real ones do, without browsers), so that 5,000 sessions fit one machine.
";

/// Hand-overs measured one by one.
pub const HAND_OVERS: usize = 200;
/// Hand-overs at once, at most.
const LARGEST_BURST: usize = 500;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    Postgres,
    Redis,
}

/// Whether a write is on disk before it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disk {
    Ignored,
    Awaited,
}

#[derive(Debug, Clone)]
pub struct Options {
    pub stores: Vec<Store>,
    pub disks: Vec<Disk>,
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
            stores: vec![Store::Postgres, Store::Redis],
            disks: vec![Disk::Ignored, Disk::Awaited],
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
                "--disk" => options.disks = disks(&value()?)?,
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

    /// The engines to measure of one store, each with its numbers of workers. Growth is measured on the first only: it is not
    /// the disk's.
    pub fn plan(&self, store: Store) -> Vec<(Engine, Vec<usize>)> {
        let steps = |position| match position {
            0 => self.steps(),
            _ => vec![self.workers],
        };
        let disks = self.disks.iter().enumerate();
        disks
            .map(|(position, disk)| (Engine { store, disk: *disk }, steps(position)))
            .collect()
    }

    fn steps(&self) -> Vec<usize> {
        let mut steps = match self.one {
            true => vec![self.workers],
            false => vec![self.workers / 4, self.workers / 2, self.workers],
        };
        steps.retain(|workers| *workers > 0);
        steps
    }

    /// Hand-overs that are asked for at once.
    pub fn burst(&self) -> usize {
        (self.waiting / 4).clamp(1, LARGEST_BURST)
    }

    /// Requests that wait at first: so many are still waiting when all hand-overs are measured.
    pub fn waiters(&self) -> usize {
        self.waiting + HAND_OVERS + self.burst()
    }

    /// Files that this process may have open at once: a connection for every waiter, and for every request in flight one to a
    /// coordinator, one from it to a simulated worker (whose end is here) and one back, doubled for those being closed.
    pub fn files(&self) -> u64 {
        let files = self.waiters() + self.workers + 6 * (self.in_flight + self.burst()) + 100;
        u64::try_from(files).unwrap_or(u64::MAX)
    }
}

fn number<T: std::str::FromStr>(flag: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{flag}: {text:?} is no number"))
}

fn stores(text: &str) -> Result<Vec<Store>, String> {
    match text {
        "postgres" => Ok(vec![Store::Postgres]),
        "redis" => Ok(vec![Store::Redis]),
        "both" => Ok(vec![Store::Postgres, Store::Redis]),
        _ => Err(format!("--store: expected postgres, redis or both, got {text}")),
    }
}

fn disks(text: &str) -> Result<Vec<Disk>, String> {
    match text {
        "ignored" => Ok(vec![Disk::Ignored]),
        "awaited" => Ok(vec![Disk::Awaited]),
        "both" => Ok(vec![Disk::Ignored, Disk::Awaited]),
        _ => Err(format!("--disk: expected ignored, awaited or both, got {text}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(line.split_whitespace().map(str::to_owned))
    }

    fn sizes(line: &str) -> Vec<(Disk, Vec<usize>)> {
        let plan = parse(line).unwrap().plan(Store::Redis);
        plan.into_iter().map(|(engine, steps)| (engine.disk, steps)).collect()
    }

    #[test]
    fn workers_double_twice_and_the_largest_step_also_waits_for_the_disk() {
        let both = [(Disk::Ignored, vec![12, 25, 50]), (Disk::Awaited, vec![50])];
        assert_eq!(sizes("--workers 50"), both);
        assert_eq!(sizes("--workers=8 --one --disk ignored"), [(Disk::Ignored, vec![8])]);
        assert_eq!(sizes("--disk=awaited"), [(Disk::Awaited, vec![12, 25, 50])]);
        assert_eq!(sizes("--workers 1 --disk ignored"), [(Disk::Ignored, vec![1])]);
    }

    #[test]
    fn waiters_outlast_all_hand_overs() {
        let options = parse("--waiting 2000").unwrap();
        assert_eq!(options.waiters() - HAND_OVERS - options.burst(), 2000);
        assert!(
            options.files() > 2700 && options.files() < 20_000,
            "{}",
            options.files()
        );
        assert_eq!(parse("--waiting 0").unwrap().burst(), 1);
    }

    #[test]
    fn mistakes_are_named() {
        assert!(parse("--store mysql").unwrap_err().contains("mysql"));
        assert!(parse("--disk never").unwrap_err().contains("never"));
        assert!(parse("--only all").unwrap_err().contains("all"));
        assert!(parse("--slots 0").is_err());
    }
}
