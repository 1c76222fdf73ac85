//! Reading: lists, counts, places in the queue, everything at one instant.
//!
//! Its own file because nothing here writes; the long ones run on the reading lane, so that a big list does not stall
//! admission. Answers leave only after their commit, so a later read sees every write its caller was told of.

use rusqlite::{OptionalExtension, ToSql};
use uuid::Uuid;
use wharf_core::{PoolName, SessionId, SessionStatus};
use wharf_store::{OperationReport, PoolReport, SessionQuery, SessionRecord, Snapshot, Stats, WorkerRecord};

use crate::{
    hold_rows::{all, lock_columns, read_lock},
    rows::{Fault, SessionRow, key, parse, session_columns, signed, text, unsigned},
    step::Step,
    worker_rows::{read_worker, worker_columns},
};

// === impl Step: views ===

impl Step<'_> {
    pub(crate) fn session(&self, session: SessionId) -> Result<Option<SessionRecord>, Fault> {
        SessionRow::find(self.conn, session)?
            .map(|row| row.record(self.conn))
            .transpose()
    }

    pub(crate) fn workers(&self, pool: Option<&PoolName>) -> Result<Vec<WorkerRecord>, Fault> {
        let mut statement = self.conn.prepare_cached(concat!(
            "SELECT ",
            worker_columns!(),
            " FROM workers WHERE ?1 IS NULL OR pool = ?1 ORDER BY id"
        ))?;
        let mut rows = statement.query([pool.map(PoolName::as_str)])?;
        let mut workers = Vec::new();
        while let Some(row) = rows.next()? {
            workers.push(read_worker(row)?);
        }
        Ok(workers)
    }

    pub(crate) fn sessions(&self, query: &SessionQuery) -> Result<Vec<SessionRecord>, Fault> {
        let (sql, values) = list(query);
        let mut statement = self.conn.prepare_cached(&sql)?;
        let mut rows = statement.query(rusqlite::params_from_iter(values))?;
        let mut records = Vec::new();
        while let Some(row) = rows.next()? {
            let body: String = row.get(24)?;
            records.push(SessionRow::read(row)?.with_body(&body)?);
        }
        Ok(records)
    }

    pub(crate) fn position(&self, session: SessionId) -> Result<Option<u64>, Fault> {
        let mut statement = self.conn.prepare_cached(POSITION)?;
        let position: Option<i64> = statement.query_row([key!(session)], |row| row.get(0)).optional()?;
        Ok(position.map(unsigned))
    }

    pub(crate) fn queue(&self, pool: &PoolName, limit: u32) -> Result<Vec<SessionRecord>, Fault> {
        all(self.conn, QUEUE, (pool.as_str(), limit), |row| {
            let body: String = row.get(24)?;
            SessionRow::read(row)?.with_body(&body)
        })
    }

    pub(crate) fn pool(&self, pool: &PoolName) -> Result<PoolReport, Fault> {
        let mut statement = self.conn.prepare_cached(POOL)?;
        let mut report = statement.query_row([pool.as_str()], |row| {
            Ok(PoolReport {
                queued: unsigned(row.get(0)?),
                running: unsigned(row.get(1)?),
                starting: unsigned(row.get(2)?),
                active: unsigned(row.get(3)?),
                slots: unsigned(row.get(4)?),
                workers: unsigned(row.get(5)?),
                warm: unsigned(row.get(6)?),
                launching: unsigned(row.get(7)?),
                limit: row.get::<_, Option<i64>>(8)?.map(unsigned),
                operations: Vec::new(),
            })
        })?;
        report.operations = all(self.conn, OPERATIONS, [pool.as_str()], |row| {
            Ok(OperationReport {
                operation: parse("operation", text(row, 0)?)?,
                running: unsigned(row.get(1)?),
                queued: unsigned(row.get(2)?),
                limit: row.get::<_, Option<i64>>(3)?.map(unsigned),
            })
        })?;
        Ok(report)
    }

    pub(crate) fn stats(&self) -> Result<Stats, Fault> {
        let mut statement = self.conn.prepare_cached(
            "SELECT (SELECT coalesce(sum(amount), 0) FROM waiting), \
                    (SELECT count(*) FROM sessions WHERE status IN ('placed', 'starting') AND status <> 'ended'), \
                    (SELECT count(*) FROM sessions WHERE status = 'active' AND status <> 'ended'), \
                    coalesce(sum(slots) FILTER (WHERE state IN ('starting', 'available', 'draining')), 0), \
                    coalesce(sum(busy), 0), \
                    count(*) FILTER (WHERE state IN ('starting', 'available', 'draining')) FROM workers",
        )?;
        let counts = statement.query_row([], |row| {
            Ok(Stats {
                queued: unsigned(row.get(0)?),
                starting: unsigned(row.get(1)?),
                active: unsigned(row.get(2)?),
                slots: unsigned(row.get(3)?),
                busy: unsigned(row.get(4)?),
                workers: unsigned(row.get(5)?),
            })
        })?;
        Ok(counts)
    }

    pub(crate) fn snapshot(&self) -> Result<Snapshot, Fault> {
        let mut statement = self
            .conn
            .prepare_cached("SELECT id, worker, epoch FROM sessions WHERE is_leased = 1 ORDER BY id")?;
        let mut rows = statement.query([])?;
        let mut leases = Vec::new();
        while let Some(row) = rows.next()? {
            let worker = wharf_core::WorkerId::from_uuid(Uuid::from_bytes(row.get(1)?));
            let seat = wharf_core::Seat {
                worker,
                epoch: wharf_core::Epoch(row.get(2)?),
            };
            leases.push((SessionId::from_uuid(Uuid::from_bytes(row.get(0)?)), seat));
        }
        Ok(Snapshot {
            at: self.now,
            sessions: self.sessions(&SessionQuery {
                limit: u32::MAX,
                ..SessionQuery::default()
            })?,
            leases,
            workers: self.workers(None)?,
            limits: self.limits()?,
            locks: all(self.conn, ALL_LOCKS, [], read_lock)?,
            keys: self.keys()?,
        })
    }
}

/// By `sessions_queue`, in each of the few buckets.
pub(crate) const POSITION: &str = "SELECT (SELECT coalesce(sum(w.amount), 0) FROM waiting w \
                     WHERE w.pool = s.pool AND w.browser = s.browser AND w.priority > s.priority) \
                  + (SELECT count(*) FROM sessions q WHERE q.status = 'queued' AND q.pool = s.pool \
                     AND q.browser = s.browser AND q.bucket IN (SELECT '' UNION ALL SELECT operation FROM buckets) \
                     AND q.priority = s.priority AND q.number <= s.number) \
             FROM sessions s WHERE s.id = ?1 AND s.status = 'queued'";

/// Held and expired ones.
const ALL_LOCKS: &str = concat!("SELECT ", lock_columns!(), " FROM locks ORDER BY name");

/// The numbers come from `sessions_queue` alone; only who is answered is read whole.
const QUEUE: &str = concat!(
    "SELECT ",
    session_columns!(),
    ", p.body FROM sessions s JOIN specs p ON p.number = s.number WHERE s.number IN \
     (SELECT number FROM sessions WHERE status = 'queued' AND pool = ?1 ORDER BY priority DESC, number LIMIT ?2) \
     ORDER BY s.priority DESC, s.number"
);

/// The counts of a pool; what has a slot and has not ended is counted from `sessions_live`.
const POOL: &str = "SELECT \
     coalesce((SELECT waiting FROM counts WHERE pool = ?1 AND operation = ''), 0), \
     coalesce((SELECT running FROM counts WHERE pool = ?1 AND operation = ''), 0), \
     (SELECT count(*) FROM sessions WHERE status IN ('placed', 'starting') AND status <> 'ended' AND pool = ?1), \
     (SELECT count(*) FROM sessions WHERE status = 'active' AND status <> 'ended' AND pool = ?1), \
     coalesce(sum(slots), 0), count(*), coalesce(sum(warm), 0), coalesce(sum(launching), 0), \
     (SELECT amount FROM limits WHERE pool = ?1 AND operation = '') \
     FROM workers WHERE pool = ?1 AND state IN ('starting', 'available', 'draining')";

/// Every operation of a pool that runs, waits or has a limit.
const OPERATIONS: &str = "SELECT o.operation, coalesce(c.running, 0), coalesce(c.waiting, 0), l.amount FROM \
     (SELECT operation FROM counts WHERE pool = ?1 AND operation <> '' UNION \
      SELECT operation FROM limits WHERE pool = ?1 AND operation <> '') o \
     LEFT JOIN counts c ON c.pool = ?1 AND c.operation = o.operation \
     LEFT JOIN limits l ON l.pool = ?1 AND l.operation = o.operation ORDER BY o.operation";

/// The statement and its values for a list. Only our own words enter the text; what a client says is bound.
fn list(query: &SessionQuery) -> (String, Vec<Box<dyn ToSql>>) {
    let mut sql = concat!(
        "SELECT ",
        session_columns!(),
        ", p.body FROM sessions s JOIN specs p ON p.number = s.number WHERE 1 = 1"
    )
    .to_owned();
    let mut values: Vec<Box<dyn ToSql>> = Vec::new();
    if let Some(pool) = &query.pool {
        sql.push_str(" AND s.pool = ?");
        values.push(Box::new(pool.as_str().to_owned()));
    }
    if !query.statuses.is_empty() {
        let names: Vec<_> = query
            .statuses
            .iter()
            .map(|status| format!("'{}'", status.as_str()))
            .collect();
        sql.push_str(&format!(" AND s.status IN ({})", names.join(", ")));
        if !query.statuses.contains(&SessionStatus::Ended) {
            // Said once more for the planner: this is what lets it use `sessions_live`.
            sql.push_str(" AND s.status <> 'ended'");
        }
    }
    if let Some(operation) = &query.operation {
        sql.push_str(" AND s.operation = ?");
        values.push(Box::new(operation.as_str().to_owned()));
    }
    if let Some(reason) = query.reason {
        sql.push_str(" AND s.reason = ?");
        values.push(Box::new(reason.as_str()));
    }
    if let Some(owner) = query.owner {
        sql.push_str(" AND s.owner = ?");
        values.push(Box::new(key!(owner)));
    }
    if let Some(after) = query.after {
        sql.push_str(if query.newest_first {
            " AND s.id < ?"
        } else {
            " AND s.id > ?"
        });
        values.push(Box::new(key!(after)));
    }
    sql.push_str(if query.newest_first {
        " ORDER BY s.id DESC LIMIT ?"
    } else {
        " ORDER BY s.id LIMIT ?"
    });
    values.push(Box::new(signed(u64::from(query.limit))));
    (sql, values)
}
