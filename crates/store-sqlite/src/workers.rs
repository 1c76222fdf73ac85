//! What workers do and what operators do to them: arrive, report, drain, leave, be removed.
//!
//! Its own file because reconciliation (I6) is a rule of its own: after each report, book and worker agree or the worker
//! has been told what to end.

use std::collections::{BTreeSet, HashMap, HashSet};

use rusqlite::named_params;
use wharf_core::{
    EndReason, SessionState, WorkerId, WorkerState,
    worker::{WorkerEvent, worker_step},
};
use wharf_store::{
    EndedSession, Freed, Heartbeat, HeartbeatReply, Registered, Registration, TICKET_LAPSED, WorkerChange, WorkerRecord,
};

use crate::{
    rows::{Fault, SessionRow, key, signed},
    step::Step,
    worker_rows::{find_worker, write_browsers},
};

// === impl Step: workers ===

impl Step<'_> {
    pub(crate) fn register(&mut self, registration: &Registration) -> Result<Registered, Fault> {
        // Its past life may have been in another pool, where its leases counted.
        let mut pools: BTreeSet<_> = find_worker(self.conn, registration.worker)?
            .map(|past| past.pool)
            .into_iter()
            .collect();
        pools.insert(registration.pool.clone());
        let state = if registration.is_ready {
            WorkerState::Available
        } else {
            WorkerState::Starting
        };
        let mut statement = self.conn.prepare_cached(
            "INSERT OR REPLACE INTO workers \
             (id, pool, browsers, slots, busy, state, is_circuit_open, address, registered_at, heard_at) \
             VALUES (:id, :pool, :browsers, :slots, \
             (SELECT count(*) FROM sessions WHERE worker = :id AND is_leased = 1), \
             :state, 0, :address, :now, :now)",
        )?;
        statement.execute(named_params! {
            ":id": key!(registration.worker),
            ":pool": registration.pool.as_str(),
            ":browsers": write_browsers(&registration.browsers),
            ":slots": registration.slots,
            ":state": state.as_str(),
            ":address": registration.address,
            ":now": self.now.as_micros(),
        })?;
        // Its past life; what it serves now may be another pool.
        let ended = self.empty(registration.worker, EndReason::WorkerLost)?;
        self.note_worker(registration.worker, &registration.pool, WorkerChange::Registered);
        if registration.is_ready {
            self.note_worker(registration.worker, &registration.pool, WorkerChange::Available);
        }
        let placed = match pools.len() {
            1 => self.dispatch(&registration.pool, None)?,
            _ => self.dispatch_all()?,
        };
        Ok(Registered {
            freed: Freed { ended, placed },
        })
    }

    pub(crate) fn heartbeat(&mut self, heartbeat: &Heartbeat) -> Result<HeartbeatReply, Fault> {
        let Some(mut worker) = find_worker(self.conn, heartbeat.worker)?.filter(|worker| worker.state.is_live()) else {
            return Ok(HeartbeatReply::Unknown);
        };
        match (worker.is_circuit_open, heartbeat.is_circuit_open) {
            (false, true) => self.note_worker(worker.id, &worker.pool, WorkerChange::CircuitOpened),
            (true, false) => self.note_worker(worker.id, &worker.pool, WorkerChange::CircuitClosed),
            _ => {}
        }
        worker.is_circuit_open = heartbeat.is_circuit_open;
        worker.warm = heartbeat.warm;
        worker.launching = heartbeat.launching;
        worker.load = heartbeat.load;
        if heartbeat.is_ready {
            self.move_worker(&mut worker, WorkerEvent::Ready);
        }
        if heartbeat.is_draining || (heartbeat.wants_recycling && self.may_recycle(&worker)?) {
            self.move_worker(&mut worker, WorkerEvent::Drain);
        }
        self.heard(&worker)?;
        let leases: HashMap<_, _> = self
            .leased_on(worker.id)?
            .into_iter()
            .map(|row| (row.id, row))
            .collect();
        let mut end = Vec::new();
        for (session, epoch) in &heartbeat.held {
            let own = leases
                .get(session)
                .is_some_and(|row| row.epoch == *epoch && !row.state.is_ended());
            if !own {
                end.push((*session, *epoch));
            }
        }
        let ended = self.drop_unreported(heartbeat, leases.into_values().collect())?;
        let placed = self.dispatch(&worker.pool, None)?;
        Ok(HeartbeatReply::Known {
            end,
            drain: worker.state == WorkerState::Draining,
            freed: Freed { ended, placed },
        })
    }

    /// I6: a lease the worker does not hold, past the grace, is no lease.
    fn drop_unreported(
        &mut self,
        heartbeat: &Heartbeat,
        mut leases: Vec<SessionRow>,
    ) -> Result<Vec<EndedSession>, Fault> {
        let held: HashSet<_> = heartbeat.held.iter().copied().collect();
        leases.retain(|row| {
            let since = row.times.placed_at.unwrap_or(row.times.queued_at);
            !held.contains(&(row.id, row.epoch)) && since + self.rules.lease_grace <= self.now
        });
        leases.sort_by_key(|row| row.id);
        let mut ended = Vec::new();
        for mut row in leases {
            match row.state {
                SessionState::Ended(_) => {}
                // The worker was never asked: the coordinator is gone that was to ask it.
                SessionState::Placed(_) => {
                    let detail = Some(TICKET_LAPSED.to_owned());
                    ended.push(self.finish(&mut row, EndReason::Cancelled, detail));
                }
                _ => ended.push(self.finish(&mut row, EndReason::WorkerLost, None)),
            }
            row.is_leased = false;
            row.save(self.conn, self.rules)?;
        }
        Ok(ended)
    }

    pub(crate) fn deregister(&mut self, worker: WorkerId) -> Result<Freed, Fault> {
        let Some(mut worker) = find_worker(self.conn, worker)? else {
            return Ok(Freed::default());
        };
        if !self.move_worker(&mut worker, WorkerEvent::Deregistered) {
            return Ok(Freed::default());
        }
        self.heard(&worker)?;
        let ended = self.empty(worker.id, EndReason::WorkerDrained)?;
        let placed = self.dispatch(&worker.pool, None)?;
        Ok(Freed { ended, placed })
    }

    pub(crate) fn drain_worker(&mut self, worker: WorkerId) -> Result<Option<WorkerRecord>, Fault> {
        let Some(mut worker) = find_worker(self.conn, worker)? else {
            return Ok(None);
        };
        if self.move_worker(&mut worker, WorkerEvent::Drain) {
            self.save_state(&worker)?;
        }
        Ok(Some(worker))
    }

    pub(crate) fn remove_worker(&mut self, worker: WorkerId) -> Result<Option<(WorkerRecord, Freed)>, Fault> {
        let Some(worker) = find_worker(self.conn, worker)? else {
            return Ok(None);
        };
        self.note_worker(worker.id, &worker.pool, WorkerChange::Removed);
        self.conn
            .prepare_cached("DELETE FROM workers WHERE id = ?1")?
            .execute([key!(worker.id)])?;
        let ended = self.empty(worker.id, EndReason::WorkerLost)?;
        let placed = self.dispatch(&worker.pool, None)?;
        Ok(Some((worker, Freed { ended, placed })))
    }
}

// === impl Step: a worker's state ===

impl Step<'_> {
    /// Moves a worker by one event, if the event applies, and notes it. The row is not saved yet.
    pub(crate) fn move_worker(&mut self, worker: &mut WorkerRecord, event: WorkerEvent) -> bool {
        let Some(next) = worker_step(worker.state, event) else {
            return false;
        };
        worker.state = next;
        let change = match next {
            WorkerState::Starting => WorkerChange::Registered,
            WorkerState::Available => WorkerChange::Available,
            WorkerState::Draining => WorkerChange::Draining,
            WorkerState::Gone => WorkerChange::Gone,
            WorkerState::Lost => WorkerChange::Lost,
        };
        self.note_worker(worker.id, &worker.pool, change);
        true
    }

    /// One at a time in a pool.
    fn may_recycle(&self, worker: &WorkerRecord) -> Result<bool, Fault> {
        let mut statement = self.conn.prepare_cached(OTHERS_RENEWING)?;
        let kept_from = self.now.before(self.rules.liveness_ttl).as_micros();
        Ok(!statement.exists((worker.pool.as_str(), key!(worker.id), kept_from))?)
    }

    /// Writes a state that was changed by others than the worker: when it was heard stays.
    pub(crate) fn save_state(&self, worker: &WorkerRecord) -> Result<(), Fault> {
        self.conn
            .prepare_cached("UPDATE workers SET state = ?1, is_circuit_open = ?3 WHERE id = ?2")?
            .execute((worker.state.as_str(), key!(worker.id), worker.is_circuit_open))?;
        Ok(())
    }

    /// Writes what a report changes.
    fn heard(&self, worker: &WorkerRecord) -> Result<(), Fault> {
        let mut statement = self.conn.prepare_cached(
            "UPDATE workers SET state = ?1, is_circuit_open = ?2, heard_at = ?3, warm = ?5, launching = ?6, \
             cpu_permille = ?7, memory_used = ?8, memory_limit = ?9, pressure_permille = ?10 WHERE id = ?4",
        )?;
        let values = (
            worker.state.as_str(),
            worker.is_circuit_open,
            self.now.as_micros(),
            key!(worker.id),
            worker.warm,
            worker.launching,
            worker.load.cpu_permille,
            signed(worker.load.memory_used),
            signed(worker.load.memory_limit),
            worker.load.pressure_permille,
        );
        statement.execute(values)?;
        Ok(())
    }
}

/// The other workers of a pool that are under renewal (`wharf_core::worker::is_renewing`); by `workers_by_pool`.
pub(crate) const OTHERS_RENEWING: &str = "SELECT 1 FROM workers WHERE pool = ?1 AND id <> ?2 AND (state = 'draining' \
     OR (state = 'gone' AND heard_at > ?3) OR (state = 'starting' AND registered_at > ?3)) LIMIT 1";
