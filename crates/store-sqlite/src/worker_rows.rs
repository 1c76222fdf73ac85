//! Rows of workers: how they are written in SQL and read back.
//!
//! Its own file, beside `rows`, because placement reads workers and nothing else. Invariant: as in `rows`.

use rusqlite::{Connection, OptionalExtension, Row};
use wharf_core::{BrowserKind, Timestamp, WorkerId, WorkerState};
use wharf_store::{Load, WorkerRecord};

use crate::rows::{Fault, corrupt, key, parse, text, unsigned, uuid};

/// The columns of a worker, in the order [`read_worker`] expects.
macro_rules! worker_columns {
    () => {
        "id, pool, browsers, slots, busy, lifetime, state, is_circuit_open, address, registered_at, heard_at, \
         warm, launching, cpu_permille, memory_used, memory_limit, pressure_permille"
    };
}
pub(crate) use worker_columns;

pub(crate) fn read_worker(row: &Row<'_>) -> Result<WorkerRecord, Fault> {
    let browsers: String = row.get(2)?;
    let kinds = browsers
        .split(',')
        .filter(|kind| !kind.is_empty())
        .map(|kind| parse("browser", kind));
    let state: String = row.get(6)?;
    let known = WorkerState::ALL.into_iter().find(|known| known.as_str() == state);
    Ok(WorkerRecord {
        id: WorkerId::from_uuid(uuid(row, 0)?),
        pool: parse("pool", text(row, 1)?)?,
        browsers: kinds.collect::<Result<_, _>>()?,
        slots: row.get(3)?,
        busy: row.get(4)?,
        lifetime: unsigned(row.get(5)?),
        state: known.ok_or_else(|| corrupt("state", &state))?,
        is_circuit_open: row.get(7)?,
        warm: row.get(11)?,
        launching: row.get(12)?,
        load: Load {
            cpu_permille: row.get(13)?,
            memory_used: unsigned(row.get(14)?),
            memory_limit: unsigned(row.get(15)?),
            pressure_permille: row.get(16)?,
        },
        address: row.get(8)?,
        registered_at: Timestamp::from_micros(row.get(9)?),
        heard_at: Timestamp::from_micros(row.get(10)?),
    })
}

pub(crate) fn find_worker(conn: &Connection, worker: WorkerId) -> Result<Option<WorkerRecord>, Fault> {
    let mut statement = conn.prepare_cached(concat!("SELECT ", worker_columns!(), " FROM workers WHERE id = ?1"))?;
    statement
        .query_row([key!(worker)], |row| Ok(read_worker(row)))
        .optional()?
        .transpose()
}

/// The kinds as one text; a kind's name has no comma.
pub(crate) fn write_browsers(browsers: &[BrowserKind]) -> String {
    browsers.iter().map(|kind| kind.as_str()).collect::<Vec<_>>().join(",")
}
