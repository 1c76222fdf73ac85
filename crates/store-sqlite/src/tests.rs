//! What only this engine promises: a caller is always answered, the hot statements read by index, and a long queue that
//! is held back costs nobody anything.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rusqlite::Connection;
use wharf_core::{Cover, EndReason, Epoch, LimitScope, LockToken, Operation, PoolName, SessionId, SessionSpec};
use wharf_store::{
    Change, LockWish, Registration, Store, StoreError, StoreRules, Submission, Submitted,
    conformance::{ManualClock, run},
};

use crate::{
    SqliteStore, dispatch, events, holds,
    open::{Durability, open_writer},
    sessions,
    step::Step,
    sweep, views, workers,
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
        owner: None,
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
        (dispatch::HEAD, "sessions_queue"),
        (dispatch::FREE_WORKERS, "workers_free"),
        (sweep::DUE, "sessions_due"),
        (sweep::LAPSED, "sessions_tickets"),
        (sessions::BY_KEY, "sessions_key"),
        (holds::POOL_LIMITS, "PRIMARY KEY"),
        (holds::RUNNING, "PRIMARY KEY"),
        (holds::FORGET_EXPIRED, "locks_by_end"),
        (holds::FILL_BUCKET, "sessions_live"),
        (holds::EMPTY_BUCKET, "sessions_live"),
        (sweep::SILENT, "workers_by_silence"),
        (workers::OTHERS_RENEWING, "workers_by_pool"),
        (events::WAITING, "PRIMARY KEY"),
        (events::AFTER, "PRIMARY KEY"),
        (events::NEWEST, "SEARCH events"),
    ] {
        let steps = plan(&conn, sql);
        assert_eq!(steps.len(), 1, "{sql}: {steps:?}");
        assert!(
            steps[0].starts_with("SEARCH") && steps[0].contains(index),
            "{sql}: {steps:?}"
        );
    }
}

#[test]
fn buckets_and_places_are_found_by_index() {
    let conn = open_writer(None, Durability::Normal).unwrap();
    for sql in [dispatch::BUCKETS, views::POSITION, events::FORGET] {
        for step in plan(&conn, sql) {
            let is_short = ["SCAN b", "SCAN buckets", "SCAN CONSTANT ROW"]
                .iter()
                .any(|table| step.starts_with(table));
            assert!(is_short || !step.starts_with("SCAN"), "{sql}: {step}");
        }
    }
}

/// The log in the file: how many rows, and the numbers they hold.
async fn logged(store: &SqliteStore) -> (u64, u64) {
    let sql = "SELECT count(*), coalesce(sum(last - first + 1), 0) FROM events";
    let read = move |step: &mut Step<'_>| Ok(step.conn.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?);
    let (rows, events): (i64, i64) = store.writer.call(read).await.unwrap();
    (rows.unsigned_abs(), events.unsigned_abs())
}

#[test]
fn step_costs_one_row_of_the_log_and_one_that_did_nothing_none() {
    run(async {
        let store = store();
        store.register(registration()).await.unwrap();
        assert_eq!(logged(&store).await, (1, 2));
        store.submit(submission(1, String::new())).await.unwrap();
        store.submit(submission(1, String::new())).await.unwrap();
        store.sweep().await.unwrap();
        assert_eq!(logged(&store).await, (2, 3));
        // A step that did very much is cut into pieces, so that a page of it can be read by itself.
        let many = |step: &mut Step<'_>| (2..=1_001).try_for_each(|n| step.submit(&scrape(n)).map(drop));
        store.writer.call(many).await.unwrap();
        let page = store.events(0, u32::MAX).await.unwrap();
        assert_eq!((page.newest, page.events.len()), (1_004, 1_004));
        assert_eq!(logged(&store).await, (6, 1_004));
    });
}

#[test]
fn numbers_of_a_step_that_is_undone_are_given_again() {
    run(async {
        let store = store();
        store.register(registration()).await.unwrap();
        let mut changes = store.changes();
        let broken = store.writer.call::<()>(|step| {
            step.submit(&submission(1, String::new()))?;
            step.log()?;
            panic!("a bug");
        });
        // In one batch with others, which are done again by themselves.
        let fine = [
            store.submit(submission(2, String::new())),
            store.submit(submission(3, String::new())),
        ];
        let [second, third] = fine;
        let (broken, second, third) = tokio::join!(broken, second, third);
        assert!(broken.is_err() && second.is_ok() && third.is_ok());
        let page = store.events(2, u32::MAX).await.unwrap();
        let found: Vec<_> = page
            .events
            .iter()
            .map(|event| (event.number, event.what.name()))
            .collect();
        assert_eq!(
            found,
            [(3, "session.placed"), (4, "session.queued"), (5, "queue.changed")]
        );
        assert_eq!(changes.try_recv(), Ok(Change::Noted(3)));
        assert_eq!(changes.try_recv(), Ok(Change::Noted(5)));
        assert!(changes.try_recv().is_err());
    });
}

#[test]
fn newest_row_of_the_log_is_never_forgotten() {
    run(async {
        let store = store();
        let append = |step: &mut Step<'_>| {
            let sql = "INSERT INTO events (last, first, at, body) VALUES (?1, ?1, 0, ?2)";
            let body = r#"[{"queue":{"pool":"default","waiting":1}}]"#;
            let mut statement = step.conn.prepare(sql)?;
            (1..=30_000).try_for_each(|number| statement.execute((number, body)).map(drop))?;
            Ok(())
        };
        store.writer.call(append).await.unwrap();
        // In bounded work each; the last finds nothing left to do.
        for _ in 0..3 {
            store.sweep().await.unwrap();
        }
        let page = store.events(0, 1).await.unwrap();
        assert_eq!(
            (page.oldest, page.newest, page.events[0].number),
            (20_001, 30_000, 20_001)
        );
        store.register(registration()).await.unwrap();
        assert_eq!(store.events(30_000, 1).await.unwrap().events[0].number, 30_001);
    });
}

/// What holds a queue back in the test below.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Hold {
    Slots,
    PoolLimit,
    OperationLimit,
    PoolLock,
    OperationLock,
}

fn operation(name: &str) -> Operation {
    name.parse().unwrap()
}

fn scrape(n: u128) -> Submission {
    let mut one = submission(n, String::new());
    one.spec.operation = operation("scrape");
    one.queue_limit = u64::MAX;
    one
}

/// The steps of SQLite's machine that the work and the log of it took.
fn cost<T>(step: &mut Step<'_>, work: impl FnOnce(&mut Step<'_>) -> T) -> (u64, T) {
    let count = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&count);
    let tick = move || {
        counter.fetch_add(1, Ordering::Relaxed);
        false
    };
    step.conn.progress_handler(1, Some(tick)).unwrap();
    let answer = work(step);
    step.log().unwrap();
    step.conn.progress_handler(0, None::<fn() -> bool>).unwrap();
    (count.load(Ordering::Relaxed), answer)
}

/// What submit, end and vacate cost when this many wait behind this.
fn costs(hold: Hold, waiting: u128) -> [u64; 4] {
    let mut costs = None;
    run(async {
        let store = store();
        let slots = if hold == Hold::Slots { 2 } else { 9 };
        store
            .register(Registration {
                slots,
                ..registration()
            })
            .await
            .unwrap();
        let limit = |scope, max| {
            let pool = PoolName::default();
            let store = &store;
            async move { store.set_limit(&pool, scope, Some(max)).await.unwrap() }
        };
        // Two run; all others wait.
        match hold {
            Hold::Slots => {}
            Hold::OperationLimit => drop(limit(LimitScope::Operation(operation("scrape")), 2).await),
            _ => drop(limit(LimitScope::Pool, 2).await),
        }
        let fill = move |step: &mut Step<'_>| (1..=waiting + 2).try_for_each(|n| step.submit(&scrape(n)).map(drop));
        store.writer.call(fill).await.unwrap();
        assert_eq!(store.stats().await.unwrap().queued, u64::try_from(waiting).unwrap());
        if let Hold::PoolLock | Hold::OperationLock = hold {
            let operations = if hold == Hold::PoolLock {
                vec![]
            } else {
                vec![operation("scrape")]
            };
            let wish = LockWish {
                name: Default::default(),
                token: LockToken::from_uuid(uuid::Uuid::nil()),
                holder: String::new(),
                description: String::new(),
                cover: Cover {
                    pools: Vec::new(),
                    operations,
                },
                ttl: Duration::from_secs(60),
                owner: None,
            };
            store.acquire_lock(wish).await.unwrap();
        }
        let session = |n: u128| SessionId::from_uuid(uuid::Uuid::from_u128(n));
        let work = move |step: &mut Step<'_>| {
            // Under a lock the newcomer is refused, otherwise it waits behind the others.
            let (newcomer, _) = cost(step, |step| step.submit(&scrape(99_999)).map(drop));
            // One that is not held back, or only for want of a slot.
            let (another, _) = cost(step, |step| step.submit(&submission(99_998, String::new())).map(drop));
            let (end, _) = cost(step, |step| {
                step.end(session(waiting + 1), EndReason::Cancelled, None).map(drop)
            });
            let (vacate, freed) = cost(step, |step| step.vacate(session(1), Epoch(1)));
            freed?;
            Ok([newcomer, another, end, vacate])
        };
        costs = Some(store.writer.call(work).await.unwrap());
    });
    costs.unwrap()
}

#[test]
fn long_queue_that_is_held_back_slows_nobody() {
    use Hold::*;
    for hold in [Slots, PoolLimit, OperationLimit, PoolLock, OperationLock] {
        let (short, long) = (costs(hold, 10), costs(hold, 10_000));
        for (few, many) in short.into_iter().zip(long) {
            // A row's worth of difference: which page splits is chance.
            assert!(
                many <= few + few / 10 + 20,
                "{hold:?}: {short:?} with 10 waiting, {long:?} with 10,000"
            );
        }
    }
}
