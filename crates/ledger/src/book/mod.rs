//! What the ledger keeps: plain records, and the indices over them.
//!
//! Layout: this file has the records and the only ways to change sessions and workers, `time` and `holds` those for
//! tickets, limits, locks and stubs; `facts` says what a record means to the indices, `index` moves them, `pool`,
//! `lines` and `ranks` are the larger ones, `audit` makes them anew and compares.
//!
//! Its own module because of what it hides: the fields are private, so that every change of a session or a worker goes
//! through `edit_session`, `edit_worker` and their kin, which file it in every index. A rule cannot forget one.

mod audit;
mod facts;
mod holds;
mod index;
mod lines;
mod pool;
mod ranks;
mod time;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use wharf_core::{
    CoordinatorId, KeyId, LimitScope, LockName, PoolName, Seat, SessionId, SessionSpec, Timestamp, WorkerId,
};
use wharf_store::{Event, KeyRecord, LimitRecord, LockRecord, SessionRecord, StoreRules, WorkerRecord};

use self::facts::due_at;
use self::{
    facts::{Facts, WorkerFacts},
    index::refile,
};
pub(crate) use self::{index::Index, pool::Pool};

/// All that is known.
#[derive(Debug)]
pub(crate) struct Book {
    rules: StoreRules,
    /// The latest time seen.
    now: Timestamp,
    sessions: BTreeMap<SessionId, Entry>,
    /// `busy` is the number of leases, kept with them.
    workers: BTreeMap<WorkerId, WorkerRecord>,
    limits: BTreeMap<PoolName, BTreeMap<LimitScope, LimitRecord>>,
    /// Expired ones too, until the next dispatch has served whom they held back.
    locks: BTreeMap<LockName, LockRecord>,
    /// When a coordinator that has tickets last renewed them all. A ticket is good from this or from its own time,
    /// whichever is later, so that renewing ten thousand writes one.
    renewed: BTreeMap<CoordinatorId, Timestamp>,
    /// What is left here of archived sessions that came with an idempotency key.
    stubs: BTreeMap<Option<KeyId>, BTreeMap<String, Stub>>,
    /// `held` is filled in when a key is read: the sessions are the truth.
    pub(crate) keys: BTreeMap<KeyId, KeyRecord>,
    pub(crate) last_number: u64,
    pub(crate) events: VecDeque<Event>,
    /// The number of the newest event.
    pub(crate) last_event: u64,
    index: Index,
    /// Heads of lines, workers and due times looked at so far: what the cost of an operation is measured by.
    pub(crate) looks: u64,
}

/// A session, its slot, and while it waits, its ticket.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) record: SessionRecord,
    pub(crate) lease: Option<Lease>,
    pub(crate) ticket_since: Timestamp,
    /// Where the index of due times has it.
    filed_due: Option<Timestamp>,
}

/// A slot in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) seat: Seat,
    pub(crate) since: Timestamp,
}

/// An archived session, as its idempotency key remembers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stub {
    pub(crate) session: SessionId,
    pub(crate) ended_at: Timestamp,
}

// === impl Book: as a whole ===

impl Book {
    pub(crate) fn new(rules: StoreRules) -> Self {
        Self {
            rules,
            now: Timestamp::default(),
            sessions: BTreeMap::new(),
            workers: BTreeMap::new(),
            limits: BTreeMap::new(),
            locks: BTreeMap::new(),
            renewed: BTreeMap::new(),
            stubs: BTreeMap::new(),
            keys: BTreeMap::new(),
            last_number: 0,
            events: VecDeque::new(),
            last_event: 0,
            index: Index::default(),
            looks: 0,
        }
    }

    pub(crate) const fn rules(&self) -> &StoreRules {
        &self.rules
    }

    pub(crate) const fn now(&self) -> Timestamp {
        self.now
    }

    pub(crate) const fn index(&self) -> &Index {
        &self.index
    }

    pub(crate) fn get_pool(&self, pool: &PoolName) -> Option<&Pool> {
        self.index.pools.get(pool)
    }

    /// Time passes; it never steps back.
    pub(crate) fn advance_to(&mut self, at: Timestamp) {
        self.now = self.now.max(at);
    }

    /// What is there already is judged by the new rules, too: what may be due sooner is filed anew.
    pub(crate) fn set_rules(&mut self, rules: StoreRules) {
        self.rules = rules;
        self.index.due.clear();
        for (id, entry) in &mut self.sessions {
            entry.filed_due = due_at(entry, &rules);
            self.index.due.extend(entry.filed_due.map(|at| (at, *id)));
        }
        self.index.unserve_all();
    }

    /// The pools to be served, which are then taken for served.
    pub(crate) fn take_unserved(&mut self) -> BTreeSet<PoolName> {
        std::mem::take(&mut self.index.unserved)
    }

    /// How many waited before this step, in the pools where that has changed; the next step begins here.
    pub(crate) fn take_waited(&mut self) -> BTreeMap<PoolName, u64> {
        std::mem::take(&mut self.index.waited)
    }

    /// So begins a book that was read from an image: nothing is to be told, and every pool is looked at once, since an
    /// image does not say which ones need it.
    pub(crate) fn settle(&mut self) {
        self.index.waited.clear();
        self.index.unserve_all();
    }
}

// === impl Book: sessions ===

impl Book {
    pub(crate) fn entry(&self, session: SessionId) -> Option<&Entry> {
        self.sessions.get(&session)
    }

    pub(crate) fn record(&self, session: SessionId) -> Option<&SessionRecord> {
        self.sessions.get(&session).map(|entry| &entry.record)
    }

    pub(crate) const fn sessions(&self) -> &BTreeMap<SessionId, Entry> {
        &self.sessions
    }

    /// A new session; one that is there is left as it is.
    pub(crate) fn add_session(&mut self, record: SessionRecord, lease: Option<Lease>, ticket_since: Timestamp) {
        let id = record.id;
        if self.sessions.contains_key(&id) {
            return;
        }
        let mut entry = Entry {
            record,
            lease,
            ticket_since,
            filed_due: None,
        };
        let after = Facts::of(&entry, &self.rules);
        file(&mut self.index, &mut entry, &Facts::default(), &after);
        self.sessions.insert(id, entry);
        self.recount(after.worker);
    }

    /// Changes a session and files the change. A due time that moves later within one state is left where it is filed
    /// (traffic would move it with every touch); the sweep finds it early and files it anew.
    pub(crate) fn edit_session<T>(&mut self, session: SessionId, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        let entry = self.sessions.get_mut(&session)?;
        let before = Facts::of(entry, &self.rules);
        let answer = change(entry);
        let after = Facts::of(entry, &self.rules);
        file(&mut self.index, entry, &before, &after);
        self.file_rest(&before, &after);
        Some(answer)
    }

    pub(crate) fn remove_session(&mut self, session: SessionId) -> Option<SessionRecord> {
        let mut entry = self.sessions.remove(&session)?;
        let before = Facts::of(&entry, &self.rules);
        file(&mut self.index, &mut entry, &before, &Facts::default());
        self.file_rest(&before, &Facts::default());
        Some(entry.record)
    }

    /// What a change of a session means beside it: the worker's count, and whose tickets are gone.
    fn file_rest(&mut self, before: &Facts, after: &Facts) {
        if before.worker != after.worker {
            self.recount(before.worker);
            self.recount(after.worker);
        }
        if let Some((coordinator, _)) = before.ticket
            && !self.index.tickets.contains_key(&coordinator)
        {
            // Whatever ticket comes next is younger.
            self.renewed.remove(&coordinator);
        }
    }

    fn recount(&mut self, worker: Option<WorkerId>) {
        let Some(worker) = worker else {
            return;
        };
        let held = self.index.leased.get(&worker).map_or(0, BTreeSet::len);
        self.edit_worker(worker, |row| row.busy = u32::try_from(held).unwrap_or(u32::MAX));
    }
}

/// Files a session's change in all indices that are about sessions.
fn file(index: &mut Index, entry: &mut Entry, before: &Facts, after: &Facts) {
    index.refile_session(&entry.record, before, after);
    let is_lazy = before.status == after.status && after.due >= entry.filed_due && entry.filed_due.is_some();
    if !is_lazy {
        refile(&mut index.due, entry.record.id, entry.filed_due, after.due);
        entry.filed_due = after.due;
    }
}

// === impl Book: workers ===

impl Book {
    pub(crate) const fn workers(&self) -> &BTreeMap<WorkerId, WorkerRecord> {
        &self.workers
    }

    pub(crate) fn worker(&self, worker: WorkerId) -> Option<&WorkerRecord> {
        self.workers.get(&worker)
    }

    /// Whether waiting could ever help: a worker that is not gone serves such browsers in this pool.
    pub(crate) fn is_served(&self, spec: &SessionSpec) -> bool {
        self.get_pool(&spec.pool).is_some_and(|pool| pool.serves(spec.browser))
    }

    /// A worker's row, in place of the one it had.
    pub(crate) fn put_worker(&mut self, row: WorkerRecord) {
        let id = row.id;
        self.remove_worker(id);
        self.index
            .refile_worker(&row, &WorkerFacts::default(), &WorkerFacts::of(&row));
        self.workers.insert(id, row);
        self.recount(Some(id));
    }

    pub(crate) fn edit_worker<T>(
        &mut self,
        worker: WorkerId,
        change: impl FnOnce(&mut WorkerRecord) -> T,
    ) -> Option<T> {
        let row = self.workers.get_mut(&worker)?;
        let before = WorkerFacts::of(row);
        let answer = change(row);
        let after = WorkerFacts::of(row);
        if before != after {
            self.index.refile_worker(row, &before, &after);
        }
        Some(answer)
    }

    pub(crate) fn remove_worker(&mut self, worker: WorkerId) {
        if let Some(row) = self.workers.remove(&worker) {
            self.index
                .refile_worker(&row, &WorkerFacts::of(&row), &WorkerFacts::default());
        }
    }
}
