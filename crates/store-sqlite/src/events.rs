//! The log of events: what a step did is noted on the way and written with it.
//!
//! Its own file because every operation notes and none reads. Invariants: numbers grow by one and are never given twice
//! (the newest row stays, and a step that is undone takes its numbers with it); the cost of writing depends on what
//! happened, never on how many wait.

use std::collections::BTreeMap;

use rusqlite::OptionalExtension;
use wharf_core::{PoolName, Timestamp, WorkerId};
use wharf_store::{
    Change, EVENTS_KEPT, Event, EventPage, Happening, LockChange, LockRecord, SessionChange, SetBack, WorkerChange,
};

use crate::{
    rows::{Fault, SessionRow, corrupt, json, signed, text, unsigned},
    step::Step,
};

/// Happenings in one row, so that a page out of a step that did very much need not read all of it.
const ROW_HOLDS: usize = 256;

/// Old rows removed by one sweep, so that a long log does not stall admission. More than the steps that one writer can
/// make between two sweeps in earnest; the next sweep goes on.
const PRUNED_AT_ONCE: i64 = 10_000;

/// What a step did; each kind in its own order.
#[derive(Default)]
pub(crate) struct Noted {
    workers: Vec<Happening>,
    locks: Vec<Happening>,
    sessions: Vec<Happening>,
    /// By how much the number of waiters changed.
    queues: BTreeMap<PoolName, i64>,
}

// === impl Step: noting ===

impl Step<'_> {
    pub(crate) fn note_session(&mut self, row: &SessionRow, change: SessionChange) {
        self.noted.sessions.push(session_event(row, change));
    }

    /// Notes a placement, whose waiter waits no more.
    pub(crate) fn note_placed(&mut self, pool: &PoolName, placed: Happening) {
        self.noted.sessions.push(placed);
        self.note_waiters(pool, -1);
    }

    pub(crate) fn note_worker(&mut self, worker: WorkerId, pool: &PoolName, change: WorkerChange) {
        let pool = pool.clone();
        self.noted.workers.push(Happening::Worker { worker, pool, change });
    }

    pub(crate) fn note_lock(&mut self, lock: &LockRecord, change: LockChange) {
        self.noted.locks.push(Happening::Lock {
            name: lock.name.clone(),
            holder: lock.holder.clone(),
            owner: lock.owner,
            change,
        });
    }

    /// So many more wait in a pool, or fewer. Kept apart from the counters in the file, which only know the present.
    pub(crate) fn note_waiters(&mut self, pool: &PoolName, by: i64) {
        match self.noted.queues.get_mut(pool) {
            Some(sum) => *sum += by,
            None => drop(self.noted.queues.insert(pool.clone(), by)),
        }
    }
}

/// What happened to a session, as its row is now.
pub(crate) fn session_event(row: &SessionRow, change: SessionChange) -> Happening {
    Happening::Session {
        session: row.id,
        pool: row.pool.clone(),
        operation: row.operation.clone(),
        owner: row.owner,
        worker: row.worker,
        change,
    }
}

// === impl Step: the log ===

impl Step<'_> {
    /// Writes what the step did, and tells that it is there. To be called once, at the end of a step.
    pub(crate) fn log(&mut self) -> Result<(), Fault> {
        let Noted {
            workers,
            locks,
            sessions,
            queues,
        } = std::mem::take(&mut self.noted);
        let mut happened = workers;
        happened.extend(locks);
        happened.extend(sessions);
        for (pool, _) in queues.into_iter().filter(|(_, by)| *by != 0) {
            let waiting = self.waiting(&pool)?;
            happened.push(Happening::Queue { pool, waiting });
        }
        if happened.is_empty() {
            return Ok(());
        }
        let mut last = self.newest_event()?;
        for part in happened.chunks(ROW_HOLDS) {
            let first = last + 1;
            last += part.len() as u64;
            let mut statement = self.conn.prepare_cached(APPEND)?;
            statement.execute((signed(last), signed(first), self.now.as_micros(), json(&part)?))?;
        }
        self.news.push(Change::Noted(last));
        Ok(())
    }

    /// How many wait in a pool, by the kept count.
    fn waiting(&self, pool: &PoolName) -> Result<u64, Fault> {
        let mut statement = self.conn.prepare_cached(WAITING)?;
        let waiting = statement.query_row([pool.as_str()], |row| row.get(0)).optional()?;
        Ok(waiting.map_or(0, unsigned))
    }

    fn newest_event(&self) -> Result<u64, Fault> {
        let mut statement = self.conn.prepare_cached(NEWEST)?;
        Ok(unsigned(statement.query_row([], |row| row.get(0))?))
    }

    pub(crate) fn events(&self, after: u64, limit: u32) -> Result<EventPage, Fault> {
        let newest = self.newest_event()?;
        let mut statement = self.conn.prepare_cached(OLDEST)?;
        let oldest = statement.query_row([], |row| row.get(0)).optional()?;
        let mut page = EventPage {
            set_back: SetBack::default(),
            events: Vec::new(),
            oldest: oldest.map_or(newest + 1, unsigned),
            newest,
        };
        let mut statement = self.conn.prepare_cached(AFTER)?;
        let mut rows = statement.query([signed(after)])?;
        let limit = limit as usize;
        while page.events.len() < limit
            && let Some(row) = rows.next()?
        {
            let (first, at) = (unsigned(row.get(0)?), Timestamp::from_micros(row.get(1)?));
            let body: Vec<Happening> = serde_json::from_str(text(row, 2)?).map_err(|error| corrupt("events", error))?;
            let numbered = (first..).zip(body).filter(|(number, _)| *number > after);
            let wanted = limit - page.events.len();
            let events = numbered.map(|(number, what)| Event { number, at, what });
            page.events.extend(events.take(wanted));
        }
        Ok(page)
    }

    /// Forgets what is older than the newest [`EVENTS_KEPT`], row by row; never the newest row.
    pub(crate) fn prune_events(&self) -> Result<(), Fault> {
        let kept_after = self.newest_event()?.saturating_sub(EVENTS_KEPT);
        let mut statement = self.conn.prepare_cached(FORGET)?;
        statement.execute((signed(kept_after), PRUNED_AT_ONCE))?;
        Ok(())
    }
}

const APPEND: &str = "INSERT INTO events (last, first, at, body) VALUES (?1, ?2, ?3, ?4)";

/// By the last entry of the primary key.
pub(crate) const NEWEST: &str = "SELECT coalesce(max(last), 0) FROM events";

/// By the first entry of the primary key.
const OLDEST: &str = "SELECT first FROM events ORDER BY last LIMIT 1";

/// By the primary key.
pub(crate) const AFTER: &str = "SELECT first, at, body FROM events WHERE last > ?1 ORDER BY last";

/// By the primary key.
pub(crate) const WAITING: &str = "SELECT waiting FROM counts WHERE pool = ?1 AND operation = ''";

/// By the primary key, twice.
pub(crate) const FORGET: &str =
    "DELETE FROM events WHERE last IN (SELECT last FROM events WHERE last <= ?1 ORDER BY last LIMIT ?2)";
