//! What happens to one session: submit, claim, activate, fail, touch, end, vacate.
//!
//! Its own file because this is every request's path. Invariant: a refused newcomer leaves nothing behind.

use wharf_core::{
    CoordinatorId, EndReason, Epoch, SessionId, SessionState, WorkerId,
    queue::{Admission, admit},
    session::{Clockwork, SessionEvent, step},
};
use wharf_store::{
    Ended, Freed, PlacementFailure, Replaced, SessionChange, SessionRecord, Submission, Submitted, Touch, WorkerChange,
};

use crate::book::{Entry, Step};

// === impl Step: sessions ===

impl Step<'_> {
    pub(crate) fn submit(&mut self, submission: Submission) -> Submitted {
        if let Some(known) = self.known(&submission) {
            return match known.spec == submission.spec {
                true => Submitted::Known(Box::new(self.adopt(known.id, submission.coordinator))),
                false => Submitted::KeyReused(known.id),
            };
        }
        let spec = &submission.spec;
        if let Some(lock) = self.book.lock_over(self.now, &spec.pool, &spec.operation) {
            return Submitted::Locked(Box::new(lock.clone()));
        }
        if let Some((held, limit)) = submission.owner.and_then(|owner| self.book.spent_quota(owner)) {
            return Submitted::QuotaReached { held, limit };
        }
        if !self.book.is_served(spec) {
            return Submitted::NoSuchPool;
        }
        let (session, pool, limit) = (submission.session, spec.pool.clone(), submission.queue_limit);
        self.join(submission);
        self.dispatch(Some(session));
        let record = self.record(session);
        if record.state != SessionState::Queued {
            return Submitted::Placed(Box::new(record));
        }
        let others = self.book.waiters(&pool).len() as u64 - 1;
        match admit(others, limit) {
            Admission::Queue => {
                self.note_session(session, SessionChange::Queued);
                let position = self.book.position(session).unwrap_or(1);
                Submitted::Queued {
                    record: Box::new(record),
                    position,
                }
            }
            Admission::Full { waiting, limit } => {
                self.book.sessions.remove(&session);
                Submitted::QueueFull { waiting, limit }
            }
        }
    }

    /// A session that still waits passes to whoever asks for it again: the coordinator it came by may be gone.
    fn adopt(&mut self, session: SessionId, coordinator: CoordinatorId) -> SessionRecord {
        let until = self.now + self.rules.ticket_lease;
        if let Some(entry) = self.book.sessions.get_mut(&session)
            && entry.record.coordinator != coordinator
            && matches!(entry.record.state, SessionState::Queued | SessionState::Placed(_))
        {
            entry.record.coordinator = coordinator;
            entry.ticket_until = until;
        }
        self.record(session)
    }

    /// The session this submission has already made, by its key or by its own id.
    fn known(&self, submission: &Submission) -> Option<SessionRecord> {
        let mut records = self.book.sessions.values().map(|entry| &entry.record);
        let by_key = match &submission.idempotency_key {
            Some(key) => {
                records.find(|record| record.owner == submission.owner && record.idempotency_key.as_ref() == Some(key))
            }
            None => None,
        };
        by_key
            .or_else(|| self.book.sessions.get(&submission.session).map(|entry| &entry.record))
            .cloned()
    }

    /// The newcomer becomes the last of the waiters.
    fn join(&mut self, submission: Submission) {
        self.book.last_number += 1;
        let record = SessionRecord {
            id: submission.session,
            spec: submission.spec,
            state: SessionState::Queued,
            epoch: Epoch::default(),
            number: self.book.last_number,
            times: Clockwork {
                queued_at: self.now,
                placed_at: None,
                started_at: None,
                attached_at: None,
                active_at: None,
            },
            ended_at: None,
            detail: None,
            excluded: Vec::new(),
            coordinator: submission.coordinator,
            worker: None,
            owner: submission.owner,
            idempotency_key: submission.idempotency_key,
        };
        let ticket_until = self.now + self.rules.ticket_lease;
        self.book.sessions.insert(record.id, Entry { record, ticket_until });
    }

    fn record(&self, session: SessionId) -> SessionRecord {
        let entry = self.book.sessions.get(&session);
        entry
            .map(|entry| entry.record.clone())
            .expect("the caller has just written or found it under the same lock")
    }

    pub(crate) fn claim(&mut self, session: SessionId, epoch: Epoch) -> Option<SessionRecord> {
        self.advance(session, SessionEvent::Claimed(epoch)).cloned()
    }

    pub(crate) fn activate(&mut self, session: SessionId, epoch: Epoch) -> Option<SessionRecord> {
        let now = self.now;
        let record = self.advance(session, SessionEvent::Activated(epoch))?;
        record.times.started_at = Some(now);
        let record = record.clone();
        self.note_session(session, SessionChange::Active);
        Some(record)
    }

    pub(crate) fn placement_failed(&mut self, failure: PlacementFailure) -> Replaced {
        let PlacementFailure {
            session,
            epoch,
            cause,
            is_worker_absent,
        } = failure;
        let Some(entry) = self.book.sessions.get(&session) else {
            return Replaced::Stale;
        };
        if entry.record.state.is_ended() {
            if entry.record.epoch != epoch {
                return Replaced::Stale;
            }
            // It ended while its browser was being prepared, and there is no browser: the slot is free.
            self.release(session);
            self.dispatch(None);
            return Replaced::Ended(Box::new(self.record(session)));
        }
        let (state, tried) = (entry.record.state, entry.record.worker);
        if step(state, SessionEvent::Requeued(epoch)).is_err() {
            return Replaced::Stale;
        }
        if is_worker_absent {
            self.suspect(tried);
        } else {
            self.exclude(session, tried);
        }
        if epoch.0 >= self.rules.max_attempts && !is_worker_absent {
            self.finish(session, EndReason::LaunchFailed, Some(cause));
            self.release(session);
            self.dispatch(None);
            return Replaced::Ended(Box::new(self.record(session)));
        }
        self.requeue(session);
        self.dispatch(Some(session));
        let record = Box::new(self.record(session));
        if record.state == SessionState::Queued {
            self.note_session(session, SessionChange::Queued);
            Replaced::Queued(record)
        } else {
            Replaced::Placed(record)
        }
    }

    /// A worker that was not there gets nothing until it has reported.
    fn suspect(&mut self, worker: Option<WorkerId>) {
        let row = worker.and_then(|worker| self.book.rows.get_mut(&worker));
        if let Some(row) = row.filter(|row| row.state.is_live() && !row.is_circuit_open) {
            row.is_circuit_open = true;
            let worker = row.id;
            self.note_worker(worker, WorkerChange::CircuitOpened);
        }
    }

    fn exclude(&mut self, session: SessionId, worker: Option<WorkerId>) {
        let Some(entry) = self.book.sessions.get_mut(&session) else {
            return;
        };
        entry
            .record
            .excluded
            .extend(worker.filter(|worker| !entry.record.excluded.contains(worker)));
    }

    pub(crate) fn touch(&mut self, touch: &Touch) {
        let now = self.now;
        let Some(entry) = self.book.sessions.get_mut(&touch.session) else {
            return;
        };
        if !matches!(entry.record.state, SessionState::Active(_)) {
            return;
        }
        let times = &mut entry.record.times;
        // A session cannot have been idle since before it began.
        times.active_at = times
            .active_at
            .or(times.started_at)
            .max(Some(now.before(touch.idle_for)));
        if touch.is_attached {
            times.attached_at = times.attached_at.or(Some(now));
        }
    }

    pub(crate) fn end(&mut self, session: SessionId, reason: EndReason, detail: Option<String>) -> Ended {
        if !self.book.sessions.contains_key(&session) {
            return Ended::Unknown;
        }
        let ended = self.finish(session, reason, detail);
        let record = Box::new(self.record(session));
        if ended.is_some() {
            Ended::Now(record)
        } else {
            Ended::Before(record)
        }
    }

    pub(crate) fn vacate(&mut self, session: SessionId, epoch: Epoch) -> Freed {
        if self
            .book
            .leases
            .get(&session)
            .is_none_or(|lease| lease.seat.epoch != epoch)
        {
            return Freed::default();
        }
        // A browser that is gone before anybody said why has crashed, or never came up.
        let reason = match self.record(session).state {
            SessionState::Active(_) => EndReason::BrowserCrashed,
            _ => EndReason::LaunchFailed,
        };
        let ended = self.finish(session, reason, None).into_iter().collect();
        self.release(session);
        Freed {
            ended,
            placed: self.dispatch(None),
        }
    }
}
