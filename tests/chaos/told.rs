//! How soon clients learn that their session is gone: each told end is matched with the very kill that caused it.
//!
//! Its own file because a wrong match makes a wrong figure. What a client was told is only noted during the run; matching
//! waits for the store's own record of the session: the kill must have happened while the session was active on that
//! worker, the store must have ended the session after it, and the end of a browser must carry the signal that we sent.
//! (Which browser a session has is nowhere told to clients; of a worker's two browsers, only the killed one ends so.)

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use wharf_core::{EndReason, Timestamp};
use wharf_store::{SessionRecord, Snapshot};

use crate::{
    book::{Book, Logged},
    schedule::{Fault, Who},
};

/// Store and program read the same clock, but not in the same moment.
const TOLERANCE: Duration = Duration::from_millis(50);
/// What the worker says of a browser that was killed.
const KILLED: &str = "signal 9";

/// A client learned that its session had ended.
#[derive(Debug, Clone)]
pub struct Told {
    pub session: String,
    pub worker: usize,
    pub reason: EndReason,
    pub at: Instant,
    /// When it was attached, the last time at the end.
    pub attached: Vec<Span>,
}

/// A connection's life.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    pub from: Instant,
    pub to: Instant,
}

/// An ended session as the store has it, in our time.
struct Life<'a> {
    reason: EndReason,
    detail: &'a str,
    active: Instant,
    ended: Instant,
}

/// The store's times in terms of ours.
#[derive(Debug, Clone, Copy)]
pub struct Anchor {
    here: Instant,
    there: Timestamp,
}

// === impl Anchor ===

impl Anchor {
    /// To be called as soon as the snapshot is there.
    pub fn on(snapshot: &Snapshot) -> Self {
        Self {
            here: Instant::now(),
            there: snapshot.at,
        }
    }

    /// `None` before this machine was started.
    pub fn here(self, at: Timestamp) -> Option<Instant> {
        self.here.checked_sub(self.there.since(at))
    }
}

/// Matches everything that clients were told with its cause; the times go to the book.
pub fn measure(snapshot: &Snapshot, anchor: Anchor, book: &Book) {
    let told = book.write(|pages| std::mem::take(&mut pages.told));
    if told.is_empty() {
        return;
    }
    let records: BTreeMap<_, _> = snapshot.sessions.iter().map(|one| (one.id.to_string(), one)).collect();
    for told in told {
        let Some(life) = records.get(&told.session).and_then(|record| Life::of(record, anchor)) else {
            continue;
        };
        let found = book.read(|pages| row(&told, &life, pages.faults_so_far()));
        if let Some((name, took)) = found {
            book.measured(name, took);
        }
    }
}

// === impl Life ===

impl<'a> Life<'a> {
    fn of(record: &'a SessionRecord, anchor: Anchor) -> Option<Self> {
        Some(Self {
            reason: record.reason()?,
            detail: record.detail.as_deref().unwrap_or_default(),
            active: anchor.here(record.times.started_at?)?,
            ended: anchor.here(record.ended_at?)?,
        })
    }
}

/// The row it belongs to and the time from the kill to the word; `None` if no kill of ours caused it.
fn row(told: &Told, life: &Life<'_>, faults: &[Logged]) -> Option<(&'static str, Duration)> {
    if life.reason != told.reason {
        return None;
    }
    let is_live = |logged: &&Logged| logged.at + TOLERANCE >= life.active && logged.at <= life.ended + TOLERANCE;
    let mut live = faults.iter().filter(is_live);
    let (kill, rows) = match told.reason {
        // The first: a worker that is killed takes all its sessions along.
        EndReason::WorkerLost => (
            live.find(|logged| matches!(logged.fault, Fault::Kill(Who::Worker(who), _) if who == told.worker))?,
            [
                "worker killed -> client told, attached (its socket tells)",
                "worker killed -> client told, cut off first (it asked again)",
                "worker killed -> client told, not attached (lease)",
            ],
        ),
        // The last: an earlier one had another browser.
        EndReason::BrowserCrashed if life.detail.contains(KILLED) => (
            live.rfind(|logged| matches!(logged.fault, Fault::KillBrowser(who, _) if who == told.worker))?,
            [
                "browser killed -> client told, attached (its socket tells)",
                "browser killed -> client told, cut off first (it asked again)",
                "browser killed -> client told, not attached (lease)",
            ],
        ),
        _ => return None,
    };
    let attached = told
        .attached
        .iter()
        .find(|span| span.from <= kill.at && span.to >= kill.at);
    let row = match attached {
        // That connection's own end was the word.
        Some(span) if span.to + TOLERANCE >= told.at => rows[0],
        Some(_) => rows[1],
        None => rows[2],
    };
    Some((row, told.at.saturating_duration_since(kill.at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    /// A session on worker 1, active from 10 s to 20 s of a run with these faults. Its client was attached at these times
    /// and told at that one.
    fn told(
        (reason, detail): (EndReason, &str),
        faults: &[(u64, Fault)],
        attached: (u64, u64),
        at: u64,
    ) -> Option<(&'static str, Duration)> {
        let start = Instant::now();
        let log = faults.iter().map(|(seconds, fault)| Logged {
            at: start + second(*seconds),
            over: None,
            fault: *fault,
        });
        let life = Life {
            reason,
            detail,
            active: start + second(10),
            ended: start + second(20),
        };
        let told = Told {
            session: String::new(),
            worker: 1,
            reason,
            at: start + second(at),
            attached: vec![Span {
                from: start + second(attached.0),
                to: start + second(attached.1),
            }],
        };
        row(&told, &life, &log.collect::<Vec<_>>())
    }

    #[test]
    fn only_a_kill_of_that_worker_while_the_session_was_active_counts() {
        let lost = (EndReason::WorkerLost, "");
        let kill = |worker| Fault::Kill(Who::Worker(worker), second(1));
        assert_eq!(
            told(lost, &[(5, kill(1)), (15, kill(2)), (25, kill(1))], (11, 21), 21),
            None
        );
        let ours = [(5, kill(1)), (19, kill(1)), (25, kill(1))];
        let (row, took) = told(lost, &ours, (11, 21), 21).unwrap();
        assert!(
            row.ends_with("attached (its socket tells)") && took == second(2),
            "{row} {took:?}"
        );
        assert!(told(lost, &ours, (11, 20), 24).unwrap().0.contains("cut off first"));
        assert!(told(lost, &ours, (11, 15), 24).unwrap().0.contains("not attached"));
    }

    #[test]
    fn crash_counts_only_with_our_signal_and_for_the_last_kill() {
        let kills = [(12, Fault::KillBrowser(1, 0)), (19, Fault::KillBrowser(1, 1))];
        let other = (EndReason::BrowserCrashed, "its socket broke");
        assert_eq!(told(other, &kills, (11, 20), 20), None);
        let ours = (
            EndReason::BrowserCrashed,
            "the browser ended by signal 9; it said nothing",
        );
        assert_eq!(told(ours, &kills, (11, 20), 20).unwrap().1, second(1));
    }
}
