//! What happened in a run: visits by cause, faults by kind, findings, times to notice.
//!
//! Its own file because everybody writes to it: clients, followers, the watch, the conductor. Invariant: a finding is
//! never dropped, and says when it was seen.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use wharf_e2e::samples::Samples;

use crate::{
    outcome::Outcome,
    schedule::{Fault, Line, Who},
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

/// A fault is a cause of what is seen up to this long after it was over.
const AFTERMATH: Duration = Duration::from_secs(20);

pub struct Book {
    started: Instant,
    /// The store may lose the last moments in a fail-over (Redis Cluster, `wait_replicas` 0): numbers of events are then
    /// given anew. Counted, not held against anybody.
    may_rewind: bool,
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
    log: Vec<Logged>,
}

struct Logged {
    at: Instant,
    over: Instant,
    fault: Fault,
}

// === impl Book ===

impl Book {
    pub fn new(may_rewind: bool) -> Self {
        Self {
            started: Instant::now(),
            may_rewind,
            pages: Mutex::default(),
        }
    }

    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// For whoever prints.
    pub fn read<T>(&self, look: impl FnOnce(&Pages) -> T) -> T {
        look(&self.pages.lock())
    }

    pub fn write<T>(&self, change: impl FnOnce(&mut Pages) -> T) -> T {
        change(&mut self.pages.lock())
    }

    /// A fault happened now and is over after this long.
    pub fn fault(&self, fault: Fault, lasts: Duration) {
        let at = Instant::now();
        let mut pages = self.pages.lock();
        *pages.faults.entry(fault.kind()).or_default() += 1;
        pages.log.push(Logged {
            at,
            over: at + lasts,
            fault,
        });
    }

    /// The last fault of a kind lasted until now after all.
    pub fn fault_over(&self, fault: Fault) {
        let mut pages = self.pages.lock();
        if let Some(logged) = pages.log.iter_mut().rev().find(|logged| logged.fault == fault) {
            logged.over = Instant::now();
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
        match outcome {
            Outcome::Unanswered(text) => self.finding(Sort::Unanswered, format!("{task}: {text}")),
            Outcome::Strange(text) => self.finding(Sort::Imprecise, format!("{task}: {text}")),
            Outcome::Broken(text) if !self.is_explained(is_front) => {
                self.finding(
                    Sort::Imprecise,
                    format!("{task}: a connection broke, and no fault explains it: {text}"),
                );
            }
            Outcome::Balancer(status) if !self.is_explained(is_front) => {
                self.finding(
                    Sort::Imprecise,
                    format!("{task}: the balancer said {status}, and no fault explains it"),
                );
            }
            _ => {}
        }
    }

    /// Whether a fault of such a kind is under way or was over lately.
    pub fn is_explained(&self, by: impl Fn(Fault) -> bool) -> bool {
        let pages = self.pages.lock();
        let mut recent = pages.log.iter().rev();
        recent.any(|logged| by(logged.fault) && logged.over + AFTERMATH > Instant::now())
    }

    /// Whether a fault that may end sessions of this worker was under way or just over, so long ago.
    pub fn is_loss_explained(&self, worker: usize, ago: Duration) -> bool {
        let pages = self.pages.lock();
        let Some(then) = Instant::now().checked_sub(ago) else {
            return true;
        };
        let mut log = pages.log.iter();
        log.any(|logged| logged.at <= then && logged.over + AFTERMATH > then && is_behind(logged.fault, worker))
    }

    /// A client was told that its session ended: how long after the fault that did it.
    pub fn told(&self, reason: &str, worker: Option<usize>) {
        let (kind, name): (fn(Fault, usize) -> bool, _) = match reason {
            "worker_lost" => (kills_worker, "worker killed -> client told"),
            "browser_crashed" => (kills_browser, "browser killed -> client told"),
            _ => return,
        };
        let Some(worker) = worker else { return };
        let mut pages = self.pages.lock();
        let cause = pages.log.iter().rev().find(|logged| kind(logged.fault, worker));
        let Some(took) = cause.map(|logged| logged.at.elapsed()) else {
            return;
        };
        if took < AFTERMATH {
            pages.notices.entry(name).or_default().push_time(took);
        }
    }

    pub fn measured(&self, what: &'static str, took: Duration) {
        self.pages.lock().notices.entry(what).or_default().push_time(took);
    }
}

fn kills_worker(fault: Fault, worker: usize) -> bool {
    matches!(fault, Fault::Kill(Who::Worker(killed), _) if killed == worker)
}

fn kills_browser(fault: Fault, worker: usize) -> bool {
    matches!(fault, Fault::KillBrowser(killed, _) if killed == worker)
}

/// What may break a client's own connection without a word.
fn is_front(fault: Fault) -> bool {
    matches!(
        fault,
        Fault::Kill(Who::Coordinator(_), _)
            | Fault::Pause(Who::Coordinator(_), _)
            | Fault::Terminate(Who::Coordinator(_))
            | Fault::ReloadBalancer
            | Fault::KillBalancer(_)
    )
}

/// What may end sessions of a worker.
fn is_behind(fault: Fault, worker: usize) -> bool {
    match fault {
        Fault::Kill(Who::Worker(who), _) | Fault::Pause(Who::Worker(who), _) | Fault::Terminate(Who::Worker(who)) => {
            who == worker
        }
        Fault::KillBrowser(who, _) | Fault::PauseBrowser(who, ..) => who == worker,
        Fault::Cut(Line::Gateway(who) | Line::Uplink(who), _)
        | Fault::Blackhole(Line::Gateway(who) | Line::Uplink(who), _) => who == worker,
        // Reports reach nobody while the store is away; a coordinator that stood still held reports back.
        Fault::RestartStore | Fault::PauseStore(_) => true,
        Fault::Cut(Line::Store(_), _) | Fault::Blackhole(Line::Store(_), _) => true,
        Fault::Pause(Who::Coordinator(_), _) | Fault::Kill(Who::Coordinator(_), _) => true,
        Fault::Terminate(Who::Coordinator(_)) | Fault::ReloadBalancer | Fault::KillBalancer(_) => false,
    }
}
