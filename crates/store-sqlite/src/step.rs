//! One atomic step and the moves that end things: `finish` is the only way into a terminal state (I4).
//!
//! Its own file because every operation is made of these and of `dispatch`. No move reads more rows than it changes,
//! however many wait.

use rusqlite::Connection;
use wharf_core::{
    EndReason, SessionState, Timestamp, WorkerId,
    session::{SessionEvent, step},
};
use wharf_store::{Change, EndedSession, SessionChange, StoreRules};

use crate::{
    events::Noted,
    rows::{Fault, SessionRow, key, session_columns},
};

/// One operation inside the writer's transaction.
pub(crate) struct Step<'a> {
    pub(crate) conn: &'a Connection,
    pub(crate) rules: &'a StoreRules,
    pub(crate) now: Timestamp,
    pub(crate) news: &'a mut Vec<Change>,
    /// What goes into the log of events at its end.
    pub(crate) noted: Noted,
    /// The number given out last. Not kept in the file: the next one need only follow all that are there.
    pub(crate) last_number: &'a mut u64,
}

// === impl Step ===

impl Step<'_> {
    /// Ends a session that has not ended, and tells the world. The lease stays; the row is not saved yet.
    pub(crate) fn finish(&mut self, row: &mut SessionRow, reason: EndReason, detail: Option<String>) -> EndedSession {
        let ended = EndedSession {
            session: row.id,
            reason,
            seat: row.state.seat(),
        };
        if row.state == SessionState::Queued {
            self.note_waiters(&row.pool, -1);
        }
        row.state = SessionState::Ended(reason);
        row.ended_at = Some(self.now);
        row.detail = detail;
        if row.times.started_at.is_none() {
            row.idempotency_key = None;
        }
        self.news.push(Change::Ended(ended));
        self.note_session(row, SessionChange::Ended(reason));
        ended
    }

    /// A worker is no more, as far as its sessions are concerned: every lease on it goes. Those that had a browser end;
    /// those that were still to get one wait for another worker, if there is any.
    pub(crate) fn empty(&mut self, worker: WorkerId, reason: EndReason) -> Result<Vec<EndedSession>, Fault> {
        let mut ended = Vec::new();
        for mut row in self.leased_on(worker)? {
            if self.is_served(&row.pool, row.browser)? && self.requeue(&mut row)? {
                self.note_session(&row, SessionChange::Queued);
                continue;
            }
            if !row.state.is_ended() {
                ended.push(self.finish(&mut row, reason, None));
            }
            row.is_leased = false;
            row.save(self.conn, self.rules)?;
        }
        Ok(ended)
    }

    /// A session without a browser waits again, at the place it had and without its slot. Not one that has a browser.
    pub(crate) fn requeue(&mut self, row: &mut SessionRow) -> Result<bool, Fault> {
        let Ok(queued) = step(row.state, SessionEvent::Requeued(row.epoch)) else {
            return Ok(false);
        };
        row.state = queued;
        row.is_leased = false;
        row.times.placed_at = None;
        row.joined_at = self.now;
        row.save_again(self.conn, self.rules)?;
        self.note_waiters(&row.pool, 1);
        self.remember(row.coordinator)?;
        Ok(true)
    }

    /// The sessions that hold a lease on this worker, by id.
    pub(crate) fn leased_on(&self, worker: WorkerId) -> Result<Vec<SessionRow>, Fault> {
        let mut statement = self.conn.prepare_cached(concat!(
            "SELECT ",
            session_columns!(),
            " FROM sessions s WHERE s.worker = ?1 AND s.is_leased = 1 ORDER BY s.id"
        ))?;
        let mut rows = statement.query([key!(worker)])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            found.push(SessionRow::read(row)?);
        }
        Ok(found)
    }
}
