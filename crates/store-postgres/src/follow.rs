//! Reading pages after a position, in one round trip, with the proof that the position is on this journal.
//!
//! Its own file because reading and appending need the same: the page of the position comes along without its text, and
//! its writer and number must be those the caller knows. Invariant: the pages given out begin right after the position
//! and have no gap; otherwise it is an error and not a shorter answer.

use sqlx::{PgConnection, Row as _, postgres::PgRow};
use uuid::Uuid;
use wharf_core::Timestamp;
use wharf_journal::{JournalError, Page, Position, Tail, Writer};

use crate::{
    PostgresJournal,
    failure::Failure,
    sql::{Statements, safe},
};

/// Whether the limit of trimming holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trimming {
    /// A reader before it must begin again.
    Refuses,
    /// The caller was let through before it moved: what is still there may be read.
    Passes,
}

impl PostgresJournal {
    pub(crate) async fn read_pages(&self, after: Position, limit: u32) -> Result<Tail, JournalError> {
        self.call(&self.reads, "read pages", |mut connection| async move {
            let tail = follow(&mut connection, &self.sql, after, u64::from(limit), Trimming::Refuses).await;
            (connection, tail)
        })
        .await
    }
}

/// The pages after `after`, at most `limit`.
pub(crate) async fn follow(
    connection: &mut PgConnection,
    sql: &Statements,
    after: Position,
    limit: u64,
    trimming: Trimming,
) -> Result<Tail, Failure> {
    let rewound = || Failure::Answer(JournalError::Rewound(after.seq));
    let Ok(from) = i64::try_from(after.seq) else {
        return Err(rewound());
    };
    // The position's own page and one more than asked for.
    let rows = i64::try_from(limit.saturating_add(2)).unwrap_or(i64::MAX);
    let rows = sqlx::query(safe(&sql.follow))
        .bind(from)
        .bind(rows)
        .fetch_all(connection)
        .await?;
    let Some(first) = rows.first() else {
        return Err(corrupt("the row of `wharf_head` is gone".to_owned()));
    };
    let (head, trimmed) = (number(first, "head")?, number(first, "trimmed")?);
    if trimming == Trimming::Refuses && after.seq < trimmed {
        return Err(rewound());
    }
    let mut pages = Vec::with_capacity(rows.len());
    let mut mark = None;
    for row in &rows {
        match row.try_get::<Option<i64>, _>("seq")? {
            None => {}
            Some(seq) if seq == from => mark = Some((Writer(row.try_get("writer")?), number(row, "number")?)),
            Some(_) => pages.push(page(row)?),
        }
    }
    if mark != after.mark || (after.seq > 0 && mark.is_none()) {
        return Err(rewound());
    }
    let is_partial = pages.len() as u64 > limit;
    pages.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    let wanted = head.saturating_sub(after.seq).min(limit);
    if pages.len() as u64 != wanted || !pages.iter().zip(after.seq + 1..).all(|(page, seq)| page.seq == seq) {
        return Err(match trimming {
            Trimming::Passes if after.seq < trimmed => rewound(),
            _ => corrupt(format!(
                "pages between {} and {head} are missing, or are there twice",
                after.seq
            )),
        });
    }
    let clock = first.try_get::<i64, _>("clock")?.max(first.try_get("last_at")?);
    Ok(Tail {
        pages,
        is_partial,
        now: Timestamp::from_micros(clock),
    })
}

/// A page from a row with all its columns.
pub(crate) fn page(row: &PgRow) -> Result<Page, Failure> {
    Ok(Page {
        seq: number(row, "seq")?,
        at: Timestamp::from_micros(row.try_get("appended_at")?),
        writer: Writer(row.try_get::<Uuid, _>("writer")?),
        number: number(row, "number")?,
        body: row.try_get("body")?,
    })
}

/// A count: int8 in the table, never negative.
pub(crate) fn number(row: &PgRow, column: &str) -> Result<u64, Failure> {
    let value: i64 = row.try_get(column)?;
    u64::try_from(value).map_err(|_| corrupt(format!("`{column}` is {value}")))
}

pub(crate) fn corrupt(text: String) -> Failure {
    Failure::Answer(JournalError::Corrupt(text))
}
