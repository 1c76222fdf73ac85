//! The checkpoint, and trimming what it covers.
//!
//! Its own file because of a promise to writers: an append that was accepted can read what it missed, and a page whose
//! answer was lost is found again, though others trim at the same time. Hence pages are refused to readers at once but
//! deleted a grace later, and the last page of every writer is remembered for a day. The page *at* the limit stays: it
//! proves the position of a reader who is exactly there.

use std::time::Duration;

use sqlx::{PgConnection, Row as _};
use wharf_core::Timestamp;
use wharf_journal::{Checkpoint, JournalError, Position, Writer};

use crate::{
    PostgresJournal,
    append::refuse_nul,
    failure::Failure,
    follow::number,
    sql::{Statements, safe},
};

/// Longer than any append takes with all its retries.
const GRACE: Duration = Duration::from_secs(30);
/// How long a writer may take to ask again for its last page.
const MEMORY: Duration = Duration::from_secs(24 * 60 * 60);
/// Pages per statement, and statements per call: a backlog is worked off over several calls, none of them long.
const BATCH: i64 = 1_000;
const BATCHES: u32 = 10;

impl PostgresJournal {
    pub(crate) async fn newest_checkpoint(&self) -> Result<Option<Checkpoint>, JournalError> {
        self.call(&self.reads, "read the checkpoint", |mut connection| async move {
            let checkpoint = newest(&mut connection, &self.sql).await;
            (connection, checkpoint)
        })
        .await
    }

    pub(crate) async fn keep_checkpoint(&self, checkpoint: &Checkpoint, trim_to: u64) -> Result<(), JournalError> {
        refuse_nul("the checkpoint", &checkpoint.image)?;
        let deletable = self
            .call(&self.reads, "keep a checkpoint", |mut connection| async move {
                let deletable = keep(&mut connection, &self.sql, checkpoint, trim_to).await;
                (connection, deletable)
            })
            .await?;
        for _ in 0..BATCHES {
            let gone = self
                .call(&self.reads, "trim the journal", |mut connection| async move {
                    let gone = delete(&mut connection, &self.sql, deletable).await;
                    (connection, gone)
                })
                .await?;
            if gone < BATCH.unsigned_abs() {
                break;
            }
        }
        Ok(())
    }
}

async fn newest(connection: &mut PgConnection, sql: &Statements) -> Result<Option<Checkpoint>, Failure> {
    let Some(row) = sqlx::query(safe(&sql.checkpoint)).fetch_optional(connection).await? else {
        return Ok(None);
    };
    let mark = match row.try_get("writer")? {
        Some(writer) => Some((Writer(writer), number(&row, "number")?)),
        None => None,
    };
    Ok(Some(Checkpoint {
        position: Position {
            seq: number(&row, "seq")?,
            mark,
        },
        at: Timestamp::from_micros(row.try_get("appended_at")?),
        image: row.try_get("image")?,
    }))
}

/// Before which page deleting is allowed now.
async fn keep(
    connection: &mut PgConnection,
    sql: &Statements,
    checkpoint: &Checkpoint,
    trim_to: u64,
) -> Result<i64, Failure> {
    let position = checkpoint.position;
    let int = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let kept = sqlx::query(safe(&sql.keep))
        .bind(int(position.seq))
        .bind(position.mark.map(|(writer, _)| writer.0))
        .bind(position.mark.map(|(_, number)| int(number)))
        .bind(checkpoint.at.as_micros())
        .bind(&checkpoint.image)
        .execute(&mut *connection)
        .await?;
    if kept.rows_affected() == 0 {
        // There is a newer one, or this one's page is not on the journal.
        let newest = newest(connection, sql).await?.map_or(0, |newest| newest.position.seq);
        if position.seq > newest {
            return Err(JournalError::Rewound(position.seq).into());
        }
    }
    let deletable = sqlx::query_scalar(safe(&sql.trim))
        .bind(int(trim_to))
        .bind(micros(GRACE))
        .fetch_one(connection)
        .await?;
    Ok(deletable)
}

async fn delete(connection: &mut PgConnection, sql: &Statements, before: i64) -> Result<u64, Failure> {
    let gone = sqlx::query(safe(&sql.delete_pages))
        .bind(before)
        .bind(micros(MEMORY))
        .bind(BATCH)
        .execute(connection)
        .await?;
    Ok(gone.rows_affected())
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}
