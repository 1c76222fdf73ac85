//! What happened in a run: visits by cause, faults by kind, findings, times to notice.
//!
//! Its own file because everybody writes to it: clients, followers, the watch, the conductor. Invariant: a finding is
//! never dropped, and says when it was seen.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use wharf_core::EndReason;
use wharf_e2e::samples::Samples;

use crate::{
    blame::{self, Age},
    options::Means,
    outcome::Outcome,
    schedule::Fault,
    told::Told,
};

/// What must not happen. Each makes the run fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sort {
    Leak,
    Invariant,
    Unanswered,
    Imprecise,
    Events,
    Rest,
}

/// All of them, with what the table calls them.
pub const SORTS: [(Sort, &str); 6] = [
    (Sort::Leak, "leaks (processes, directories, slots)"),
    (Sort::Invariant, "invariants broken (I1-I8)"),
    (Sort::Unanswered, "clients not answered"),
    (Sort::Imprecise, "clients told something imprecise or unexplained"),
    (Sort::Events, "events lost, repeated or told differently"),
    (Sort::Rest, "not as before after the faults"),
];

pub struct Book {
    started: Instant,
    /// The store may lose the last moments in a fail-over (Redis Cluster, `wait_replicas` 0): numbers of events are then
    /// given anew. Counted, not held against anybody.
    may_rewind: bool,
    means: Means,
    pages: Mutex<Pages>,
}

#[derive(Default)]
pub struct Pages {
    pub visits: BTreeMap<(&'static str, String), u64>,
    pub faults: BTreeMap<&'static str, u64>,
    pub findings: Vec<(Sort, String)>,
    pub notices: BTreeMap<&'static str, Samples>,
    pub snapshots: u64,
    pub events: u64,
    /// Events told otherwise than before, where the store may lose its last moments.
    pub rewound: u64,
    /// Ends that clients learned of, to be matched with their causes.
    pub told: Vec<Told>,
    log: Vec<Logged>,
}

/// A fault as it was done.
#[derive(Debug)]
pub struct Logged {
    pub at: Instant,
    /// `None` while it is under way.
    pub over: Option<Instant>,
    pub fault: Fault,
}

/// Which fault of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultId(usize);

// === impl Book ===

impl Book {
    pub fn new(means: Means, may_rewind: bool) -> Self {
        Self {
            started: Instant::now(),
            may_rewind,
            means,
            pages: Mutex::default(),
        }
    }

    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// A moment as messages give it.
    pub fn seconds_at(&self, then: Instant) -> f64 {
        then.saturating_duration_since(self.started).as_secs_f64()
    }

    /// For whoever prints.
    pub fn read<T>(&self, look: impl FnOnce(&Pages) -> T) -> T {
        look(&self.pages.lock())
    }

    pub fn write<T>(&self, change: impl FnOnce(&mut Pages) -> T) -> T {
        change(&mut self.pages.lock())
    }

    /// A fault begins now; it is under way until [`Self::over`].
    pub fn begin(&self, fault: Fault) -> FaultId {
        let mut pages = self.pages.lock();
        *pages.faults.entry(fault.kind()).or_default() += 1;
        pages.log.push(Logged {
            at: Instant::now(),
            over: None,
            fault,
        });
        FaultId(pages.log.len() - 1)
    }

    /// It is undone, and whoever was down serves again.
    pub fn over(&self, id: FaultId) {
        if let Some(logged) = self.pages.lock().log.get_mut(id.0) {
            logged.over = Some(Instant::now());
        }
    }

    pub fn finding(&self, sort: Sort, text: impl Into<String>) {
        if sort == Sort::Events && self.may_rewind {
            self.pages.lock().rewound += 1;
            return;
        }
        let text = format!("{:.3} s: {}", self.elapsed().as_secs_f64(), text.into());
        eprintln!("chaos: FINDING ({sort:?}) {text}");
        self.pages.lock().findings.push((sort, text));
    }

    /// How a visit ended.
    pub fn visit(&self, task: &'static str, outcome: &Outcome) {
        *self.pages.lock().visits.entry((task, outcome.cause())).or_default() += 1;
        let is_explained = |at: Instant| self.is_any(at, blame::breaks_front);
        match outcome {
            Outcome::Unanswered(text) => self.finding(Sort::Unanswered, format!("{task}: {text}")),
            Outcome::Strange(text) => self.finding(Sort::Imprecise, format!("{task}: {text}")),
            Outcome::Broken(text, at) if !is_explained(*at) => {
                let then = self.seconds_at(*at);
                let text = format!("{task}: a connection broke at {then:.3} s, and no fault explains it: {text}");
                self.finding(Sort::Imprecise, text);
            }
            Outcome::Balancer(status, at) if !is_explained(*at) => {
                let then = self.seconds_at(*at);
                let text = format!("{task}: the balancer said {status} at {then:.3} s, and no fault explains it");
                self.finding(Sort::Imprecise, text);
            }
            _ => {}
        }
    }

    /// Whether a fault that had begun by then explains it.
    fn is_any(&self, then: Instant, explains: impl Fn(Fault, Age) -> bool) -> bool {
        let pages = self.pages.lock();
        let begun = pages.log.iter().rev().filter(|logged| logged.at <= then);
        let mut ages = begun.map(|logged| {
            let since = |earlier: Instant| then.saturating_duration_since(earlier);
            let over = logged.over.filter(|over| *over <= then).map(since);
            let begun = since(logged.at);
            (logged.fault, Age { begun, over })
        });
        ages.any(|(fault, age)| explains(fault, age))
    }

    /// Whether a fault may have ended a session of this worker for this reason at that time.
    pub fn is_loss_explained(&self, worker: usize, reason: EndReason, then: Instant) -> bool {
        self.is_any(then, |fault, age| {
            blame::ends_session(fault, age, worker, reason, self.means)
        })
    }

    pub fn measured(&self, what: &'static str, took: Duration) {
        self.pages.lock().notices.entry(what).or_default().push_time(took);
    }
}

// === impl Pages ===

impl Pages {
    pub fn faults_so_far(&self) -> &[Logged] {
        &self.log
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Who;

    #[test]
    fn fault_that_is_under_way_explains_and_a_later_one_does_not() {
        let book = Book::new(Means::Proxies, false);
        let before = Instant::now();
        let id = book.begin(Fault::Kill(Who::Worker(1), Duration::ZERO));
        let lost = |at| book.is_loss_explained(1, EndReason::WorkerLost, at);
        let now = Instant::now();
        assert!(lost(now) && lost(now + Duration::from_secs(60)));
        assert!(!lost(before), "it had not begun");
        book.over(id);
        assert!(lost(Instant::now()) && !lost(now + Duration::from_secs(60)));
    }
}
