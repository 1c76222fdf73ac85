//! What is known of one pool without looking at its sessions and workers: counts, lines of waiters, workers with room.
//!
//! Its own file because a limit, a lock, a report and the choice of a worker all ask here. Everything in it can be made
//! again from the records; nothing in it is written to an image.

use std::{
    cmp::{Ordering, Reverse},
    collections::{BTreeMap, BTreeSet},
};

use wharf_core::{BrowserKind, Operation, SessionStatus, Timestamp, WorkerId};
use wharf_store::{SessionRecord, WorkerRecord};

use super::{facts::WorkerFacts, lines::Lines};

/// One pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Pool {
    pub(crate) lines: Lines,
    /// Every operation that runs or waits.
    pub(crate) operations: BTreeMap<Operation, Counts>,
    /// Placed or starting.
    pub(crate) starting: u64,
    pub(crate) active: u64,
    /// Leases held.
    pub(crate) running: u64,
    /// All its workers, given-up ones too.
    rows: u64,
    pub(crate) live: Live,
    pub(crate) draining: u64,
    /// Workers that are expected to be available soon, by when that began; see `wharf_core::worker::is_renewing`.
    expected: BTreeSet<(Timestamp, WorkerId)>,
    /// Workers that are not gone, by what they serve.
    serving: BTreeMap<BrowserKind, u64>,
    /// Workers that may take one more, by what they serve, the best first.
    rooms: BTreeMap<BrowserKind, BTreeSet<Room>>,
}

/// One operation of a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) running: u64,
    pub(crate) queued: u64,
}

/// Its live workers, added up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Live {
    pub(crate) workers: u64,
    pub(crate) slots: u64,
    pub(crate) warm: u64,
    pub(crate) launching: u64,
}

/// A worker with room, ordered as `wharf_core::placement::choose` chooses, but for freshness and exclusion, which depend
/// on the moment and the session. It has at least one slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    pub(crate) busy: u32,
    pub(crate) slots: u32,
    pub(crate) lifetime: u64,
    pub(crate) worker: WorkerId,
}

// === impl Pool: sessions ===

impl Pool {
    pub(crate) fn is_empty(&self) -> bool {
        self.rows == 0 && self.running == 0 && self.lines.is_empty() && self.starting == 0 && self.active == 0
    }

    pub(crate) fn enter(&mut self, record: &SessionRecord, status: SessionStatus) {
        match status {
            SessionStatus::Queued => {
                self.lines.join(record);
                self.count(&record.spec.operation, |counts| counts.queued += 1);
            }
            SessionStatus::Placed | SessionStatus::Starting => self.starting += 1,
            SessionStatus::Active => self.active += 1,
            SessionStatus::Ended => {}
        }
    }

    pub(crate) fn leave(&mut self, record: &SessionRecord, status: SessionStatus) {
        match status {
            SessionStatus::Queued => {
                self.lines.leave(record);
                self.count(&record.spec.operation, |counts| counts.queued -= 1);
                self.tidy(&record.spec.operation);
            }
            SessionStatus::Placed | SessionStatus::Starting => self.starting -= 1,
            SessionStatus::Active => self.active -= 1,
            SessionStatus::Ended => {}
        }
    }

    pub(crate) fn lease(&mut self, operation: &Operation) {
        self.running += 1;
        self.count(operation, |counts| counts.running += 1);
    }

    pub(crate) fn release(&mut self, operation: &Operation) {
        self.running -= 1;
        self.count(operation, |counts| counts.running -= 1);
        self.tidy(operation);
    }

    /// What runs and waits of one operation.
    pub(crate) fn counts(&self, operation: &Operation) -> Counts {
        self.operations.get(operation).copied().unwrap_or_default()
    }

    /// A name that is known is not copied.
    fn count(&mut self, operation: &Operation, change: impl FnOnce(&mut Counts)) {
        match self.operations.get_mut(operation) {
            Some(counts) => change(counts),
            None => change(self.operations.entry(operation.clone()).or_default()),
        }
    }

    /// Clients choose the names of operations: one that nobody uses is not kept.
    fn tidy(&mut self, operation: &Operation) {
        if self.counts(operation) == Counts::default() {
            self.operations.remove(operation);
        }
    }
}

// === impl Pool: workers ===

impl Pool {
    /// Whether a worker that is not gone serves such browsers.
    pub(crate) fn serves(&self, class: BrowserKind) -> bool {
        self.serving.contains_key(&class)
    }

    /// Workers that said goodbye or registered after this time and are not yet available.
    pub(crate) fn expected_since(&self, after: Timestamp) -> impl Iterator<Item = WorkerId> {
        let newest_first = self.expected.iter().rev();
        newest_first
            .take_while(move |(at, _)| *at > after)
            .map(|(_, worker)| *worker)
    }

    /// Workers with room for this class, in the order in which they are chosen.
    pub(crate) fn rooms(&self, class: BrowserKind) -> impl Iterator<Item = &Room> {
        self.rooms.get(&class).into_iter().flatten()
    }

    /// One worker's part in all this, from what was to what is. The row gives only what never changes while it is kept.
    pub(crate) fn refile_worker(&mut self, row: &WorkerRecord, before: &WorkerFacts, after: &WorkerFacts) {
        let kinds: BTreeSet<_> = row.browsers.iter().copied().collect();
        match (before.is_there, after.is_there) {
            (false, true) => self.rows += 1,
            (true, false) => self.rows -= 1,
            _ => {}
        }
        self.draining = self.draining + u64::from(after.is_draining) - u64::from(before.is_draining);
        if before.expected_since != after.expected_since {
            if let Some(at) = before.expected_since {
                self.expected.remove(&(at, row.id));
            }
            self.expected.extend(after.expected_since.map(|at| (at, row.id)));
        }
        self.live = self.live.plus(after.live).minus(before.live);
        for kind in &kinds {
            match (before.is_serving, after.is_serving) {
                (false, true) => *self.serving.entry(*kind).or_default() += 1,
                (true, false) => drop_one(&mut self.serving, kind),
                _ => {}
            }
            if before.room == after.room {
                continue;
            }
            let rooms = self.rooms.entry(*kind).or_default();
            if let Some(room) = before.room {
                rooms.remove(&room);
            }
            rooms.extend(after.room);
            if rooms.is_empty() {
                self.rooms.remove(kind);
            }
        }
    }
}

fn drop_one<K: Ord>(counts: &mut BTreeMap<K, u64>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

// === impl Live ===

impl Live {
    const fn plus(self, other: Self) -> Self {
        Self {
            workers: self.workers + other.workers,
            slots: self.slots + other.slots,
            warm: self.warm + other.warm,
            launching: self.launching + other.launching,
        }
    }

    const fn minus(self, other: Self) -> Self {
        Self {
            workers: self.workers - other.workers,
            slots: self.slots - other.slots,
            warm: self.warm - other.warm,
            launching: self.launching - other.launching,
        }
    }
}

// === impl Room ===

impl Ord for Room {
    fn cmp(&self, other: &Self) -> Ordering {
        // busy/slots compared without division; slots are never zero here.
        let load =
            (u64::from(self.busy) * u64::from(other.slots)).cmp(&(u64::from(other.busy) * u64::from(self.slots)));
        load.then(Reverse(self.lifetime).cmp(&Reverse(other.lifetime)))
            .then(self.worker.cmp(&other.worker))
    }
}

impl PartialOrd for Room {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Room {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Room {}
