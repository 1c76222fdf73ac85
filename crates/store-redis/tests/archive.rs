//! The archive: filters, order, paging, pruning.
#![expect(
    clippy::unwrap_used,
    reason = "a test; the lint knows test functions only, not their helpers"
)]
mod support;

use support::connect;
use uuid::Uuid;
use wharf_core::{EndReason, KeyId, SessionId, Timestamp};
use wharf_journal::{ArchiveQuery, ArchiveRow, Journal};
use wharf_testkit::redis::Server;

fn row(n: u128) -> ArchiveRow {
    ArchiveRow {
        session: SessionId::from_uuid(Uuid::from_u128(n)),
        pool: if n.is_multiple_of(2) { "even" } else { "odd" }.parse().unwrap(),
        operation: if n.is_multiple_of(3) { "agent" } else { "scrape" }.parse().unwrap(),
        owner: (n.is_multiple_of(5)).then(|| KeyId::from_uuid(Uuid::from_u128(n % 2))),
        reason: if n.is_multiple_of(7) {
            EndReason::Killed
        } else {
            EndReason::Released
        },
        ended_at: Timestamp::from_micros(1_000_000 * i64::try_from(n).unwrap()),
        record: format!("{{\"n\":{n},\"text\":\"ź \\u0000\"}}"),
    }
}

fn expected(rows: &[ArchiveRow], query: &ArchiveQuery) -> Vec<String> {
    let mut rows: Vec<&ArchiveRow> = rows.iter().collect();
    rows.sort_by_key(|row| row.session.to_string());
    if query.newest_first {
        rows.reverse();
    }
    let behind = |row: &ArchiveRow| {
        query.after.is_none_or(|after| {
            if query.newest_first {
                row.session < after
            } else {
                row.session > after
            }
        })
    };
    rows.into_iter()
        .filter(|row| behind(row))
        .filter(|row| query.pool.as_ref().is_none_or(|pool| *pool == row.pool))
        .filter(|row| {
            query
                .operation
                .as_ref()
                .is_none_or(|operation| *operation == row.operation)
        })
        .filter(|row| query.owner.is_none_or(|owner| Some(owner) == row.owner))
        .filter(|row| query.reason.is_none_or(|reason| reason == row.reason))
        .take(query.limit as usize)
        .map(|row| row.record.clone())
        .collect()
}

#[tokio::test]
async fn archive_is_filtered_ordered_paged_and_pruned() {
    let server = Server::start().await.unwrap();
    let journal = connect(&server.url()).await;
    let mut rows: Vec<ArchiveRow> = (1..=5000).map(row).collect();
    journal.archive(&[]).await.unwrap();
    journal.archive(&rows).await.unwrap();
    // What is there already stays as it is.
    let mut changed = row(5);
    changed.record = "{}".into();
    changed.pool = "even".parse().unwrap();
    journal.archive(&[changed]).await.unwrap();
    assert_eq!(
        journal.archived(rows[4].session).await.unwrap(),
        Some(rows[4].record.clone())
    );
    assert_eq!(journal.archived(row(9999).session).await.unwrap(), None);

    let all = ArchiveQuery {
        limit: 10_000,
        ..ArchiveQuery::default()
    };
    let key = KeyId::from_uuid(Uuid::from_u128(1));
    let queries = [
        all.clone(),
        ArchiveQuery {
            newest_first: true,
            ..all.clone()
        },
        ArchiveQuery {
            limit: 0,
            ..all.clone()
        },
        ArchiveQuery {
            limit: 700,
            after: Some(row(1234).session),
            ..all.clone()
        },
        ArchiveQuery {
            limit: 700,
            after: Some(row(1234).session),
            newest_first: true,
            ..all.clone()
        },
        ArchiveQuery {
            pool: Some("odd".parse().unwrap()),
            limit: 3,
            ..all.clone()
        },
        ArchiveQuery {
            owner: Some(key),
            reason: Some(EndReason::Killed),
            newest_first: true,
            ..all.clone()
        },
        ArchiveQuery {
            operation: Some("agent".parse().unwrap()),
            owner: Some(key),
            ..all.clone()
        },
        ArchiveQuery {
            pool: Some("none".parse().unwrap()),
            ..all.clone()
        },
        ArchiveQuery {
            limit: 1,
            reason: Some(EndReason::Killed),
            after: Some(row(4000).session),
            ..all.clone()
        },
    ];
    for query in &queries {
        assert_eq!(
            journal.archived_list(query).await.unwrap(),
            expected(&rows, query),
            "{query:?}"
        );
    }

    // Some thousands at a time, those at the time itself included.
    let by = Timestamp::from_micros(4_500_000_000);
    let mut gone = Vec::new();
    while gone.last() != Some(&0) {
        gone.push(journal.prune_archive(by).await.unwrap());
    }
    assert_eq!(gone.iter().sum::<u64>(), 4500);
    assert!(gone.len() > 2, "{gone:?}");
    rows.retain(|row| row.ended_at > by);
    for query in &queries {
        assert_eq!(
            journal.archived_list(query).await.unwrap(),
            expected(&rows, query),
            "{query:?}"
        );
    }
    assert_eq!(journal.archived(row(4500).session).await.unwrap(), None);
    assert_eq!(
        journal.prune_archive(Timestamp::from_micros(i64::MAX)).await.unwrap(),
        500
    );
    assert_eq!(server.command(&["DBSIZE"]).await.unwrap(), "0");
}
