//! What the store keeps, and the moves every operation is made of: end, release, reserve, dispatch.
//!
//! Its own file because these four moves are where the invariants live: a lease exists only between `reserve` and
//! `release` (I1), dispatch serves in order (I2), and `finish` is the only way into a terminal state (I4).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use wharf_core::{
    Block, CoordinatorId, EndReason, KeyId, LimitScope, LockName, PoolName, Seat, SessionId, SessionSpec, SessionState,
    SessionStatus, Timestamp, WorkerId, WorkerState,
    placement::{Candidate, choose},
    queue::{self, Waiter},
    session::{SessionEvent, step},
};
use wharf_store::{
    Change, EVENTS_KEPT, EndedSession, Event, EventPage, Happening, KeyRecord, LimitRecord, LockChange, LockRecord,
    Placement, SessionChange, SessionQuery, SessionRecord, SetBack, Stats, StoreRules, WorkerChange, WorkerRecord,
};

/// All that is known.
#[derive(Default)]
pub(crate) struct Book {
    /// The latest time this store has seen.
    pub(crate) now: Timestamp,
    pub(crate) sessions: BTreeMap<SessionId, Entry>,
    pub(crate) leases: BTreeMap<SessionId, Lease>,
    /// `busy` is filled in by [`Book::workers`]: the leases are the truth.
    pub(crate) rows: BTreeMap<WorkerId, WorkerRecord>,
    pub(crate) limits: BTreeMap<(PoolName, LimitScope), LimitRecord>,
    /// Expired ones too, until the next dispatch has served whom they held back.
    pub(crate) locks: BTreeMap<LockName, LockRecord>,
    /// `held` is filled in by [`Book::key`]: the sessions are the truth.
    pub(crate) keys: BTreeMap<KeyId, KeyRecord>,
    pub(crate) last_number: u64,
    pub(crate) events: VecDeque<Event>,
    /// The number of the newest event.
    pub(crate) last_event: u64,
}

/// A session and, while it waits, how long its ticket is good for.
pub(crate) struct Entry {
    pub(crate) record: SessionRecord,
    pub(crate) ticket_until: Timestamp,
}

/// A slot in use.
pub(crate) struct Lease {
    pub(crate) seat: Seat,
    pub(crate) since: Timestamp,
}

/// One atomic step on the book.
pub(crate) struct Step<'a> {
    pub(crate) book: &'a mut Book,
    pub(crate) rules: &'a StoreRules,
    pub(crate) now: Timestamp,
    pub(crate) news: Vec<Change>,
    pub(crate) noted: Noted,
}

/// What a step did, for the log of events; each kind in its own order.
#[derive(Default)]
pub(crate) struct Noted {
    workers: Vec<Happening>,
    locks: Vec<Happening>,
    sessions: Vec<Happening>,
}

// === impl Book ===

impl Book {
    /// All workers by id, with their leases counted.
    pub(crate) fn workers(&self) -> Vec<WorkerRecord> {
        self.rows
            .values()
            .map(|row| WorkerRecord {
                busy: self.busy(row.id),
                ..row.clone()
            })
            .collect()
    }

    /// One worker, with its leases counted.
    pub(crate) fn worker(&self, worker: WorkerId) -> Option<WorkerRecord> {
        self.rows.get(&worker).map(|row| WorkerRecord {
            busy: self.busy(worker),
            ..row.clone()
        })
    }

    fn busy(&self, worker: WorkerId) -> u32 {
        let held = self.leases.values().filter(|lease| lease.seat.worker == worker).count();
        u32::try_from(held).unwrap_or(u32::MAX)
    }

    /// The sessions that hold a lease on this worker, by id.
    pub(crate) fn leased_on(&self, worker: WorkerId) -> Vec<SessionId> {
        self.leases
            .iter()
            .filter(|(_, lease)| lease.seat.worker == worker)
            .map(|(session, _)| *session)
            .collect()
    }

    /// Those who wait in a pool, in the order in which they are served.
    pub(crate) fn waiters(&self, pool: &PoolName) -> Vec<Waiter> {
        let waiting = self.sessions.values().map(|entry| &entry.record);
        let mut waiters: Vec<_> = waiting
            .filter(|record| record.state == SessionState::Queued && record.spec.pool == *pool)
            .map(|record| Waiter {
                session: record.id,
                class: record.spec.browser,
                operation: record.spec.operation.clone(),
                priority: record.spec.priority,
                number: record.number,
            })
            .collect();
        waiters.sort_by_key(Waiter::key);
        waiters
    }

    /// How many wait in each pool where anybody waits.
    pub(crate) fn waiting_by_pool(&self) -> BTreeMap<PoolName, u64> {
        let records = self.sessions.values().map(|entry| &entry.record);
        let mut waiting = BTreeMap::new();
        for record in records.filter(|record| record.state == SessionState::Queued) {
            *waiting.entry(record.spec.pool.clone()).or_default() += 1;
        }
        waiting
    }

    /// A stretch of the log of events.
    pub(crate) fn events(&self, after: u64, limit: u32) -> EventPage {
        let later = self.events.iter().filter(|event| event.number > after);
        EventPage {
            set_back: SetBack::default(),
            events: later.take(limit as usize).cloned().collect(),
            oldest: self.events.front().map_or(self.last_event + 1, |event| event.number),
            newest: self.last_event,
        }
    }

    /// The place in the queue of (pool, class), 1 being next.
    pub(crate) fn position(&self, session: SessionId) -> Option<u64> {
        let spec = &self.sessions.get(&session)?.record.spec;
        let mut same_class = self
            .waiters(&spec.pool)
            .into_iter()
            .filter(|waiter| waiter.class == spec.browser);
        same_class
            .position(|waiter| waiter.session == session)
            .map(|before| before as u64 + 1)
    }

    /// Sessions by filter, in the order asked for.
    pub(crate) fn list(&self, query: &SessionQuery) -> Vec<SessionRecord> {
        let matching = |record: &&SessionRecord| {
            query.pool.as_ref().is_none_or(|pool| record.spec.pool == *pool)
                && (query.statuses.is_empty() || query.statuses.contains(&record.state.status()))
                && query
                    .operation
                    .as_ref()
                    .is_none_or(|operation| record.spec.operation == *operation)
                && query.owner.is_none_or(|owner| record.owner == Some(owner))
                && query.reason.is_none_or(|reason| record.reason() == Some(reason))
                && query.after.is_none_or(|after| match query.newest_first {
                    true => record.id < after,
                    false => record.id > after,
                })
        };
        let limit = query.limit as usize;
        let all = self.sessions.values().map(|entry| &entry.record);
        if query.newest_first {
            all.rev().filter(matching).take(limit).cloned().collect()
        } else {
            all.filter(matching).take(limit).cloned().collect()
        }
    }

    /// Whether waiting could ever help: a worker that is not gone serves such browsers in this pool.
    pub(crate) fn is_served(&self, spec: &SessionSpec) -> bool {
        let serves = |row: &WorkerRecord| {
            row.state != WorkerState::Gone && row.pool == spec.pool && row.browsers.contains(&spec.browser)
        };
        self.rows.values().any(serves)
    }

    /// Counts over all pools.
    pub(crate) fn stats(&self) -> Stats {
        let mut stats = Stats {
            busy: self.leases.len() as u64,
            ..Stats::default()
        };
        for entry in self.sessions.values() {
            match entry.record.state.status() {
                SessionStatus::Queued => stats.queued += 1,
                SessionStatus::Placed | SessionStatus::Starting => stats.starting += 1,
                SessionStatus::Active => stats.active += 1,
                SessionStatus::Ended => {}
            }
        }
        for row in self.rows.values().filter(|row| row.state.is_live()) {
            stats.workers += 1;
            stats.slots += u64::from(row.slots);
        }
        stats
    }
}

// === impl Step ===

impl Step<'_> {
    pub(crate) fn note_session(&mut self, session: SessionId, change: SessionChange) {
        let Some(entry) = self.book.sessions.get(&session) else {
            return;
        };
        let record = &entry.record;
        self.noted.sessions.push(Happening::Session {
            session,
            pool: record.spec.pool.clone(),
            operation: record.spec.operation.clone(),
            owner: record.owner,
            worker: record.worker,
            change,
        });
    }

    pub(crate) fn note_worker(&mut self, worker: WorkerId, change: WorkerChange) {
        let Some(row) = self.book.rows.get(&worker) else {
            return;
        };
        let pool = row.pool.clone();
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

    /// Writes what the step did into the log of events, given who waited before it.
    pub(crate) fn log(&mut self, waited: &BTreeMap<PoolName, u64>) {
        let waiting = self.book.waiting_by_pool();
        let pools: BTreeSet<_> = waited.keys().chain(waiting.keys()).collect();
        let count = |counts: &BTreeMap<PoolName, u64>, pool: &PoolName| counts.get(pool).copied().unwrap_or(0);
        let changed = pools
            .into_iter()
            .filter(|pool| count(waited, pool) != count(&waiting, pool));
        let queues = changed.map(|pool| Happening::Queue {
            pool: pool.clone(),
            waiting: count(&waiting, pool),
        });
        let Noted {
            workers,
            locks,
            sessions,
        } = std::mem::take(&mut self.noted);
        let before = self.book.last_event;
        for what in workers.into_iter().chain(locks).chain(sessions).chain(queues) {
            self.book.last_event += 1;
            self.book.events.push_back(Event {
                number: self.book.last_event,
                at: self.now,
                what,
            });
        }
        while self.book.events.len() as u64 > EVENTS_KEPT {
            self.book.events.pop_front();
        }
        if self.book.last_event > before {
            self.news.push(Change::Noted(self.book.last_event));
        }
    }

    /// Forgets the locks whose time has passed.
    pub(crate) fn forget_expired(&mut self) {
        let is_over = |lock: &LockRecord| lock.until <= self.now;
        let over: Vec<_> = self.book.locks.values().filter(|lock| is_over(lock)).cloned().collect();
        for lock in over {
            self.book.locks.remove(&lock.name);
            self.note_lock(&lock, LockChange::Expired);
        }
    }

    /// Moves a session by one event, if the event applies.
    pub(crate) fn advance(&mut self, session: SessionId, event: SessionEvent) -> Option<&mut SessionRecord> {
        let record = &mut self.book.sessions.get_mut(&session)?.record;
        record.state = step(record.state, event).ok()?;
        Some(record)
    }

    /// Ends a session, tells the world, and says what it was. `None` if it is unknown or had ended. The lease stays.
    pub(crate) fn finish(
        &mut self,
        session: SessionId,
        reason: EndReason,
        detail: Option<String>,
    ) -> Option<EndedSession> {
        let now = self.now;
        let seat = self.book.sessions.get(&session)?.record.state.seat();
        let record = self.advance(session, SessionEvent::Ended(reason))?;
        record.ended_at = Some(now);
        record.detail = detail;
        if record.times.started_at.is_none() {
            record.idempotency_key = None;
        }
        let ended = EndedSession { session, reason, seat };
        self.news.push(Change::Ended(ended));
        self.note_session(session, SessionChange::Ended(reason));
        Some(ended)
    }

    /// Frees the slot of a session.
    pub(crate) fn release(&mut self, session: SessionId) {
        self.book.leases.remove(&session);
    }

    /// A worker is no more, as far as its sessions are concerned: every lease on it goes. Those that had a browser end;
    /// those that were still to get one wait for another worker, if there is any.
    pub(crate) fn empty(&mut self, worker: WorkerId, reason: EndReason) -> Vec<EndedSession> {
        let mut ended = Vec::new();
        for session in self.book.leased_on(worker) {
            if self.has_hope(session) && self.requeue(session) {
                self.note_session(session, SessionChange::Queued);
            } else {
                ended.extend(self.finish(session, reason, None));
                self.release(session);
            }
        }
        ended
    }

    /// Whether a worker that is not gone serves what this session wants.
    fn has_hope(&self, session: SessionId) -> bool {
        let entry = self.book.sessions.get(&session);
        entry.is_some_and(|entry| self.book.is_served(&entry.record.spec))
    }

    /// A session without a browser waits again, at the place it had and without its slot. Not one that has a browser.
    pub(crate) fn requeue(&mut self, session: SessionId) -> bool {
        let until = self.now + self.rules.ticket_lease;
        let Some(entry) = self.book.sessions.get_mut(&session) else {
            return false;
        };
        let Ok(next) = step(entry.record.state, SessionEvent::Requeued(entry.record.epoch)) else {
            return false;
        };
        entry.record.state = next;
        entry.record.times.placed_at = None;
        entry.ticket_until = until;
        self.release(session);
        true
    }

    /// Serves waiters of all pools. The placement of `own`, if any, is claimed at once: its caller is told by the
    /// answer, so it is neither announced nor among the placements answered.
    pub(crate) fn dispatch(&mut self, own: Option<SessionId>) -> Vec<Placement> {
        self.forget_expired();
        let records = self.book.sessions.values().map(|entry| &entry.record);
        let pools: BTreeSet<PoolName> = records
            .filter(|record| record.state == SessionState::Queued)
            .map(|record| record.spec.pool.clone())
            .collect();
        let mut others = Vec::new();
        for pool in pools {
            let waiters = self.book.waiters(&pool);
            for (waiter, placement) in queue::dispatch(waiters, |waiter| self.reserve(&pool, waiter)) {
                self.note_session(waiter.session, SessionChange::Placed);
                if own == Some(waiter.session) {
                    self.advance(waiter.session, SessionEvent::Claimed(placement.seat.epoch));
                } else {
                    self.news.push(Change::Placed(placement));
                    others.push(placement);
                }
            }
        }
        others
    }

    /// Takes a slot for a waiter, or says what holds it back.
    fn reserve(&mut self, pool: &PoolName, waiter: &Waiter) -> Result<Placement, Block> {
        match self.book.block(self.now, pool, &waiter.operation) {
            Some(block) => Err(block),
            None => self.take_slot(pool, waiter).ok_or(Block::Class),
        }
    }

    fn take_slot(&mut self, pool: &PoolName, waiter: &Waiter) -> Option<Placement> {
        let candidates = self.candidates(pool);
        let now = self.now;
        let record = &mut self.book.sessions.get_mut(&waiter.session)?.record;
        let worker = choose(waiter.class, &candidates, &record.excluded)?;
        let seat = Seat {
            worker,
            epoch: record.epoch.next(),
        };
        record.state = step(record.state, SessionEvent::Placed(seat)).ok()?;
        record.epoch = seat.epoch;
        record.worker = Some(worker);
        record.times.placed_at = Some(now);
        let coordinator: CoordinatorId = record.coordinator;
        self.book.leases.insert(waiter.session, Lease { seat, since: now });
        if let Some(row) = self.book.rows.get_mut(&worker) {
            row.lifetime += 1;
        }
        Some(Placement {
            session: waiter.session,
            coordinator,
            seat,
        })
    }

    fn candidates(&self, pool: &PoolName) -> Vec<Candidate> {
        let workers = self.book.workers().into_iter().filter(|worker| worker.pool == *pool);
        workers
            .map(|worker| Candidate {
                worker: worker.id,
                state: worker.state,
                is_fresh: worker.heard_at + self.rules.liveness_ttl > self.now,
                is_circuit_open: worker.is_circuit_open,
                browsers: worker.browsers,
                slots: worker.slots,
                busy: worker.busy,
                lifetime: worker.lifetime,
            })
            .collect()
    }
}
