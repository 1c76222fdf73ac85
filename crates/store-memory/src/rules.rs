//! The operations of the port, each one step on the book.
//!
//! Its own file because this is the part other engines must agree with, sentence by sentence.

use std::collections::BTreeSet;

use wharf_core::{
    CoordinatorId, EndReason, Epoch, SessionId, SessionState, Timestamp, WorkerId, WorkerState,
    queue::{Admission, admit},
    session::{Clockwork, SessionEvent, step},
    worker::{WorkerEvent, worker_step},
};
use wharf_store::{
    Ended, EndedSession, Freed, Heartbeat, HeartbeatReply, PlacementFailure, Registered, Registration, Replaced,
    SessionRecord, Submission, Submitted, Touch, WorkerRecord,
};

use crate::book::{Entry, Step};

// === impl Step: workers ===

impl Step<'_> {
    pub(crate) fn register(&mut self, registration: Registration) -> Registered {
        let ended = self.empty(registration.worker, EndReason::WorkerLost);
        let row = WorkerRecord {
            id: registration.worker,
            pool: registration.pool,
            browsers: registration.browsers,
            slots: registration.slots,
            busy: 0,
            lifetime: 0,
            state: if registration.is_ready {
                WorkerState::Available
            } else {
                WorkerState::Starting
            },
            is_circuit_open: false,
            address: registration.address,
            registered_at: self.now,
            heard_at: self.now,
        };
        self.book.rows.insert(row.id, row);
        Registered {
            freed: Freed {
                ended,
                placed: self.dispatch(None),
            },
        }
    }

    pub(crate) fn heartbeat(&mut self, heartbeat: &Heartbeat) -> HeartbeatReply {
        let Some(row) = self
            .book
            .rows
            .get_mut(&heartbeat.worker)
            .filter(|row| row.state.is_live())
        else {
            return HeartbeatReply::Unknown;
        };
        row.heard_at = self.now;
        row.is_circuit_open = heartbeat.is_circuit_open;
        if heartbeat.is_ready {
            row.state = worker_step(row.state, WorkerEvent::Ready).unwrap_or(row.state);
        }
        if heartbeat.is_draining {
            row.state = worker_step(row.state, WorkerEvent::Drain).unwrap_or(row.state);
        }
        let own = |session: &SessionId, epoch: Epoch| {
            let lease = self.book.leases.get(session);
            lease.is_some_and(|lease| lease.seat.worker == heartbeat.worker && lease.seat.epoch == epoch)
                && self
                    .book
                    .sessions
                    .get(session)
                    .is_some_and(|entry| !entry.record.state.is_ended())
        };
        let end = heartbeat
            .held
            .iter()
            .filter(|(session, epoch)| !own(session, *epoch))
            .copied()
            .collect();
        let ended = self.drop_unreported(heartbeat);
        HeartbeatReply::Known {
            end,
            freed: Freed {
                ended,
                placed: self.dispatch(None),
            },
        }
    }

    /// I6: a lease the worker does not hold, past the grace, is no lease.
    fn drop_unreported(&mut self, heartbeat: &Heartbeat) -> Vec<EndedSession> {
        let mut ended = Vec::new();
        for session in self.book.leased_on(heartbeat.worker) {
            let Some(lease) = self.book.leases.get(&session) else {
                continue;
            };
            let is_reported = heartbeat.held.contains(&(session, lease.seat.epoch));
            if !is_reported && lease.since + self.rules.lease_grace <= self.now {
                ended.extend(self.finish(session, EndReason::WorkerLost, None));
                self.release(session);
            }
        }
        ended
    }

    pub(crate) fn deregister(&mut self, worker: WorkerId) -> Freed {
        let Some(row) = self.book.rows.get_mut(&worker) else {
            return Freed::default();
        };
        let Some(gone) = worker_step(row.state, WorkerEvent::Deregistered) else {
            return Freed::default();
        };
        row.state = gone;
        row.heard_at = self.now;
        let ended = self.empty(worker, EndReason::WorkerDrained);
        Freed {
            ended,
            placed: self.dispatch(None),
        }
    }
}

// === impl Step: sessions ===

impl Step<'_> {
    pub(crate) fn submit(&mut self, submission: Submission) -> Submitted {
        if let Some(known) = self.known(&submission) {
            return match known.spec == submission.spec {
                true => Submitted::Known(Box::new(known)),
                false => Submitted::KeyReused(known.id),
            };
        }
        let spec = &submission.spec;
        let serves = |row: &WorkerRecord| {
            row.state != WorkerState::Gone && row.pool == spec.pool && row.browsers.contains(&spec.browser)
        };
        if !self.book.rows.values().any(serves) {
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

    /// The session this submission has already made, by its key or by its own id.
    fn known(&self, submission: &Submission) -> Option<SessionRecord> {
        let mut records = self.book.sessions.values().map(|entry| &entry.record);
        let by_key = match &submission.idempotency_key {
            Some(key) => records.find(|record| record.idempotency_key.as_ref() == Some(key)),
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
        Some(record.clone())
    }

    pub(crate) fn placement_failed(&mut self, failure: PlacementFailure) -> Replaced {
        let PlacementFailure { session, epoch, cause } = failure;
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
        self.exclude(session, tried);
        if epoch.0 >= self.rules.max_attempts {
            self.finish(session, EndReason::LaunchFailed, Some(cause));
            self.release(session);
            self.dispatch(None);
            return Replaced::Ended(Box::new(self.record(session)));
        }
        self.release(session);
        self.advance(session, SessionEvent::Requeued(epoch));
        if let Some(entry) = self.book.sessions.get_mut(&session) {
            entry.record.times.placed_at = None;
            entry.ticket_until = self.now + self.rules.ticket_lease;
        }
        self.dispatch(Some(session));
        let record = Box::new(self.record(session));
        if record.state == SessionState::Queued {
            Replaced::Queued(record)
        } else {
            Replaced::Placed(record)
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
            ended.extend(self.finish(session, reason, None));
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
            if let Some(row) = self.book.rows.get_mut(&worker) {
                row.state = worker_step(row.state, WorkerEvent::Silent).unwrap_or(row.state);
            }
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
