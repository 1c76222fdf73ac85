//! Matching waiters with slots: who is next, whether anything holds them back, and where they go (I1, I2, I5, I7).
//!
//! Its own file because order is the promise users notice first. A lease begins here and nowhere else. The queue is read
//! by its heads only, one per class and bucket: a head that cannot be served takes all that wait behind it for the same
//! reason out of the round, unread.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    iter,
};

use uuid::Uuid;
use wharf_core::{
    Block, BrowserKind, PoolName, Priority, Seat, SessionId, SessionState, WorkerId,
    placement::{Candidate, choose},
    queue::{self, Waiter},
    session::{SessionEvent, step},
};
use wharf_store::{Change, Happening, Placement, SessionChange};

use crate::{
    events::session_event,
    hold_rows::all,
    holds::Holds,
    rows::{Fault, SessionRow, parse, text, unsigned},
    step::Step,
    worker_rows::{read_worker, worker_columns},
};

/// The heads of a pool's queues in one round.
struct Heads<'a> {
    step: &'a Step<'a>,
    pool: &'a PoolName,
    heads: Vec<Head>,
    /// Where the waiter given out last came from.
    last: (BrowserKind, String),
}

/// One class and bucket; the waiter is looked up when it is needed.
struct Head {
    class: BrowserKind,
    bucket: String,
    waiter: Option<Waiter>,
}

// === impl Heads ===

impl<'a> Heads<'a> {
    fn of(step: &'a Step<'a>, pool: &'a PoolName) -> Result<Self, Fault> {
        let mut buckets = all(step.conn, BUCKETS, [pool.as_str()], |row| Ok(row.get::<_, String>(0)?))?;
        buckets.push(String::new());
        let heads = buckets.iter().flat_map(|bucket| {
            BrowserKind::ALL.map(|class| Head {
                class,
                bucket: bucket.clone(),
                waiter: None,
            })
        });
        Ok(Self {
            step,
            pool,
            heads: heads.collect(),
            last: (BrowserKind::default(), String::new()),
        })
    }

    /// The next waiter of the pool, among the queues that are still in the round.
    fn next(&mut self) -> Result<Option<Waiter>, Fault> {
        for head in self.heads.iter_mut().filter(|head| head.waiter.is_none()) {
            head.waiter = self.step.head(self.pool, head.class, &head.bucket)?;
        }
        self.heads.retain(|head| head.waiter.is_some());
        let key = |head: &&mut Head| head.waiter.as_ref().map(Waiter::key);
        let Some(first) = self.heads.iter_mut().min_by_key(key) else {
            return Ok(None);
        };
        self.last = (first.class, first.bucket.clone());
        Ok(first.waiter.take())
    }

    /// The waiter given out last could not be served: nor can those behind it. (A waiter whom its operation holds back
    /// came from that operation's own bucket.)
    fn block(&mut self, block: Block) {
        let (class, bucket) = &self.last;
        self.heads.retain(|head| match block {
            Block::Class => head.class != *class,
            Block::Operation => head.bucket != *bucket,
            Block::Pool => false,
        });
    }
}

// === impl Step: dispatch ===

impl Step<'_> {
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
        self.forget_expired_locks()?;
        let pools = self.pools_waiting()?;
        self.dispatch_pools(pools, None)
    }

    /// Serves the waiters of one pool; of all pools, if a lock has expired since anybody looked. The placement of
    /// `own`, if any, is claimed at once: its caller is told by the answer, so it is neither announced nor among the
    /// placements answered.
    pub(crate) fn dispatch(&mut self, pool: &PoolName, own: Option<SessionId>) -> Result<Vec<Placement>, Fault> {
        if self.forget_expired_locks()? {
            let pools = self.pools_waiting()?;
            return self.dispatch_pools(pools, own);
        }
        self.dispatch_pools(BTreeSet::from([pool.clone()]), own)
    }

    /// Serves the waiters of these pools, by name.
    pub(crate) fn dispatch_pools(
        &mut self,
        pools: BTreeSet<PoolName>,
        own: Option<SessionId>,
    ) -> Result<Vec<Placement>, Fault> {
        let mut others = Vec::new();
        for pool in pools {
            for (placement, event) in self.round(&pool, own)? {
                self.note_placed(&pool, event);
                if Some(placement.session) != own {
                    others.push(placement);
                }
            }
        }
        self.news.extend(others.iter().copied().map(Change::Placed));
        Ok(others)
    }

    /// One round over a pool: the placements, and what is to be noted of each.
    fn round(&self, pool: &PoolName, own: Option<SessionId>) -> Result<Vec<(Placement, Happening)>, Fault> {
        let heads = RefCell::new(Heads::of(self, pool)?);
        let holds = Holds::of(self, pool)?;
        let fault = Cell::new(None);
        let waiters = iter::from_fn(|| {
            heads.borrow_mut().next().unwrap_or_else(|error| {
                fault.set(Some(error));
                None
            })
        });
        let placed = queue::dispatch(waiters, |waiter| {
            let reserved = self.reserve((pool, &holds), waiter, own).unwrap_or_else(|error| {
                fault.set(Some(error));
                Err(Block::Pool)
            });
            // Told to the heads too, so that they do not read on through those who cannot be served.
            reserved.inspect_err(|block| heads.borrow_mut().block(*block))
        });
        match fault.take() {
            Some(error) => Err(error),
            None => Ok(placed.into_iter().map(|(_, placed)| placed).collect()),
        }
    }

    /// The first of a class and bucket.
    fn head(&self, pool: &PoolName, class: BrowserKind, bucket: &str) -> Result<Option<Waiter>, Fault> {
        let mut statement = self.conn.prepare_cached(HEAD)?;
        let mut rows = statement.query((pool.as_str(), class.as_str(), bucket))?;
        let Some(row) = rows.next()? else {
            return Ok(None);
        };
        let priority: i64 = row.get(1)?;
        Ok(Some(Waiter {
            session: SessionId::from_uuid(Uuid::from_bytes(row.get(0)?)),
            class,
            operation: parse("operation", text(row, 3)?)?,
            priority: Priority::try_from(priority).map_err(|error| Fault::Corrupt(error.to_string()))?,
            number: unsigned(row.get(2)?),
        }))
    }

    /// Takes a slot for a waiter, or says what holds it back.
    fn reserve(
        &self,
        (pool, holds): (&PoolName, &Holds),
        waiter: &Waiter,
        own: Option<SessionId>,
    ) -> Result<Result<(Placement, Happening), Block>, Fault> {
        if let Some(block) = holds.block(self, pool, &waiter.operation)? {
            return Ok(Err(block));
        }
        // Whether anybody has a slot at all is asked first: with a long queue the answer is mostly no.
        let mut candidates = self.candidates(pool, waiter.class, &[])?;
        if !candidates.iter().any(|candidate| candidate.is_eligible(waiter.class)) {
            return Ok(Err(Block::Class));
        }
        let Some(mut row) = SessionRow::find(self.conn, waiter.session)? else {
            return Err(Fault::Corrupt(format!("{} waits and does not exist", waiter.session)));
        };
        if !row.excluded.is_empty() {
            candidates = self.candidates(pool, waiter.class, &row.excluded)?;
        }
        let Some(worker) = choose(waiter.class, &candidates, &row.excluded) else {
            return Ok(Err(Block::Class));
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
        let placement = Placement {
            session: row.id,
            coordinator: row.coordinator,
            seat,
        };
        Ok(Ok((placement, session_event(&row, SessionChange::Placed))))
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

/// The operations with a bucket that somebody of the pool waits in; by primary keys.
pub(crate) const BUCKETS: &str = "SELECT b.operation FROM buckets b JOIN counts c \
     ON c.pool = ?1 AND c.operation = b.operation WHERE c.waiting > 0";

/// The first of a class and bucket; by `sessions_queue`.
pub(crate) const HEAD: &str = "SELECT id, priority, number, operation FROM sessions \
     WHERE status = 'queued' AND pool = ?1 AND browser = ?2 AND bucket = ?3 ORDER BY priority DESC, number LIMIT 1";

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
