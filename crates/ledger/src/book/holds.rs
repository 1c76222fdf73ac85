//! What holds sessions back, as the book keeps it: limits, locks, quotas; and the stubs of archived sessions.
//!
//! Its own file because none of it belongs to one session. Every change here that may make room says so to the index.

use std::collections::BTreeMap;

use wharf_core::{
    Block, Cover, KeyId, LimitScope, LockName, Operation, PoolName, SessionId, Timestamp, hold::has_room,
};
use wharf_store::{KeyRecord, LimitRecord, LockRecord, LockView};

use super::{Book, Stub};

// === impl Book: limits ===

impl Book {
    pub(crate) fn limits(&self) -> impl Iterator<Item = &LimitRecord> {
        self.limits.values().flat_map(BTreeMap::values)
    }

    /// The limits of a pool, by scope.
    pub(crate) fn limits_of(&self, pool: &PoolName) -> impl Iterator<Item = &LimitRecord> {
        self.limits.get(pool).into_iter().flat_map(BTreeMap::values)
    }

    pub(crate) fn limit(&self, pool: &PoolName, scope: &LimitScope) -> Option<u64> {
        self.limits.get(pool)?.get(scope).map(|limit| limit.max)
    }

    pub(crate) fn put_limit(&mut self, limit: LimitRecord) {
        self.index.unserve(&limit.pool);
        let own = self.limits.entry(limit.pool.clone()).or_default();
        own.insert(limit.scope.clone(), limit);
    }

    pub(crate) fn lift_limit(&mut self, pool: &PoolName, scope: &LimitScope) {
        self.index.unserve(pool);
        if let Some(own) = self.limits.get_mut(pool) {
            own.remove(scope);
            if own.is_empty() {
                self.limits.remove(pool);
            }
        }
    }

    /// What holds such a session back now, slots aside.
    pub(crate) fn block(&self, pool: &PoolName, operation: &Operation) -> Option<Block> {
        if let Some(lock) = self.lock_over(pool, operation) {
            return Some(lock.cover.block());
        }
        if !self.limits.contains_key(pool) {
            return None;
        }
        let counted = self.get_pool(pool);
        let running = counted.map_or(0, |pool| pool.running);
        if !has_room(running, self.limit(pool, &LimitScope::Pool)) {
            return Some(Block::Pool);
        }
        let alike = counted.map_or(0, |pool| pool.counts(operation).running);
        let limit = self.limit(pool, &LimitScope::Operation(operation.clone()));
        (!has_room(alike, limit)).then_some(Block::Operation)
    }
}

// === impl Book: locks ===

impl Book {
    pub(crate) const fn locks(&self) -> &BTreeMap<LockName, LockRecord> {
        &self.locks
    }

    /// A lock, in place of the one of that name.
    pub(crate) fn put_lock(&mut self, lock: LockRecord) {
        if let Some(old) = self.locks.get(&lock.name) {
            self.index.locks.remove(&(old.until, old.name.clone()));
        }
        self.index.locks.insert((lock.until, lock.name.clone()));
        self.locks.insert(lock.name.clone(), lock);
    }

    pub(crate) fn remove_lock(&mut self, name: &LockName) -> Option<LockRecord> {
        let lock = self.locks.remove(name)?;
        self.index.locks.remove(&(lock.until, lock.name.clone()));
        self.index.unserve_all();
        Some(lock)
    }

    /// The locks whose time has passed, by name, taken out.
    pub(crate) fn take_expired_locks(&mut self) -> Vec<LockRecord> {
        if self.index.locks.first().is_none_or(|(until, _)| *until > self.now) {
            return Vec::new();
        }
        let over = self.locks.values().filter(|lock| lock.until <= self.now);
        let names: Vec<_> = over.map(|lock| lock.name.clone()).collect();
        names.iter().filter_map(|name| self.remove_lock(name)).collect()
    }

    /// The lock of this name, unless it has expired.
    pub(crate) fn held_lock(&self, name: &LockName) -> Option<&LockRecord> {
        self.locks.get(name).filter(|lock| lock.until > self.now)
    }

    /// The lock that covers such a session now; of several the one that lasts longest, then the first by name.
    pub(crate) fn lock_over(&self, pool: &PoolName, operation: &Operation) -> Option<&LockRecord> {
        let held = self.locks.values().filter(|lock| lock.until > self.now);
        // `max_by_key` answers with the last of equals.
        held.rev()
            .filter(|lock| lock.cover.covers(pool, operation))
            .max_by_key(|lock| lock.until)
    }

    /// A lock and what it waits for.
    pub(crate) fn view(&self, lock: LockRecord) -> LockView {
        LockView {
            running: self.covered(&lock.cover),
            lock,
        }
    }

    fn covered(&self, cover: &Cover) -> u64 {
        let pools = self.index.pools.iter().filter(|(name, _)| cover.covers_pool(name));
        let counts = pools.flat_map(|(name, pool)| {
            let covered = pool
                .operations
                .iter()
                .filter(move |(operation, _)| cover.covers(name, operation));
            covered.map(|(_, counts)| counts.running)
        });
        counts.sum()
    }
}

// === impl Book: keys ===

impl Book {
    /// One key, with its sessions counted.
    pub(crate) fn key(&self, key: KeyId) -> Option<KeyRecord> {
        self.keys.get(&key).map(|row| KeyRecord {
            held: self.index.held.get(&key).map_or(0, |held| held.len() as u64),
            ..row.clone()
        })
    }

    /// What the key holds and may hold, if it may not hold one more.
    pub(crate) fn spent_quota(&self, key: KeyId) -> Option<(u64, u64)> {
        let row = self.keys.get(&key)?;
        let held = self.index.held.get(&key).map_or(0, |held| held.len() as u64);
        let limit = match row.revoked_at {
            Some(_) => Some(0),
            None => row.max_sessions,
        };
        limit.filter(|limit| held >= *limit).map(|limit| (held, limit))
    }
}

// === impl Book: stubs ===

impl Book {
    pub(crate) const fn stubs(&self) -> &BTreeMap<Option<KeyId>, BTreeMap<String, Stub>> {
        &self.stubs
    }

    pub(crate) fn stub(&self, owner: Option<KeyId>, key: &str) -> Option<SessionId> {
        self.stubs.get(&owner)?.get(key).map(|stub| stub.session)
    }

    pub(crate) fn put_stub(&mut self, owner: Option<KeyId>, key: String, stub: Stub) {
        self.index.stubs.insert((stub.ended_at, (owner, key.clone())));
        let old = self.stubs.entry(owner).or_default().insert(key.clone(), stub);
        if let Some(old) = old.filter(|old| old.ended_at != stub.ended_at) {
            self.index.stubs.remove(&(old.ended_at, (owner, key)));
        }
    }

    /// Forgets the stubs of sessions that ended at this time or before.
    pub(crate) fn prune_stubs(&mut self, ended_by: Timestamp) {
        while self.index.stubs.first().is_some_and(|(at, _)| *at <= ended_by) {
            let Some((_, (owner, key))) = self.index.stubs.pop_first() else {
                return;
            };
            if let Some(own) = self.stubs.get_mut(&owner) {
                own.remove(&key);
                if own.is_empty() {
                    self.stubs.remove(&owner);
                }
            }
        }
    }
}
