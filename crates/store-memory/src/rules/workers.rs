//! What workers do: arrive, report, leave.
//!
//! Its own file because reconciliation (I6) is a rule of its own: after each report, book and worker agree or the worker
//! has been told what to end.

use wharf_core::{
    EndReason, Epoch, SessionId, WorkerId, WorkerState,
    worker::{WorkerEvent, worker_step},
};
use wharf_store::{EndedSession, Freed, Heartbeat, HeartbeatReply, Registered, Registration, WorkerRecord};

use crate::book::Step;

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
            warm: 0,
            launching: 0,
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
        row.warm = heartbeat.warm;
        row.launching = heartbeat.launching;
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
