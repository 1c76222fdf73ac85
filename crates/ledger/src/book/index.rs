//! The indices: everything that is looked up instead of searched for. Made from the records, never written to an image.
//!
//! Its own file because it is the one place where an index is changed: the book hands over what was and what is, and
//! every index moves by the difference. Invariant: made anew from the records, all of it comes out the same (but for
//! `due`, whose entries may be early, and for what is pending within a step).

use std::collections::{BTreeMap, BTreeSet};

use wharf_core::{CoordinatorId, KeyId, LockName, PoolName, SessionId, SessionStatus, Timestamp, WorkerId};
use wharf_store::{SessionRecord, WorkerRecord};

use super::{
    facts::{Facts, WorkerFacts},
    pool::Pool,
};

/// An order by time.
pub(crate) type ByTime<T> = BTreeSet<(Timestamp, T)>;

/// All indices.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// Every pool that has a worker, a waiter or a lease.
    pub(crate) pools: BTreeMap<PoolName, Pool>,
    /// Who holds a lease on a worker.
    pub(crate) leased: BTreeMap<WorkerId, BTreeSet<SessionId>>,
    /// What counts for a key's quota.
    pub(crate) held: BTreeMap<KeyId, BTreeSet<SessionId>>,
    /// Who came with an idempotency key, by owner.
    pub(crate) keys: BTreeMap<Option<KeyId>, BTreeMap<String, SessionId>>,
    /// Tickets, by the coordinator that renews them and the time they were given out.
    pub(crate) tickets: BTreeMap<CoordinatorId, ByTime<SessionId>>,
    /// Ended sessions without a lease.
    pub(crate) rested: ByTime<SessionId>,
    /// The same by coordinator.
    pub(crate) rested_of: BTreeMap<CoordinatorId, ByTime<SessionId>>,
    /// When time will do something to a session, or earlier: see [`super::Book::edit_session`].
    pub(crate) due: ByTime<SessionId>,
    /// Live workers, by when they were heard.
    pub(crate) heard: ByTime<WorkerId>,
    /// Given-up workers, by when they were heard.
    pub(crate) silent: ByTime<WorkerId>,
    /// Locks, by when they expire.
    pub(crate) locks: ByTime<LockName>,
    /// Stubs, by when their sessions ended.
    pub(crate) stubs: ByTime<(Option<KeyId>, String)>,
    /// Pools in which somebody waits whom a change since the last dispatch may have made room for.
    pub(crate) unserved: BTreeSet<PoolName>,
    /// How many waited, in the pools where that has changed in this step.
    pub(crate) waited: BTreeMap<PoolName, u64>,
}

// === impl Index ===

impl Index {
    /// Files a session by what it was and is. The record gives only what never changes in its life.
    pub(crate) fn refile_session(&mut self, record: &SessionRecord, before: &Facts, after: &Facts) {
        self.refile_in_pool(record, before, after);
        if before.worker != after.worker {
            if let Some(worker) = before.worker {
                take_out(&mut self.leased, &worker, &record.id);
            }
            if let Some(worker) = after.worker {
                self.leased.entry(worker).or_default().insert(record.id);
            }
        }
        if let Some(owner) = record.owner {
            match (before.is_held(), after.is_held()) {
                (false, true) => {
                    self.held.entry(owner).or_default().insert(record.id);
                }
                (true, false) => take_out(&mut self.held, &owner, &record.id),
                _ => {}
            }
        }
        if before.key != after.key {
            self.refile_key(record, before, after);
        }
        if before.ticket != after.ticket {
            if let Some((coordinator, since)) = before.ticket {
                take_out(&mut self.tickets, &coordinator, &(since, record.id));
            }
            if let Some((coordinator, since)) = after.ticket {
                let own = self.tickets.entry(coordinator).or_default();
                own.insert((since, record.id));
            }
        }
        if before.rested != after.rested {
            if let Some(at) = before.rested {
                self.rested.remove(&(at, record.id));
                take_out(&mut self.rested_of, &record.coordinator, &(at, record.id));
            }
            if let Some(at) = after.rested {
                self.rested.insert((at, record.id));
                let own = self.rested_of.entry(record.coordinator).or_default();
                own.insert((at, record.id));
            }
        }
    }

    fn refile_in_pool(&mut self, record: &SessionRecord, before: &Facts, after: &Facts) {
        let is_moved = before.status != after.status;
        if !is_moved && before.worker.is_some() == after.worker.is_some() {
            return;
        }
        let name = &record.spec.pool;
        let pool = match self.pools.get_mut(name) {
            Some(pool) => pool,
            None => self.pools.entry(name.clone()).or_default(),
        };
        let waited = pool.lines.len();
        if is_moved {
            before.status.into_iter().for_each(|status| pool.leave(record, status));
            after.status.into_iter().for_each(|status| pool.enter(record, status));
        }
        match (before.worker, after.worker) {
            (None, Some(_)) => pool.lease(&record.spec.operation),
            (Some(_), None) => pool.release(&record.spec.operation),
            _ => {}
        }
        if pool.lines.len() != waited && !self.waited.contains_key(name) {
            self.waited.insert(name.clone(), waited);
        }
        let is_newcomer = is_moved && after.status == Some(SessionStatus::Queued);
        let is_freed = before.worker.is_some() && after.worker.is_none();
        if is_newcomer || is_freed {
            self.unserve(name);
        }
        self.tidy(name);
    }

    fn refile_key(&mut self, record: &SessionRecord, before: &Facts, after: &Facts) {
        let own = self.keys.entry(record.owner).or_default();
        if let Some(key) = &before.key {
            own.remove(key);
        }
        if let Some(key) = &after.key {
            own.insert(key.clone(), record.id);
        }
        if own.is_empty() {
            self.keys.remove(&record.owner);
        }
    }

    /// Files a worker by what it was and is. The row gives only what never changes while it is kept.
    pub(crate) fn refile_worker(&mut self, row: &WorkerRecord, before: &WorkerFacts, after: &WorkerFacts) {
        let pool = match self.pools.get_mut(&row.pool) {
            Some(pool) => pool,
            None => self.pools.entry(row.pool.clone()).or_default(),
        };
        pool.refile_worker(row, before, after);
        refile(&mut self.heard, row.id, before.heard_at, after.heard_at);
        refile(&mut self.silent, row.id, before.silent_since, after.silent_since);
        // Time only silences: room counts for those who wait when it appears, or when its worker is heard again.
        if after.room.is_some() && (before.room.is_none() || before.heard_at != after.heard_at) {
            self.unserve(&row.pool);
        }
        self.tidy(&row.pool);
    }

    /// Something in this pool may serve a waiter now. Without any there is nothing to do: a newcomer asks for itself.
    pub(crate) fn unserve(&mut self, pool: &PoolName) {
        if self.pools.get(pool).is_some_and(|pool| !pool.lines.is_empty()) && !self.unserved.contains(pool) {
            self.unserved.insert(pool.clone());
        }
    }

    /// Something that concerns all pools has changed.
    pub(crate) fn unserve_all(&mut self) {
        let waiting = self.pools.iter().filter(|(_, pool)| !pool.lines.is_empty());
        self.unserved = waiting.map(|(name, _)| name.clone()).collect();
    }

    fn tidy(&mut self, name: &PoolName) {
        if self.pools.get(name).is_some_and(Pool::is_empty) {
            self.pools.remove(name);
        }
    }
}

/// Moves one in an order by time.
pub(crate) fn refile<T: Ord + Clone>(
    order: &mut ByTime<T>,
    one: T,
    before: Option<Timestamp>,
    after: Option<Timestamp>,
) {
    if before == after {
        return;
    }
    if let Some(at) = before {
        order.remove(&(at, one.clone()));
    }
    if let Some(at) = after {
        order.insert((at, one));
    }
}

/// Removes one from its set, and the set with its last.
fn take_out<K: Ord, T: Ord>(sets: &mut BTreeMap<K, BTreeSet<T>>, key: &K, one: &T) {
    if let Some(set) = sets.get_mut(key) {
        set.remove(one);
        if set.is_empty() {
            sets.remove(key);
        }
    }
}
