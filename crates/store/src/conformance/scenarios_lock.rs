//! The contract by example: exclusive locks. One function per promise.
//!
//! What a lock says to newcomers (no, and who says so), to waiters (later), to what runs (nothing), and to strangers.
#![expect(missing_docs, reason = "each function's name is its sentence")]
#![expect(
    clippy::unwrap_used,
    reason = "test code that engines' tests call; a store that fails is a failed test"
)]

use std::time::Duration;

use wharf_core::{Cover, EndReason, Epoch, SessionStatus};

use super::{
    Harness,
    kit::{
        Grid, lock_name, operation, placed, pool, registration, seconds, session, submission, submission_for, token,
        wish,
    },
};
use crate::{
    Freed, LockRecord, LockView, LockWish, Locking, PlacementFailure, Registration, Renewal, Replaced, Submission,
    Submitted, Unlocking,
};

async fn take(grid: &Grid, wish: LockWish) -> LockView {
    match grid.store.acquire_lock(wish).await.unwrap() {
        Locking::Taken(view) => view,
        Locking::Held(lock) => panic!("expected to take it, but it is held: {lock:?}"),
    }
}

async fn release(grid: &Grid, name: &str, by: u128) -> Freed {
    match grid.store.release_lock(&lock_name(name), token(by)).await.unwrap() {
        Unlocking::Released(freed) => freed,
        Unlocking::NotYours(lock) => panic!("expected to release it, but it is {lock:?}"),
    }
}

async fn refused(grid: &Grid, submission: Submission) -> LockRecord {
    let id = submission.session;
    match grid.store.submit(submission).await.unwrap() {
        Submitted::Locked(lock) => {
            assert_eq!(grid.store.session(id).await.unwrap(), None, "nothing was kept");
            *lock
        }
        other => panic!("expected it to be locked out, got {other:?}"),
    }
}

/// A worker with these slots, as many sessions active as it has, and three that wait.
async fn busy(harness: &dyn Harness, slots: u32) -> Grid {
    let grid = Grid::with_worker(harness, slots).await;
    for n in 1..=u128::from(slots) {
        grid.activate(n).await;
    }
    for n in 1..=3 {
        grid.queue(u128::from(slots) + n).await;
    }
    grid
}

async fn vacate(grid: &Grid, n: u128) -> Vec<u128> {
    let epoch = grid.record(n).await.epoch;
    placed(&grid.store.vacate(session(n), epoch).await.unwrap())
}

// === whom it holds back ===

pub async fn lock_refuses_newcomers_and_names_its_holder(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 2).await;
    let view = take(&grid, wish("exclusive", 1)).await;
    assert_eq!(view.lock.until, view.lock.taken_at + seconds(10));
    let lock = refused(&grid, submission(1)).await;
    assert_eq!((lock.name.as_str(), lock.holder.as_str()), ("exclusive", "holder 1"));
    assert_eq!(lock, view.lock);
    assert_eq!(grid.store.locks().await.unwrap(), [view]);
    // Of several, the one that lasts longest.
    take(
        &grid,
        LockWish {
            ttl: seconds(99),
            ..wish("long", 2)
        },
    )
    .await;
    take(&grid, wish("a-third", 3)).await;
    assert_eq!(refused(&grid, submission(1)).await.name.as_str(), "long");
    grid.check().await;
}

pub async fn waiters_stay_under_a_lock_and_are_served_in_order_at_its_release(harness: &dyn Harness) {
    let grid = busy(harness, 2).await;
    let view = take(&grid, wish("exclusive", 1)).await;
    assert_eq!(view.running, 2);
    assert_eq!(vacate(&grid, 1).await, Vec::<u128>::new());
    assert_eq!(grid.store.dispatch().await.unwrap(), []);
    assert_eq!(grid.store.locks().await.unwrap()[0].running, 1);
    assert_eq!(grid.store.position(session(3)).await.unwrap(), Some(1));
    grid.check().await;
    assert_eq!(placed(&release(&grid, "exclusive", 1).await), [3]);
    assert_eq!(vacate(&grid, 2).await, [4]);
    assert_eq!(grid.store.locks().await.unwrap(), []);
    grid.check().await;
}

pub async fn forced_unlock_serves_waiters(harness: &dyn Harness) {
    let grid = busy(harness, 1).await;
    assert_eq!(grid.store.force_unlock(&lock_name("exclusive")).await.unwrap(), None);
    let taken = take(&grid, wish("exclusive", 1)).await.lock;
    vacate(&grid, 1).await;
    let (lock, freed) = grid.store.force_unlock(&lock_name("exclusive")).await.unwrap().unwrap();
    assert_eq!((lock, placed(&freed)), (taken, vec![2]));
    assert!(matches!(
        grid.store
            .release_lock(&lock_name("exclusive"), token(1))
            .await
            .unwrap(),
        Unlocking::NotYours(None)
    ));
    grid.check().await;
}

pub async fn expired_lock_holds_nobody_back(harness: &dyn Harness) {
    let grid = busy(harness, 1).await;
    take(
        &grid,
        LockWish {
            ttl: seconds(5),
            ..wish("exclusive", 1)
        },
    )
    .await;
    grid.store.register(registration(2, 4)).await.unwrap();
    grid.clock.advance(seconds(5) - Duration::from_micros(1));
    refused(&grid, submission(9)).await;
    grid.clock.advance(Duration::from_micros(1));
    assert_eq!(grid.store.locks().await.unwrap(), []);
    grid.check().await;
    // No sweep has come by: the newcomer is placed, and those who waited before it.
    grid.place(9).await;
    assert_eq!(grid.store.stats().await.unwrap().queued, 0);
    grid.check().await;
}

pub async fn sweep_forgets_an_expired_lock_and_serves_waiters(harness: &dyn Harness) {
    let grid = busy(harness, 1).await;
    take(
        &grid,
        LockWish {
            ttl: seconds(5),
            ..wish("exclusive", 1)
        },
    )
    .await;
    vacate(&grid, 1).await;
    grid.clock.advance(seconds(4));
    assert_eq!(grid.store.sweep().await.unwrap(), Freed::default());
    grid.clock.advance(seconds(1));
    let freed = grid.store.sweep().await.unwrap();
    assert_eq!((freed.ended.len(), placed(&freed)), (0, vec![2]));
    assert_eq!(grid.store.snapshot().await.unwrap().locks, []);
    grid.check().await;
}

pub async fn overlapping_locks_hold_until_the_last_is_gone(harness: &dyn Harness) {
    let grid = busy(harness, 1).await;
    take(&grid, wish("one", 1)).await;
    let narrow = Cover {
        operations: vec![operation("session")],
        ..Cover::default()
    };
    take(
        &grid,
        LockWish {
            cover: narrow,
            ..wish("two", 2)
        },
    )
    .await;
    vacate(&grid, 1).await;
    assert_eq!(placed(&release(&grid, "one", 1).await), Vec::<u128>::new());
    assert_eq!(refused(&grid, submission(9)).await.name.as_str(), "two");
    assert_eq!(placed(&release(&grid, "two", 2).await), [2]);
    grid.check().await;
}

pub async fn lock_covers_by_pool_and_operation(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 9).await;
    let elsewhere = Registration {
        pool: pool("other"),
        ..registration(2, 9)
    };
    grid.store.register(elsewhere).await.unwrap();
    let at = |n, name: &str, place: &str| {
        let mut one = submission_for(n, name);
        one.spec.pool = pool(place);
        one
    };
    for (n, name, place) in [(1, "scrape", "default"), (2, "pdf", "default"), (3, "scrape", "other")] {
        grid.store.submit(at(n, name, place)).await.unwrap();
    }
    let covers = [
        (vec!["other"], vec![], 1, vec!["other/scrape", "other/pdf"]),
        (vec![], vec!["scrape"], 2, vec!["default/scrape", "other/scrape"]),
        (vec!["default"], vec!["pdf", "x"], 1, vec!["default/pdf"]),
        (vec!["nowhere"], vec![], 0, vec![]),
    ];
    let mut n = 10;
    for (pools, operations, running, out) in covers {
        let cover = Cover {
            pools: pools.into_iter().map(pool).collect(),
            operations: operations.into_iter().map(operation).collect(),
        };
        assert_eq!(
            take(
                &grid,
                LockWish {
                    cover,
                    ..wish("exclusive", 1)
                }
            )
            .await
            .running,
            running
        );
        for place in ["default", "other"] {
            for name in ["scrape", "pdf"] {
                n += 1;
                let submitted = grid.store.submit(at(n, name, place)).await.unwrap();
                let is_out = out.contains(&format!("{place}/{name}").as_str());
                assert_eq!(matches!(submitted, Submitted::Locked(_)), is_out, "{place}/{name}");
                if !is_out {
                    vacate(&grid, n).await;
                }
            }
        }
        release(&grid, "exclusive", 1).await;
    }
    grid.check().await;
}

pub async fn locked_operation_holds_back_nobody_else(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    grid.place(1).await;
    for (n, name) in [(2, "scrape"), (3, "scrape"), (4, "pdf")] {
        grid.store.submit(submission_for(n, name)).await.unwrap();
    }
    let cover = Cover {
        operations: vec![operation("scrape")],
        ..Cover::default()
    };
    take(
        &grid,
        LockWish {
            cover,
            ..wish("exclusive", 1)
        },
    )
    .await;
    assert_eq!(vacate(&grid, 1).await, [4]);
    assert_eq!(vacate(&grid, 4).await, Vec::<u128>::new());
    assert_eq!(placed(&release(&grid, "exclusive", 1).await), [2]);
    grid.check().await;
}

pub async fn failed_placement_waits_under_a_lock(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 2).await;
    grid.place(1).await;
    take(&grid, wish("exclusive", 1)).await;
    let failure = PlacementFailure {
        session: session(1),
        epoch: Epoch(1),
        cause: "no such binary".to_owned(),
        is_worker_absent: false,
    };
    assert!(matches!(
        grid.store.placement_failed(failure).await.unwrap(),
        Replaced::Queued(_)
    ));
    grid.check().await;
    assert_eq!(placed(&release(&grid, "exclusive", 1).await), [1]);
    grid.check().await;
}

pub async fn placement_made_before_the_lock_goes_on(harness: &dyn Harness) {
    let grid = busy(harness, 1).await;
    assert_eq!(vacate(&grid, 1).await, [2]);
    assert_eq!(take(&grid, wish("exclusive", 1)).await.running, 1);
    let claimed = grid.store.claim(session(2), Epoch(1)).await.unwrap();
    assert_eq!(claimed.unwrap().state.status(), SessionStatus::Starting);
    assert!(grid.store.activate(session(2), Epoch(1)).await.unwrap().is_some());
    grid.store.end(session(2), EndReason::Released, None).await.unwrap();
    assert_eq!(
        grid.store.locks().await.unwrap()[0].running,
        1,
        "until its browser is gone"
    );
    assert_eq!(vacate(&grid, 2).await, Vec::<u128>::new());
    assert_eq!(grid.store.locks().await.unwrap()[0].running, 0);
    grid.check().await;
}

pub async fn idempotent_retry_is_answered_under_a_lock(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    let keyed = |n| Submission {
        idempotency_key: Some("k".to_owned()),
        ..submission(n)
    };
    grid.store.submit(keyed(1)).await.unwrap();
    take(&grid, wish("exclusive", 1)).await;
    for again in [keyed(2), submission(1)] {
        match grid.store.submit(again).await.unwrap() {
            Submitted::Known(record) => assert_eq!(record.id, session(1)),
            other => panic!("{other:?}"),
        }
    }
    refused(&grid, submission(3)).await;
}

// === whose it is ===

/// A seed's bug: whether it is free was looked up first and then it was taken, so two could have it.
pub async fn second_taker_is_told_who_holds_it(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    let first = take(&grid, wish("exclusive", 1)).await;
    grid.clock.advance(seconds(2));
    let other = LockWish {
        ttl: seconds(60),
        ..wish("exclusive", 2)
    };
    assert_eq!(
        grid.store.acquire_lock(other.clone()).await.unwrap(),
        Locking::Held(first.lock.clone())
    );
    // A lost answer may be asked for again, and lasts no longer for it.
    let again = LockWish {
        ttl: seconds(60),
        ..wish("exclusive", 1)
    };
    assert_eq!(take(&grid, again).await, first);
    grid.clock.advance(seconds(8));
    let second = take(&grid, other).await;
    assert_eq!(second.lock.taken_at, grid.store.now().await.unwrap());
    grid.check().await;
}

pub async fn lock_is_renewed_by_its_holder_only(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    let name = lock_name("exclusive");
    let taken = take(&grid, wish("exclusive", 1)).await.lock;
    grid.clock.advance(seconds(4));
    let stranger = grid.store.renew_lock(&name, token(2), seconds(60)).await.unwrap();
    assert_eq!(stranger, Renewal::NotYours(Some(taken.clone())));
    let Renewal::Renewed(view) = grid.store.renew_lock(&name, token(1), seconds(7)).await.unwrap() else {
        panic!()
    };
    let expected = LockRecord {
        until: taken.taken_at + seconds(11),
        ..taken
    };
    assert_eq!(view.lock, expected);
    grid.clock.advance(seconds(7));
    let late = grid.store.renew_lock(&name, token(1), seconds(7)).await.unwrap();
    assert_eq!(late, Renewal::NotYours(None));
    grid.beat(1, &[]).await;
    grid.place(1).await;
    grid.check().await;
}

/// A seed's bug: release read the lock and then deleted it, which by then could be somebody else's.
pub async fn release_by_a_stranger_changes_nothing(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    let name = lock_name("exclusive");
    take(&grid, wish("exclusive", 1)).await;
    grid.clock.advance(seconds(10));
    let second = take(&grid, wish("exclusive", 2)).await.lock;
    // The first holder, who does not know that it has expired, gives it back.
    let late = grid.store.release_lock(&name, token(1)).await.unwrap();
    assert_eq!(late, Unlocking::NotYours(Some(second.clone())));
    assert_eq!(refused(&grid, submission(1)).await, second);
    release(&grid, "exclusive", 2).await;
    let twice = grid.store.release_lock(&name, token(2)).await.unwrap();
    assert_eq!(twice, Unlocking::NotYours(None));
    grid.check().await;
}

pub async fn new_lock_in_place_of_an_expired_one_serves_whom_it_does_not_cover(harness: &dyn Harness) {
    let grid = busy(harness, 1).await;
    take(
        &grid,
        LockWish {
            ttl: seconds(5),
            ..wish("exclusive", 1)
        },
    )
    .await;
    vacate(&grid, 1).await;
    grid.clock.advance(seconds(5));
    let cover = Cover {
        pools: vec![pool("other")],
        ..Cover::default()
    };
    take(
        &grid,
        LockWish {
            cover,
            ..wish("exclusive", 2)
        },
    )
    .await;
    assert_eq!(grid.record(2).await.state.status(), SessionStatus::Placed);
    grid.check().await;
}
