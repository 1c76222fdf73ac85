//! Rows and records: the one place that knows how a session and a worker are written in SQL.
//!
//! Its own file so that the operations speak of states and seats only. Invariant: what is written reads back equal,
//! and a row that makes no sense is [`Fault::Corrupt`], never a guess.

use rusqlite::{Connection, OptionalExtension, Row, named_params};
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use wharf_core::{
    BrowserKind, CoordinatorId, EndReason, Epoch, Isolation, KeyId, Operation, PoolName, Priority, Seat, SessionId,
    SessionSpec, SessionState, SessionStatus, Timeouts, Timestamp, WorkerId,
    session::{Clockwork, deadline},
};
use wharf_store::{SessionRecord, StoreError, StoreRules};

use crate::hold_rows::owner;

/// Why a step could not be done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error(transparent)]
    Sql(#[from] rusqlite::Error),
    #[error("{0}")]
    Corrupt(String),
    /// Our own code panicked; the step was undone.
    #[error("the operation panicked, which is a bug of Wharf")]
    Panicked,
}

/// A session without its spec's body: all that moving it needs.
#[derive(Debug, Clone)]
pub(crate) struct SessionRow {
    pub(crate) number: u64,
    pub(crate) id: SessionId,
    pub(crate) pool: PoolName,
    pub(crate) browser: BrowserKind,
    pub(crate) priority: Priority,
    pub(crate) operation: Operation,
    pub(crate) state: SessionState,
    pub(crate) epoch: Epoch,
    pub(crate) worker: Option<WorkerId>,
    pub(crate) is_leased: bool,
    pub(crate) coordinator: CoordinatorId,
    pub(crate) owner: Option<KeyId>,
    pub(crate) idempotency_key: Option<String>,
    pub(crate) times: Clockwork,
    pub(crate) joined_at: Timestamp,
    pub(crate) ended_at: Option<Timestamp>,
    pub(crate) detail: Option<String>,
    pub(crate) excluded: Vec<WorkerId>,
    pub(crate) timeouts: Timeouts,
}

/// The part of a spec that no rule reads.
#[derive(Serialize, Deserialize)]
struct Body {
    description: String,
    data: serde_json::Value,
    options: serde_json::Value,
    isolation: Isolation,
    keep_alive: bool,
}

/// The columns of a session, in the order [`SessionRow::read`] expects.
macro_rules! session_columns {
    () => {
        "s.number, s.id, s.pool, s.browser, s.priority, s.operation, s.status, s.reason, s.epoch, s.worker, \
         s.is_leased, s.coordinator, s.idempotency_key, s.queued_at, s.joined_at, s.placed_at, s.started_at, \
         s.attached_at, s.active_at, s.ended_at, s.detail, s.excluded, s.timeouts, s.owner"
    };
}
pub(crate) use session_columns;

/// The 16 bytes by which ids are kept.
macro_rules! key {
    ($id:expr) => {
        $id.as_uuid().into_bytes()
    };
}
pub(crate) use key;

// === impl Fault ===

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Corrupt(what) => Self::Corrupt(what),
            Fault::Panicked => Self::Unavailable(fault.to_string()),
            Fault::Sql(error) => match error {
                rusqlite::Error::FromSqlConversionFailure(..)
                | rusqlite::Error::InvalidColumnType(..)
                | rusqlite::Error::IntegralValueOutOfRange(..) => Self::Corrupt(error.to_string()),
                _ => Self::Unavailable(error.to_string()),
            },
        }
    }
}

/// Something kept that we would never have written.
pub(crate) fn corrupt(what: &str, found: impl std::fmt::Debug) -> Fault {
    Fault::Corrupt(format!("{what}: {found:?}"))
}

pub(crate) fn parse<T: std::str::FromStr>(what: &str, text: &str) -> Result<T, Fault> {
    text.parse().map_err(|_| corrupt(what, text))
}

/// SQLite's integers are signed; counts of ours never come near the sign.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A count read from SQLite, which a maintained counter keeps from going below zero.
pub(crate) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

pub(crate) fn micros(at: Option<Timestamp>) -> Option<i64> {
    at.map(Timestamp::as_micros)
}

pub(crate) fn time(row: &Row<'_>, column: usize) -> Result<Option<Timestamp>, Fault> {
    Ok(row.get::<_, Option<i64>>(column)?.map(Timestamp::from_micros))
}

/// A column of text, without copying it.
pub(crate) fn text<'row>(row: &'row Row<'_>, column: usize) -> Result<&'row str, Fault> {
    Ok(row.get_ref(column)?.as_str().map_err(rusqlite::Error::from)?)
}

pub(crate) fn uuid(row: &Row<'_>, column: usize) -> Result<Uuid, Fault> {
    Ok(Uuid::from_bytes(row.get(column)?))
}

// === impl SessionRow ===

impl SessionRow {
    pub(crate) fn read(row: &Row<'_>) -> Result<Self, Fault> {
        let worker = row
            .get::<_, Option<[u8; 16]>>(9)?
            .map(|bytes| WorkerId::from_uuid(Uuid::from_bytes(bytes)));
        let epoch = Epoch(row.get(8)?);
        let priority: i64 = row.get(4)?;
        let excluded: Vec<u8> = row.get(21)?;
        let timeouts: String = row.get(22)?;
        Ok(Self {
            number: unsigned(row.get(0)?),
            id: SessionId::from_uuid(uuid(row, 1)?),
            pool: parse("pool", text(row, 2)?)?,
            browser: parse("browser", text(row, 3)?)?,
            priority: Priority::try_from(priority).map_err(|_| corrupt("priority", priority))?,
            operation: parse("operation", text(row, 5)?)?,
            state: read_state(row, worker, epoch)?,
            epoch,
            worker,
            is_leased: row.get(10)?,
            coordinator: CoordinatorId::from_uuid(uuid(row, 11)?),
            owner: owner(row, 23)?,
            idempotency_key: row.get(12)?,
            times: Clockwork {
                queued_at: Timestamp::from_micros(row.get(13)?),
                placed_at: time(row, 15)?,
                started_at: time(row, 16)?,
                attached_at: time(row, 17)?,
                active_at: time(row, 18)?,
            },
            joined_at: Timestamp::from_micros(row.get(14)?),
            ended_at: time(row, 19)?,
            detail: row.get(20)?,
            excluded: read_workers(&excluded)?,
            timeouts: serde_json::from_str(&timeouts).map_err(|_| corrupt("timeouts", &timeouts))?,
        })
    }

    /// One session by id.
    pub(crate) fn find(conn: &Connection, session: SessionId) -> Result<Option<Self>, Fault> {
        let mut statement = conn.prepare_cached(concat!(
            "SELECT ",
            session_columns!(),
            " FROM sessions s WHERE s.id = ?1"
        ))?;
        statement
            .query_row([key!(session)], |row| Ok(Self::read(row)))
            .optional()?
            .transpose()
    }

    /// The seat of its lease.
    pub(crate) fn lease(&self) -> Option<Seat> {
        self.worker.filter(|_| self.is_leased).map(|worker| Seat {
            worker,
            epoch: self.epoch,
        })
    }

    /// When time alone ends it: what the sweep looks for.
    fn due_at(&self, rules: &StoreRules) -> Option<Timestamp> {
        match self.state {
            SessionState::Placed(_) | SessionState::Starting(_) => {
                Some(self.times.placed_at.unwrap_or(self.times.queued_at) + rules.starting_grace)
            }
            state => deadline(state, self.times, &self.timeouts).map(|(at, _)| at),
        }
    }

    /// Writes all that can change.
    pub(crate) fn save(&self, conn: &Connection, rules: &StoreRules) -> Result<(), Fault> {
        let mut statement = conn.prepare_cached(
            "UPDATE sessions SET status = :status, reason = :reason, epoch = :epoch, worker = :worker, \
             is_leased = :is_leased, joined_at = :joined_at, placed_at = :placed_at, started_at = :started_at, \
             ended_at = :ended_at, due_at = :due_at, detail = :detail, excluded = :excluded, \
             idempotency_key = :idempotency_key WHERE number = :number",
        )?;
        statement.execute(named_params! {
            ":status": self.state.status().as_str(),
            ":reason": reason(self.state).map(EndReason::as_str),
            ":epoch": self.epoch.0,
            ":worker": self.worker.map(|worker| key!(worker)),
            ":is_leased": self.is_leased,
            ":joined_at": self.joined_at.as_micros(),
            ":placed_at": micros(self.times.placed_at),
            ":started_at": micros(self.times.started_at),
            ":ended_at": micros(self.ended_at),
            ":idempotency_key": self.idempotency_key,
            ":due_at": micros(self.due_at(rules)),
            ":detail": self.detail,
            ":excluded": write_workers(&self.excluded),
            ":number": signed(self.number),
        })?;
        Ok(())
    }

    /// Writes a step on the way (`claim`, `activate`), which concerns two indexes instead of seven.
    pub(crate) fn save_progress(&self, conn: &Connection, rules: &StoreRules) -> Result<(), Fault> {
        let mut statement =
            conn.prepare_cached("UPDATE sessions SET status = ?1, started_at = ?2, due_at = ?3 WHERE number = ?4")?;
        let (started_at, due_at) = (micros(self.times.started_at), micros(self.due_at(rules)));
        statement.execute((self.state.status().as_str(), started_at, due_at, signed(self.number)))?;
        Ok(())
    }

    /// Writes an end that leaves the lease as it is.
    pub(crate) fn save_end(&self, conn: &Connection) -> Result<(), Fault> {
        let mut statement = conn.prepare_cached(
            "UPDATE sessions SET status = ?1, reason = ?2, ended_at = ?3, due_at = NULL, detail = ?4, \
             idempotency_key = ?5 WHERE number = ?6",
        )?;
        let reason = reason(self.state).map(EndReason::as_str);
        let values = (
            self.state.status().as_str(),
            reason,
            micros(self.ended_at),
            &self.detail,
            &self.idempotency_key,
            signed(self.number),
        );
        statement.execute(values)?;
        Ok(())
    }

    /// Writes only what client activity changes, which touches one index instead of seven.
    pub(crate) fn save_activity(&self, conn: &Connection, rules: &StoreRules) -> Result<(), Fault> {
        let mut statement =
            conn.prepare_cached("UPDATE sessions SET attached_at = ?1, active_at = ?2, due_at = ?3 WHERE number = ?4")?;
        let times = (
            micros(self.times.attached_at),
            micros(self.times.active_at),
            micros(self.due_at(rules)),
        );
        statement.execute((times.0, times.1, times.2, signed(self.number)))?;
        Ok(())
    }

    /// Writes a newcomer.
    pub(crate) fn insert(&self, conn: &Connection, rules: &StoreRules, spec: &SessionSpec) -> Result<(), Fault> {
        let mut statement = conn.prepare_cached(
            "INSERT INTO sessions (number, id, pool, browser, priority, operation, bucket, status, epoch, is_leased, \
             coordinator, owner, idempotency_key, queued_at, joined_at, due_at, excluded, timeouts) \
             VALUES (:number, :id, :pool, :browser, :priority, :operation, \
             coalesce((SELECT operation FROM buckets WHERE operation = :operation), ''), 'queued', 0, 0, \
             :coordinator, :owner, :idempotency_key, :queued_at, :joined_at, :due_at, x'', :timeouts)",
        )?;
        statement.execute(named_params! {
            ":number": signed(self.number),
            ":id": key!(self.id),
            ":pool": self.pool.as_str(),
            ":browser": self.browser.as_str(),
            ":priority": self.priority.get(),
            ":operation": self.operation.as_str(),
            ":coordinator": key!(self.coordinator),
            ":owner": self.owner.map(|owner| key!(owner)),
            ":idempotency_key": self.idempotency_key,
            ":queued_at": self.times.queued_at.as_micros(),
            ":joined_at": self.joined_at.as_micros(),
            ":due_at": micros(self.due_at(rules)),
            ":timeouts": json(&self.timeouts)?,
        })?;
        let mut statement = conn.prepare_cached("INSERT INTO specs (number, body) VALUES (?1, ?2)")?;
        statement.execute((signed(self.number), write_body(spec)?))?;
        Ok(())
    }

    /// Goes to wait again, which it has not since it was first placed: its operation may have got a bucket or lost it.
    pub(crate) fn save_again(&self, conn: &Connection, rules: &StoreRules) -> Result<(), Fault> {
        self.save(conn, rules)?;
        let mut statement = conn.prepare_cached(
            "UPDATE sessions SET bucket = coalesce((SELECT b.operation FROM buckets b \
             WHERE b.operation = sessions.operation), '') WHERE number = ?1",
        )?;
        statement.execute([signed(self.number)])?;
        Ok(())
    }

    /// The record, with the spec's body read.
    pub(crate) fn record(self, conn: &Connection) -> Result<SessionRecord, Fault> {
        let mut statement = conn.prepare_cached("SELECT body FROM specs WHERE number = ?1")?;
        let body: String = statement.query_row([signed(self.number)], |row| row.get(0))?;
        self.with_body(&body)
    }

    /// The record, given the spec's body.
    pub(crate) fn with_body(self, body: &str) -> Result<SessionRecord, Fault> {
        let body: Body = serde_json::from_str(body).map_err(|error| corrupt("spec", error))?;
        let spec = SessionSpec {
            pool: self.pool.clone(),
            browser: self.browser,
            priority: self.priority,
            operation: self.operation.clone(),
            description: body.description,
            data: body.data,
            options: body.options,
            isolation: body.isolation,
            timeouts: self.timeouts,
            keep_alive: body.keep_alive,
        };
        Ok(self.with_spec(spec))
    }

    /// The record, given the spec it was written from.
    pub(crate) fn with_spec(self, spec: SessionSpec) -> SessionRecord {
        SessionRecord {
            id: self.id,
            spec,
            state: self.state,
            epoch: self.epoch,
            number: self.number,
            times: self.times,
            ended_at: self.ended_at,
            detail: self.detail,
            excluded: self.excluded,
            coordinator: self.coordinator,
            worker: self.worker,
            owner: self.owner,
            idempotency_key: self.idempotency_key,
        }
    }
}

fn write_body(spec: &SessionSpec) -> Result<String, Fault> {
    json(&Body {
        description: spec.description.clone(),
        data: spec.data.clone(),
        options: spec.options.clone(),
        isolation: spec.isolation,
        keep_alive: spec.keep_alive,
    })
}

pub(crate) fn json(value: &impl Serialize) -> Result<String, Fault> {
    serde_json::to_string(value).map_err(|error| corrupt("could not be written as JSON", error))
}

fn reason(state: SessionState) -> Option<EndReason> {
    match state {
        SessionState::Ended(reason) => Some(reason),
        _ => None,
    }
}

fn read_state(row: &Row<'_>, worker: Option<WorkerId>, epoch: Epoch) -> Result<SessionState, Fault> {
    let status: SessionStatus = parse("status", text(row, 6)?)?;
    let seat = || {
        worker
            .map(|worker| Seat { worker, epoch })
            .ok_or_else(|| corrupt("no worker while", status))
    };
    Ok(match status {
        SessionStatus::Queued => SessionState::Queued,
        SessionStatus::Placed => SessionState::Placed(seat()?),
        SessionStatus::Starting => SessionState::Starting(seat()?),
        SessionStatus::Active => SessionState::Active(seat()?),
        SessionStatus::Ended => SessionState::Ended(parse("reason", text(row, 7)?)?),
    })
}

fn read_workers(bytes: &[u8]) -> Result<Vec<WorkerId>, Fault> {
    let each = bytes
        .chunks(16)
        .map(|chunk| Uuid::from_slice(chunk).map(WorkerId::from_uuid));
    each.collect::<Result<_, _>>().map_err(|_| corrupt("excluded", bytes))
}

fn write_workers(workers: &[WorkerId]) -> Vec<u8> {
    workers.iter().flat_map(|worker| key!(worker)).collect()
}
