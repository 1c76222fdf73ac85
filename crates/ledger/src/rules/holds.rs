//! Limits and locks: what an operator sets, and whom it holds back.
//!
//! Its own file because these rules concern no session by itself. Invariant: setting a limit or taking a lock ends
//! nothing and moves nobody; whatever makes room serves in the same step (I7).

use std::time::Duration;

use wharf_core::{LimitScope, LockName, LockToken, PoolName};
use wharf_store::{Freed, LimitRecord, LockChange, LockRecord, LockWish, Locking, Renewal, Unlocking};

use crate::step::Step;

// === impl Step: limits ===

impl Step<'_> {
    pub(crate) fn set_limit(&mut self, pool: PoolName, scope: LimitScope, max: Option<u64>) -> Freed {
        match max {
            Some(max) => {
                let set_at = self.book.now();
                self.book.put_limit(LimitRecord {
                    pool,
                    scope,
                    max,
                    set_at,
                });
            }
            None => self.book.lift_limit(&pool, &scope),
        }
        Freed {
            ended: Vec::new(),
            placed: self.dispatch(None),
        }
    }
}

// === impl Step: locks ===

impl Step<'_> {
    pub(crate) fn acquire_lock(&mut self, wish: LockWish) -> Locking {
        if let Some(lock) = self.book.held_lock(&wish.name).cloned() {
            return match lock.token == wish.token {
                true => Locking::Taken(self.book.view(lock)),
                false => Locking::Held(lock),
            };
        }
        let now = self.book.now();
        let lock = LockRecord {
            name: wish.name,
            token: wish.token,
            holder: wish.holder,
            description: wish.description,
            cover: wish.cover,
            taken_at: now,
            until: now + wish.ttl,
            owner: wish.owner,
        };
        // One that it follows upon has expired, and is told of first.
        self.forget_expired();
        self.book.put_lock(lock.clone());
        self.note_lock(&lock, LockChange::Acquired);
        // It may follow upon one that has expired, and whom that one alone held back is held back no more.
        self.dispatch(None);
        Locking::Taken(self.book.view(lock))
    }

    pub(crate) fn renew_lock(&mut self, name: &LockName, token: LockToken, ttl: Duration) -> Renewal {
        let Some(mut lock) = self.book.held_lock(name).cloned() else {
            return Renewal::NotYours(None);
        };
        if lock.token != token {
            return Renewal::NotYours(Some(lock));
        }
        lock.until = self.book.now() + ttl;
        self.book.put_lock(lock.clone());
        self.note_lock(&lock, LockChange::Renewed);
        Renewal::Renewed(self.book.view(lock))
    }

    pub(crate) fn release_lock(&mut self, name: &LockName, token: LockToken) -> Unlocking {
        let lock = match self.book.held_lock(name).cloned() {
            Some(lock) if lock.token == token => lock,
            other => return Unlocking::NotYours(other),
        };
        self.book.remove_lock(name);
        self.note_lock(&lock, LockChange::Released);
        Unlocking::Released(Freed {
            ended: Vec::new(),
            placed: self.dispatch(None),
        })
    }

    pub(crate) fn force_unlock(&mut self, name: &LockName) -> Option<(LockRecord, Freed)> {
        let lock = self.book.held_lock(name).cloned()?;
        self.book.remove_lock(name);
        self.note_lock(&lock, LockChange::Forced);
        let freed = Freed {
            ended: Vec::new(),
            placed: self.dispatch(None),
        };
        Some((lock, freed))
    }
}
