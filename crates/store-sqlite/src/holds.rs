//! Limits and locks: what an operator sets, and whom it holds back.
//!
//! Its own file because these rules concern no session by itself. Invariant: an operation that a limit or a lock names
//! has a bucket from that step on, so dispatch finds who may be placed without reading through those who may not.
//! Setting a hold may therefore read the whole queue; nothing else does.

use std::{collections::BTreeSet, time::Duration};

use rusqlite::OptionalExtension;
use wharf_core::{Block, LimitScope, LockName, LockToken, Operation, PoolName, hold::has_room};
use wharf_store::{Freed, LimitRecord, LockChange, LockRecord, LockView, LockWish, Locking, Renewal, Unlocking};

use crate::{
    hold_rows::{all, delete_lock, lock_columns, read_limit, read_lock, write_lock, write_scope},
    rows::{Fault, parse, signed, text, unsigned},
    step::Step,
};

/// What holds the sessions of one pool back, slots aside.
pub(crate) struct Holds {
    limits: Vec<LimitRecord>,
    locks: Vec<LockRecord>,
}

// === impl Holds ===

impl Holds {
    /// What is in force in a pool now.
    pub(crate) fn of(step: &Step<'_>, pool: &PoolName) -> Result<Self, Fault> {
        let mut locks = step.held_locks()?;
        locks.retain(|lock| lock.cover.covers_pool(pool));
        let limits = all(step.conn, POOL_LIMITS, [pool.as_str()], read_limit)?;
        Ok(Self { limits, locks })
    }

    /// What holds such a session of the pool back now.
    pub(crate) fn block(
        &self,
        step: &Step<'_>,
        pool: &PoolName,
        operation: &Operation,
    ) -> Result<Option<Block>, Fault> {
        if let Some(lock) = self.locks.iter().find(|lock| lock.cover.covers(pool, operation)) {
            return Ok(Some(lock.cover.block()));
        }
        for limit in &self.limits {
            let block = match &limit.scope {
                LimitScope::Pool => Block::Pool,
                LimitScope::Operation(own) if own == operation => Block::Operation,
                LimitScope::Operation(_) => continue,
            };
            if !has_room(step.running(pool, &limit.scope)?, Some(limit.max)) {
                return Ok(Some(block));
            }
        }
        Ok(None)
    }
}

// === impl Step: questions ===

impl Step<'_> {
    /// The locks that are held, by name.
    pub(crate) fn held_locks(&self) -> Result<Vec<LockRecord>, Fault> {
        all(self.conn, HELD_LOCKS, [self.now.as_micros()], read_lock)
    }

    /// The lock that covers such a session now; of several the one that lasts longest, then the first by name.
    pub(crate) fn lock_over(&self, pool: &PoolName, operation: &Operation) -> Result<Option<LockRecord>, Fault> {
        let held = self.held_locks()?.into_iter().rev();
        // `max_by_key` answers with the last of equals.
        Ok(held
            .filter(|lock| lock.cover.covers(pool, operation))
            .max_by_key(|lock| lock.until))
    }

    /// How many leases a limit of this scope counts.
    fn running(&self, pool: &PoolName, scope: &LimitScope) -> Result<u64, Fault> {
        let mut statement = self.conn.prepare_cached(RUNNING)?;
        let running = statement
            .query_row((pool.as_str(), write_scope(scope)), |row| row.get(0))
            .optional()?;
        Ok(running.map_or(0, unsigned))
    }

    /// Forgets the locks that have expired, and says whether there were any: whom they held back is to be served.
    pub(crate) fn forget_expired_locks(&mut self) -> Result<bool, Fault> {
        let mut expired = all(self.conn, FORGET_EXPIRED, [self.now.as_micros()], read_lock)?;
        expired.sort_by(|one, other| one.name.cmp(&other.name));
        for lock in &expired {
            self.note_lock(lock, LockChange::Expired);
        }
        Ok(!expired.is_empty())
    }

    fn held_lock(&self, name: &LockName) -> Result<Option<LockRecord>, Fault> {
        let sql = concat!("SELECT ", lock_columns!(), " FROM locks WHERE name = ?1 AND until > ?2");
        let found = all(self.conn, sql, (name.as_str(), self.now.as_micros()), read_lock)?;
        Ok(found.into_iter().next())
    }

    /// A lock with the leases it covers, from the kept counts.
    fn view(&self, lock: LockRecord) -> Result<LockView, Fault> {
        let sql = "SELECT pool, operation, running FROM counts WHERE operation <> '' AND running > 0";
        let running = all(self.conn, sql, [], |row| {
            let pool: PoolName = parse("pool", text(row, 0)?)?;
            let operation: Operation = parse("operation", text(row, 1)?)?;
            let running = unsigned(row.get(2)?);
            Ok(if lock.cover.covers(&pool, &operation) {
                running
            } else {
                0
            })
        })?;
        Ok(LockView {
            lock,
            running: running.into_iter().sum(),
        })
    }

    pub(crate) fn locks(&self) -> Result<Vec<LockView>, Fault> {
        self.held_locks()?.into_iter().map(|lock| self.view(lock)).collect()
    }

    pub(crate) fn limits(&self) -> Result<Vec<LimitRecord>, Fault> {
        let sql = "SELECT pool, operation, amount, set_at FROM limits ORDER BY pool, operation";
        all(self.conn, sql, [], read_limit)
    }
}

// === impl Step: buckets ===

impl Step<'_> {
    /// An operation gets a bucket, and those who wait move into it.
    fn name(&self, operation: &Operation) -> Result<(), Fault> {
        let mut statement = self
            .conn
            .prepare_cached("INSERT OR IGNORE INTO buckets (operation) VALUES (?1)")?;
        if statement.execute([operation.as_str()])? > 0 {
            self.conn.prepare_cached(FILL_BUCKET)?.execute([operation.as_str()])?;
        }
        Ok(())
    }

    /// Removes the buckets of operations that nothing names any more.
    pub(crate) fn tidy_buckets(&self) -> Result<(), Fault> {
        let mut unnamed: BTreeSet<String> = all(self.conn, UNLIMITED_BUCKETS, [], |row| Ok(row.get(0)?))?
            .into_iter()
            .collect();
        if unnamed.is_empty() {
            return Ok(());
        }
        for lock in self.held_locks()? {
            for operation in &lock.cover.operations {
                unnamed.remove(operation.as_str());
            }
        }
        for operation in unnamed {
            self.conn
                .prepare_cached("DELETE FROM buckets WHERE operation = ?1")?
                .execute([&operation])?;
            self.conn.prepare_cached(EMPTY_BUCKET)?.execute([&operation])?;
        }
        Ok(())
    }
}

// === impl Step: limits ===

impl Step<'_> {
    pub(crate) fn set_limit(&mut self, pool: &PoolName, scope: &LimitScope, max: Option<u64>) -> Result<Freed, Fault> {
        match max {
            Some(max) => {
                let mut statement = self.conn.prepare_cached(
                    "INSERT OR REPLACE INTO limits (pool, operation, amount, set_at) VALUES (?1, ?2, ?3, ?4)",
                )?;
                let values = (pool.as_str(), write_scope(scope), signed(max), self.now.as_micros());
                statement.execute(values)?;
                if let LimitScope::Operation(operation) = scope {
                    self.name(operation)?;
                }
            }
            None => {
                let mut statement = self
                    .conn
                    .prepare_cached("DELETE FROM limits WHERE pool = ?1 AND operation = ?2")?;
                statement.execute((pool.as_str(), write_scope(scope)))?;
            }
        }
        Ok(Freed {
            ended: Vec::new(),
            placed: self.dispatch(pool, None)?,
        })
    }
}

// === impl Step: locks ===

impl Step<'_> {
    pub(crate) fn acquire_lock(&mut self, wish: &LockWish) -> Result<Locking, Fault> {
        if let Some(lock) = self.held_lock(&wish.name)? {
            return Ok(match lock.token == wish.token {
                true => Locking::Taken(self.view(lock)?),
                false => Locking::Held(lock),
            });
        }
        let lock = LockRecord {
            name: wish.name.clone(),
            token: wish.token,
            holder: wish.holder.clone(),
            description: wish.description.clone(),
            cover: wish.cover.clone(),
            taken_at: self.now,
            until: self.now + wish.ttl,
            owner: wish.owner,
        };
        // One that it follows upon has expired, and is told of first.
        self.forget_expired_locks()?;
        write_lock(self.conn, &lock)?;
        self.note_lock(&lock, LockChange::Acquired);
        for operation in &lock.cover.operations {
            self.name(operation)?;
        }
        // It may follow upon one that has expired, and whom that one alone held back is held back no more.
        self.dispatch_all()?;
        Ok(Locking::Taken(self.view(lock)?))
    }

    pub(crate) fn renew_lock(&mut self, name: &LockName, token: LockToken, ttl: Duration) -> Result<Renewal, Fault> {
        let Some(mut lock) = self.held_lock(name)? else {
            return Ok(Renewal::NotYours(None));
        };
        if lock.token != token {
            return Ok(Renewal::NotYours(Some(lock)));
        }
        lock.until = self.now + ttl;
        write_lock(self.conn, &lock)?;
        self.note_lock(&lock, LockChange::Renewed);
        Ok(Renewal::Renewed(self.view(lock)?))
    }

    pub(crate) fn release_lock(&mut self, name: &LockName, token: LockToken) -> Result<Unlocking, Fault> {
        match self.held_lock(name)? {
            Some(lock) if lock.token == token => self.unlock(&lock, LockChange::Released).map(Unlocking::Released),
            other => Ok(Unlocking::NotYours(other)),
        }
    }

    pub(crate) fn force_unlock(&mut self, name: &LockName) -> Result<Option<(LockRecord, Freed)>, Fault> {
        match self.held_lock(name)? {
            Some(lock) => {
                let freed = self.unlock(&lock, LockChange::Forced)?;
                Ok(Some((lock, freed)))
            }
            None => Ok(None),
        }
    }

    fn unlock(&mut self, lock: &LockRecord, how: LockChange) -> Result<Freed, Fault> {
        delete_lock(self.conn, &lock.name)?;
        self.note_lock(lock, how);
        Ok(Freed {
            ended: Vec::new(),
            placed: self.dispatch_all()?,
        })
    }
}

/// By the primary key.
pub(crate) const POOL_LIMITS: &str = "SELECT pool, operation, amount, set_at FROM limits WHERE pool = ?1";

/// By the primary key.
pub(crate) const RUNNING: &str = "SELECT running FROM counts WHERE pool = ?1 AND operation = ?2";

/// All of a short table, in the order of its key.
pub(crate) const HELD_LOCKS: &str = concat!("SELECT ", lock_columns!(), " FROM locks WHERE until > ?1 ORDER BY name");

/// By `locks_by_end`.
pub(crate) const FORGET_EXPIRED: &str = concat!("DELETE FROM locks WHERE until <= ?1 RETURNING ", lock_columns!());

/// By `sessions_live`: those who wait, and no history.
pub(crate) const FILL_BUCKET: &str = "UPDATE sessions SET bucket = operation \
     WHERE status = 'queued' AND status <> 'ended' AND operation = ?1";

/// By `sessions_live`.
pub(crate) const EMPTY_BUCKET: &str = "UPDATE sessions SET bucket = '' \
     WHERE status = 'queued' AND status <> 'ended' AND bucket = ?1";

const UNLIMITED_BUCKETS: &str =
    "SELECT operation FROM buckets b WHERE NOT EXISTS (SELECT 1 FROM limits l WHERE l.operation = b.operation)";
