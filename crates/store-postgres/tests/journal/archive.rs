//! The archive: added once, filtered, paged in either order, pruned by age.

use anyhow::{Result, ensure};
use uuid::Uuid;
use wharf_core::{EndReason, KeyId, SessionId, Timestamp};
use wharf_journal::{ArchiveQuery, ArchiveRow, Journal as _, JournalError};

use crate::support::{ISOLATIONS, open, server};

fn session(n: u128) -> SessionId {
    // Spread over the whole range: order by bytes, not by the number's last digits.
    SessionId::from_uuid(Uuid::from_u128(n << 120 | n))
}

fn row(n: u128) -> ArchiveRow {
    let owner = KeyId::from_uuid(Uuid::from_u128(n % 3));
    ArchiveRow {
        session: session(n),
        pool: if n.is_multiple_of(2) { "even" } else { "odd" }
            .parse()
            .expect("a name"),
        operation: if n.is_multiple_of(5) { "five" } else { "other" }
            .parse()
            .expect("a name"),
        owner: (!n.is_multiple_of(3)).then_some(owner),
        reason: if n < 100 {
            EndReason::Released
        } else {
            EndReason::IdleTimeout
        },
        ended_at: Timestamp::from_micros(i64::try_from(n).expect("small") * 1_000),
        record: format!("{{\"n\":{n},\"text\":\"'\\\\u0000 ü\"}}"),
    }
}

/// What the query must answer, by the plainest means.
fn expected(rows: &[ArchiveRow], query: &ArchiveQuery) -> Vec<String> {
    let mut found: Vec<&ArchiveRow> = rows
        .iter()
        .filter(|row| query.pool.as_ref().is_none_or(|pool| *pool == row.pool))
        .filter(|row| {
            query
                .operation
                .as_ref()
                .is_none_or(|operation| *operation == row.operation)
        })
        .filter(|row| query.owner.is_none_or(|owner| Some(owner) == row.owner))
        .filter(|row| query.reason.is_none_or(|reason| reason == row.reason))
        .filter(|row| {
            let text = row.session.to_string();
            query.after.is_none_or(|after| {
                if query.newest_first {
                    text < after.to_string()
                } else {
                    text > after.to_string()
                }
            })
        })
        .collect();
    found.sort_by_key(|row| row.session.to_string());
    if query.newest_first {
        found.reverse();
    }
    found
        .into_iter()
        .take(query.limit as usize)
        .map(|row| row.record.clone())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn archive_is_filtered_paged_and_pruned() -> Result<()> {
    for isolation in ISOLATIONS {
        let server = server(isolation)?;
        let journal = open(&server).await?;
        let rows: Vec<ArchiveRow> = (1..=200).map(row).collect();
        journal.archive(&[]).await?;
        // Two that archive the same rows at once, in opposite order, and again with other contents: the first stays.
        let backwards: Vec<ArchiveRow> = rows.iter().rev().cloned().collect();
        let (one, two) = tokio::join!(journal.archive(&rows), journal.archive(&backwards));
        one?;
        two?;
        journal
            .archive(&[ArchiveRow {
                record: "{}".to_owned(),
                ..row(7)
            }])
            .await?;
        ensure!(journal.archived(session(7)).await? == Some(row(7).record));
        ensure!(journal.archived(session(201)).await?.is_none());
        for bits in 0..64_u32 {
            let on = |bit: u32| bits & (1 << bit) != 0;
            let query = ArchiveQuery {
                pool: on(0).then(|| row(2).pool),
                operation: on(1).then(|| row(5).operation),
                owner: on(2).then_some(KeyId::from_uuid(Uuid::from_u128(1))),
                reason: on(3).then_some(EndReason::IdleTimeout),
                after: on(4).then(|| session(120)),
                newest_first: on(5),
                limit: 10,
            };
            ensure!(
                journal.archived_list(&query).await? == expected(&rows, &query),
                "{query:?}"
            );
        }
        ensure!(
            journal.archived_list(&ArchiveQuery::default()).await?.is_empty(),
            "a limit of none"
        );
        // Removed up to and including that time.
        ensure!(journal.prune_archive(Timestamp::from_micros(50_000)).await? == 50);
        ensure!(journal.prune_archive(Timestamp::from_micros(50_000)).await? == 0);
        ensure!(journal.archived(session(50)).await?.is_none() && journal.archived(session(51)).await?.is_some());
        let nul = journal
            .archive(&[ArchiveRow {
                record: "\0".to_owned(),
                ..row(9)
            }])
            .await;
        ensure!(
            matches!(&nul, Err(JournalError::Corrupt(why)) if why.contains("NUL")),
            "{nul:?}"
        );
    }
    Ok(())
}
