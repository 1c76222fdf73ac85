//! One operation on the book, and the moves every rule is made of: end, release, reserve, dispatch.
//!
//! Its own file because these moves are where the invariants live: a lease exists only between `reserve` and `release`
//! (I1), dispatch serves in order (I2), and `finish` is the only way into a terminal state (I4).

use wharf_core::{
    EndReason, SessionId, WorkerId,
    session::{SessionEvent, step},
};
use wharf_store::{
    Change, EVENTS_KEPT, EndedSession, Event, Happening, LockChange, LockRecord, SessionChange, SessionRecord,
    WorkerChange,
};

use crate::book::{Book, Entry};

/// One atomic step on the book.
pub(crate) struct Step<'a> {
    pub(crate) book: &'a mut Book,
    pub(crate) news: Vec<Change>,
    noted: Noted,
}

/// What a step did, for the log of events; each kind in its own order.
#[derive(Default)]
struct Noted {
    workers: Vec<Happening>,
    locks: Vec<Happening>,
    sessions: Vec<Happening>,
}

// === impl Step: notes ===

impl<'a> Step<'a> {
    pub(crate) fn new(book: &'a mut Book) -> Self {
        Self {
            book,
            news: Vec::new(),
            noted: Noted::default(),
        }
    }

    pub(crate) fn note_session(&mut self, session: SessionId, change: SessionChange) {
        let Some(record) = self.book.record(session) else {
            return;
        };
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
        let Some(row) = self.book.worker(worker) else {
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

    /// Writes what the step did into the log of events, and gives out its news.
    pub(crate) fn finish_step(mut self) -> Vec<Change> {
        let book = &mut *self.book;
        let mut queues = Vec::new();
        for (pool, waited) in book.take_waited() {
            let waiting = book.get_pool(&pool).map_or(0, |pool| pool.lines.len());
            if waiting != waited {
                queues.push(Happening::Queue { pool, waiting });
            }
        }
        let Noted {
            workers,
            locks,
            sessions,
        } = self.noted;
        let before = book.last_event;
        for what in workers.into_iter().chain(locks).chain(sessions).chain(queues) {
            book.last_event += 1;
            book.events.push_back(Event {
                number: book.last_event,
                at: book.now(),
                what,
            });
        }
        while book.events.len() as u64 > EVENTS_KEPT {
            book.events.pop_front();
        }
        if book.last_event > before {
            self.news.push(Change::Noted(book.last_event));
        }
        self.news
    }
}

// === impl Step: moves ===

impl Step<'_> {
    /// Forgets the locks whose time has passed.
    pub(crate) fn forget_expired(&mut self) {
        for lock in self.book.take_expired_locks() {
            self.note_lock(&lock, LockChange::Expired);
        }
    }

    /// Moves a session by one event, if the event applies, and does the rest to its record in the same change.
    pub(crate) fn advance(
        &mut self,
        session: SessionId,
        event: SessionEvent,
        rest: impl FnOnce(&mut Entry),
    ) -> Option<&SessionRecord> {
        let next = step(self.book.record(session)?.state, event).ok()?;
        self.book.edit_session(session, |entry| {
            entry.record.state = next;
            rest(entry);
        });
        self.book.record(session)
    }

    /// Ends a session, tells the world, and says what it was. `None` if it is unknown or had ended. The lease stays.
    pub(crate) fn finish(
        &mut self,
        session: SessionId,
        reason: EndReason,
        detail: Option<String>,
    ) -> Option<EndedSession> {
        let now = self.book.now();
        let seat = self.book.record(session)?.state.seat();
        self.advance(session, SessionEvent::Ended(reason), |entry| {
            let record = &mut entry.record;
            record.ended_at = Some(now);
            record.detail = detail;
            if record.times.started_at.is_none() {
                record.idempotency_key = None;
            }
        })?;
        let ended = EndedSession { session, reason, seat };
        self.news.push(Change::Ended(ended));
        self.note_session(session, SessionChange::Ended(reason));
        Some(ended)
    }

    /// Frees the slot of a session.
    pub(crate) fn release(&mut self, session: SessionId) {
        self.book.edit_session(session, |entry| entry.lease = None);
    }

    /// A worker is no more, as far as its sessions are concerned: every lease on it goes. Those that had a browser end;
    /// those that were still to get one wait for another worker, if there is any.
    pub(crate) fn empty(&mut self, worker: WorkerId, reason: EndReason) -> Vec<EndedSession> {
        let mut ended = Vec::new();
        for session in self.leased_on(worker) {
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
        let record = self.book.record(session);
        record.is_some_and(|record| self.book.is_served(&record.spec))
    }

    /// A session without a browser waits again, at the place it had and without its slot. Not one that has a browser.
    pub(crate) fn requeue(&mut self, session: SessionId) -> bool {
        let now = self.book.now();
        let Some(epoch) = self.book.record(session).map(|record| record.epoch) else {
            return false;
        };
        let requeued = self.advance(session, SessionEvent::Requeued(epoch), |entry| {
            entry.lease = None;
            entry.record.times.placed_at = None;
            entry.ticket_since = now;
        });
        requeued.is_some()
    }

    /// The sessions that hold a lease on this worker, by id.
    pub(crate) fn leased_on(&self, worker: WorkerId) -> Vec<SessionId> {
        let leased = self.book.index().leased.get(&worker);
        leased.into_iter().flatten().copied().collect()
    }
}
