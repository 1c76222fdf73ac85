//! What happens to one session: submit, claim, activate, fail, touch, end, vacate.
//!
//! Its own file because these are the calls of every request's path: each costs a fixed number of indexed rows, whatever
//! the length of the queue.

use rusqlite::OptionalExtension;
use wharf_core::{
    BrowserKind, CoordinatorId, EndReason, Epoch, PoolName, SessionId, SessionState, WorkerId, WorkerState,
    queue::{Admission, admit},
    session::{Clockwork, SessionEvent, step},
};
use wharf_store::{
    Ended, Freed, PlacementFailure, Replaced, SessionChange, SessionRecord, Submission, Submitted, Touch, WorkerChange,
};

use crate::{
    rows::{Fault, SessionRow, key, session_columns, signed, unsigned},
    step::Step,
    worker_rows::{find_worker, read_worker, worker_columns},
};

// === impl Step: the way in ===

impl Step<'_> {
    pub(crate) fn submit(&mut self, submission: &Submission) -> Result<Submitted, Fault> {
        if let Some(known) = self.known(submission)? {
            let (row, coordinator) = (known, submission.coordinator);
            let mut known = row.clone().record(self.conn)?;
            if known.spec == submission.spec && self.adopt(row, coordinator)? {
                known.coordinator = coordinator;
            }
            return Ok(match known.spec == submission.spec {
                true => Submitted::Known(Box::new(known)),
                false => Submitted::KeyReused(known.id),
            });
        }
        let spec = &submission.spec;
        if let Some(lock) = self.lock_over(&spec.pool, &spec.operation)? {
            return Ok(Submitted::Locked(Box::new(lock)));
        }
        if let Some(owner) = submission.owner
            && let Some((held, limit)) = self.spent_quota(owner)?
        {
            return Ok(Submitted::QuotaReached { held, limit });
        }
        if !self.is_served(&spec.pool, spec.browser)? {
            return Ok(Submitted::NoSuchPool);
        }
        let session = submission.session;
        let joined = self.join(submission)?;
        self.dispatch(&submission.spec.pool, Some(session))?;
        let row = self.present(session)?;
        if row.state != SessionState::Queued {
            return Ok(Submitted::Placed(Box::new(row.with_spec(submission.spec.clone()))));
        }
        let (others, position) = self.standing(&row)?;
        match admit(others, submission.queue_limit) {
            Admission::Queue => {
                self.remember(row.coordinator)?;
                self.note_session(&row, SessionChange::Queued);
                Ok(Submitted::Queued {
                    record: Box::new(row.with_spec(submission.spec.clone())),
                    position,
                })
            }
            Admission::Full { waiting, limit } => {
                let mut statement = self.conn.prepare_cached("DELETE FROM sessions WHERE number = ?1")?;
                statement.execute([signed(joined)])?;
                self.note_waiters(&submission.spec.pool, -1);
                Ok(Submitted::QueueFull { waiting, limit })
            }
        }
    }

    /// A session that still waits passes to whoever asks for it again: the coordinator it came by may be gone.
    fn adopt(&self, row: SessionRow, coordinator: CoordinatorId) -> Result<bool, Fault> {
        let still_waits = matches!(row.state, SessionState::Queued | SessionState::Placed(_));
        if row.coordinator == coordinator || !still_waits {
            return Ok(false);
        }
        let mut statement = self
            .conn
            .prepare_cached("UPDATE sessions SET coordinator = ?1, joined_at = ?2 WHERE number = ?3")?;
        statement.execute((&key!(coordinator)[..], self.now.as_micros(), signed(row.number)))?;
        self.remember(coordinator)?;
        Ok(true)
    }

    /// A coordinator holds a ticket from now on, so the sweep must look at it.
    pub(crate) fn remember(&self, coordinator: CoordinatorId) -> Result<(), Fault> {
        let mut statement = self
            .conn
            .prepare_cached("INSERT OR IGNORE INTO coordinators (id, renewed_at) VALUES (?1, 0)")?;
        statement.execute([key!(coordinator)])?;
        Ok(())
    }

    /// The session this submission has already made, by its key or by its own id.
    fn known(&self, submission: &Submission) -> Result<Option<SessionRow>, Fault> {
        if let Some(key) = &submission.idempotency_key {
            let mut statement = self.conn.prepare_cached(BY_KEY)?;
            let owner = submission.owner.map(|owner| key!(owner));
            let owner: &[u8] = owner.as_ref().map_or(&[], |bytes| bytes);
            let found = statement
                .query_row((owner, key), |row| Ok(SessionRow::read(row)))
                .optional()?
                .transpose()?;
            if found.is_some() {
                return Ok(found);
            }
        }
        SessionRow::find(self.conn, submission.session)
    }

    /// Whether waiting could ever help: a worker that is not gone serves such browsers in this pool.
    pub(crate) fn is_served(&self, pool: &PoolName, browser: BrowserKind) -> Result<bool, Fault> {
        let mut statement =
            self.conn
                .prepare_cached(concat!("SELECT ", worker_columns!(), " FROM workers WHERE pool = ?1"))?;
        let mut rows = statement.query([pool.as_str()])?;
        while let Some(row) = rows.next()? {
            let worker = read_worker(row)?;
            if worker.state != WorkerState::Gone && worker.browsers.contains(&browser) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The newcomer becomes the last of the waiters.
    fn join(&mut self, submission: &Submission) -> Result<u64, Fault> {
        *self.last_number += 1;
        let spec = &submission.spec;
        let row = SessionRow {
            number: *self.last_number,
            id: submission.session,
            pool: spec.pool.clone(),
            browser: spec.browser,
            priority: spec.priority,
            operation: spec.operation.clone(),
            state: SessionState::Queued,
            epoch: Epoch::default(),
            worker: None,
            is_leased: false,
            coordinator: submission.coordinator,
            owner: submission.owner,
            idempotency_key: submission.idempotency_key.clone(),
            times: Clockwork {
                queued_at: self.now,
                placed_at: None,
                started_at: None,
                attached_at: None,
                active_at: None,
            },
            joined_at: self.now,
            ended_at: None,
            detail: None,
            excluded: Vec::new(),
            timeouts: spec.timeouts,
        };
        row.insert(self.conn, self.rules, spec)?;
        self.note_waiters(&row.pool, 1);
        Ok(row.number)
    }

    /// How many others wait in the pool, and the place of a session that came last, from the kept counts.
    fn standing(&self, last: &SessionRow) -> Result<(u64, u64), Fault> {
        let mut statement = self.conn.prepare_cached(
            "SELECT coalesce(sum(amount), 0), \
             coalesce(sum(amount) FILTER (WHERE browser = ?2 AND priority >= ?3), 0) FROM waiting WHERE pool = ?1",
        )?;
        let values = (last.pool.as_str(), last.browser.as_str(), last.priority.get());
        let (all, up_to_it): (i64, i64) = statement.query_row(values, |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok((unsigned(all - 1), unsigned(up_to_it)))
    }

    /// A session that this step knows to exist.
    fn present(&self, session: SessionId) -> Result<SessionRow, Fault> {
        SessionRow::find(self.conn, session)?
            .ok_or_else(|| Fault::Corrupt(format!("{session} vanished within a transaction")))
    }
}

// === impl Step: the way on ===

impl Step<'_> {
    pub(crate) fn claim(&mut self, session: SessionId, epoch: Epoch) -> Result<Option<SessionRecord>, Fault> {
        self.advance(session, SessionEvent::Claimed(epoch))
    }

    pub(crate) fn activate(&mut self, session: SessionId, epoch: Epoch) -> Result<Option<SessionRecord>, Fault> {
        self.advance(session, SessionEvent::Activated(epoch))
    }

    /// Moves a session by one event, if the event applies.
    fn advance(&mut self, session: SessionId, event: SessionEvent) -> Result<Option<SessionRecord>, Fault> {
        let Some(mut row) = SessionRow::find(self.conn, session)? else {
            return Ok(None);
        };
        let Ok(state) = step(row.state, event) else {
            return Ok(None);
        };
        row.state = state;
        if matches!(state, SessionState::Active(_)) {
            row.times.started_at = Some(self.now);
        }
        row.save_progress(self.conn, self.rules)?;
        if matches!(state, SessionState::Active(_)) {
            self.note_session(&row, SessionChange::Active);
        }
        row.record(self.conn).map(Some)
    }

    /// A worker that was not there gets nothing until it has reported.
    fn suspect(&mut self, worker: Option<WorkerId>) -> Result<(), Fault> {
        let Some(worker) = worker else { return Ok(()) };
        let Some(mut row) = find_worker(self.conn, worker)?.filter(|row| row.state.is_live() && !row.is_circuit_open)
        else {
            return Ok(());
        };
        row.is_circuit_open = true;
        self.note_worker(worker, &row.pool, WorkerChange::CircuitOpened);
        self.save_state(&row)
    }

    pub(crate) fn placement_failed(&mut self, failure: &PlacementFailure) -> Result<Replaced, Fault> {
        let (session, epoch) = (failure.session, failure.epoch);
        let Some(mut row) = SessionRow::find(self.conn, session)? else {
            return Ok(Replaced::Stale);
        };
        let pool = row.pool.clone();
        if row.state.is_ended() {
            if row.epoch != epoch {
                return Ok(Replaced::Stale);
            }
            // It ended while its browser was being prepared, and there is no browser: the slot is free.
            return self.leave(row).map(Replaced::Ended);
        }
        if step(row.state, SessionEvent::Requeued(epoch)).is_err() {
            return Ok(Replaced::Stale);
        }
        if failure.is_worker_absent {
            self.suspect(row.worker)?;
        } else if let Some(worker) = row.worker.filter(|worker| !row.excluded.contains(worker)) {
            row.excluded.push(worker);
        }
        if epoch.0 >= self.rules.max_attempts && !failure.is_worker_absent {
            self.finish(&mut row, EndReason::LaunchFailed, Some(failure.cause.clone()));
            return self.leave(row).map(Replaced::Ended);
        }
        self.requeue(&mut row)?;
        self.dispatch(&pool, Some(session))?;
        let row = self.present(session)?;
        if row.state == SessionState::Queued {
            self.note_session(&row, SessionChange::Queued);
        }
        let record = Box::new(row.record(self.conn)?);
        Ok(if record.state == SessionState::Queued {
            Replaced::Queued(record)
        } else {
            Replaced::Placed(record)
        })
    }

    /// An ended session gives its slot back.
    fn leave(&mut self, mut row: SessionRow) -> Result<Box<SessionRecord>, Fault> {
        row.is_leased = false;
        row.save(self.conn, self.rules)?;
        self.dispatch(&row.pool.clone(), None)?;
        Ok(Box::new(row.record(self.conn)?))
    }

    pub(crate) fn touch(&mut self, touch: &Touch) -> Result<(), Fault> {
        let Some(mut row) = SessionRow::find(self.conn, touch.session)? else {
            return Ok(());
        };
        if !matches!(row.state, SessionState::Active(_)) {
            return Ok(());
        }
        let times = &mut row.times;
        // A session cannot have been idle since before it began.
        times.active_at = times
            .active_at
            .or(times.started_at)
            .max(Some(self.now.before(touch.idle_for)));
        if touch.is_attached {
            times.attached_at = times.attached_at.or(Some(self.now));
        }
        row.save_activity(self.conn, self.rules)
    }

    pub(crate) fn end(
        &mut self,
        session: SessionId,
        reason: EndReason,
        detail: Option<String>,
    ) -> Result<Ended, Fault> {
        let Some(mut row) = SessionRow::find(self.conn, session)? else {
            return Ok(Ended::Unknown);
        };
        if row.state.is_ended() {
            return Ok(Ended::Before(Box::new(row.record(self.conn)?)));
        }
        self.finish(&mut row, reason, detail);
        row.save_end(self.conn)?;
        Ok(Ended::Now(Box::new(row.record(self.conn)?)))
    }

    pub(crate) fn vacate(&mut self, session: SessionId, epoch: Epoch) -> Result<Freed, Fault> {
        let found = SessionRow::find(self.conn, session)?;
        let Some(mut row) = found.filter(|row| row.lease().is_some_and(|seat| seat.epoch == epoch)) else {
            return Ok(Freed::default());
        };
        // A browser that is gone before anybody said why has crashed, or never came up.
        let ended = match row.state {
            SessionState::Ended(_) => None,
            SessionState::Active(_) => Some(EndReason::BrowserCrashed),
            _ => Some(EndReason::LaunchFailed),
        };
        let ended = ended
            .map(|reason| self.finish(&mut row, reason, None))
            .into_iter()
            .collect();
        row.is_leased = false;
        row.save(self.conn, self.rules)?;
        Ok(Freed {
            ended,
            placed: self.dispatch(&row.pool, None)?,
        })
    }
}

/// By `sessions_key`.
pub(crate) const BY_KEY: &str = concat!(
    "SELECT ",
    session_columns!(),
    " FROM sessions s WHERE coalesce(s.owner, x'') = ?1 AND s.idempotency_key = ?2"
);
