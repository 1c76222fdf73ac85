//! What only this engine promises: a caller is always answered, and the hot statements read by index.

use std::sync::Arc;

use rusqlite::Connection;
use wharf_core::SessionSpec;
use wharf_store::{
    Registration, Store, StoreError, StoreRules, Submission, Submitted,
    conformance::{ManualClock, run},
};

use crate::{
    SqliteStore,
    open::{Durability, open_writer},
    step, sweep,
};

fn store() -> SqliteStore {
    SqliteStore::in_memory(Arc::new(ManualClock::new()), StoreRules::default()).unwrap()
}

fn registration() -> Registration {
    Registration {
        worker: wharf_core::WorkerId::from_uuid(uuid::Uuid::from_u128(1)),
        pool: Default::default(),
        browsers: vec![Default::default()],
        slots: 1,
        address: String::new(),
        is_ready: true,
    }
}

fn submission(n: u128, description: String) -> Submission {
    Submission {
        session: wharf_core::SessionId::from_uuid(uuid::Uuid::from_u128(n)),
        coordinator: wharf_core::CoordinatorId::from_uuid(uuid::Uuid::from_u128(1)),
        spec: SessionSpec {
            description,
            ..SessionSpec::default()
        },
        idempotency_key: None,
        queue_limit: 10,
    }
}

#[test]
fn panic_in_one_operation_is_undone_and_told_and_others_go_on() {
    run(async {
        let store = store();
        let broken = store.writer.call::<()>(|step| {
            step.register(&registration())?;
            panic!("a bug");
        });
        let (broken, fine) = tokio::join!(broken, store.stats());
        assert!(matches!(broken, Err(StoreError::Unavailable(_))), "{broken:?}");
        assert_eq!(fine.unwrap().workers, 0, "what it had done is undone");
        assert_eq!(store.changes().try_recv().ok(), None);
        store.register(registration()).await.unwrap();
        assert_eq!(store.stats().await.unwrap().workers, 1);
    });
}

#[test]
fn full_disk_is_told_and_nothing_of_the_operation_stays() {
    run(async {
        let store = store();
        store.register(registration()).await.unwrap();
        let limit = |pages: u32| {
            store.writer.call(move |step| {
                let used: u32 = step.conn.query_row("PRAGMA page_count", [], |row| row.get(0))?;
                let sql = format!("PRAGMA max_page_count = {}", used + pages);
                Ok(step.conn.query_row(&sql, [], |_| Ok(()))?)
            })
        };
        limit(4).await.unwrap();
        let big = store.submit(submission(1, "x".repeat(1 << 20))).await;
        assert!(matches!(big, Err(StoreError::Unavailable(_))), "{big:?}");
        limit(10_000).await.unwrap();
        assert_eq!(store.stats().await.unwrap().busy, 0);
        let again = store.submit(submission(1, "x".repeat(1 << 20))).await.unwrap();
        assert!(matches!(again, Submitted::Placed(_)));
    });
}

#[test]
fn closed_store_says_so_and_closes_again() {
    run(async {
        let store = store();
        store.close().await.unwrap();
        assert!(matches!(store.stats().await, Err(StoreError::Unavailable(_))));
        store.close().await.unwrap();
    });
}

/// How SQLite would run a statement, one line per step.
fn plan(conn: &Connection, sql: &str) -> Vec<String> {
    let mut statement = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
    for index in 1..=statement.parameter_count() {
        statement.raw_bind_parameter(index, 1).unwrap();
    }
    let mut rows = statement.raw_query();
    let mut steps = Vec::new();
    while let Some(row) = rows.next().unwrap() {
        steps.push(row.get::<_, String>(3).unwrap());
    }
    steps
}

#[test]
fn hot_statements_read_by_their_index_and_never_sort() {
    let conn = open_writer(None, Durability::Normal).unwrap();
    for (sql, index) in [
        (step::HEAD, "sessions_queue"),
        (step::FREE_WORKERS, "workers_free"),
        (sweep::DUE, "sessions_due"),
        (sweep::LAPSED, "sessions_tickets"),
    ] {
        let steps = plan(&conn, sql);
        assert_eq!(steps.len(), 1, "{sql}: {steps:?}");
        assert!(
            steps[0].starts_with("SEARCH") && steps[0].contains(index),
            "{sql}: {steps:?}"
        );
    }
}
