//! The archive: records of ended sessions by id, listed in order of id, pruned by age.
//!
//! Its own file because it has nothing to do with the journal but the address. A record is a hash field; beside it stand
//! the few columns that lists are filtered by, a sorted set of ids (all with the same score, hence ordered as text) and
//! a sorted set by time of end. Filters are applied while reading through the ids: an archive is looked at by people,
//! and an index per filter would cost every session's end.
//!
//! Invariant: no script looks at more than a thousand records at once, so that appends never wait long behind a list.

use redis::Value;
use wharf_core::{KeyId, SessionId, Timestamp};
use wharf_journal::{ArchiveQuery, ArchiveRow, JournalError};

use crate::{
    RedisJournal,
    link::Ask,
    reply::{list, number_of, text},
    scripts::{ARCHIVE_ADD, ARCHIVE_LIST, ARCHIVE_PRUNE},
};

/// How many rows are added by one script.
const ADD: usize = 200;
/// How many matching records one script answers with.
const PART: u32 = 500;
/// How many records one script removes, and how many of them run in one call.
const PRUNE: u64 = 500;
const PRUNES: u64 = 8;
/// Instead of no owner: a key's id never looks like this.
const NOBODY: &str = "-";

impl RedisJournal {
    pub(crate) async fn archive_add(&self, rows: &[ArchiveRow]) -> Result<(), JournalError> {
        for rows in rows.chunks(ADD) {
            let mut call = ARCHIVE_ADD.call(&self.keys.archive);
            for row in rows {
                // Neither of them can hold a space.
                let columns = format!("{} {} {} {}", row.pool, row.operation, owner(row.owner), row.reason);
                call.arg(row.session.to_string())
                    .arg(columns)
                    .arg(row.ended_at.as_micros())
                    .arg(&row.record);
            }
            self.bulk.call(&Ask::script(&ARCHIVE_ADD, call), self.long()).await?;
        }
        Ok(())
    }

    pub(crate) async fn archive_get(&self, session: SessionId) -> Result<Option<String>, JournalError> {
        let mut get = redis::cmd("HGET");
        get.arg(self.keys.records()).arg(session.to_string());
        let values = self.bulk.call(&Ask::one(get), self.options.response_timeout).await?;
        match values.into_iter().next() {
            None | Some(Value::Nil) => Ok(None),
            Some(record) => text(record).map(Some),
        }
    }

    pub(crate) async fn archive_list(&self, query: &ArchiveQuery) -> Result<Vec<String>, JournalError> {
        let mut records = Vec::new();
        let mut after = query.after.map(|id| id.to_string()).unwrap_or_default();
        while let Some(missing) = left(query.limit, records.len()) {
            let mut call = ARCHIVE_LIST.call(&self.keys.archive);
            call.arg(&after)
                .arg(u8::from(query.newest_first))
                .arg(missing.min(PART));
            call.arg(query.pool.as_ref().map_or("", |pool| pool.as_str()));
            call.arg(query.operation.as_ref().map_or("", |operation| operation.as_str()));
            call.arg(query.owner.map(|key| key.to_string()).unwrap_or_default());
            call.arg(query.reason.map_or("", |reason| reason.as_str()));
            let values = self.bulk.call(&Ask::script(&ARCHIVE_LIST, call), self.long()).await?;
            let mut part = list(values.into_iter().next().unwrap_or_default())?.into_iter();
            after = text(part.next().unwrap_or_default())?;
            for record in part {
                records.push(text(record)?);
            }
            if after.is_empty() {
                break;
            }
        }
        Ok(records)
    }

    pub(crate) async fn archive_prune(&self, ended_by: Timestamp) -> Result<u64, JournalError> {
        let mut gone = 0;
        for _ in 0..PRUNES {
            let mut call = ARCHIVE_PRUNE.call(&self.keys.archive);
            call.arg(ended_by.as_micros()).arg(PRUNE);
            let values = self.bulk.call(&Ask::script(&ARCHIVE_PRUNE, call), self.long()).await?;
            let count = number_of(values.into_iter().next().unwrap_or_default())?;
            gone += count;
            if count < PRUNE {
                break;
            }
        }
        Ok(gone)
    }
}

fn owner(key: Option<KeyId>) -> String {
    key.map_or_else(|| NOBODY.to_owned(), |key| key.to_string())
}

/// How many records are missing; nothing if none.
fn left(limit: u32, found: usize) -> Option<u32> {
    limit
        .checked_sub(u32::try_from(found).unwrap_or(u32::MAX))
        .filter(|left| *left > 0)
}
