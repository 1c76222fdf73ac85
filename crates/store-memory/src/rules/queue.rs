//! The queue and time: tickets, clearing, and what the sweep ends.
//!
//! Its own file because these are the operations over many sessions. Invariant: whatever ends here ends through
//! `finish`, so it is announced once.

use std::collections::BTreeSet;

use wharf_core::{CoordinatorId, EndReason, PoolName, SessionId, SessionState, Timestamp, worker::WorkerEvent};
use wharf_store::{EndedSession, Freed, QueueFilter, SessionRecord, TICKET_LAPSED};

use crate::book::{Entry, Step};

// === impl Step: queue and time ===

impl Step<'_> {
    pub(crate) fn renew_tickets(&mut self, coordinator: CoordinatorId) -> u64 {
        let until = self.now + self.rules.ticket_lease;
        let mut renewed = 0;
        for entry in self.book.sessions.values_mut() {
            if entry.record.state == SessionState::Queued && entry.record.coordinator == coordinator {
                entry.ticket_until = until;
                renewed += 1;
            }
        }
        renewed
    }

    pub(crate) fn queue(&self, pool: &PoolName, limit: u32) -> Vec<SessionRecord> {
        let waiters = self.book.waiters(pool).into_iter().take(limit as usize);
        waiters
            .filter_map(|waiter| self.book.sessions.get(&waiter.session))
            .map(|entry| entry.record.clone())
            .collect()
    }

    /// Nobody was kept out by somebody who only waited, so nothing is dispatched.
    pub(crate) fn clear_queue(&mut self, filter: &QueueFilter, reason: EndReason, detail: &str) -> Freed {
        let matching = |record: &SessionRecord| {
            record.state == SessionState::Queued
                && filter.pool.as_ref().is_none_or(|pool| record.spec.pool == *pool)
                && filter
                    .operation
                    .as_ref()
                    .is_none_or(|operation| record.spec.operation == *operation)
                && filter.owner.is_none_or(|owner| record.owner == Some(owner))
        };
        let records = self.book.sessions.values().map(|entry| &entry.record);
        let cleared: Vec<_> = records
            .filter(|record| matching(record))
            .map(|record| record.id)
            .collect();
        let ended = cleared
            .into_iter()
            .filter_map(|session| self.finish(session, reason, Some(detail.to_owned())))
            .collect();
        Freed {
            ended,
            placed: Vec::new(),
        }
    }

    pub(crate) fn sweep(&mut self) -> Freed {
        let mut ended = self.lose_silent_workers();
        let due: Vec<_> = self
            .book
            .sessions
            .values()
            .filter_map(|entry| self.due(entry))
            .collect();
        for (session, reason) in due {
            let is_never_active = reason == EndReason::LaunchFailed;
            let detail = (reason == EndReason::Cancelled).then(|| TICKET_LAPSED.to_owned());
            ended.extend(self.finish(session, reason, detail));
            if is_never_active {
                // Nobody may be left to vacate it; if the worker holds it after all, its next heartbeat tells it to end.
                self.release(session);
            }
        }
        self.prune();
        Freed {
            ended,
            placed: self.dispatch(None),
        }
    }

    fn lose_silent_workers(&mut self) -> Vec<EndedSession> {
        let silent_since = |heard_at: Timestamp| heard_at + self.rules.liveness_ttl <= self.now;
        let rows = self.book.rows.values();
        let silent: Vec<_> = rows
            .filter(|row| row.state.is_live() && silent_since(row.heard_at))
            .map(|row| row.id)
            .collect();
        let mut ended = Vec::new();
        for worker in silent {
            self.move_worker(worker, WorkerEvent::Silent);
            ended.extend(self.empty(worker, EndReason::WorkerLost));
        }
        ended
    }

    /// Why time has ended this session, if it has.
    fn due(&self, entry: &Entry) -> Option<(SessionId, EndReason)> {
        let record = &entry.record;
        let limit = record
            .deadline()
            .filter(|(at, _)| *at <= self.now)
            .map(|(_, reason)| reason);
        let reason = match record.state {
            SessionState::Queued => limit.or((entry.ticket_until <= self.now).then_some(EndReason::Cancelled)),
            SessionState::Placed(_) | SessionState::Starting(_) => {
                let placed_at = record.times.placed_at.unwrap_or(record.times.queued_at);
                (placed_at + self.rules.starting_grace <= self.now).then_some(EndReason::LaunchFailed)
            }
            SessionState::Active(_) | SessionState::Ended(_) => limit,
        };
        reason.map(|reason| (record.id, reason))
    }

    /// Forgets ended sessions and given-up workers older than the history.
    fn prune(&mut self) {
        let kept_from = self.now.before(self.rules.history);
        let leased: BTreeSet<_> = self.book.leases.keys().copied().collect();
        self.book.sessions.retain(|session, entry| {
            leased.contains(session) || entry.record.ended_at.is_none_or(|ended_at| ended_at > kept_from)
        });
        self.book
            .rows
            .retain(|_, row| row.state.is_live() || row.heard_at > kept_from);
    }
}
