//! Appending a page exactly once.
//!
//! Its own file because this is the one statement on which the order of everything rests (see `sql`), and because of what
//! happens when its answer is lost: the attempt is simply made again under the same (writer, number). If the first one had
//! been committed, the unique key refuses the second as a whole, the head stays where it was, and the page that is there
//! is the answer. Nothing is guessed.

use sqlx::{PgConnection, Row as _};
use wharf_core::Timestamp;
use wharf_journal::{Draft, JournalError, Page, Position, Tail};

use crate::{
    PostgresJournal,
    failure::{Failure, Meaning},
    follow::{Trimming, corrupt, follow, number, page},
    sql::{Statements, safe},
};

impl PostgresJournal {
    pub(crate) async fn append_page(&self, after: Position, draft: &Draft) -> Result<Tail, JournalError> {
        refuse_nul("the page", &draft.body)?;
        self.call(&self.appends, "append a page", |mut connection| async move {
            let tail = attempt(&mut connection, &self.sql, after, draft).await;
            (connection, tail)
        })
        .await
    }
}

/// PostgreSQL's text holds every character but this one. JSON writes it as `\u0000`, so a page never has it.
pub(crate) fn refuse_nul(what: &str, text: &str) -> Result<(), JournalError> {
    match text.find('\0') {
        None => Ok(()),
        Some(at) => Err(JournalError::Corrupt(format!(
            "{what} holds a NUL character at byte {at}, which PostgreSQL cannot keep; JSON writes it as \\u0000"
        ))),
    }
}

async fn attempt(
    connection: &mut PgConnection,
    sql: &Statements,
    after: Position,
    draft: &Draft,
) -> Result<Tail, Failure> {
    let (Ok(from), Ok(count)) = (i64::try_from(after.seq), i64::try_from(draft.number)) else {
        return Err(JournalError::Rewound(after.seq).into());
    };
    let rows = sqlx::query(safe(&sql.append))
        .bind(draft.at.map(Timestamp::as_micros))
        .bind(from)
        .bind(after.mark.map(|(writer, _)| writer.0))
        .bind(after.mark.and_then(|(_, number)| i64::try_from(number).ok()))
        .bind(draft.writer.0)
        .bind(count)
        .bind(&draft.body)
        .fetch_all(&mut *connection)
        .await;
    let rows = match rows {
        Ok(rows) => rows,
        Err(error) if Meaning::of(&error) == Meaning::Duplicate => {
            return settle(connection, sql, after, draft, Refusal::Duplicate).await;
        }
        Err(error) => return Err(error.into()),
    };
    let (mut own, mut pages) = (None, Vec::with_capacity(rows.len()));
    for row in &rows {
        if row.try_get("is_own")? {
            own = Some((number(row, "seq")?, Timestamp::from_micros(row.try_get("appended_at")?)));
        } else {
            pages.push(page(row)?);
        }
    }
    let Some((seq, at)) = own else {
        return settle(connection, sql, after, draft, Refusal::Position).await;
    };
    pages.sort_unstable_by_key(|page| page.seq);
    fill(connection, sql, after, seq, &mut pages).await?;
    pages.push(own_page(draft, seq, at));
    Ok(Tail {
        pages,
        is_partial: false,
        now: at,
    })
}

/// What was committed while we waited for the head was not visible to the append itself.
async fn fill(
    connection: &mut PgConnection,
    sql: &Statements,
    after: Position,
    own: u64,
    pages: &mut Vec<Page>,
) -> Result<(), Failure> {
    let unbroken = pages
        .iter()
        .zip(after.seq + 1..own)
        .take_while(|(page, seq)| page.seq == *seq)
        .count();
    pages.truncate(unbroken);
    let from = pages.last().map_or(after, |page| Position {
        seq: page.seq,
        mark: Some((page.writer, page.number)),
    });
    let missing = own - 1 - from.seq;
    if missing > 0 {
        pages.extend(follow(connection, sql, from, missing, Trimming::Passes).await?.pages);
    }
    Ok(())
}

/// Why the statement appended nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// (writer, number) is taken, or, if the head is damaged, the page's place.
    Duplicate,
    /// The position is not on the journal, or no longer.
    Position,
}

/// Nothing was appended now: was it before, and if not, why not?
async fn settle(
    connection: &mut PgConnection,
    sql: &Statements,
    after: Position,
    draft: &Draft,
    refusal: Refusal,
) -> Result<Tail, Failure> {
    let found = sqlx::query(safe(&sql.find))
        .bind(draft.writer.0)
        .bind(i64::try_from(draft.number).unwrap_or(i64::MAX))
        .fetch_optional(&mut *connection)
        .await?;
    let Some(found) = found else {
        follow(connection, sql, after, 0, Trimming::Refuses).await?;
        return Err(match refusal {
            Refusal::Duplicate => {
                corrupt("the next page's place is taken: `wharf_head` is behind `wharf_pages`".to_owned())
            }
            Refusal::Position => Failure::Again,
        });
    };
    let (seq, at) = (
        number(&found, "seq")?,
        Timestamp::from_micros(found.try_get("appended_at")?),
    );
    let missed = seq.saturating_sub(after.seq).saturating_sub(1);
    let mut tail = follow(connection, sql, after, missed, Trimming::Passes).await?;
    // A caller that begins after its own page (it had to start again from a checkpoint that has it) is told of it alone.
    tail.pages.push(own_page(draft, seq, at));
    tail.is_partial = false;
    Ok(tail)
}

fn own_page(draft: &Draft, seq: u64, at: Timestamp) -> Page {
    Page {
        seq,
        at,
        writer: draft.writer,
        number: draft.number,
        body: draft.body.clone(),
    }
}
