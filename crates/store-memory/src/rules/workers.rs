//! What workers do: arrive, report, leave.
//!
//! Its own file because reconciliation (I6) is a rule of its own: after each report, book and worker agree or the worker
//! has been told what to end.

use wharf_core::{
    EndReason, Epoch, SessionId, SessionState, WorkerId, WorkerState,
    worker::{WorkerEvent, is_renewing, worker_step},
};
use wharf_store::{
    EndedSession, Freed, Heartbeat, HeartbeatReply, Load, Registered, Registration, TICKET_LAPSED, WorkerChange,
    WorkerRecord,
};

use crate::book::Step;

// === impl Step: workers ===

impl Step<'_> {
    pub(crate) fn register(&mut self, registration: Registration) -> Registered {
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
            warm: 0,
            launching: 0,
            load: Load::default(),
            address: registration.address,
            registered_at: self.now,
            heard_at: self.now,
        };
        let (worker, is_ready) = (row.id, registration.is_ready);
        self.book.rows.insert(row.id, row);
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
        let Some(row) = self
            .book
            .rows
            .get_mut(&heartbeat.worker)
            .filter(|row| row.state.is_live())
        else {
            return HeartbeatReply::Unknown;
        };
        let had_open_circuit = row.is_circuit_open;
        row.heard_at = self.now;
        row.is_circuit_open = heartbeat.is_circuit_open;
        row.warm = heartbeat.warm;
        row.launching = heartbeat.launching;
        row.load = heartbeat.load;
        match (had_open_circuit, heartbeat.is_circuit_open) {
            (false, true) => self.note_worker(heartbeat.worker, WorkerChange::CircuitOpened),
            (true, false) => self.note_worker(heartbeat.worker, WorkerChange::CircuitClosed),
            _ => {}
        }
        if heartbeat.is_ready {
            self.move_worker(heartbeat.worker, WorkerEvent::Ready);
        }
        if heartbeat.is_draining || (heartbeat.wants_recycling && self.may_recycle(heartbeat.worker)) {
            self.move_worker(heartbeat.worker, WorkerEvent::Drain);
        }
        let drain = self
            .book
            .rows
            .get(&heartbeat.worker)
            .is_some_and(|row| row.state == WorkerState::Draining);
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
            drain,
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
                let state = self.book.sessions.get(&session).map(|entry| entry.record.state);
                let (reason, detail) = match state {
                    // The worker was never asked: the coordinator is gone that was to ask it.
                    Some(SessionState::Placed(_)) => (EndReason::Cancelled, Some(TICKET_LAPSED.to_owned())),
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
        let Some(row) = self.book.rows.get_mut(&worker) else {
            return false;
        };
        let Some(next) = worker_step(row.state, event) else {
            return false;
        };
        row.state = next;
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
        let Some(own) = self.book.rows.get(&worker) else {
            return false;
        };
        let mut others = self
            .book
            .rows
            .values()
            .filter(|row| row.id != worker && row.pool == own.pool);
        let (now, patience) = (self.now, self.rules.liveness_ttl);
        !others.any(|row| is_renewing(row.state, row.registered_at, row.heard_at, now, patience))
    }

    pub(crate) fn drain_worker(&mut self, worker: WorkerId) -> Option<WorkerRecord> {
        self.move_worker(worker, WorkerEvent::Drain);
        self.book.worker(worker)
    }

    pub(crate) fn remove_worker(&mut self, worker: WorkerId) -> Option<(WorkerRecord, Freed)> {
        let row = self.book.worker(worker)?;
        self.note_worker(worker, WorkerChange::Removed);
        self.book.rows.remove(&worker);
        let ended = self.empty(worker, EndReason::WorkerLost);
        let placed = self.dispatch(None);
        Some((row, Freed { ended, placed }))
    }

    pub(crate) fn deregister(&mut self, worker: WorkerId) -> Freed {
        if !self.move_worker(worker, WorkerEvent::Deregistered) {
            return Freed::default();
        }
        if let Some(row) = self.book.rows.get_mut(&worker) {
            row.heard_at = self.now;
        }
        let ended = self.empty(worker, EndReason::WorkerDrained);
        Freed {
            ended,
            placed: self.dispatch(None),
        }
    }
}
