//! What workers do: arrive, report, leave.
//!
//! Its own file because reconciliation (I6) is a rule of its own: after each report, book and worker agree or the worker
//! has been told what to end.

use std::collections::BTreeSet;

use wharf_core::{
    EndReason, Epoch, SessionId, SessionState, WorkerId, WorkerState,
    worker::{WorkerEvent, worker_step},
};
use wharf_store::{
    EndedSession, Freed, Heartbeat, HeartbeatReply, Load, Registered, Registration, TICKET_LAPSED, WorkerChange,
    WorkerRecord,
};

use crate::step::Step;

// === impl Step: workers ===

impl Step<'_> {
    pub(crate) fn register(&mut self, registration: Registration) -> Registered {
        let now = self.book.now();
        let (worker, is_ready) = (registration.worker, registration.is_ready);
        self.book.put_worker(WorkerRecord {
            id: worker,
            pool: registration.pool,
            browsers: registration.browsers,
            slots: registration.slots,
            busy: 0,
            lifetime: 0,
            state: if is_ready {
                WorkerState::Available
            } else {
                WorkerState::Starting
            },
            is_circuit_open: false,
            warm: 0,
            launching: 0,
            load: Load::default(),
            address: registration.address,
            registered_at: now,
            heard_at: now,
        });
        // Its past life; what it serves now may be another pool.
        let ended = self.empty(worker, EndReason::WorkerLost);
        self.note_worker(worker, WorkerChange::Registered);
        if is_ready {
            self.note_worker(worker, WorkerChange::Available);
        }
        Registered {
            freed: Freed {
                ended,
                placed: self.dispatch(None),
            },
        }
    }

    pub(crate) fn heartbeat(&mut self, heartbeat: &Heartbeat) -> HeartbeatReply {
        let (worker, now) = (heartbeat.worker, self.book.now());
        if !self.book.worker(worker).is_some_and(|row| row.state.is_live()) {
            return HeartbeatReply::Unknown;
        }
        let had_open_circuit = self.book.edit_worker(worker, |row| {
            row.heard_at = now;
            row.warm = heartbeat.warm;
            row.launching = heartbeat.launching;
            row.load = heartbeat.load;
            std::mem::replace(&mut row.is_circuit_open, heartbeat.is_circuit_open)
        });
        match (had_open_circuit.unwrap_or_default(), heartbeat.is_circuit_open) {
            (false, true) => self.note_worker(worker, WorkerChange::CircuitOpened),
            (true, false) => self.note_worker(worker, WorkerChange::CircuitClosed),
            _ => {}
        }
        if heartbeat.is_ready {
            self.move_worker(worker, WorkerEvent::Ready);
        }
        if heartbeat.is_draining || (heartbeat.wants_recycling && self.may_recycle(worker)) {
            self.move_worker(worker, WorkerEvent::Drain);
        }
        let row = self.book.worker(worker);
        let drain = row.is_some_and(|row| row.state == WorkerState::Draining);
        let strange = heartbeat
            .held
            .iter()
            .filter(|(session, epoch)| !self.is_own(worker, *session, *epoch));
        let end = strange.copied().collect();
        let ended = self.drop_unreported(heartbeat);
        HeartbeatReply::Known {
            end,
            drain,
            freed: Freed {
                ended,
                placed: self.dispatch(None),
            },
        }
    }

    /// Whether this worker holds this placement of a session that goes on.
    fn is_own(&self, worker: WorkerId, session: SessionId, epoch: Epoch) -> bool {
        self.book.entry(session).is_some_and(|entry| {
            let lease = entry
                .lease
                .filter(|lease| lease.seat.worker == worker && lease.seat.epoch == epoch);
            lease.is_some() && !entry.record.state.is_ended()
        })
    }

    /// I6: a lease the worker does not hold, past the grace, is no lease.
    fn drop_unreported(&mut self, heartbeat: &Heartbeat) -> Vec<EndedSession> {
        let (now, grace) = (self.book.now(), self.book.rules().lease_grace);
        let reported: BTreeSet<_> = heartbeat.held.iter().copied().collect();
        let mut ended = Vec::new();
        for session in self.leased_on(heartbeat.worker) {
            let Some((lease, state)) = self
                .book
                .entry(session)
                .and_then(|entry| Some((entry.lease?, entry.record.state)))
            else {
                continue;
            };
            let is_reported = reported.contains(&(session, lease.seat.epoch));
            if !is_reported && lease.since + grace <= now {
                let (reason, detail) = match state {
                    // The worker was never asked: the coordinator is gone that was to ask it.
                    SessionState::Placed(_) => (EndReason::Cancelled, Some(TICKET_LAPSED.to_owned())),
                    _ => (EndReason::WorkerLost, None),
                };
                ended.extend(self.finish(session, reason, detail));
                self.release(session);
            }
        }
        ended
    }

    /// Moves a worker by one event, if the event applies, and notes it.
    pub(crate) fn move_worker(&mut self, worker: WorkerId, event: WorkerEvent) -> bool {
        let Some(next) = self.book.worker(worker).and_then(|row| worker_step(row.state, event)) else {
            return false;
        };
        self.book.edit_worker(worker, |row| row.state = next);
        let change = match next {
            WorkerState::Starting => WorkerChange::Registered,
            WorkerState::Available => WorkerChange::Available,
            WorkerState::Draining => WorkerChange::Draining,
            WorkerState::Gone => WorkerChange::Gone,
            WorkerState::Lost => WorkerChange::Lost,
        };
        self.note_worker(worker, change);
        true
    }

    /// One at a time in a pool.
    fn may_recycle(&self, worker: WorkerId) -> bool {
        let Some(own) = self.book.worker(worker) else {
            return false;
        };
        let Some(pool) = self.book.get_pool(&own.pool) else {
            return true;
        };
        let others_drain = pool.draining > u64::from(own.state == WorkerState::Draining);
        let kept_from = self.book.now().before(self.book.rules().liveness_ttl);
        !others_drain && !pool.expected_since(kept_from).any(|other| other != worker)
    }

    pub(crate) fn drain_worker(&mut self, worker: WorkerId) -> Option<WorkerRecord> {
        self.move_worker(worker, WorkerEvent::Drain);
        self.book.worker(worker).cloned()
    }

    pub(crate) fn remove_worker(&mut self, worker: WorkerId) -> Option<(WorkerRecord, Freed)> {
        let row = self.book.worker(worker).cloned()?;
        self.note_worker(worker, WorkerChange::Removed);
        self.book.remove_worker(worker);
        let ended = self.empty(worker, EndReason::WorkerLost);
        let placed = self.dispatch(None);
        Some((row, Freed { ended, placed }))
    }

    pub(crate) fn deregister(&mut self, worker: WorkerId) -> Freed {
        if !self.move_worker(worker, WorkerEvent::Deregistered) {
            return Freed::default();
        }
        let now = self.book.now();
        self.book.edit_worker(worker, |row| row.heard_at = now);
        let ended = self.empty(worker, EndReason::WorkerDrained);
        Freed {
            ended,
            placed: self.dispatch(None),
        }
    }
}
