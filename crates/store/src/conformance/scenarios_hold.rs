//! The contract by example: limits. One function per promise.
//!
//! A limit is a promise to two sides: nobody gets in beyond it, and nobody else is kept out by it.
#![expect(missing_docs, reason = "each function's name is its sentence")]
#![expect(
    clippy::unwrap_used,
    reason = "test code that engines' tests call; a store that fails is a failed test"
)]

use wharf_core::{BrowserKind, EndReason, Epoch, LimitScope, PoolName};

use super::{
    Harness,
    kit::{
        Grid, coordinator, ended, limit_scope, placed, pool, priority, registration, seconds, session, submission,
        submission_for,
    },
};
use crate::{Change, Freed, LimitRecord, Registration, Submission, Submitted};

async fn set(grid: &Grid, scope: LimitScope, max: Option<u64>) -> Vec<u128> {
    placed(&grid.store.set_limit(&PoolName::default(), scope, max).await.unwrap())
}

/// Ends and vacates a session; who was placed.
async fn finish(grid: &Grid, n: u128) -> Vec<u128> {
    grid.store.end(session(n), EndReason::Released, None).await.unwrap();
    let epoch = grid.record(n).await.epoch;
    placed(&grid.store.vacate(session(n), epoch).await.unwrap())
}

// === limits ===

/// A seed's bug: a raised limit woke nobody, and newcomers queued behind the waiters for ever.
pub async fn raised_limit_serves_waiters_at_once(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 9).await;
    set(&grid, LimitScope::Pool, Some(1)).await;
    grid.place(1).await;
    for n in 2..=6 {
        grid.queue(n).await;
    }
    let mut changes = grid.store.changes();
    assert_eq!(set(&grid, LimitScope::Pool, Some(3)).await, [2, 3]);
    assert!(matches!(changes.try_recv(), Ok(Change::Placed(placement)) if placement.session == session(2)));
    assert_eq!(set(&grid, limit_scope("session"), Some(4)).await, Vec::<u128>::new());
    assert_eq!(set(&grid, LimitScope::Pool, None).await, [4]);
    assert_eq!(set(&grid, limit_scope("session"), None).await, [5, 6]);
    grid.check().await;
}

pub async fn lowered_limit_ends_nothing_and_lets_nobody_in(harness: &dyn Harness) {
    for scope in [LimitScope::Pool, limit_scope("session")] {
        let grid = Grid::with_worker(harness, 3).await;
        for n in 1..=3 {
            grid.activate(n).await;
        }
        grid.clock.advance(seconds(1));
        assert_eq!(set(&grid, scope, Some(1)).await, Vec::<u128>::new());
        assert_eq!(grid.store.stats().await.unwrap().active, 3);
        grid.clock.advance(seconds(1));
        grid.queue(4).await;
        assert_eq!(finish(&grid, 1).await, Vec::<u128>::new());
        assert_eq!(finish(&grid, 2).await, Vec::<u128>::new());
        grid.check().await;
        assert_eq!(finish(&grid, 3).await, [4]);
        grid.check().await;
    }
}

pub async fn operation_at_its_limit_holds_back_nobody_else(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 9).await;
    set(&grid, limit_scope("scrape"), Some(1)).await;
    let submit = |n, name| grid.store.submit(submission_for(n, name));
    assert!(matches!(submit(1, "scrape").await.unwrap(), Submitted::Placed(_)));
    assert!(matches!(submit(2, "scrape").await.unwrap(), Submitted::Queued { .. }));
    assert!(matches!(submit(3, "scrape").await.unwrap(), Submitted::Queued { .. }));
    assert!(matches!(submit(4, "pdf").await.unwrap(), Submitted::Placed(_)));
    assert!(matches!(submit(5, "session").await.unwrap(), Submitted::Placed(_)));
    let mut urgent = submission_for(6, "scrape");
    urgent.spec.priority = priority(1);
    let Submitted::Queued { position, .. } = grid.store.submit(urgent).await.unwrap() else {
        panic!()
    };
    assert_eq!(position, 1, "places are those of the class");
    // The order among those held back is kept; who is not held back frees nothing for them.
    assert_eq!(finish(&grid, 4).await, Vec::<u128>::new());
    assert_eq!(finish(&grid, 1).await, [6]);
    assert_eq!(finish(&grid, 6).await, [2]);
    assert_eq!(set(&grid, limit_scope("scrape"), Some(2)).await, [3]);
    grid.check().await;
}

pub async fn waiters_of_a_full_class_keep_their_order_beside_a_limit(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    set(&grid, limit_scope("scrape"), Some(1)).await;
    for (n, name) in [(1, "scrape"), (2, "scrape"), (3, "pdf"), (4, "scrape"), (5, "pdf")] {
        grid.store.submit(submission_for(n, name)).await.unwrap();
    }
    // One slot for all: it goes by arrival, whatever the operation, as long as the limit has room.
    assert_eq!(finish(&grid, 1).await, [2]);
    assert_eq!(finish(&grid, 2).await, [3]);
    let arrived = grid.store.register(registration(2, 2)).await.unwrap();
    assert_eq!(placed(&arrived.freed), [4, 5]);
    grid.check().await;
}

pub async fn pool_limit_counts_all_classes_and_operations(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 9).await;
    let fox = Registration {
        browsers: vec![BrowserKind::Firefox],
        ..registration(2, 9)
    };
    grid.store.register(fox).await.unwrap();
    let elsewhere = Registration {
        pool: pool("other"),
        ..registration(3, 1)
    };
    grid.store.register(elsewhere).await.unwrap();
    set(&grid, LimitScope::Pool, Some(2)).await;
    let with = |n, name, browser| {
        let mut one = submission_for(n, name);
        one.spec.browser = browser;
        grid.store.submit(one)
    };
    let (chromium, firefox) = (BrowserKind::Chromium, BrowserKind::Firefox);
    assert!(matches!(with(1, "a", chromium).await.unwrap(), Submitted::Placed(_)));
    assert!(matches!(with(2, "b", firefox).await.unwrap(), Submitted::Placed(_)));
    assert!(matches!(with(3, "c", firefox).await.unwrap(), Submitted::Queued { .. }));
    assert!(matches!(
        with(4, "a", chromium).await.unwrap(),
        Submitted::Queued { .. }
    ));
    let mut other = submission(5);
    other.spec.pool = pool("other");
    assert!(matches!(grid.store.submit(other).await.unwrap(), Submitted::Placed(_)));
    assert_eq!(finish(&grid, 1).await, [3], "the first in line, whatever its class");
    grid.check().await;
}

pub async fn limit_of_zero_lets_nobody_in(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 2).await;
    set(&grid, limit_scope("session"), Some(0)).await;
    assert_eq!(grid.queue(1).await, 1);
    assert!(matches!(
        grid.store.submit(submission_for(2, "pdf")).await.unwrap(),
        Submitted::Placed(_)
    ));
    set(&grid, LimitScope::Pool, Some(0)).await;
    assert!(matches!(
        grid.store.submit(submission_for(3, "pdf")).await.unwrap(),
        Submitted::Queued { .. }
    ));
    assert_eq!(grid.store.dispatch().await.unwrap(), []);
    grid.check().await;
}

pub async fn ended_session_counts_for_a_limit_until_it_is_vacated(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 5).await;
    set(&grid, LimitScope::Pool, Some(1)).await;
    let first = grid.place(1).await;
    grid.store.end(session(1), EndReason::Released, None).await.unwrap();
    grid.queue(2).await;
    let freed = grid.store.vacate(session(1), first.epoch).await.unwrap();
    assert_eq!(placed(&freed), [2]);
    // A placement that failed has no slot, so it counts no more, and is placed again within the limit.
    grid.store.claim(session(2), Epoch(1)).await.unwrap();
    grid.queue(3).await;
    let failure = crate::PlacementFailure {
        session: session(2),
        epoch: Epoch(1),
        cause: "no such binary".to_owned(),
        is_worker_absent: false,
    };
    assert!(matches!(
        grid.store.placement_failed(failure).await.unwrap(),
        crate::Replaced::Placed(_)
    ));
    grid.check().await;
}

/// The leases that a worker loses by coming back in another pool counted in the old one.
pub async fn worker_that_changes_pools_makes_room_in_the_old_one(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    set(&grid, LimitScope::Pool, Some(1)).await;
    grid.activate(1).await;
    grid.store.register(registration(2, 1)).await.unwrap();
    grid.queue(2).await;
    let moved = Registration {
        pool: pool("other"),
        ..registration(1, 1)
    };
    let freed = grid.store.register(moved).await.unwrap().freed;
    assert_eq!(ended(&freed), [(1, EndReason::WorkerLost)]);
    assert_eq!(placed(&freed), [2]);
    grid.check().await;
}

/// A seed's bug: a client that died at the head of a limited queue starved all behind it.
pub async fn dead_waiter_at_a_limit_blocks_nobody(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 5).await;
    set(&grid, limit_scope("session"), Some(1)).await;
    grid.activate(1).await;
    let dead = Submission {
        coordinator: coordinator(2),
        ..submission(2)
    };
    grid.store.submit(dead).await.unwrap();
    grid.queue(3).await;
    for _ in 0..4 {
        grid.clock.advance(seconds(3));
        grid.beat(1, &[(1, 1)]).await;
        grid.store.renew_tickets(coordinator(1)).await.unwrap();
    }
    assert_eq!(ended(&grid.store.sweep().await.unwrap()), [(2, EndReason::Cancelled)]);
    assert_eq!(finish(&grid, 1).await, [3]);
    grid.check().await;
}

/// A seed's bug: a waiter that gave up in the same moment as it was let in kept the place for ever.
pub async fn timeout_that_races_with_a_grant_loses_no_slot(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 5).await;
    set(&grid, LimitScope::Pool, Some(1)).await;
    grid.activate(1).await;
    let mut hasty = submission(2);
    hasty.spec.timeouts.queue = seconds(5);
    grid.store.submit(hasty).await.unwrap();
    grid.clock.advance(seconds(5));
    // Granted at the very moment its time is up; its coordinator, not knowing, ends it.
    assert_eq!(finish(&grid, 1).await, [2]);
    assert_eq!(ended(&grid.store.sweep().await.unwrap()), [], "it waits no longer");
    grid.store.end(session(2), EndReason::QueueTimeout, None).await.unwrap();
    assert_eq!(grid.store.claim(session(2), Epoch(1)).await.unwrap(), None);
    grid.queue(3).await;
    let freed = grid.store.vacate(session(2), Epoch(1)).await.unwrap();
    assert_eq!(placed(&freed), [3]);
    grid.check().await;
}

/// A seed's bug: the same request id twice overwrote one slot and took two places in the queue.
pub async fn duplicate_submission_takes_one_place(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 5).await;
    set(&grid, LimitScope::Pool, Some(1)).await;
    grid.place(1).await;
    assert!(matches!(grid.submit(1).await, Submitted::Known(_)));
    grid.queue(2).await;
    assert!(matches!(grid.submit(2).await, Submitted::Known(_)));
    let report = grid.store.pool(&PoolName::default()).await.unwrap();
    assert_eq!((report.running, report.queued), (1, 1));
    assert_eq!(finish(&grid, 1).await, [2]);
    assert_eq!(finish(&grid, 2).await, Vec::<u128>::new());
    grid.place(3).await;
    grid.check().await;
}

pub async fn limits_are_listed_by_pool_and_scope(harness: &dyn Harness) {
    let grid = Grid::open(harness).await;
    let store = &grid.store;
    let set_at = store.now().await.unwrap();
    let limit = |name, scope, max| LimitRecord {
        pool: pool(name),
        scope,
        max,
        set_at,
    };
    for (name, scope, max) in [
        ("b", LimitScope::Pool, Some(7)),
        ("a", limit_scope("scrape"), Some(1)),
        ("a", limit_scope("pdf"), Some(9)),
        ("a", LimitScope::Pool, Some(3)),
        ("a", limit_scope("pdf"), Some(2)),
        ("b", limit_scope("pdf"), Some(2)),
        ("b", limit_scope("pdf"), None),
        ("b", limit_scope("never"), None),
    ] {
        assert_eq!(
            store.set_limit(&pool(name), scope, max).await.unwrap(),
            Freed::default()
        );
    }
    let expected = [
        limit("a", LimitScope::Pool, 3),
        limit("a", limit_scope("pdf"), 2),
        limit("a", limit_scope("scrape"), 1),
        limit("b", LimitScope::Pool, 7),
    ];
    assert_eq!(store.limits().await.unwrap(), expected);
    assert_eq!(store.snapshot().await.unwrap().limits, expected);
}
