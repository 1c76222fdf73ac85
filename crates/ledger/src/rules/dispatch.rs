//! Matching waiters with slots: the rule is `wharf_core::queue::dispatch`, fed with the heads of lines only.
//!
//! Its own file because it is the heart of the cost: after almost every operation somebody might be served, and mostly
//! nobody is. Only pools in which something has changed are looked at; there, only the heads of lines that nothing yet
//! found holds back; and of workers only those with room, best first.
//!
//! Why the others need no look: a dispatch leaves every waiter held back by a lock, a limit or the want of a slot. Time
//! takes nothing of that away but locks (whose removal is a change like any other): workers only grow silent with it.

use std::{cell::RefCell, collections::BTreeSet};

use wharf_core::{
    Block, BrowserKind, Operation, PoolName, Seat, SessionId, WorkerId,
    queue::{self, Waiter},
    session::{SessionEvent, step},
};
use wharf_store::{Change, Placement, SessionChange};

use crate::{
    book::{Book, Lease},
    step::Step,
};

/// Who is held back in one pool, as far as this round has found out.
struct Round<'a> {
    book: &'a mut Book,
    pool: &'a PoolName,
    blocked: BTreeSet<BrowserKind>,
    held_back: BTreeSet<Operation>,
}

// === impl Step: dispatch ===

impl Step<'_> {
    /// Serves waiters of all pools. The placement of `own`, if any, is claimed at once: its caller is told by the
    /// answer, so it is neither announced nor among the placements answered.
    pub(crate) fn dispatch(&mut self, own: Option<SessionId>) -> Vec<Placement> {
        self.forget_expired();
        let mut others = Vec::new();
        for pool in self.book.take_unserved() {
            let round = RefCell::new(Round {
                book: &mut *self.book,
                pool: &pool,
                blocked: BTreeSet::new(),
                held_back: BTreeSet::new(),
            });
            // The rule asks for the next waiter only after it was answered about the last one, so the two never borrow
            // the round at once.
            let heads = std::iter::from_fn(|| round.borrow_mut().next());
            let placed = queue::dispatch(heads, |waiter| round.borrow_mut().reserve(waiter));
            for (waiter, placement) in placed {
                self.note_session(waiter.session, SessionChange::Placed);
                if own == Some(waiter.session) {
                    self.advance(waiter.session, SessionEvent::Claimed(placement.seat.epoch), |_| {});
                } else {
                    self.news.push(Change::Placed(placement));
                    others.push(placement);
                }
            }
        }
        others
    }
}

// === impl Round ===

impl Round<'_> {
    /// The first waiter that nothing is yet known to hold back.
    fn next(&mut self) -> Option<Waiter> {
        let (waiter, looked) = self
            .book
            .get_pool(self.pool)?
            .lines
            .next(&self.blocked, &self.held_back);
        self.book.looks += looked;
        waiter
    }

    /// Takes a slot for a waiter, or says what holds it back.
    fn reserve(&mut self, waiter: &Waiter) -> Result<Placement, Block> {
        let block = match self.book.block(self.pool, &waiter.operation) {
            Some(block) => block,
            None => match self.take_slot(waiter) {
                Some(placement) => return Ok(placement),
                None => Block::Class,
            },
        };
        match block {
            Block::Class => {
                self.blocked.insert(waiter.class);
            }
            Block::Operation => {
                self.held_back.insert(waiter.operation.clone());
            }
            // The round is over.
            Block::Pool => {}
        }
        Err(block)
    }

    fn take_slot(&mut self, waiter: &Waiter) -> Option<Placement> {
        let now = self.book.now();
        let worker = self.choose(waiter)?;
        let record = self.book.record(waiter.session)?;
        let (coordinator, epoch) = (record.coordinator, record.epoch.next());
        let seat = Seat { worker, epoch };
        let next = step(record.state, SessionEvent::Placed(seat)).ok()?;
        self.book.edit_worker(worker, |row| row.lifetime += 1);
        self.book.edit_session(waiter.session, |entry| {
            entry.record.state = next;
            entry.record.epoch = epoch;
            entry.record.worker = Some(worker);
            entry.record.times.placed_at = Some(now);
            entry.lease = Some(Lease { seat, since: now });
        });
        Some(Placement {
            session: waiter.session,
            coordinator,
            seat,
        })
    }

    /// The worker that `wharf_core::placement::choose` would name: the first with room that is fresh and where this
    /// session has not failed; else the first fresh one.
    fn choose(&mut self, waiter: &Waiter) -> Option<WorkerId> {
        let book = &*self.book;
        let excluded = &book.record(waiter.session)?.excluded;
        let is_fresh = |worker: &WorkerId| {
            let row = book.worker(*worker);
            row.is_some_and(|row| row.heard_at + book.rules().liveness_ttl > book.now())
        };
        let mut looked = 0;
        let mut last_resort = None;
        let mut chosen = None;
        for room in book.get_pool(self.pool)?.rooms(waiter.class) {
            looked += 1;
            if !is_fresh(&room.worker) {
                continue;
            }
            if !excluded.contains(&room.worker) {
                chosen = Some(room.worker);
                break;
            }
            last_resort = last_resort.or(Some(room.worker));
        }
        self.book.looks += looked;
        chosen.or(last_resort)
    }
}
