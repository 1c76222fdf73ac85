//! Limits and locks: what an operator sets, and whom it holds back.
//!
//! Its own file because these rules concern no session by itself. Invariant: setting a limit or taking a lock ends
//! nothing and moves nobody; whatever makes room serves in the same step (I7).

use std::time::Duration;

use wharf_core::{LimitScope, LockName, LockToken, PoolName};
use wharf_store::{Freed, LimitRecord, LockChange, LockRecord, LockView, LockWish, Locking, Renewal, Unlocking};

use crate::book::Step;

// === impl Step: limits ===

impl Step<'_> {
    pub(crate) fn set_limit(&mut self, pool: &PoolName, scope: LimitScope, max: Option<u64>) -> Freed {
        let place = (pool.clone(), scope.clone());
        match max {
            Some(max) => {
                let limit = LimitRecord {
                    pool: pool.clone(),
                    scope,
                    max,
                    set_at: self.now,
                };
                self.book.limits.insert(place, limit);
            }
            None => {
                self.book.limits.remove(&place);
            }
        }
        Freed {
            ended: Vec::new(),
            placed: self.dispatch(None),
        }
    }
}

// === impl Step: locks ===

impl Step<'_> {
    /// The lock of this name, unless it has expired.
    fn held_lock(&self, name: &LockName) -> Option<&LockRecord> {
        self.book.locks.get(name).filter(|lock| lock.until > self.now)
    }

    fn view(&self, lock: LockRecord) -> LockView {
        LockView {
            running: self.book.running(|pool, operation| lock.cover.covers(pool, operation)),
            lock,
        }
    }

    pub(crate) fn acquire_lock(&mut self, wish: LockWish) -> Locking {
        if let Some(lock) = self.held_lock(&wish.name).cloned() {
            return match lock.token == wish.token {
                true => Locking::Taken(self.view(lock)),
                false => Locking::Held(lock),
            };
        }
        let lock = LockRecord {
            name: wish.name,
            token: wish.token,
            holder: wish.holder,
            description: wish.description,
            cover: wish.cover,
            taken_at: self.now,
            until: self.now + wish.ttl,
            owner: wish.owner,
        };
        // One that it follows upon has expired, and is told of first.
        self.forget_expired();
        self.book.locks.insert(lock.name.clone(), lock.clone());
        self.note_lock(&lock, LockChange::Acquired);
        // It may follow upon one that has expired, and whom that one alone held back is held back no more.
        self.dispatch(None);
        Locking::Taken(self.view(lock))
    }

    pub(crate) fn renew_lock(&mut self, name: &LockName, token: LockToken, ttl: Duration) -> Renewal {
        let Some(mut lock) = self.held_lock(name).cloned() else {
            return Renewal::NotYours(None);
        };
        if lock.token != token {
            return Renewal::NotYours(Some(lock));
        }
        lock.until = self.now + ttl;
        self.book.locks.insert(lock.name.clone(), lock.clone());
        self.note_lock(&lock, LockChange::Renewed);
        Renewal::Renewed(self.view(lock))
    }

    pub(crate) fn release_lock(&mut self, name: &LockName, token: LockToken) -> Unlocking {
        let lock = match self.held_lock(name).cloned() {
            Some(lock) if lock.token == token => lock,
            other => return Unlocking::NotYours(other),
        };
        self.book.locks.remove(name);
        self.note_lock(&lock, LockChange::Released);
        Unlocking::Released(Freed {
            ended: Vec::new(),
            placed: self.dispatch(None),
        })
    }

    pub(crate) fn force_unlock(&mut self, name: &LockName) -> Option<(LockRecord, Freed)> {
        let lock = self.held_lock(name).cloned()?;
        self.book.locks.remove(name);
        self.note_lock(&lock, LockChange::Forced);
        let freed = Freed {
            ended: Vec::new(),
            placed: self.dispatch(None),
        };
        Some((lock, freed))
    }

    pub(crate) fn locks(&self) -> Vec<LockView> {
        let held = self.book.locks.values().filter(|lock| lock.until > self.now);
        held.map(|lock| self.view(lock.clone())).collect()
    }
}
