//! The archive of ended sessions: added once, listed by filters in order of id, pruned by age.
//!
//! Its own file because it is beside the journal: no order between rows, nothing that waits. Session ids are native UUIDs
//! here, which order as their text does. Each filter has an index that ends in the id, so a page of a list reads about as
//! many rows as it shows.

use std::fmt::Write as _;

use sqlx::AssertSqlSafe;
use uuid::Uuid;
use wharf_core::{KeyId, SessionId, Timestamp};
use wharf_journal::{ArchiveQuery, ArchiveRow, JournalError};

use crate::{PostgresJournal, append::refuse_nul, sql::safe};

/// Rows per statement: some hundred kilobytes of records.
const CHUNK: usize = 500;
/// Rows pruned per call.
const PRUNED: i64 = 5_000;

impl PostgresJournal {
    pub(crate) async fn add_to_archive(&self, rows: &[ArchiveRow]) -> Result<(), JournalError> {
        for row in rows {
            refuse_nul(&format!("the record of {}", row.session), &row.record)?;
        }
        // In order of id: two that archive the same rows then wait for one another instead of colliding.
        let mut sorted: Vec<&ArchiveRow> = rows.iter().collect();
        sorted.sort_by_key(|row| row.session);
        for chunk in sorted.chunks(CHUNK) {
            self.call(&self.reads, "archive sessions", |mut connection| async move {
                let added = sqlx::query(safe(&self.sql.archive))
                    .bind(chunk.iter().map(|row| row.session.as_uuid()).collect::<Vec<_>>())
                    .bind(chunk.iter().map(|row| row.pool.as_str()).collect::<Vec<_>>())
                    .bind(chunk.iter().map(|row| row.operation.as_str()).collect::<Vec<_>>())
                    .bind(
                        chunk
                            .iter()
                            .map(|row| row.owner.map(|owner| owner.as_uuid()))
                            .collect::<Vec<Option<Uuid>>>(),
                    )
                    .bind(chunk.iter().map(|row| row.reason.as_str()).collect::<Vec<_>>())
                    .bind(chunk.iter().map(|row| row.ended_at.as_micros()).collect::<Vec<_>>())
                    .bind(chunk.iter().map(|row| row.record.as_str()).collect::<Vec<_>>())
                    .execute(&mut connection)
                    .await;
                (connection, added.map(drop).map_err(Into::into))
            })
            .await?;
        }
        Ok(())
    }

    pub(crate) async fn archived_record(&self, session: SessionId) -> Result<Option<String>, JournalError> {
        self.call(&self.reads, "read an archived session", |mut connection| async move {
            let record = sqlx::query_scalar(safe(&self.sql.archived))
                .bind(session.as_uuid())
                .fetch_optional(&mut connection)
                .await;
            (connection, record.map_err(Into::into))
        })
        .await
    }

    pub(crate) async fn archived_records(&self, query: &ArchiveQuery) -> Result<Vec<String>, JournalError> {
        let text = list_text(&self.sql.archived_list, query);
        let text = text.as_str();
        self.call(&self.reads, "list archived sessions", |mut connection| async move {
            let mut list = sqlx::query_scalar(AssertSqlSafe(text));
            for word in words(query).into_iter().flatten() {
                list = list.bind(word);
            }
            let ids = [
                query.owner.as_ref().map(KeyId::as_uuid),
                query.after.as_ref().map(SessionId::as_uuid),
            ];
            for id in ids.into_iter().flatten() {
                list = list.bind(id);
            }
            let records = list.bind(i64::from(query.limit)).fetch_all(&mut connection).await;
            (connection, records.map_err(Into::into))
        })
        .await
    }

    pub(crate) async fn prune_records(&self, ended_by: Timestamp) -> Result<u64, JournalError> {
        self.call(&self.reads, "prune the archive", |mut connection| async move {
            let pruned = sqlx::query(safe(&self.sql.prune))
                .bind(ended_by.as_micros())
                .bind(PRUNED)
                .execute(&mut connection)
                .await;
            (
                connection,
                pruned.map(|pruned| pruned.rows_affected()).map_err(Into::into),
            )
        })
        .await
    }
}

/// The filters that are text, in the order of their parameters.
fn words(query: &ArchiveQuery) -> [Option<&str>; 3] {
    [
        query.pool.as_ref().map(|pool| pool.as_str()),
        query.operation.as_ref().map(|operation| operation.as_str()),
        query.reason.map(|reason| reason.as_str()),
    ]
}

/// Only the filters asked for, so that the planner sees which index serves; the values are parameters.
fn list_text(select: &str, query: &ArchiveQuery) -> String {
    let [pool, operation, reason] = words(query);
    let (beyond, order) = if query.newest_first {
        ("session < ", "DESC")
    } else {
        ("session > ", "ASC")
    };
    let filters = [
        ("pool = ", pool.is_some()),
        ("operation = ", operation.is_some()),
        ("reason = ", reason.is_some()),
        ("owner = ", query.owner.is_some()),
        (beyond, query.after.is_some()),
    ];
    let mut text = select.to_owned();
    let mut parameter = 1;
    for (condition, _) in filters.iter().filter(|(_, is_asked)| *is_asked) {
        let joint = if parameter == 1 { "WHERE" } else { "AND" };
        // Writing to a String cannot fail.
        let _ = write!(text, " {joint} {condition}${parameter}");
        parameter += 1;
    }
    let _ = write!(text, " ORDER BY session {order} LIMIT ${parameter}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_text_has_only_the_filters_asked_for() {
        let mut query = ArchiveQuery::default();
        assert_eq!(list_text("S", &query), "S ORDER BY session ASC LIMIT $1");
        query.reason = Some(wharf_core::EndReason::Released);
        query.after = Some(SessionId::from_uuid(Uuid::nil()));
        query.newest_first = true;
        assert_eq!(
            list_text("S", &query),
            "S WHERE reason = $1 AND session < $2 ORDER BY session DESC LIMIT $3"
        );
    }
}
