//! Which fault happens when: made from the seed alone, before anything starts.
//!
//! Its own file, pure, because reproducing a run means repeating this list. Kinds come from a shuffled bag, so that a run
//! of a minute has met most of them; targets are taken so that the grid can survive: one coordinator and one worker are
//! left alone at any moment, and what concerns all (store, balancer) happens one at a time.

use std::{fmt, time::Duration};

use wharf_e2e::dice::Dice;

/// Whose process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    Coordinator(usize),
    Worker(usize),
}

/// Which connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// From coordinators to this worker's gateway.
    Gateway(usize),
    /// From this worker to its coordinators.
    Uplink(usize),
    /// From this coordinator to the store.
    Store(usize),
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL, then started again after this long.
    Kill(Who, Duration),
    /// SIGSTOP, SIGCONT after this long.
    Pause(Who, Duration),
    /// SIGTERM, and started again when it has ended.
    Terminate(Who),
    /// SIGKILL for one browser of a worker; which one is chosen by the number.
    KillBrowser(usize, u64),
    /// SIGSTOP for one browser of a worker.
    PauseBrowser(usize, u64, Duration),
    RestartStore,
    PauseStore(Duration),
    ReloadBalancer,
    /// SIGKILL, and started again after this long.
    KillBalancer(Duration),
    /// Connections are reset, new ones too, for this long.
    Cut(Line, Duration),
    /// Bytes vanish for this long, connections stay.
    Blackhole(Line, Duration),
}

/// A fault and its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planned {
    pub at: Duration,
    pub fault: Fault,
}

/// How large the fleet is.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    pub coordinators: usize,
    pub workers: usize,
    /// Whether there are cutters in the lines.
    pub lines: bool,
}

/// The names of all kinds, in the order of the table.
pub const KINDS: [&str; 18] = [
    "kill coordinator",
    "pause coordinator",
    "terminate coordinator",
    "kill worker",
    "pause worker",
    "terminate worker",
    "kill browser",
    "pause browser",
    "restart store",
    "pause store",
    "reload balancer",
    "kill balancer",
    "cut gateway",
    "cut uplink",
    "cut store line",
    "blackhole gateway",
    "blackhole uplink",
    "blackhole store line",
];

/// How many of each kind are in the bag.
const BAG: [usize; 18] = [1, 1, 1, 2, 1, 1, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1];
/// Between faults, in milliseconds.
const GAP: (u64, u64) = (500, 3500);
/// A drain, a clean-up and a start.
const TERMINATING: Duration = Duration::from_secs(16);
const STARTING: Duration = Duration::from_secs(4);
/// A worker that was silent needs a report or two to be one of us again.
const RECOVERING: Duration = Duration::from_secs(5);

// === impl Fault ===

impl Fault {
    pub fn kind(self) -> &'static str {
        let index = match self {
            Self::Kill(Who::Coordinator(_), _) => 0,
            Self::Pause(Who::Coordinator(_), _) => 1,
            Self::Terminate(Who::Coordinator(_)) => 2,
            Self::Kill(Who::Worker(_), _) => 3,
            Self::Pause(Who::Worker(_), _) => 4,
            Self::Terminate(Who::Worker(_)) => 5,
            Self::KillBrowser(..) => 6,
            Self::PauseBrowser(..) => 7,
            Self::RestartStore => 8,
            Self::PauseStore(_) => 9,
            Self::ReloadBalancer => 10,
            Self::KillBalancer(_) => 11,
            Self::Cut(Line::Gateway(_), _) => 12,
            Self::Cut(Line::Uplink(_), _) => 13,
            Self::Cut(Line::Store(_), _) => 14,
            Self::Blackhole(Line::Gateway(_), _) => 15,
            Self::Blackhole(Line::Uplink(_), _) => 16,
            Self::Blackhole(Line::Store(_), _) => 17,
        };
        KINDS[index]
    }

    /// Whom it takes out, and for how long altogether. Browsers are replaced by their worker and take out nobody.
    pub fn takes(self) -> (Option<Who>, Duration) {
        let of = |line| match line {
            Line::Gateway(worker) | Line::Uplink(worker) => Who::Worker(worker),
            Line::Store(coordinator) => Who::Coordinator(coordinator),
        };
        match self {
            Self::Kill(who, down) => (Some(who), down + STARTING),
            Self::Pause(who, span) => (Some(who), span + RECOVERING),
            Self::Terminate(who) => (Some(who), TERMINATING),
            Self::Cut(line, span) | Self::Blackhole(line, span) => (Some(of(line)), span + RECOVERING),
            Self::PauseStore(span) => (None, span + RECOVERING),
            Self::RestartStore => (None, RECOVERING),
            Self::KillBalancer(down) => (None, down + STARTING),
            Self::ReloadBalancer | Self::KillBrowser(..) | Self::PauseBrowser(..) => (None, Duration::ZERO),
        }
    }

    /// Whether it concerns everybody.
    pub fn is_shared(self) -> bool {
        matches!(
            self,
            Self::RestartStore | Self::PauseStore(_) | Self::ReloadBalancer | Self::KillBalancer(_)
        )
    }
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>8.3} s  {:?}", self.at.as_secs_f64(), self.fault)
    }
}

/// The faults of a run of this length.
pub fn schedule(seed: u64, size: Size, length: Duration) -> Vec<Planned> {
    let mut dice = Dice::new(seed).fork(1);
    let mut planned: Vec<Planned> = Vec::new();
    let (mut at, mut bag) = (dice.millis(1000, 2000), Vec::new());
    while at < length {
        if bag.is_empty() {
            let kinds = BAG.iter().enumerate();
            bag = kinds
                .flat_map(|(kind, count)| std::iter::repeat_n(kind, *count))
                .collect();
            dice.shuffle(&mut bag);
        }
        let Some(kind) = bag.pop() else { break };
        if !size.lines && kind >= 12 {
            continue;
        }
        // The first target from a thrown one on that may be taken out now; else a little later.
        let (first, span) = (dice.below(size.workers.max(size.coordinators)), dice.clone());
        let targets = size.workers.max(size.coordinators);
        loop {
            let candidates = (0..targets).map(|step| make(kind, first + step, size, &mut span.clone()));
            if let Some(fault) = candidates
                .into_iter()
                .find(|fault| is_survivable(&planned, *fault, at, size))
            {
                planned.push(Planned { at, fault });
                break;
            }
            at += Duration::from_millis(250);
        }
        dice.throw();
        at += dice.millis(GAP.0, GAP.1);
    }
    planned.retain(|planned| planned.at < length);
    planned
}

fn make(kind: usize, target: usize, size: Size, dice: &mut Dice) -> Fault {
    let coordinator = Who::Coordinator(target % size.coordinators);
    let worker = Who::Worker(target % size.workers);
    let (c, w) = (target % size.coordinators, target % size.workers);
    match kind {
        0 => Fault::Kill(coordinator, dice.millis(200, 3000)),
        1 => Fault::Pause(coordinator, dice.millis(1000, 15_000)),
        2 => Fault::Terminate(coordinator),
        3 => Fault::Kill(worker, dice.millis(200, 3000)),
        4 => Fault::Pause(worker, dice.millis(1000, 15_000)),
        5 => Fault::Terminate(worker),
        6 => Fault::KillBrowser(w, dice.throw() % 100),
        7 => Fault::PauseBrowser(w, dice.throw() % 100, dice.millis(1000, 15_000)),
        8 => Fault::RestartStore,
        9 => Fault::PauseStore(dice.millis(500, 6000)),
        10 => Fault::ReloadBalancer,
        11 => Fault::KillBalancer(dice.millis(100, 800)),
        12 => Fault::Cut(Line::Gateway(w), dice.millis(20, 2000)),
        13 => Fault::Cut(Line::Uplink(w), dice.millis(20, 2000)),
        14 => Fault::Cut(Line::Store(c), dice.millis(20, 2000)),
        15 => Fault::Blackhole(Line::Gateway(w), dice.millis(1000, 12_000)),
        16 => Fault::Blackhole(Line::Uplink(w), dice.millis(1000, 15_000)),
        _ => Fault::Blackhole(Line::Store(c), dice.millis(1000, 12_000)),
    }
}

/// Whether enough of the grid is left if this fault happens now.
fn is_survivable(planned: &[Planned], fault: Fault, at: Duration, size: Size) -> bool {
    let (who, _) = fault.takes();
    let under_way = || {
        let open = planned
            .iter()
            .filter(|earlier| earlier.at + earlier.fault.takes().1 > at);
        open.map(|earlier| earlier.fault)
    };
    if fault.is_shared() && under_way().any(Fault::is_shared) {
        return false;
    }
    // A browser of a worker that is being taken out says nothing about browsers.
    let on_worker = match fault {
        Fault::KillBrowser(worker, _) | Fault::PauseBrowser(worker, ..) => Some(Who::Worker(worker)),
        _ => None,
    };
    if who
        .or(on_worker)
        .is_some_and(|who| under_way().any(|other| other.takes().0 == Some(who)))
    {
        return false;
    }
    let mut out: Vec<_> = under_way().filter_map(|other| other.takes().0).chain(who).collect();
    out.sort();
    out.dedup();
    let coordinators = out.iter().filter(|who| matches!(who, Who::Coordinator(_))).count();
    coordinators < size.coordinators && out.len() - coordinators < size.workers
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size {
        coordinators: 3,
        workers: 4,
        lines: true,
    };
    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn same_seed_makes_the_same_schedule_and_another_seed_another() {
        assert_eq!(schedule(7, SIZE, HOUR), schedule(7, SIZE, HOUR));
        assert_ne!(schedule(7, SIZE, HOUR), schedule(8, SIZE, HOUR));
        // A longer run begins as the shorter one.
        let short = schedule(7, SIZE, Duration::from_secs(60));
        assert_eq!(schedule(7, SIZE, HOUR)[..short.len()], short);
    }

    #[test]
    fn every_kind_happens_in_a_few_minutes() {
        let planned = schedule(1, SIZE, Duration::from_secs(240));
        for kind in KINDS {
            assert!(planned.iter().any(|planned| planned.fault.kind() == kind), "{kind}");
        }
    }

    #[test]
    fn never_is_everything_down() {
        for seed in 0..6 {
            let planned = schedule(seed, SIZE, HOUR / 3);
            assert!(planned.len() > 300, "{}", planned.len());
            for now in &planned {
                let open = planned
                    .iter()
                    .filter(|other| other.at <= now.at && other.at + other.fault.takes().1 > now.at);
                let open: Vec<_> = open.map(|other| other.fault).collect();
                let mut out: Vec<_> = open.iter().filter_map(|fault| fault.takes().0).collect();
                let all = out.len();
                out.sort();
                out.dedup();
                assert_eq!(out.len(), all, "somebody is taken out twice at {now}");
                let coordinators = out.iter().filter(|who| matches!(who, Who::Coordinator(_))).count();
                assert!(
                    coordinators < SIZE.coordinators && out.len() - coordinators < SIZE.workers,
                    "{now}"
                );
                assert!(open.iter().filter(|fault| fault.is_shared()).count() <= 1, "{now}");
            }
        }
    }

    #[test]
    fn without_cutters_no_line_is_touched() {
        let size = Size { lines: false, ..SIZE };
        let planned = schedule(3, size, HOUR);
        assert!(
            planned
                .iter()
                .all(|planned| !matches!(planned.fault, Fault::Cut(..) | Fault::Blackhole(..)))
        );
    }
}
