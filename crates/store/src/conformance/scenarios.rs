//! The contract by example: admission, order, lists, news. One function per promise.
//!
//! Time stands still here; what time does is in `scenarios_time`, the rest of a session's life in `scenarios_life`.
#![expect(missing_docs, reason = "each function's name is its sentence")]
#![expect(
    clippy::unwrap_used,
    reason = "test code that engines' tests call; a store that fails is a failed test"
)]

use wharf_core::{BrowserKind, EndReason, Epoch, SessionStatus};

use super::{
    Harness,
    kit::{
        Grid, coordinator, heartbeat, placed, pool, priority, registration, seconds, session, submission, told, worker,
    },
};
use crate::{Change, EndedSession, Registration, SessionQuery, Submission, Submitted};

// === the way in ===

pub async fn newcomer_is_placed_at_once_and_claimed(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    let record = grid.place(1).await;
    assert_eq!(record.state.status(), SessionStatus::Starting);
    assert_eq!((record.epoch, record.worker), (Epoch(1), Some(worker(1))));
    assert_eq!(record.times.placed_at, Some(record.times.queued_at));
    let found = grid.store.workers(None).await.unwrap();
    assert_eq!((found[0].busy, found[0].lifetime), (1, 1));
    grid.check().await;
}

pub async fn newcomer_never_overtakes(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    let first = grid.place(1).await;
    assert_eq!(grid.queue(2).await, 1);
    assert_eq!(grid.queue(3).await, 2);
    grid.store.end(session(1), EndReason::Released, None).await.unwrap();
    let freed = grid.store.vacate(session(1), first.epoch).await.unwrap();
    assert_eq!(placed(&freed), [2]);
    assert_eq!(grid.queue(4).await, 2);
    assert_eq!(grid.store.position(session(3)).await.unwrap(), Some(1));
    assert_eq!(grid.store.position(session(2)).await.unwrap(), None);
    grid.check().await;
}

pub async fn blocked_class_blocks_only_itself(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    let fox = Registration {
        browsers: vec![BrowserKind::Firefox],
        ..registration(2, 1)
    };
    grid.store.register(fox).await.unwrap();
    grid.place(1).await;
    grid.queue(2).await;
    let mut third = submission(3);
    third.spec.browser = BrowserKind::Firefox;
    assert!(matches!(grid.store.submit(third).await.unwrap(), Submitted::Placed(_)));
    grid.check().await;
}

pub async fn higher_priority_is_served_first(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    let first = grid.place(1).await;
    grid.queue(2).await;
    let mut urgent = submission(3);
    urgent.spec.priority = priority(5);
    match grid.store.submit(urgent).await.unwrap() {
        Submitted::Queued { position, .. } => assert_eq!(position, 1),
        other => panic!("{other:?}"),
    }
    assert_eq!(grid.store.position(session(2)).await.unwrap(), Some(2));
    grid.store.end(session(1), EndReason::Released, None).await.unwrap();
    assert_eq!(placed(&grid.store.vacate(session(1), first.epoch).await.unwrap()), [3]);
    grid.check().await;
}

pub async fn full_queue_refuses_and_keeps_nothing(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    grid.place(1).await;
    grid.queue(2).await;
    let over = Submission {
        queue_limit: 1,
        idempotency_key: Some("k".to_owned()),
        ..submission(3)
    };
    assert_eq!(
        grid.store.submit(over.clone()).await.unwrap(),
        Submitted::QueueFull { waiting: 1, limit: 1 }
    );
    assert_eq!(grid.store.session(session(3)).await.unwrap(), None);
    let roomier = Submission { queue_limit: 2, ..over };
    assert!(matches!(
        grid.store.submit(roomier).await.unwrap(),
        Submitted::Queued { position: 2, .. }
    ));
    assert_eq!(grid.store.stats().await.unwrap().queued, 2);
    grid.check().await;
}

pub async fn unknown_pool_is_refused(harness: &dyn Harness) {
    let grid = Grid::open(harness).await;
    assert_eq!(grid.submit(1).await, Submitted::NoSuchPool);
    grid.store.register(registration(1, 1)).await.unwrap();
    let mut fox = submission(2);
    fox.spec.browser = BrowserKind::Firefox;
    assert_eq!(grid.store.submit(fox).await.unwrap(), Submitted::NoSuchPool);
    let mut elsewhere = submission(3);
    elsewhere.spec.pool = pool("elsewhere");
    assert_eq!(grid.store.submit(elsewhere).await.unwrap(), Submitted::NoSuchPool);
    grid.place(4).await;
    grid.store.deregister(worker(1)).await.unwrap();
    assert_eq!(grid.submit(5).await, Submitted::NoSuchPool);
    grid.check().await;
}

pub async fn idempotent_submit_answers_the_same_session(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 2).await;
    let keyed = |n| Submission {
        idempotency_key: Some("k".to_owned()),
        ..submission(n)
    };
    assert!(matches!(
        grid.store.submit(keyed(1)).await.unwrap(),
        Submitted::Placed(_)
    ));
    match grid.store.submit(keyed(2)).await.unwrap() {
        Submitted::Known(record) => assert_eq!(*record, grid.record(1).await),
        other => panic!("{other:?}"),
    }
    let mut other = keyed(3);
    other.spec.description = "something else".to_owned();
    assert_eq!(
        grid.store.submit(other).await.unwrap(),
        Submitted::KeyReused(session(1))
    );
    grid.store.activate(session(1), Epoch(1)).await.unwrap();
    grid.store.end(session(1), EndReason::Released, None).await.unwrap();
    assert!(matches!(
        grid.store.submit(keyed(4)).await.unwrap(),
        Submitted::Known(_)
    ));
    assert_eq!(grid.store.stats().await.unwrap().busy, 1);
    grid.check().await;
}

/// A coordinator died; its waiting client asks another one, with the same key, and keeps its place.
pub async fn waiting_session_passes_to_whoever_asks_again(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    grid.place(1).await;
    let keyed = |by| Submission {
        idempotency_key: Some("k".to_owned()),
        coordinator: coordinator(by),
        ..submission(1 + by)
    };
    grid.store.submit(keyed(1)).await.unwrap();
    grid.queue(9).await;
    grid.clock.advance(seconds(6));
    let again = match grid.store.submit(keyed(2)).await.unwrap() {
        Submitted::Known(record) => *record,
        other => panic!("{other:?}"),
    };
    assert_eq!((again.id, again.coordinator), (session(2), coordinator(2)));
    assert_eq!(grid.store.position(session(2)).await.unwrap(), Some(1));
    // The ticket is the new one's: it outlives the silence of the old one, and its placement is the new one's to claim.
    grid.clock.advance(seconds(6));
    grid.store.renew_tickets(coordinator(2)).await.unwrap();
    grid.store.heartbeat(heartbeat(1, &[(1, 1)])).await.unwrap();
    grid.store.sweep().await.unwrap();
    assert_eq!(grid.record(2).await.reason(), None);
    grid.store.end(session(1), EndReason::Released, None).await.unwrap();
    let freed = grid.store.vacate(session(1), Epoch(1)).await.unwrap();
    assert_eq!((placed(&freed), freed.placed[0].coordinator), (vec![2], coordinator(2)));
    // Once taken up it stays with whoever did so.
    grid.store.claim(session(2), Epoch(1)).await.unwrap().unwrap();
    grid.store.submit(keyed(3)).await.unwrap();
    assert_eq!(grid.record(2).await.coordinator, coordinator(2));
    grid.check().await;
}

pub async fn key_of_a_session_that_was_never_active_is_free_again(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 2).await;
    let keyed = |n| Submission {
        idempotency_key: Some("k".to_owned()),
        ..submission(n)
    };
    grid.store.submit(keyed(1)).await.unwrap();
    grid.store.end(session(1), EndReason::Cancelled, None).await.unwrap();
    assert!(matches!(
        grid.store.submit(keyed(2)).await.unwrap(),
        Submitted::Placed(record) if record.id == session(2)
    ));
    grid.check().await;
}

pub async fn submit_of_a_known_id_answers_that_session(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 2).await;
    let record = grid.place(1).await;
    assert_eq!(grid.submit(1).await, Submitted::Known(Box::new(record)));
    let mut other = submission(1);
    other.spec.keep_alive = false;
    assert_eq!(
        grid.store.submit(other).await.unwrap(),
        Submitted::KeyReused(session(1))
    );
    grid.check().await;
}

pub async fn raised_capacity_serves_waiters_at_once(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    grid.place(1).await;
    grid.queue(2).await;
    grid.queue(3).await;
    let arrived = grid.store.register(registration(2, 5)).await.unwrap();
    assert_eq!(placed(&arrived.freed), [2, 3]);
    assert_eq!(grid.record(2).await.state.status(), SessionStatus::Placed);
    grid.check().await;
}

pub async fn ready_worker_serves_waiters_at_once(harness: &dyn Harness) {
    let grid = Grid::open(harness).await;
    grid.store
        .register(Registration {
            is_ready: false,
            ..registration(1, 1)
        })
        .await
        .unwrap();
    assert_eq!(grid.queue(1).await, 1);
    let (end, freed) = grid.beat(1, &[]).await;
    assert_eq!((end, placed(&freed)), (vec![], vec![1]));
    grid.check().await;
}

// === seeing ===

async fn listed(grid: &Grid, query: SessionQuery) -> Vec<u128> {
    let found = grid.store.sessions(&query).await.unwrap();
    found.iter().map(|record| record.id.as_uuid().as_u128()).collect()
}

/// Five sessions on two slots, named odd and even; the first has ended.
async fn five(harness: &dyn Harness) -> Grid {
    let grid = Grid::with_worker(harness, 2).await;
    for n in 1..=5 {
        let mut one = submission(n);
        one.spec.operation = if n % 2 == 0 { "even" } else { "odd" }.parse().unwrap();
        grid.store.submit(one).await.unwrap();
    }
    grid.store.end(session(1), EndReason::Killed, None).await.unwrap();
    grid
}

pub async fn lists_are_paged(harness: &dyn Harness) {
    let grid = five(harness).await;
    let query = |newest_first, after: Option<u128>, limit| SessionQuery {
        newest_first,
        after: after.map(session),
        limit,
        ..SessionQuery::default()
    };
    assert_eq!(listed(&grid, query(false, None, 100)).await, [1, 2, 3, 4, 5]);
    assert_eq!(listed(&grid, query(true, None, 2)).await, [5, 4]);
    assert_eq!(listed(&grid, query(true, Some(4), 2)).await, [3, 2]);
    assert_eq!(listed(&grid, query(false, Some(3), 100)).await, [4, 5]);
    assert_eq!(listed(&grid, query(false, None, 0)).await, Vec::<u128>::new());
    grid.check().await;
}

pub async fn lists_are_filtered(harness: &dyn Harness) {
    let grid = five(harness).await;
    let all = SessionQuery {
        limit: 100,
        ..SessionQuery::default()
    };
    let live = SessionQuery {
        statuses: vec![SessionStatus::Queued, SessionStatus::Active],
        ..all.clone()
    };
    assert_eq!(listed(&grid, live).await, [3, 4, 5]);
    let even = SessionQuery {
        operation: Some("even".parse().unwrap()),
        ..all.clone()
    };
    assert_eq!(listed(&grid, even).await, [2, 4]);
    let killed = SessionQuery {
        reason: Some(EndReason::Killed),
        ..all.clone()
    };
    assert_eq!(listed(&grid, killed).await, [1]);
    let elsewhere = SessionQuery {
        pool: Some(pool("none")),
        ..all
    };
    assert_eq!(listed(&grid, elsewhere).await, Vec::<u128>::new());
    assert_eq!(grid.store.workers(Some(&pool("none"))).await.unwrap(), []);
    grid.check().await;
}

pub async fn record_reads_back_as_it_was_submitted(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    let mut odd = Submission {
        idempotency_key: Some("ключ'\"".to_owned()),
        ..submission(1)
    };
    odd.spec.description = "a 'line' with \u{1F980}, \0 and \"quotes\"".to_owned();
    odd.spec.data = serde_json::json!({ "π": [0.1, 1e300, -0.0, 123_456_789_012_345_680.0_f64, u64::MAX, null] });
    odd.spec.options = serde_json::json!({ "args": ["--no-first-run"], "nested": { "a": { "b": [] } } });
    odd.spec.timeouts.queue = std::time::Duration::new(7, 123_456_789);
    odd.spec.keep_alive = false;
    let Submitted::Placed(record) = grid.store.submit(odd.clone()).await.unwrap() else {
        panic!()
    };
    assert_eq!(record.spec, odd.spec);
    assert_eq!(*record, grid.record(1).await);
    assert!(matches!(grid.store.submit(odd).await.unwrap(), Submitted::Known(_)));
}

pub async fn changes_announce_placements_and_ends(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    let mut changes = grid.store.changes();
    let seat = grid.place(1).await.state.seat();
    grid.queue(2).await;
    grid.queue(3).await;
    grid.store.end(session(3), EndReason::Cancelled, None).await.unwrap();
    grid.store.end(session(1), EndReason::Released, None).await.unwrap();
    let freed = grid.store.vacate(session(1), Epoch(1)).await.unwrap();
    assert_eq!(freed.placed[0].coordinator, coordinator(1));
    let news = told(&mut changes);
    // The newcomer's own placement is its answer, not news.
    let ended = |n, reason, seat| {
        Change::Ended(EndedSession {
            session: session(n),
            reason,
            seat,
        })
    };
    let expected = [
        ended(3, EndReason::Cancelled, None),
        ended(1, EndReason::Released, seat),
        Change::Placed(freed.placed[0]),
    ];
    assert_eq!(news, expected);
}
