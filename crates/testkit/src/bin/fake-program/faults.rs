//! Everything that goes wrong on purpose in one process: which faults were drawn, and when they strike.
//!
//! Its own file so that the rest of the program reads like an honest one. A fault with a probability is drawn once, at
//! the start: a process is faulty or it is not, as real ones are.
//!
//! Invariant: after a hang no thread of this process answers anything, while the process stays alive.

use std::{
    io,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use wharf_testkit::misbehave::{self, count_launch, crash, park};

use crate::options::{Fault, Garbage, LEAKED_CHILD, Options, SIGTERM_IGNORED, When};

/// Exit status of a launch that `fail_first` made fail.
const FAILED_LAUNCH: i32 = 21;

static HUNG: AtomicBool = AtomicBool::new(false);

/// The faults of this process.
#[derive(Debug, Default)]
pub struct Faults {
    drawn: Vec<Fault>,
    calls: AtomicU64,
}

// === impl Faults ===

impl Faults {
    /// Draws. With a seed the draws of the n-th launch are always the same; without one they follow the process id.
    pub fn draw(options: &Options) -> io::Result<Self> {
        // Whoever starts again with SIGTERM ignored has drawn before and must not count twice.
        let start = match &options.seed {
            Some((seed, counter)) if !options.sigterm_is_ignored => mix(*seed) ^ count_launch(counter)?,
            _ => u64::from(std::process::id()),
        };
        let drawn = options.faults.iter().enumerate().filter_map(|(at, chance)| {
            let draw = mix(mix(start).wrapping_add(at as u64));
            // The upper 53 bits as a number from 0 to 1.
            let share = (draw >> 11) as f64 / (1_u64 << 53) as f64;
            (share < chance.probability).then(|| chance.fault.clone())
        });
        Ok(Self {
            drawn: drawn.collect(),
            calls: AtomicU64::new(0),
        })
    }

    pub fn has(&self, fault: &Fault) -> bool {
        self.drawn.contains(fault)
    }

    pub fn takes_another_port(&self) -> bool {
        self.has(&Fault::WrongPort)
    }

    pub fn garbage(&self) -> Option<Garbage> {
        self.drawn.iter().find_map(|fault| match fault {
            Fault::Garbage(garbage) => Some(*garbage),
            _ => None,
        })
    }

    pub fn slow_health(&self) -> Option<Duration> {
        self.drawn.iter().find_map(|fault| match fault {
            Fault::SlowHealth(delay) => Some(*delay),
            _ => None,
        })
    }

    /// Faults that act before the port is bound.
    pub fn before_ready(&self, options: &Options) -> io::Result<()> {
        if self.has(&Fault::IgnoreSigterm) && !options.sigterm_is_ignored {
            return Err(misbehave::restart_ignoring_sigterm(SIGTERM_IGNORED));
        }
        for fault in &self.drawn {
            match fault {
                Fault::CrashAtStart => crash(),
                Fault::ExitCode(code) => fail(*code, "exit_code"),
                Fault::HangAtStart => park(),
                Fault::SlowStart(delay) => thread::sleep(*delay),
                Fault::FailFirst { n, counter } if count_launch(counter)? <= *n => fail(FAILED_LAUNCH, "fail_first"),
                _ => {}
            }
        }
        Ok(())
    }

    /// Faults that act, or start their clock, once the port is bound.
    pub fn after_ready(&self) {
        for fault in &self.drawn {
            let started = match fault {
                Fault::LeakChild => misbehave::leak_child(LEAKED_CHILD).map(drop),
                Fault::CrashAfter(When::Time(delay)) => after(*delay, || crash()),
                Fault::HangAfter(When::Time(delay)) => after(*delay, hang),
                _ => Ok(()),
            };
            if let Err(error) = started {
                eprintln!("fake-program: could not start {fault:?}: {error}");
            }
        }
    }

    /// Counts a call about sessions, before it is answered; may not return.
    pub fn on_call(&self, method: &str) {
        let count = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        for fault in &self.drawn {
            match fault {
                Fault::CrashAfter(When::Calls(n)) if count > *n => crash(),
                Fault::HangAfter(When::Calls(n)) if count > *n => hang(),
                Fault::CrashOnCreate if method == "POST" => crash(),
                Fault::HangOn(which) if *which == method => park(),
                _ => {}
            }
        }
        gate();
    }
}

/// Every thread passes here before it answers; after a hang, none comes out.
pub fn gate() {
    if HUNG.load(Ordering::SeqCst) {
        park();
    }
}

fn hang() {
    HUNG.store(true, Ordering::SeqCst);
}

fn after(delay: Duration, act: impl FnOnce() + Send + 'static) -> io::Result<()> {
    crate::spawn("fault", move || {
        thread::sleep(delay);
        act();
    })
}

fn fail(code: i32, name: &str) -> ! {
    eprintln!("fake-program: this launch fails ({name})");
    std::process::exit(code)
}

/// SplitMix64: enough of a generator for a draw.
fn mix(from: u64) -> u64 {
    let mut z = from.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_follow_the_seed_and_meet_their_share() {
        let dir = tempfile::tempdir().unwrap();
        let drawn = |name: &str, launches: usize| -> Vec<bool> {
            let seed = format!("--seed=42@{}", dir.path().join(name).display());
            let args = [seed, "--fault=hang_on_create%0.1".to_owned()];
            let options = Options::parse(args.into_iter(), None).unwrap();
            (0..launches)
                .map(|_| Faults::draw(&options).unwrap().has(&Fault::HangOn("POST")))
                .collect()
        };
        let (one, two) = (drawn("a", 500), drawn("b", 500));
        assert_eq!(one, two, "the same seed draws the same");
        let hits = one.iter().filter(|hit| **hit).count();
        assert!((20..=90).contains(&hits), "{hits} of 500 at a share of 0.1");
    }
}
