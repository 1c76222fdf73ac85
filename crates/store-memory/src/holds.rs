//! What holds sessions back, as questions to the book: locks, limits, quotas, and the counts they are judged by.
//!
//! Its own file because admission, dispatch and reports must ask the same questions. Invariant: counts are made from the
//! leases at the moment they are needed, never kept.

use std::collections::BTreeSet;

use wharf_core::{
    Block, KeyId, LimitScope, Operation, PoolName, SessionState, SessionStatus, Timestamp, hold::has_room,
};
use wharf_store::{KeyRecord, LockRecord, OperationReport, PoolReport};

use crate::book::Book;

// === impl Book: holds ===

impl Book {
    /// How many leases are held by sessions of these pools and operations.
    pub(crate) fn running(&self, counts: impl Fn(&PoolName, &Operation) -> bool) -> u64 {
        let leased = self.leases.keys().filter_map(|session| self.sessions.get(session));
        let specs = leased.map(|entry| &entry.record.spec);
        specs.filter(|spec| counts(&spec.pool, &spec.operation)).count() as u64
    }

    /// How many sessions of these pools and operations wait.
    fn waiting(&self, counts: impl Fn(&PoolName, &Operation) -> bool) -> u64 {
        let records = self.sessions.values().map(|entry| &entry.record);
        let waiting = records.filter(|record| record.state == SessionState::Queued);
        waiting
            .filter(|record| counts(&record.spec.pool, &record.spec.operation))
            .count() as u64
    }

    fn limit(&self, pool: &PoolName, scope: LimitScope) -> Option<u64> {
        self.limits.get(&(pool.clone(), scope)).map(|limit| limit.max)
    }

    /// The lock that covers such a session now; of several the one that lasts longest, then the first by name.
    pub(crate) fn lock_over(&self, now: Timestamp, pool: &PoolName, operation: &Operation) -> Option<&LockRecord> {
        let held = self.locks.values().filter(|lock| lock.until > now);
        // `max_by_key` answers with the last of equals.
        held.rev()
            .filter(|lock| lock.cover.covers(pool, operation))
            .max_by_key(|lock| lock.until)
    }

    /// What holds such a session back now, slots aside.
    pub(crate) fn block(&self, now: Timestamp, pool: &PoolName, operation: &Operation) -> Option<Block> {
        if let Some(lock) = self.lock_over(now, pool, operation) {
            return Some(lock.cover.block());
        }
        let in_pool = self.running(|other, _| other == pool);
        if !has_room(in_pool, self.limit(pool, LimitScope::Pool)) {
            return Some(Block::Pool);
        }
        let alike = self.running(|other, kind| other == pool && kind == operation);
        let limit = self.limit(pool, LimitScope::Operation(operation.clone()));
        (!has_room(alike, limit)).then_some(Block::Operation)
    }

    /// How many sessions of a key have not ended or still hold a slot.
    pub(crate) fn held(&self, key: KeyId) -> u64 {
        let records = self.sessions.values().map(|entry| &entry.record);
        let own = records.filter(|record| record.owner == Some(key));
        own.filter(|record| !record.state.is_ended() || self.leases.contains_key(&record.id))
            .count() as u64
    }

    /// What the key holds and may hold, if it may not hold one more.
    pub(crate) fn spent_quota(&self, key: KeyId) -> Option<(u64, u64)> {
        let key = self.key(key)?;
        let limit = match key.revoked_at {
            Some(_) => Some(0),
            None => key.max_sessions,
        };
        limit.filter(|limit| key.held >= *limit).map(|limit| (key.held, limit))
    }

    /// One key, with its sessions counted.
    pub(crate) fn key(&self, key: KeyId) -> Option<KeyRecord> {
        self.keys.get(&key).map(|row| KeyRecord {
            held: self.held(key),
            ..row.clone()
        })
    }

    /// All keys, by id.
    pub(crate) fn all_keys(&self) -> Vec<KeyRecord> {
        self.keys.keys().filter_map(|key| self.key(*key)).collect()
    }

    /// One pool.
    pub(crate) fn pool(&self, pool: &PoolName) -> PoolReport {
        let mut report = PoolReport {
            running: self.running(|other, _| other == pool),
            limit: self.limit(pool, LimitScope::Pool),
            ..PoolReport::default()
        };
        let mut operations = BTreeSet::new();
        for entry in self.sessions.values().filter(|entry| entry.record.spec.pool == *pool) {
            let record = &entry.record;
            match record.state.status() {
                SessionStatus::Queued => report.queued += 1,
                SessionStatus::Placed | SessionStatus::Starting => report.starting += 1,
                SessionStatus::Active => report.active += 1,
                SessionStatus::Ended => {}
            }
            if !record.state.is_ended() || self.leases.contains_key(&record.id) {
                operations.insert(record.spec.operation.clone());
            }
        }
        operations.extend(self.limits.keys().filter_map(|(other, scope)| match scope {
            LimitScope::Operation(operation) if other == pool => Some(operation.clone()),
            _ => None,
        }));
        for row in self
            .rows
            .values()
            .filter(|row| row.pool == *pool && row.state.is_live())
        {
            report.workers += 1;
            report.slots += u64::from(row.slots);
            report.warm += u64::from(row.warm);
            report.launching += u64::from(row.launching);
        }
        let each = operations.into_iter().map(|operation| OperationReport {
            running: self.running(|other, kind| other == pool && *kind == operation),
            queued: self.waiting(|other, kind| other == pool && *kind == operation),
            limit: self.limit(pool, LimitScope::Operation(operation.clone())),
            operation,
        });
        report.operations = each.collect();
        report
    }
}
