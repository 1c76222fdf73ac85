//! One atomic step and the moves every operation is made of: end, release, reserve, dispatch.
//!
//! Its own file because these four moves are where the invariants live: a lease exists only between `reserve` and
//! `release` (I1), dispatch serves in order (I2), and `finish` is the only way into a terminal state (I4). No move
//! reads more rows than it changes, however many wait.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    iter,
};

use rusqlite::{Connection, OptionalExtension};
use uuid::Uuid;
use wharf_core::{
    BrowserKind, EndReason, PoolName, Priority, Seat, SessionId, SessionState, Timestamp, WorkerId,
    placement::{Candidate, choose},
    queue::{self, Waiter},
    session::{SessionEvent, step},
};
use wharf_store::{Change, EndedSession, Placement, StoreRules};

use crate::rows::{Fault, SessionRow, key, read_worker, session_columns, unsigned, worker_columns};

/// One operation inside the writer's transaction.
pub(crate) struct Step<'a> {
    pub(crate) conn: &'a Connection,
    pub(crate) rules: &'a StoreRules,
    pub(crate) now: Timestamp,
    pub(crate) news: &'a mut Vec<Change>,
    /// The number given out last. Not kept in the file: the next one need only follow all that are there.
    pub(crate) last_number: &'a mut u64,
}

// === impl Step ===

impl Step<'_> {
    /// Ends a session that has not ended, and tells the world. The lease stays; the row is not saved yet.
    pub(crate) fn finish(&mut self, row: &mut SessionRow, reason: EndReason, detail: Option<String>) -> EndedSession {
        let ended = EndedSession {
            session: row.id,
            reason,
            seat: row.state.seat(),
        };
        row.state = SessionState::Ended(reason);
        row.ended_at = Some(self.now);
        row.detail = detail;
        if row.times.started_at.is_none() {
            row.idempotency_key = None;
        }
        self.news.push(Change::Ended(ended));
        ended
    }

    /// A worker is no more, as far as its sessions are concerned: they end, and every lease on it goes.
    pub(crate) fn empty(&mut self, worker: WorkerId, reason: EndReason) -> Result<Vec<EndedSession>, Fault> {
        let mut ended = Vec::new();
        for mut row in self.leased_on(worker)? {
            if !row.state.is_ended() {
                ended.push(self.finish(&mut row, reason, None));
            }
            row.is_leased = false;
            row.save(self.conn, self.rules)?;
        }
        Ok(ended)
    }

    /// The sessions that hold a lease on this worker, by id.
    pub(crate) fn leased_on(&self, worker: WorkerId) -> Result<Vec<SessionRow>, Fault> {
        let mut statement = self.conn.prepare_cached(concat!(
            "SELECT ",
            session_columns!(),
            " FROM sessions s WHERE s.worker = ?1 AND s.is_leased = 1 ORDER BY s.id"
        ))?;
        let mut rows = statement.query([key!(worker)])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            found.push(SessionRow::read(row)?);
        }
        Ok(found)
    }

    /// The pools in which somebody waits, by name.
    pub(crate) fn pools_waiting(&self) -> Result<BTreeSet<PoolName>, Fault> {
        let mut statement = self
            .conn
            .prepare_cached("SELECT DISTINCT pool FROM waiting WHERE amount > 0")?;
        let names = statement.query_map([], |row| row.get::<_, String>(0))?;
        names
            .map(|name| name?.parse().map_err(|_| Fault::Corrupt("a pool's name".to_owned())))
            .collect()
    }

    /// Serves the waiters of all pools.
    pub(crate) fn dispatch_all(&mut self) -> Result<Vec<Placement>, Fault> {
        let mut placed = Vec::new();
        for pool in self.pools_waiting()? {
            placed.extend(self.dispatch(&pool, None)?);
        }
        Ok(placed)
    }

    /// Serves the waiters of one pool. The placement of `own`, if any, is claimed at once: its caller is told by the
    /// answer, so it is neither announced nor among the placements answered.
    pub(crate) fn dispatch(&mut self, pool: &PoolName, own: Option<SessionId>) -> Result<Vec<Placement>, Fault> {
        let blocked = RefCell::new(BTreeSet::new());
        let fault = Cell::new(None);
        let this = &*self;
        let heads = iter::from_fn(|| {
            this.head(pool, &blocked.borrow()).unwrap_or_else(|error| {
                fault.set(Some(error));
                None
            })
        });
        let placed = queue::dispatch(heads, |waiter| {
            let reserved = this.reserve(pool, waiter, own).unwrap_or_else(|error| {
                fault.set(Some(error));
                None
            });
            if reserved.is_none() {
                // Told to the iterator too, so that it does not read on through a class that cannot be served.
                blocked.borrow_mut().insert(waiter.class);
            }
            reserved
        });
        if let Some(error) = fault.take() {
            return Err(error);
        }
        let others = placed.into_iter().filter(|(waiter, _)| Some(waiter.session) != own);
        let others: Vec<_> = others.map(|(_, placement)| placement).collect();
        self.news.extend(others.iter().copied().map(Change::Placed));
        Ok(others)
    }

    /// The next waiter of a pool among the classes that are not blocked.
    fn head(&self, pool: &PoolName, blocked: &BTreeSet<BrowserKind>) -> Result<Option<Waiter>, Fault> {
        let mut statement = self.conn.prepare_cached(HEAD)?;
        let mut heads = Vec::new();
        for class in BrowserKind::ALL.into_iter().filter(|class| !blocked.contains(class)) {
            let found = statement
                .query_row((pool.as_str(), class.as_str()), |row| {
                    Ok((row.get::<_, [u8; 16]>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
                })
                .optional()?;
            let Some((session, priority, number)) = found else {
                continue;
            };
            heads.push(Waiter {
                session: SessionId::from_uuid(Uuid::from_bytes(session)),
                class,
                priority: Priority::try_from(priority).map_err(|error| Fault::Corrupt(error.to_string()))?,
                number: unsigned(number),
            });
        }
        Ok(heads.into_iter().min_by_key(Waiter::key))
    }

    /// Takes a slot for a waiter, or says that no worker has one.
    fn reserve(&self, pool: &PoolName, waiter: &Waiter, own: Option<SessionId>) -> Result<Option<Placement>, Fault> {
        // Whether anybody has a slot at all is asked first: with a long queue the answer is mostly no.
        let mut candidates = self.candidates(pool, waiter.class, &[])?;
        if !candidates.iter().any(|candidate| candidate.is_eligible(waiter.class)) {
            return Ok(None);
        }
        let Some(mut row) = SessionRow::find(self.conn, waiter.session)? else {
            return Err(Fault::Corrupt(format!("{} waits and does not exist", waiter.session)));
        };
        if !row.excluded.is_empty() {
            candidates = self.candidates(pool, waiter.class, &row.excluded)?;
        }
        let Some(worker) = choose(waiter.class, &candidates, &row.excluded) else {
            return Ok(None);
        };
        let seat = Seat {
            worker,
            epoch: row.epoch.next(),
        };
        row.state = moved(row.state, SessionEvent::Placed(seat))?;
        if own == Some(row.id) {
            row.state = moved(row.state, SessionEvent::Claimed(seat.epoch))?;
        }
        row.epoch = seat.epoch;
        row.worker = Some(worker);
        row.is_leased = true;
        row.times.placed_at = Some(self.now);
        row.save(self.conn, self.rules)?;
        Ok(Some(Placement {
            session: row.id,
            coordinator: row.coordinator,
            seat,
        }))
    }

    /// Workers of a pool with a free slot, in the order of choice, up to the first that will be chosen: all later ones
    /// lose against it.
    fn candidates(&self, pool: &PoolName, class: BrowserKind, excluded: &[WorkerId]) -> Result<Vec<Candidate>, Fault> {
        let mut statement = self.conn.prepare_cached(FREE_WORKERS)?;
        let mut rows = statement.query([pool.as_str()])?;
        let mut candidates = Vec::new();
        while let Some(row) = rows.next()? {
            let worker = read_worker(row)?;
            let candidate = Candidate {
                worker: worker.id,
                state: worker.state,
                is_fresh: worker.heard_at + self.rules.liveness_ttl > self.now,
                is_circuit_open: worker.is_circuit_open,
                browsers: worker.browsers,
                slots: worker.slots,
                busy: worker.busy,
                lifetime: worker.lifetime,
            };
            let is_the_one = candidate.is_eligible(class) && !excluded.contains(&candidate.worker);
            candidates.push(candidate);
            if is_the_one {
                break;
            }
        }
        Ok(candidates)
    }
}

/// The first of a class; by `sessions_queue`.
pub(crate) const HEAD: &str = "SELECT id, priority, number FROM sessions \
     WHERE status = 'queued' AND pool = ?1 AND browser = ?2 ORDER BY priority DESC, number LIMIT 1";

/// By `workers_free`.
pub(crate) const FREE_WORKERS: &str = concat!(
    "SELECT ",
    worker_columns!(),
    " FROM workers WHERE pool = ?1 AND state = 'available' AND is_circuit_open = 0 AND busy < slots \
     ORDER BY busy * 1.0 / slots, lifetime DESC, id"
);

/// A move that the caller has already found to apply.
fn moved(state: SessionState, event: SessionEvent) -> Result<SessionState, Fault> {
    step(state, event).map_err(|refused| Fault::Corrupt(refused.to_string()))
}
