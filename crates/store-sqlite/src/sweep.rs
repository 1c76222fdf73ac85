//! What time does: lapsed tickets, passed limits, silent workers, old records; and what a restart leaves behind.
//!
//! Its own file because these are the only operations over many sessions. Invariant: each finds what is due by an index
//! and reads nothing else.

use std::collections::BTreeSet;

use uuid::Uuid;
use wharf_core::{CoordinatorId, EndReason, SessionId, SessionState, worker::WorkerEvent};
use wharf_store::{EndedSession, Freed, TICKET_LAPSED};

use crate::{
    hold_rows::all,
    rows::{Fault, SessionRow, key, unsigned},
    step::Step,
    worker_rows::{read_worker, worker_columns},
};

/// Old records removed by one sweep, so that a long history does not stall admission; the next sweep goes on.
const PRUNED_AT_ONCE: i64 = 5_000;

// === impl Step: time ===

impl Step<'_> {
    pub(crate) fn renew_tickets(&mut self, coordinator: CoordinatorId) -> Result<u64, Fault> {
        let mut statement = self.conn.prepare_cached(
            "INSERT INTO coordinators (id, renewed_at) VALUES (?1, ?2) \
             ON CONFLICT DO UPDATE SET renewed_at = excluded.renewed_at",
        )?;
        statement.execute((key!(coordinator), self.now.as_micros()))?;
        let mut statement = self
            .conn
            .prepare_cached("SELECT count(*) FROM sessions WHERE status = 'queued' AND coordinator = ?1")?;
        Ok(unsigned(statement.query_row([key!(coordinator)], |row| row.get(0))?))
    }

    pub(crate) fn sweep(&mut self) -> Result<Freed, Fault> {
        let mut ended = self.lose_silent_workers()?;
        let mut due = self.sessions_due()?;
        due.extend(self.tickets_lapsed()?);
        for session in due {
            ended.extend(self.expire(session)?);
        }
        self.prune()?;
        self.tidy_buckets()?;
        Ok(Freed {
            ended,
            placed: self.dispatch_all()?,
        })
    }

    fn lose_silent_workers(&mut self) -> Result<Vec<EndedSession>, Fault> {
        let silent_since = self.now.before(self.rules.liveness_ttl).as_micros();
        let mut silent = all(self.conn, SILENT, [silent_since], read_worker)?;
        silent.sort_by_key(|worker| worker.id);
        let mut ended = Vec::new();
        for mut worker in silent {
            self.move_worker(&mut worker, WorkerEvent::Silent);
            self.save_state(&worker)?;
            ended.extend(self.empty(worker.id, EndReason::WorkerLost)?);
        }
        Ok(ended)
    }

    fn sessions_due(&self) -> Result<BTreeSet<SessionId>, Fault> {
        let mut statement = self.conn.prepare_cached(DUE)?;
        let ids = statement.query_map([self.now.as_micros()], |row| row.get::<_, [u8; 16]>(0))?;
        ids.map(|id| Ok(SessionId::from_uuid(Uuid::from_bytes(id?)))).collect()
    }

    /// I3: tickets older than the lease whose coordinator has not renewed within it.
    fn tickets_lapsed(&self) -> Result<BTreeSet<SessionId>, Fault> {
        let lapsed_from = self.now.before(self.rules.ticket_lease).as_micros();
        let mut statement = self
            .conn
            .prepare_cached("SELECT id FROM coordinators WHERE renewed_at <= ?1")?;
        let silent = statement.query_map([lapsed_from], |row| row.get::<_, [u8; 16]>(0))?;
        let mut lapsed = BTreeSet::new();
        for coordinator in silent {
            let mut statement = self.conn.prepare_cached(LAPSED)?;
            let ids = statement.query_map((coordinator?, lapsed_from), |row| row.get::<_, [u8; 16]>(0))?;
            for id in ids {
                lapsed.insert(SessionId::from_uuid(Uuid::from_bytes(id?)));
            }
        }
        Ok(lapsed)
    }

    /// Ends one session that is due.
    fn expire(&mut self, session: SessionId) -> Result<Option<EndedSession>, Fault> {
        let Some(mut row) = SessionRow::find(self.conn, session)? else {
            return Ok(None);
        };
        let limit = wharf_core::session::deadline(row.state, row.times, &row.timeouts);
        let limit = limit.filter(|(at, _)| *at <= self.now).map(|(_, reason)| reason);
        let reason = match row.state {
            SessionState::Queued => Some(limit.unwrap_or(EndReason::Cancelled)),
            SessionState::Placed(_) | SessionState::Starting(_) => {
                // Nobody may be left to vacate it; if the worker holds it after all, its next heartbeat tells it to end.
                row.is_leased = false;
                Some(EndReason::LaunchFailed)
            }
            SessionState::Active(_) | SessionState::Ended(_) => limit,
        };
        let Some(reason) = reason else { return Ok(None) };
        let detail = (reason == EndReason::Cancelled).then(|| TICKET_LAPSED.to_owned());
        let ended = self.finish(&mut row, reason, detail);
        row.save(self.conn, self.rules)?;
        Ok(Some(ended))
    }

    /// Forgets ended sessions and given-up workers older than the history, and coordinators that hold no ticket.
    fn prune(&self) -> Result<(), Fault> {
        let kept_from = self.now.before(self.rules.history).as_micros();
        let mut statement = self.conn.prepare_cached(
            "DELETE FROM sessions WHERE number IN \
             (SELECT number FROM sessions WHERE ended_at <= ?1 AND is_leased = 0 LIMIT ?2)",
        )?;
        statement.execute((kept_from, PRUNED_AT_ONCE))?;
        let mut statement = self
            .conn
            .prepare_cached("DELETE FROM workers WHERE heard_at <= ?1 AND state IN ('gone', 'lost')")?;
        statement.execute([kept_from])?;
        let mut statement = self.conn.prepare_cached(
            "DELETE FROM coordinators WHERE renewed_at <= ?1 AND NOT EXISTS \
             (SELECT 1 FROM sessions s WHERE s.status = 'queued' AND s.coordinator = coordinators.id)",
        )?;
        statement.execute([self.now.before(self.rules.ticket_lease).as_micros()])?;
        self.prune_events()
    }

    /// Nothing of a past life runs on: its browsers died with it, so its sessions have ended and its slots are free.
    pub(crate) fn recover(&mut self, detail: &str) -> Result<Freed, Fault> {
        let mut statement = self.conn.prepare_cached(
            "SELECT id FROM sessions WHERE status <> 'ended' UNION SELECT id FROM sessions WHERE is_leased = 1",
        )?;
        let ids = statement.query_map([], |row| row.get::<_, [u8; 16]>(0))?;
        let left: BTreeSet<_> = ids
            .map(|id| id.map(Uuid::from_bytes).map(SessionId::from_uuid))
            .collect::<Result<_, _>>()?;
        let mut ended = Vec::new();
        for session in left {
            let Some(mut row) = SessionRow::find(self.conn, session)? else {
                continue;
            };
            if !row.state.is_ended() {
                let is_waiting = row.state == SessionState::Queued;
                let reason = if is_waiting {
                    EndReason::Cancelled
                } else {
                    EndReason::WorkerLost
                };
                ended.push(self.finish(&mut row, reason, Some(detail.to_owned())));
            }
            row.is_leased = false;
            row.save(self.conn, self.rules)?;
        }
        for mut worker in self.workers(None)? {
            if self.move_worker(&mut worker, WorkerEvent::Deregistered) {
                self.save_state(&worker)?;
            }
        }
        self.conn.prepare_cached("DELETE FROM coordinators")?.execute([])?;
        Ok(Freed {
            ended,
            placed: Vec::new(),
        })
    }
}

/// By `workers_by_silence`.
pub(crate) const SILENT: &str = concat!(
    "SELECT ",
    worker_columns!(),
    " FROM workers WHERE heard_at <= ?1 AND state IN ('starting', 'available', 'draining')"
);

/// By `sessions_due`.
pub(crate) const DUE: &str = "SELECT id FROM sessions WHERE due_at <= ?1";

/// By `sessions_tickets`.
pub(crate) const LAPSED: &str =
    "SELECT id FROM sessions WHERE status = 'queued' AND coordinator = ?1 AND joined_at <= ?2";
