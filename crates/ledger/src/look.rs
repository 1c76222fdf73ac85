//! Reading: what the port answers without changing anything.
//!
//! Its own file because any number may read at once and none of it is written to a journal. Everything here is as of
//! the last operation applied; where time matters, the caller says which.

use std::ops::Bound;

use wharf_core::{KeyId, LimitScope, PoolName, SessionId, SessionState, Timestamp};
use wharf_store::{
    EventPage, KeyRecord, LimitRecord, LockView, OperationReport, PoolReport, SessionQuery, SessionRecord, SetBack,
    Snapshot, Stats, WorkerRecord,
};

use crate::Ledger;

// === impl Ledger: sessions ===

impl Ledger {
    /// One session, ended ones included until they are archived.
    pub fn session(&self, id: SessionId) -> Option<&SessionRecord> {
        self.book.record(id)
    }

    /// Sessions by filter, in the order asked for; not those in the archive.
    pub fn sessions(&self, query: &SessionQuery) -> Vec<SessionRecord> {
        let matching = |record: &&SessionRecord| {
            query.pool.as_ref().is_none_or(|pool| record.spec.pool == *pool)
                && (query.statuses.is_empty() || query.statuses.contains(&record.state.status()))
                && query
                    .operation
                    .as_ref()
                    .is_none_or(|operation| record.spec.operation == *operation)
                && query.owner.is_none_or(|owner| record.owner == Some(owner))
                && query.reason.is_none_or(|reason| record.reason() == Some(reason))
        };
        let (limit, after) = (
            query.limit as usize,
            query.after.map_or(Bound::Unbounded, Bound::Excluded),
        );
        let sessions = self.book.sessions();
        if query.newest_first {
            let records = sessions
                .range((Bound::Unbounded, after))
                .rev()
                .map(|(_, entry)| &entry.record);
            records.filter(matching).take(limit).cloned().collect()
        } else {
            let records = sessions
                .range((after, Bound::Unbounded))
                .map(|(_, entry)| &entry.record);
            records.filter(matching).take(limit).cloned().collect()
        }
    }

    /// The place of a waiting session in its (pool, class) queue, 1 being next; `None` if it does not wait.
    pub fn position(&self, id: SessionId) -> Option<u64> {
        let record = self
            .book
            .record(id)
            .filter(|record| record.state == SessionState::Queued)?;
        self.book.get_pool(&record.spec.pool)?.lines.place_of(record)
    }

    /// The waiters of a pool in the order of service, at most `limit`.
    pub fn queue(&self, pool: &PoolName, limit: u32) -> Vec<SessionRecord> {
        let waiters = self.book.get_pool(pool).into_iter().flat_map(|pool| pool.lines.all());
        let records = waiters
            .take(limit as usize)
            .filter_map(|session| self.book.record(session));
        records.cloned().collect()
    }
}

// === impl Ledger: workers, limits, locks, keys ===

impl Ledger {
    /// All workers of a pool (or of all pools), by id.
    pub fn workers(&self, pool: Option<&PoolName>) -> Vec<WorkerRecord> {
        let rows = self.book.workers().values();
        rows.filter(|row| pool.is_none_or(|pool| row.pool == *pool))
            .cloned()
            .collect()
    }

    /// All limits, by pool and scope.
    pub fn limits(&self) -> Vec<LimitRecord> {
        self.book.limits().cloned().collect()
    }

    /// The locks that are held at this time, by name.
    pub fn locks(&self, now: Timestamp) -> Vec<LockView> {
        let now = now.max(self.book.now());
        let held = self.book.locks().values().filter(|lock| lock.until > now);
        held.map(|lock| self.book.view(lock.clone())).collect()
    }

    /// One key, revoked ones included.
    pub fn key(&self, id: KeyId) -> Option<KeyRecord> {
        self.book.key(id)
    }

    /// All keys, by id, revoked ones included.
    pub fn keys(&self) -> Vec<KeyRecord> {
        self.book.keys.keys().filter_map(|key| self.book.key(*key)).collect()
    }
}

// === impl Ledger: seeing ===

impl Ledger {
    /// One pool.
    pub fn pool(&self, pool: &PoolName) -> PoolReport {
        let limit = self.book.limit(pool, &LimitScope::Pool);
        let found = self.book.get_pool(pool);
        let mut operations = found.map(|found| found.operations.clone()).unwrap_or_default();
        for limit in self.book.limits_of(pool) {
            if let LimitScope::Operation(operation) = &limit.scope {
                operations.entry(operation.clone()).or_default();
            }
        }
        let each = operations.into_iter().map(|(operation, counts)| OperationReport {
            running: counts.running,
            queued: counts.queued,
            limit: self.book.limit(pool, &LimitScope::Operation(operation.clone())),
            operation,
        });
        let operations = each.collect();
        let Some(found) = found else {
            return PoolReport {
                operations,
                limit,
                ..PoolReport::default()
            };
        };
        PoolReport {
            queued: found.lines.len(),
            starting: found.starting,
            active: found.active,
            running: found.running,
            slots: found.live.slots,
            workers: found.live.workers,
            warm: found.live.warm,
            launching: found.live.launching,
            operations,
            limit,
        }
    }

    /// Counts over all pools.
    pub fn stats(&self) -> Stats {
        let pools = self.book.index().pools.values();
        pools.fold(Stats::default(), |stats, pool| Stats {
            queued: stats.queued + pool.lines.len(),
            starting: stats.starting + pool.starting,
            active: stats.active + pool.active,
            slots: stats.slots + pool.live.slots,
            busy: stats.busy + pool.running,
            workers: stats.workers + pool.live.workers,
        })
    }

    /// Everything but the archive at this time.
    pub fn snapshot(&self, now: Timestamp) -> Snapshot {
        let entries = || self.book.sessions().iter();
        let leases = entries().filter_map(|(id, entry)| entry.lease.map(|lease| (*id, lease.seat)));
        Snapshot {
            at: now.max(self.book.now()),
            sessions: entries().map(|(_, entry)| entry.record.clone()).collect(),
            leases: leases.collect(),
            workers: self.workers(None),
            limits: self.limits(),
            locks: self.book.locks().values().cloned().collect(),
            keys: self.keys(),
        }
    }

    /// The events after this number (0: from the oldest kept), at most `limit`, in order.
    pub fn events(&self, after: u64, limit: u32) -> EventPage {
        let events = &self.book.events;
        let newest = self.book.last_event;
        let oldest = events.front().map_or(newest + 1, |event| event.number);
        // Numbers have no gaps, so the place of an event is known.
        let skipped = usize::try_from(after.saturating_add(1).saturating_sub(oldest)).unwrap_or(usize::MAX);
        EventPage {
            events: events.iter().skip(skipped).take(limit as usize).cloned().collect(),
            oldest,
            newest,
            set_back: self.set_back,
        }
    }

    /// Takes the place of a ledger whose events may have been told: notes whether some of them are not in this log.
    pub fn succeed(&mut self, past: &Self) {
        self.set_back = past.set_back;
        let (old, new) = (&past.book.events, &self.book.events);
        let first = new.front().map_or(self.book.last_event + 1, |event| event.number);
        if past.book.last_event < first {
            // What was told is no longer kept here, or nothing was: nothing speaks against it.
            return;
        }
        let here = |number: u64| new.get(usize::try_from(number.checked_sub(first)?).ok()?);
        let agreed = old.iter().rev().find(|event| here(event.number) == Some(*event));
        let to = agreed.map_or(0, |event| event.number);
        if to < past.book.last_event {
            self.set_back = SetBack {
                times: past.set_back.times + 1,
                to,
            };
        }
    }
}
