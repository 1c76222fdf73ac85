//! Order and endings as an outsider sees them: I2 and I4 judged from snapshots, submissions and news.
//!
//! Its own file because it must not believe an engine's own numbers: arrival is counted here, by the order in which
//! sessions were submitted.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
};

use wharf_core::{EndReason, SessionId, SessionState, Timestamp};

use crate::{Change, SessionRecord, Snapshot, invariants::is_held_back};

/// What has been seen so far.
#[derive(Default)]
pub(crate) struct Watch {
    arrivals: HashMap<SessionId, usize>,
    epochs: HashMap<SessionId, u32>,
    endings: HashMap<SessionId, (EndReason, Option<Timestamp>)>,
    announced: HashSet<SessionId>,
}

// === impl Watch ===

impl Watch {
    /// A session was submitted; a repeated or refused one keeps its first place, which nobody else can have.
    pub(crate) fn submitted(&mut self, session: SessionId) {
        let next = self.arrivals.len();
        self.arrivals.entry(session).or_insert(next);
    }

    /// What is wrong after a step.
    pub(crate) fn step(&mut self, snapshot: &Snapshot, news: &[Change]) -> Vec<String> {
        let mut wrong = self.order(snapshot, news);
        wrong.extend(self.endings(snapshot, news));
        self.epochs = snapshot
            .sessions
            .iter()
            .map(|record| (record.id, record.epoch.0))
            .collect();
        wrong
    }

    fn key(&self, record: &SessionRecord) -> (Reverse<wharf_core::Priority>, usize) {
        let arrival = self.arrivals.get(&record.id).copied().unwrap_or(usize::MAX);
        (Reverse(record.spec.priority), arrival)
    }

    /// I2: whoever got a slot in this step came before everybody of the class who still waits and is held back by neither
    /// limit nor lock, and was announced in order. (What holds somebody back after the step held them back in it: a step
    /// that places only adds to what is counted.)
    fn order(&self, snapshot: &Snapshot, news: &[Change]) -> Vec<String> {
        let mut wrong = Vec::new();
        let records: HashMap<_, _> = snapshot.sessions.iter().map(|record| (record.id, record)).collect();
        let same_class =
            |a: &SessionRecord, b: &SessionRecord| a.spec.pool == b.spec.pool && a.spec.browser == b.spec.browser;
        let is_new = |record: &SessionRecord| record.epoch.0 > self.epochs.get(&record.id).copied().unwrap_or(0);
        for placed in snapshot.sessions.iter().filter(|record| is_new(record)) {
            let waiting = snapshot
                .sessions
                .iter()
                .filter(|record| record.state == SessionState::Queued && !is_held_back(snapshot, record));
            for waiter in waiting.filter(|waiter| same_class(waiter, placed) && self.key(waiter) < self.key(placed)) {
                wrong.push(format!("I2: {} was placed before {}", placed.id, waiter.id));
            }
        }
        let announced: Vec<_> = news
            .iter()
            .filter_map(|change| match change {
                Change::Placed(placement) => records.get(&placement.session).copied(),
                Change::Ended(_) | Change::EndedElsewhere(_) | Change::Missed | Change::Noted(_) => None,
            })
            .collect();
        for (index, earlier) in announced.iter().enumerate() {
            for later in &announced[index + 1..] {
                if same_class(earlier, later) && self.key(later) < self.key(earlier) {
                    wrong.push(format!("I2: {} was announced before {}", earlier.id, later.id));
                }
            }
        }
        wrong
    }

    /// I4: once ended, always ended so; and every end is announced exactly once.
    fn endings(&mut self, snapshot: &Snapshot, news: &[Change]) -> Vec<String> {
        let mut wrong = Vec::new();
        for change in news {
            if let Change::Ended(ended) = change {
                if !self.announced.insert(ended.session) {
                    wrong.push(format!("I4: the end of {} was announced twice", ended.session));
                }
                self.endings.entry(ended.session).or_insert((ended.reason, None));
            }
        }
        for record in &snapshot.sessions {
            let known = self.endings.get(&record.id).copied();
            match (known, record.reason()) {
                (None, Some(reason)) => wrong.push(format!("I4: {} ended ({reason}) unannounced", record.id)),
                (Some((reason, _)), found) if found != Some(reason) => {
                    wrong.push(format!(
                        "I4: {} had ended with {reason} and is now {:?}",
                        record.id, record.state
                    ));
                }
                (Some((_, Some(at))), _) if record.ended_at != Some(at) => {
                    wrong.push(format!("I4: the end of {} moved from {at}", record.id));
                }
                (Some((reason, None)), _) => {
                    self.endings.insert(record.id, (reason, record.ended_at));
                }
                _ => {}
            }
        }
        wrong
    }
}
