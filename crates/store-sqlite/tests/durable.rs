//! What a file adds: restarts, crashes, one process per file, many callers at once.
#![expect(clippy::unwrap_used, reason = "a helper that fails is a failed test")]

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

use tokio::task::JoinSet;
use uuid::Uuid;
use wharf_core::{
    CoordinatorId, Cover, EndReason, Epoch, Isolation, KeyId, LimitScope, LockToken, PoolName, SessionId, SessionSpec,
    SessionStatus, Timeouts, WorkerId, WorkerState,
};
use wharf_store::{
    Change, Heartbeat, HeartbeatReply, KeyRole, Load, LockWish, NewKey, Registration, SessionQuery, Store, StoreRules,
    Submission, Submitted,
    conformance::{ManualClock, run},
    invariants,
};
use wharf_store_sqlite::{Durability, OpenError, SqliteStore};

/// Names the file to the child of the crash test.
const CHILD_FILE: &str = "WHARF_TEST_CHILD_FILE";

fn open(path: &Path) -> SqliteStore {
    SqliteStore::open(
        path,
        Durability::Normal,
        Arc::new(ManualClock::new()),
        StoreRules::default(),
    )
    .unwrap()
}

fn session(n: u128) -> SessionId {
    SessionId::from_uuid(Uuid::from_u128(n))
}

fn submission(n: u128) -> Submission {
    Submission {
        session: session(n),
        coordinator: CoordinatorId::from_uuid(Uuid::from_u128(1)),
        spec: SessionSpec::default(),
        owner: None,
        idempotency_key: Some(format!("key-{n}")),
        queue_limit: u64::MAX,
    }
}

fn registration(n: u128, slots: u32) -> Registration {
    Registration {
        worker: WorkerId::from_uuid(Uuid::from_u128(n)),
        pool: Default::default(),
        browsers: vec![Default::default()],
        slots,
        address: String::new(),
        is_ready: true,
    }
}

async fn violations(store: &SqliteStore) -> Vec<String> {
    invariants::violations(&store.snapshot().await.unwrap())
}

#[test]
fn everything_is_there_after_a_close() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/wharf.db");
        let store = open(&path);
        store.register(registration(1, 1)).await.unwrap();
        store.submit(submission(1)).await.unwrap();
        store.activate(session(1), Epoch(1)).await.unwrap();
        store.submit(submission(2)).await.unwrap();
        let before = store.snapshot().await.unwrap();
        store.close().await.unwrap();
        let log = path.with_extension("db-wal");
        assert!(
            !log.exists() || log.metadata().unwrap().len() == 0,
            "the log was written back"
        );

        let store = open(&path);
        assert_eq!(store.snapshot().await.unwrap(), before);
        assert!(matches!(
            store.submit(submission(1)).await.unwrap(),
            Submitted::Known(_)
        ));
        let Submitted::Queued { record, position } = store.submit(submission(3)).await.unwrap() else {
            panic!()
        };
        assert_eq!(position, 2);
        assert!(record.number > store.session(session(2)).await.unwrap().unwrap().number);
        assert_eq!(violations(&store).await, Vec::<String>::new());
        store.close().await.unwrap();
    });
}

#[test]
fn restart_ends_what_could_not_survive() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("wharf.db");
        let store = open(&path);
        store.register(registration(1, 3)).await.unwrap();
        for n in 1..=5 {
            store.submit(submission(n)).await.unwrap();
        }
        store.activate(session(1), Epoch(1)).await.unwrap();
        store.end(session(2), EndReason::Released, None).await.unwrap();
        store.close().await.unwrap();

        let store = open(&path);
        let freed = store.recover("wharf was restarted").await.unwrap();
        let reasons: Vec<_> = freed.ended.iter().map(|ended| ended.reason).collect();
        let (lost, cancelled) = (EndReason::WorkerLost, EndReason::Cancelled);
        assert_eq!(reasons, [lost, lost, cancelled, cancelled]);
        let snapshot = store.snapshot().await.unwrap();
        assert!(snapshot.sessions.iter().all(|record| record.state.is_ended()));
        assert!(
            snapshot
                .workers
                .iter()
                .all(|worker| worker.state == WorkerState::Gone && worker.busy == 0)
        );
        assert_eq!(snapshot.leases, []);
        let first = store.session(session(1)).await.unwrap().unwrap();
        assert_eq!(first.detail.as_deref(), Some("wharf was restarted"));
        let second = store.session(session(2)).await.unwrap().unwrap();
        assert_eq!(second.reason(), Some(EndReason::Released));
        assert_eq!(store.stats().await.unwrap(), wharf_store::Stats::default());
        store.register(registration(1, 3)).await.unwrap();
        assert!(matches!(
            store.submit(submission(9)).await.unwrap(),
            Submitted::Placed(_)
        ));
        assert_eq!(violations(&store).await, Vec::<String>::new());
        store.close().await.unwrap();
    });
}

#[test]
fn second_process_is_refused_and_told_which_file() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("wharf.db");
        let store = open(&path);
        let clock = Arc::new(ManualClock::new());
        let second = SqliteStore::open(&path, Durability::Full, clock, StoreRules::default());
        let Err(error @ OpenError::InUse(_)) = second else {
            panic!("it was opened twice")
        };
        assert!(error.to_string().contains("wharf.db.lock"), "{error}");
        store.close().await.unwrap();
        open(&path).close().await.unwrap();
    });
}

#[test]
fn file_of_a_later_version_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wharf.db");
    let later = rusqlite::Connection::open(&path).unwrap();
    later.pragma_update(None, "user_version", 999).unwrap();
    drop(later);
    let clock = Arc::new(ManualClock::new());
    let refused = SqliteStore::open(&path, Durability::Normal, clock, StoreRules::default()).err();
    assert!(
        matches!(refused, Some(OpenError::Newer { found: 999, .. })),
        "{refused:?}"
    );
}

/// Limits and keys are the operator's word; a lock is somebody's who may be alive, and has an end of its own.
#[test]
fn limits_locks_and_keys_survive_a_restart() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("wharf.db");
        let store = open(&path);
        let key = KeyId::from_uuid(Uuid::from_u128(1));
        let (pool, name) = (PoolName::default(), Default::default());
        let of = |n| Submission {
            owner: Some(key),
            ..submission(n)
        };
        let operation = || LimitScope::Operation("scrape".parse().unwrap());
        store.register(registration(1, 5)).await.unwrap();
        let new = NewKey {
            id: key,
            name: "ci".to_owned(),
            hash: [7; 32],
            role: KeyRole::Admin,
            max_sessions: Some(2),
        };
        store.create_key(new).await.unwrap();
        store.set_limit(&pool, LimitScope::Pool, Some(1)).await.unwrap();
        store.set_limit(&pool, operation(), Some(0)).await.unwrap();
        store.submit(of(1)).await.unwrap();
        store.submit(of(2)).await.unwrap();
        let wish = LockWish {
            name,
            token: LockToken::from_uuid(Uuid::from_u128(1)),
            holder: "deploy".to_owned(),
            description: String::new(),
            cover: Cover {
                pools: vec![pool.clone()],
                operations: vec!["scrape".parse().unwrap()],
            },
            ttl: std::time::Duration::from_secs(10),
            owner: Some(key),
        };
        store.acquire_lock(wish.clone()).await.unwrap();
        let before = store.snapshot().await.unwrap();
        assert_eq!(before.keys[0].held, 2);
        store.close().await.unwrap();

        let store = open(&path);
        assert_eq!(store.snapshot().await.unwrap(), before);
        store.recover("wharf was restarted").await.unwrap();
        let after = store.snapshot().await.unwrap();
        assert_eq!((after.limits, &after.locks), (before.limits, &before.locks));
        assert_eq!((after.keys[0].held, after.keys[0].max_sessions), (0, Some(2)));
        store.register(registration(1, 5)).await.unwrap();
        let mut scrape = of(3);
        scrape.spec.operation = "scrape".parse().unwrap();
        assert!(matches!(
            store.submit(scrape).await.unwrap(),
            Submitted::Locked(lock) if *lock == before.locks[0]
        ));
        assert!(matches!(store.submit(of(4)).await.unwrap(), Submitted::Placed(_)));
        assert!(matches!(
            store.submit(of(5)).await.unwrap(),
            Submitted::Queued { position: 1, .. }
        ));
        assert!(matches!(
            store.submit(of(6)).await.unwrap(),
            Submitted::QuotaReached { held: 2, limit: 2 }
        ));
        assert_eq!(violations(&store).await, Vec::<String>::new());
        store.close().await.unwrap();
    });
}

/// The names of all events that are kept, which are numbered without gaps.
async fn names(store: &SqliteStore) -> Vec<&'static str> {
    let page = store.events(0, u32::MAX).await.unwrap();
    let numbers = page.events.iter().map(|event| event.number);
    assert!(numbers.eq(page.oldest..=page.newest), "{page:?}");
    page.events.iter().map(|event| event.what.name()).collect()
}

#[test]
fn events_and_drain_orders_survive_a_restart() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("wharf.db");
        let store = open(&path);
        let load = Load {
            cpu_permille: 1,
            memory_used: 2,
            memory_limit: 3,
            pressure_permille: 4,
        };
        let beat = |n: u128| Heartbeat {
            worker: WorkerId::from_uuid(Uuid::from_u128(n)),
            held: vec![(session(1), Epoch(1))],
            is_circuit_open: false,
            is_ready: true,
            is_draining: false,
            warm: 0,
            launching: 0,
            load,
            wants_recycling: false,
        };
        store.register(registration(1, 1)).await.unwrap();
        store.submit(submission(1)).await.unwrap();
        store.submit(submission(2)).await.unwrap();
        store.heartbeat(beat(1)).await.unwrap();
        store.drain_worker(beat(1).worker).await.unwrap().unwrap();
        let before = store.events(0, u32::MAX).await.unwrap();
        store.close().await.unwrap();

        let store = open(&path);
        assert_eq!(store.events(0, u32::MAX).await.unwrap(), before);
        let row = store.workers(None).await.unwrap().remove(0);
        assert_eq!((row.state, row.load), (WorkerState::Draining, load));
        let reply = store.heartbeat(beat(1)).await.unwrap();
        assert!(
            matches!(reply, HeartbeatReply::Known { drain: true, ref end, .. } if end.is_empty()),
            "{reply:?}"
        );
        store.vacate(session(1), Epoch(1)).await.unwrap();
        assert_eq!(store.stats().await.unwrap().queued, 1, "it gets nothing");
        let mut changes = store.changes();
        store.recover("wharf was restarted").await.unwrap();
        let told: Vec<_> = std::iter::from_fn(|| changes.try_recv().ok()).collect();
        let newest = before.newest + 4;
        assert!(
            matches!(told[..], [Change::Ended(_), Change::Noted(number)] if number == newest),
            "{told:?}"
        );
        let expected = [
            "worker.registered",
            "worker.available",
            "session.placed",
            "session.queued",
            "queue.changed",
            "worker.draining",
            "session.ended",
            "worker.gone",
            "session.ended",
            "queue.changed",
        ];
        assert_eq!(names(&store).await, expected);
        store.recover("wharf was restarted").await.unwrap();
        assert_eq!(names(&store).await.len(), expected.len(), "what has ended ends no more");
        store.close().await.unwrap();

        let store = open(&path);
        store.register(registration(1, 1)).await.unwrap();
        assert_eq!(
            names(&store).await[expected.len()..],
            ["worker.registered", "worker.available"]
        );
        store.close().await.unwrap();
    });
}

/// A file as the first version left it: one worker, one session that runs, two that wait, one that has ended.
fn first_version(path: &Path) {
    let conn = rusqlite::Connection::open(path).unwrap();
    conn.execute_batch(include_str!("../migrations/0001_initial.sql"))
        .unwrap();
    conn.pragma_update(None, "user_version", 1).unwrap();
    let now = 1_700_000_000_000_000_i64;
    let worker = *Uuid::from_u128(1).as_bytes();
    conn.execute(
        "INSERT INTO workers (id, pool, browsers, slots, state, is_circuit_open, address, registered_at, heard_at) \
         VALUES (?1, 'default', 'chromium', 1, 'available', 0, '', ?2, ?2)",
        (worker, now),
    )
    .unwrap();
    let timeouts = serde_json::to_string(&Timeouts::default()).unwrap();
    let body = serde_json::json!({ "description": "", "data": {}, "options": {},
        "isolation": Isolation::default(), "keep_alive": true });
    for n in 1..=4_u8 {
        conn.execute(
            "INSERT INTO sessions (number, id, pool, browser, priority, operation, status, epoch, is_leased, coordinator, \
             idempotency_key, queued_at, joined_at, excluded, timeouts) \
             VALUES (?1, ?2, 'default', 'chromium', 0, 'session', 'queued', 0, 0, ?3, ?4, ?5, ?5, x'', ?6)",
            (n, session(n.into()).as_uuid().into_bytes(), worker, format!("key-{n}"), now, &timeouts),
        )
        .unwrap();
        conn.execute(
            "INSERT INTO specs (number, body) VALUES (?1, ?2)",
            (n, body.to_string()),
        )
        .unwrap();
    }
    conn.execute(
        "UPDATE sessions SET status = 'active', epoch = 1, is_leased = 1, worker = ?1, placed_at = ?2, started_at = ?2 \
         WHERE number = 1",
        (worker, now),
    )
    .unwrap();
    conn.execute(
        "UPDATE sessions SET status = 'ended', reason = 'cancelled', ended_at = ?1 WHERE number = 4",
        [now],
    )
    .unwrap();
}

#[test]
fn file_of_the_first_version_opens_with_all_it_holds() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("wharf.db");
        first_version(&path);
        let store = open(&path);
        assert_eq!(violations(&store).await, Vec::<String>::new());
        assert_eq!(store.events(0, 9).await.unwrap().newest, 0);
        assert_eq!(store.workers(None).await.unwrap()[0].load, Load::default());
        let pool = PoolName::default();
        let report = store.pool(&pool).await.unwrap();
        assert_eq!((report.active, report.running, report.queued), (1, 1, 2));
        assert_eq!((report.operations[0].running, report.operations[0].queued), (1, 2));
        assert!(matches!(
            store.submit(submission(1)).await.unwrap(),
            Submitted::Known(record) if record.owner.is_none()
        ));
        // What it holds takes part in what is new.
        let scope = LimitScope::Operation("session".parse().unwrap());
        store.set_limit(&pool, scope.clone(), Some(1)).await.unwrap();
        store.register(registration(2, 5)).await.unwrap();
        assert_eq!(store.stats().await.unwrap().queued, 2);
        let freed = store.set_limit(&pool, scope, Some(2)).await.unwrap();
        assert_eq!(freed.placed[0].session, session(2));
        let freed = store.vacate(session(1), Epoch(1)).await.unwrap();
        assert_eq!(freed.placed[0].session, session(3));
        let expected = "worker.registered worker.available session.placed queue.changed session.ended session.placed \
                        queue.changed";
        assert_eq!(names(&store).await.join(" "), expected);
        assert_eq!(violations(&store).await, Vec::<String>::new());
        store.close().await.unwrap();
    });
}

/// One client: submits, waits for its turn, runs, ends, vacates.
async fn client(store: Arc<SqliteStore>, n: u128) {
    let mut changes = store.changes();
    if let Submitted::Queued { .. } = store.submit(submission(n)).await.unwrap() {
        if n.is_multiple_of(5) {
            store.end(session(n), EndReason::Cancelled, None).await.unwrap();
        }
        // Lagging is fine: the record tells, the news only wakes.
        while store.session(session(n)).await.unwrap().unwrap().state.status() == SessionStatus::Queued {
            changes.recv().await.ok();
        }
        let epoch = store.session(session(n)).await.unwrap().unwrap().epoch;
        store.claim(session(n), epoch).await.unwrap();
    }
    let epoch = store.session(session(n)).await.unwrap().unwrap().epoch;
    store.activate(session(n), epoch).await.unwrap();
    store.end(session(n), EndReason::Released, None).await.unwrap();
    store.vacate(session(n), epoch).await.unwrap();
}

#[test]
fn many_callers_at_once_keep_the_invariants_and_leave_nothing() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(open(&folder.path().join("wharf.db")));
        store.register(registration(1, 3)).await.unwrap();
        store.register(registration(2, 5)).await.unwrap();
        let mut clients = JoinSet::new();
        for task in 0..64u128 {
            let store = Arc::clone(&store);
            clients.spawn(async move {
                for turn in 0..10 {
                    client(Arc::clone(&store), 1 + task * 10 + turn).await;
                }
            });
        }
        for _ in 0..20 {
            assert_eq!(violations(&store).await, Vec::<String>::new());
        }
        while let Some(done) = clients.join_next().await {
            done.unwrap();
        }
        let snapshot = store.snapshot().await.unwrap();
        assert_eq!(invariants::violations(&snapshot), Vec::<String>::new());
        let ends = names(&store).await.into_iter().filter(|name| *name == "session.ended");
        assert_eq!(ends.count(), 640);
        assert_eq!(snapshot.sessions.len(), 640);
        assert!(snapshot.sessions.iter().all(|record| record.state.is_ended()));
        assert_eq!(snapshot.leases, []);
        assert_eq!(store.stats().await.unwrap().busy, 0);
        store.close().await.unwrap();
    });
}

/// How many sessions have ended.
async fn ended_in(store: &SqliteStore) -> usize {
    let sessions = store.snapshot().await.unwrap().sessions;
    sessions.iter().filter(|record| record.state.is_ended()).count()
}

/// The other half of the crash test: writes until it is killed, and says what was acknowledged.
#[test]
fn child_writes_until_killed() {
    let Ok(file) = std::env::var(CHILD_FILE) else { return };
    run(async {
        let store = open(Path::new(&file));
        store.register(registration(1, 2)).await.unwrap();
        for n in 1.. {
            store.submit(submission(n)).await.unwrap();
            if n.is_multiple_of(3) {
                store.end(session(n), EndReason::Released, None).await.unwrap();
            }
            let mut out = std::io::stdout();
            writeln!(out, "\nack {n}").unwrap();
            out.flush().unwrap();
        }
    });
}

#[test]
fn killed_process_has_kept_all_it_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wharf.db");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_writes_until_killed", "--nocapture"])
        .env(CHILD_FILE, &path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut acknowledged = Vec::new();
    let read = |line: std::io::Result<String>| line.ok()?.strip_prefix("ack ")?.parse::<u128>().ok();
    while acknowledged.len() < 500 {
        acknowledged.extend(read(lines.next().expect("the child writes until it is killed")));
    }
    child.kill().unwrap();
    // What it said before it died counts too; its last line may be cut short.
    let rest: Vec<_> = lines.filter_map(read).collect();
    child.wait().unwrap();
    acknowledged.extend(rest.split_last().map_or(&[][..], |(_, whole)| whole));

    run(async {
        let store = open(&path);
        for n in &acknowledged {
            let record = store
                .session(session(*n))
                .await
                .unwrap()
                .unwrap_or_else(|| panic!("{n} is lost"));
            if n.is_multiple_of(3) {
                assert_eq!(record.reason(), Some(EndReason::Released), "{n}");
            }
        }
        assert_eq!(violations(&store).await, Vec::<String>::new());
        let is_end = |name: &&str| *name == "session.ended";
        let told = names(&store).await.into_iter().filter(is_end).count();
        assert_eq!(told, ended_in(&store).await, "what is kept is told");
        store.recover("wharf was restarted").await.unwrap();
        let live = vec![
            SessionStatus::Queued,
            SessionStatus::Placed,
            SessionStatus::Starting,
            SessionStatus::Active,
        ];
        let half_alive = SessionQuery {
            statuses: live,
            limit: 10,
            ..SessionQuery::default()
        };
        assert_eq!(store.sessions(&half_alive).await.unwrap(), []);
        assert_eq!(violations(&store).await, Vec::<String>::new());
        store.close().await.unwrap();
    });
}
