//! The queue and time: clearing, and what the sweep ends.
//!
//! Its own file because these are the operations over many sessions. Invariant: whatever ends here ends through
//! `finish`, so it is announced once; and in the order of ids, whatever the order in which it was found.

use std::collections::BTreeSet;

use wharf_core::{EndReason, SessionId, SessionState, worker::WorkerEvent};
use wharf_store::{EndedSession, Freed, QueueFilter, SessionRecord, TICKET_LAPSED};

use crate::{book::Entry, step::Step};

// === impl Step: queue and time ===

impl Step<'_> {
    /// Nobody was kept out by somebody who only waited, so nothing is dispatched.
    pub(crate) fn clear_queue(&mut self, filter: &QueueFilter, reason: EndReason, detail: &str) -> Freed {
        let matching = |record: &&SessionRecord| {
            record.state == SessionState::Queued
                && filter.pool.as_ref().is_none_or(|pool| record.spec.pool == *pool)
                && filter
                    .operation
                    .as_ref()
                    .is_none_or(|operation| record.spec.operation == *operation)
                && filter.owner.is_none_or(|owner| record.owner == Some(owner))
        };
        let index = self.book.index();
        let found: Vec<SessionId> = match (filter.owner, &filter.pool) {
            (Some(owner), _) => index.held.get(&owner).into_iter().flatten().copied().collect(),
            (None, Some(pool)) => self
                .book
                .get_pool(pool)
                .into_iter()
                .flat_map(|pool| pool.lines.all())
                .collect(),
            (None, None) => index.pools.values().flat_map(|pool| pool.lines.all()).collect(),
        };
        let records = found.into_iter().filter_map(|session| self.book.record(session));
        let cleared: BTreeSet<_> = records.filter(matching).map(|record| record.id).collect();
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
        let found = self.book.take_due();
        let entries = found.into_iter().filter_map(|session| self.book.entry(session));
        let due: Vec<_> = entries.filter_map(|entry| self.due(entry)).collect();
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
        let (now, ttl) = (self.book.now(), self.book.rules().liveness_ttl);
        let heard = self.book.index().heard.iter();
        let silent: BTreeSet<_> = heard
            .take_while(|(heard_at, _)| *heard_at + ttl <= now)
            .map(|(_, worker)| *worker)
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
        let (record, now) = (&entry.record, self.book.now());
        let limit = record.deadline().filter(|(at, _)| *at <= now).map(|(_, reason)| reason);
        let reason = match record.state {
            SessionState::Queued => limit.or((self.book.ticket_until(entry) <= now).then_some(EndReason::Cancelled)),
            SessionState::Placed(_) | SessionState::Starting(_) => {
                let placed_at = record.times.placed_at.unwrap_or(record.times.queued_at);
                (placed_at + self.book.rules().starting_grace <= now).then_some(EndReason::LaunchFailed)
            }
            SessionState::Active(_) | SessionState::Ended(_) => limit,
        };
        reason.map(|reason| (record.id, reason))
    }

    /// Forgets ended sessions, given-up workers and stubs older than the history.
    fn prune(&mut self) {
        let kept_from = self.book.now().before(self.book.rules().history);
        let index = self.book.index();
        let sessions = index.rested.iter().take_while(|(at, _)| *at <= kept_from);
        let sessions: Vec<_> = sessions.map(|(_, session)| *session).collect();
        let workers = index.silent.iter().take_while(|(at, _)| *at <= kept_from);
        let workers: Vec<_> = workers.map(|(_, worker)| *worker).collect();
        for session in sessions {
            self.book.remove_session(session);
        }
        for worker in workers {
            self.book.remove_worker(worker);
        }
        self.book.prune_stubs(kept_from);
    }
}
