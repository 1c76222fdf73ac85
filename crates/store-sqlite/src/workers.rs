//! What workers do: arrive, report, leave.
//!
//! Its own file because reconciliation (I6) is a rule of its own: after each report, book and worker agree or the worker
//! has been told what to end.

use std::collections::{BTreeSet, HashMap, HashSet};

use rusqlite::named_params;
use wharf_core::{
    EndReason, WorkerId, WorkerState,
    worker::{WorkerEvent, worker_step},
};
use wharf_store::{EndedSession, Freed, Heartbeat, HeartbeatReply, Registered, Registration, WorkerRecord};

use crate::{
    rows::{Fault, SessionRow, key},
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
        let ended = self.empty(registration.worker, EndReason::WorkerLost)?;
        let state = if registration.is_ready {
            WorkerState::Available
        } else {
            WorkerState::Starting
        };
        let mut statement = self.conn.prepare_cached(
            "INSERT OR REPLACE INTO workers \
             (id, pool, browsers, slots, state, is_circuit_open, address, registered_at, heard_at) \
             VALUES (:id, :pool, :browsers, :slots, :state, 0, :address, :now, :now)",
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
        worker.is_circuit_open = heartbeat.is_circuit_open;
        worker.warm = heartbeat.warm;
        worker.launching = heartbeat.launching;
        if heartbeat.is_ready {
            worker.state = worker_step(worker.state, WorkerEvent::Ready).unwrap_or(worker.state);
        }
        if heartbeat.is_draining {
            worker.state = worker_step(worker.state, WorkerEvent::Drain).unwrap_or(worker.state);
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
            if !row.state.is_ended() {
                ended.push(self.finish(&mut row, EndReason::WorkerLost, None));
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
        let Some(gone) = worker_step(worker.state, WorkerEvent::Deregistered) else {
            return Ok(Freed::default());
        };
        worker.state = gone;
        self.heard(&worker)?;
        let ended = self.empty(worker.id, EndReason::WorkerDrained)?;
        let placed = self.dispatch(&worker.pool, None)?;
        Ok(Freed { ended, placed })
    }

    /// Writes what a report changes.
    fn heard(&self, worker: &WorkerRecord) -> Result<(), Fault> {
        let mut statement = self.conn.prepare_cached(
            "UPDATE workers SET state = ?1, is_circuit_open = ?2, heard_at = ?3, warm = ?5, launching = ?6 WHERE id = ?4",
        )?;
        let values = (
            worker.state.as_str(),
            worker.is_circuit_open,
            self.now.as_micros(),
            key!(worker.id),
            worker.warm,
            worker.launching,
        );
        statement.execute(values)?;
        Ok(())
    }
}
