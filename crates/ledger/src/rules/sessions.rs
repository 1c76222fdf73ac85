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

use crate::{op::Answer, step::Step};

// === impl Step: sessions ===

impl Step<'_> {
    pub(crate) fn submit(&mut self, submission: Submission) -> Answer {
        if let Some(known) = self.known(&submission) {
            return self.adopt(known, submission.coordinator);
        }
        Answer::Submitted(self.admit(submission))
    }

    /// The session this submission has already made, by its key or by its own id.
    fn known(&self, submission: &Submission) -> Option<Answer> {
        let answer = |known: &SessionRecord| match known.spec == submission.spec {
            true => Answer::Submitted(Submitted::Known(Box::new(known.clone()))),
            false => Answer::Submitted(Submitted::KeyReused(known.id)),
        };
        if let Some(key) = &submission.idempotency_key {
            let owner = submission.owner;
            let live = self.book.index().keys.get(&owner).and_then(|own| own.get(key));
            if let Some(known) = live.and_then(|session| self.book.record(*session)) {
                return Some(answer(known));
            }
            if let Some(session) = self.book.stub(owner, key) {
                return Some(Answer::KnownInArchive(session));
            }
        }
        self.book.record(submission.session).map(answer)
    }

    /// A session that still waits passes to whoever asks for it again: the coordinator it came by may be gone.
    fn adopt(&mut self, known: Answer, coordinator: CoordinatorId) -> Answer {
        let Answer::Submitted(Submitted::Known(mut record)) = known else {
            return known;
        };
        if record.coordinator != coordinator && matches!(record.state, SessionState::Queued | SessionState::Placed(_)) {
            let now = self.book.now();
            self.book.edit_session(record.id, |entry| {
                entry.record.coordinator = coordinator;
                entry.ticket_since = now;
            });
            record.coordinator = coordinator;
        }
        Answer::Submitted(Submitted::Known(record))
    }

    fn admit(&mut self, submission: Submission) -> Submitted {
        let spec = &submission.spec;
        if let Some(lock) = self.book.lock_over(&spec.pool, &spec.operation) {
            return Submitted::Locked(Box::new(lock.clone()));
        }
        if let Some((held, limit)) = submission.owner.and_then(|owner| self.book.spent_quota(owner)) {
            return Submitted::QuotaReached { held, limit };
        }
        if !self.book.is_served(spec) {
            return Submitted::NoSuchPool;
        }
        let (session, limit) = (submission.session, submission.queue_limit);
        self.join(submission);
        self.dispatch(Some(session));
        let record = self.record(session);
        if record.state != SessionState::Queued {
            return Submitted::Placed(Box::new(record));
        }
        let lines = self.book.get_pool(&record.spec.pool).map(|pool| &pool.lines);
        let others = lines.map_or(0, |lines| lines.len().saturating_sub(1));
        match admit(others, limit) {
            Admission::Queue => {
                let position = lines.and_then(|lines| lines.place_of(&record)).unwrap_or(1);
                self.note_session(session, SessionChange::Queued);
                Submitted::Queued {
                    record: Box::new(record),
                    position,
                }
            }
            Admission::Full { waiting, limit } => {
                self.book.remove_session(session);
                Submitted::QueueFull { waiting, limit }
            }
        }
    }

    /// The newcomer becomes the last of the waiters.
    fn join(&mut self, submission: Submission) {
        let now = self.book.now();
        self.book.last_number += 1;
        let record = SessionRecord {
            id: submission.session,
            spec: submission.spec,
            state: SessionState::Queued,
            epoch: Epoch::default(),
            number: self.book.last_number,
            times: Clockwork {
                queued_at: now,
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
        self.book.add_session(record, None, now);
    }

    fn record(&self, session: SessionId) -> SessionRecord {
        let record = self.book.record(session);
        record
            .cloned()
            .expect("the caller has just written or found it in the same step")
    }

    pub(crate) fn claim(&mut self, session: SessionId, epoch: Epoch) -> Option<SessionRecord> {
        self.advance(session, SessionEvent::Claimed(epoch), |_| {}).cloned()
    }

    pub(crate) fn activate(&mut self, session: SessionId, epoch: Epoch) -> Option<SessionRecord> {
        let now = self.book.now();
        let begin = |entry: &mut crate::book::Entry| entry.record.times.started_at = Some(now);
        let record = self.advance(session, SessionEvent::Activated(epoch), begin).cloned()?;
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
        let Some(record) = self.book.record(session) else {
            return Replaced::Stale;
        };
        if record.state.is_ended() {
            if record.epoch != epoch {
                return Replaced::Stale;
            }
            // It ended while its browser was being prepared, and there is no browser: the slot is free.
            self.release(session);
            self.dispatch(None);
            return Replaced::Ended(Box::new(self.record(session)));
        }
        let tried = record.worker;
        if step(record.state, SessionEvent::Requeued(epoch)).is_err() {
            return Replaced::Stale;
        }
        if is_worker_absent {
            self.suspect(tried);
        } else {
            self.exclude(session, tried);
        }
        if epoch.0 >= self.book.rules().max_attempts && !is_worker_absent {
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
        let Some(worker) = worker else { return };
        let opened = self.book.edit_worker(worker, |row| {
            let is_news = row.state.is_live() && !row.is_circuit_open;
            row.is_circuit_open |= is_news;
            is_news
        });
        if opened == Some(true) {
            self.note_worker(worker, WorkerChange::CircuitOpened);
        }
    }

    fn exclude(&mut self, session: SessionId, worker: Option<WorkerId>) {
        self.book.edit_session(session, |entry| {
            let excluded = &mut entry.record.excluded;
            let is_new = |worker: &WorkerId| !excluded.contains(worker);
            if let Some(worker) = worker.filter(is_new) {
                excluded.push(worker);
            }
        });
    }

    pub(crate) fn touch(&mut self, touch: &Touch) {
        let now = self.book.now();
        let state = self.book.record(touch.session).map(|record| record.state);
        if !matches!(state, Some(SessionState::Active(_))) {
            return;
        }
        self.book.edit_session(touch.session, |entry| {
            let times = &mut entry.record.times;
            // A session cannot have been idle since before it began.
            let known = times.active_at.or(times.started_at);
            times.active_at = known.max(Some(now.before(touch.idle_for)));
            if touch.is_attached {
                times.attached_at = times.attached_at.or(Some(now));
            }
        });
    }

    pub(crate) fn end(&mut self, session: SessionId, reason: EndReason, detail: Option<String>) -> Ended {
        if self.book.record(session).is_none() {
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
        let entry = self.book.entry(session);
        let Some(entry) = entry.filter(|entry| entry.lease.is_some_and(|lease| lease.seat.epoch == epoch)) else {
            return Freed::default();
        };
        // A browser that is gone before anybody said why has crashed, or never came up.
        let reason = match entry.record.state {
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
