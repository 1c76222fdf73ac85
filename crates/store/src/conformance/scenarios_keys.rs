//! The contract by example: API keys, their quotas, and what is whose. One function per promise.
//!
//! A quota is a matter of admission: it counts what a key has, waiting or running, and turns the next one away.
#![expect(missing_docs, reason = "each function's name is its sentence")]
#![expect(
    clippy::unwrap_used,
    reason = "test code that engines' tests call; a store that fails is a failed test"
)]

use wharf_core::{EndReason, Epoch, SessionStatus};

use super::{
    Harness,
    kit::{Grid, ended, key, new_key, placed, seconds, session, submission, token, wish},
};
use crate::{
    Change, Freed, KEY_REVOKED, KeyRecord, KeyRole, LockWish, Locking, NewKey, SessionQuery, Submission, Submitted,
};

fn of(n: u128, owner: u128) -> Submission {
    Submission {
        owner: Some(key(owner)),
        ..submission(n)
    }
}

fn keyed(n: u128, owner: Option<u128>) -> Submission {
    Submission {
        owner: owner.map(key),
        idempotency_key: Some("k".to_owned()),
        ..submission(n)
    }
}

/// A worker with these slots and key 1, which may hold two sessions.
async fn grid_with_key(harness: &dyn Harness, slots: u32) -> Grid {
    let grid = Grid::with_worker(harness, slots).await;
    let new = NewKey {
        max_sessions: Some(2),
        ..new_key(1)
    };
    grid.store.create_key(new).await.unwrap();
    grid
}

async fn held(grid: &Grid) -> u64 {
    grid.store.key(key(1)).await.unwrap().unwrap().held
}

// === quotas ===

pub async fn quota_counts_waiting_sessions_and_slots_still_held(harness: &dyn Harness) {
    let grid = grid_with_key(harness, 1).await;
    assert!(matches!(
        grid.store.submit(of(1, 1)).await.unwrap(),
        Submitted::Placed(_)
    ));
    assert!(matches!(
        grid.store.submit(of(2, 1)).await.unwrap(),
        Submitted::Queued { .. }
    ));
    let full = Submitted::QuotaReached { held: 2, limit: 2 };
    assert_eq!(grid.store.submit(of(3, 1)).await.unwrap(), full);
    // Others are not concerned: neither other keys, known or not, nor those without one.
    grid.queue(4).await;
    assert!(matches!(
        grid.store.submit(of(5, 9)).await.unwrap(),
        Submitted::Queued { .. }
    ));
    // Ended, but its browser is still there.
    grid.store.end(session(1), EndReason::Released, None).await.unwrap();
    assert_eq!(grid.store.submit(of(3, 1)).await.unwrap(), full);
    grid.store.vacate(session(1), Epoch(1)).await.unwrap();
    assert_eq!(held(&grid).await, 1);
    assert!(matches!(
        grid.store.submit(of(3, 1)).await.unwrap(),
        Submitted::Queued { .. }
    ));
    grid.store.end(session(3), EndReason::Cancelled, None).await.unwrap();
    assert_eq!(held(&grid).await, 1, "one that only waited leaves at once");
    grid.check().await;
}

pub async fn refusal_by_quota_keeps_nothing(harness: &dyn Harness) {
    let grid = grid_with_key(harness, 5).await;
    grid.store.submit(of(1, 1)).await.unwrap();
    grid.store.submit(of(2, 1)).await.unwrap();
    let before = grid.store.snapshot().await.unwrap();
    let over = keyed(3, Some(1));
    assert!(matches!(
        grid.store.submit(over.clone()).await.unwrap(),
        Submitted::QuotaReached { .. }
    ));
    assert_eq!(grid.store.snapshot().await.unwrap(), before);
    grid.store.vacate(session(1), Epoch(1)).await.unwrap();
    assert!(matches!(grid.store.submit(over).await.unwrap(), Submitted::Placed(_)));
    // Likewise one that the full queue turned away.
    grid.store.vacate(session(2), Epoch(1)).await.unwrap();
    grid.store.deregister(super::kit::worker(1)).await.unwrap();
    grid.store.register(super::kit::registration(1, 0)).await.unwrap();
    let unlucky = Submission {
        queue_limit: 0,
        ..of(4, 1)
    };
    assert!(matches!(
        grid.store.submit(unlucky).await.unwrap(),
        Submitted::QueueFull { .. }
    ));
    assert_eq!(held(&grid).await, 0);
    grid.check().await;
}

pub async fn idempotent_retry_is_answered_at_the_quota(harness: &dyn Harness) {
    let grid = grid_with_key(harness, 1).await;
    grid.store.submit(keyed(1, Some(1))).await.unwrap();
    grid.store.submit(of(2, 1)).await.unwrap();
    for again in [keyed(3, Some(1)), of(1, 1)] {
        match grid.store.submit(again).await.unwrap() {
            Submitted::Known(record) => assert_eq!(record.id, session(1)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(held(&grid).await, 2);
}

pub async fn changed_quota_ends_nothing(harness: &dyn Harness) {
    let grid = grid_with_key(harness, 5).await;
    grid.store.submit(of(1, 1)).await.unwrap();
    grid.store.submit(of(2, 1)).await.unwrap();
    let record = grid.store.set_quota(key(1), Some(1)).await.unwrap().unwrap();
    assert_eq!((record.max_sessions, record.held), (Some(1), 2));
    grid.store.vacate(session(1), Epoch(1)).await.unwrap();
    assert_eq!(
        grid.store.submit(of(3, 1)).await.unwrap(),
        Submitted::QuotaReached { held: 1, limit: 1 }
    );
    grid.store.set_quota(key(1), None).await.unwrap();
    assert!(matches!(
        grid.store.submit(of(3, 1)).await.unwrap(),
        Submitted::Placed(_)
    ));
    assert_eq!(grid.store.set_quota(key(7), Some(1)).await.unwrap(), None);
    grid.check().await;
}

pub async fn lock_is_told_before_the_quota(harness: &dyn Harness) {
    let grid = grid_with_key(harness, 5).await;
    grid.store.set_quota(key(1), Some(0)).await.unwrap();
    grid.store.acquire_lock(wish("exclusive", 1)).await.unwrap();
    assert!(matches!(
        grid.store.submit(of(1, 1)).await.unwrap(),
        Submitted::Locked(_)
    ));
}

// === what is whose ===

pub async fn idempotency_keys_are_each_owners_own(harness: &dyn Harness) {
    let grid = grid_with_key(harness, 9).await;
    for (n, owner) in [(1, None), (2, Some(1)), (3, Some(2))] {
        assert!(matches!(
            grid.store.submit(keyed(n, owner)).await.unwrap(),
            Submitted::Placed(_)
        ));
    }
    for (n, owner) in [(1, None), (2, Some(1)), (3, Some(2))] {
        match grid.store.submit(keyed(10 + n, owner)).await.unwrap() {
            Submitted::Known(record) => assert_eq!((record.id, record.owner), (session(n), owner.map(key))),
            other => panic!("{other:?}"),
        }
    }
    grid.check().await;
}

pub async fn sessions_are_listed_by_owner(harness: &dyn Harness) {
    let grid = grid_with_key(harness, 1).await;
    for (n, owner) in [(1, 1), (2, 2), (3, 2)] {
        grid.store.submit(of(n, owner)).await.unwrap();
    }
    grid.queue(4).await;
    grid.store.end(session(2), EndReason::Cancelled, None).await.unwrap();
    let query = SessionQuery {
        owner: Some(key(2)),
        limit: 9,
        ..SessionQuery::default()
    };
    let found = grid.store.sessions(&query).await.unwrap();
    assert_eq!(
        found.iter().map(|record| record.id).collect::<Vec<_>>(),
        [session(2), session(3)]
    );
    let waiting = SessionQuery {
        statuses: vec![SessionStatus::Queued],
        newest_first: true,
        ..query
    };
    assert_eq!(grid.store.sessions(&waiting).await.unwrap().len(), 1);
}

// === keys ===

pub async fn key_is_kept_once_and_read_back(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    // A session may have come with it before the store knew it.
    grid.store.submit(of(1, 2)).await.unwrap();
    let admin = NewKey {
        role: KeyRole::Admin,
        ..new_key(2)
    };
    let made = grid.store.create_key(admin.clone()).await.unwrap();
    let expected = KeyRecord {
        id: key(2),
        name: "key number 2".to_owned(),
        hash: [2; 32],
        role: KeyRole::Admin,
        max_sessions: None,
        held: 1,
        created_at: grid.store.now().await.unwrap(),
        used_at: None,
        revoked_at: None,
    };
    assert_eq!(made, expected);
    grid.clock.advance(seconds(3));
    let other = NewKey {
        name: "another".to_owned(),
        ..admin
    };
    assert_eq!(grid.store.create_key(other).await.unwrap(), expected);
    let first = grid.store.create_key(new_key(1)).await.unwrap();
    assert_eq!(grid.store.keys().await.unwrap(), [first, expected]);
    assert_eq!(grid.store.key(key(7)).await.unwrap(), None);
    grid.check().await;
}

pub async fn use_of_a_key_is_written_at_most_once_a_minute(harness: &dyn Harness) {
    let grid = grid_with_key(harness, 1).await;
    let used_at = async || {
        grid.store.key_used(key(1)).await.unwrap();
        grid.store.key(key(1)).await.unwrap().unwrap().used_at
    };
    let first = used_at().await;
    assert_eq!(first, Some(grid.store.now().await.unwrap()));
    grid.clock.advance(seconds(59));
    assert_eq!(used_at().await, first);
    grid.clock.advance(seconds(1));
    assert_eq!(used_at().await, Some(grid.store.now().await.unwrap()));
    grid.store.key_used(key(7)).await.unwrap();
    assert_eq!(grid.store.key(key(7)).await.unwrap(), None);
}

pub async fn revoked_key_loses_its_sessions_and_its_locks(harness: &dyn Harness) {
    let grid = grid_with_key(harness, 2).await;
    grid.store.set_quota(key(1), None).await.unwrap();
    grid.store.submit(of(1, 1)).await.unwrap();
    grid.store.activate(session(1), Epoch(1)).await.unwrap();
    grid.place(2).await;
    grid.store.submit(of(3, 1)).await.unwrap();
    grid.queue(4).await;
    let own = LockWish {
        owner: Some(key(1)),
        ..wish("exclusive", 1)
    };
    assert!(matches!(grid.store.acquire_lock(own).await.unwrap(), Locking::Taken(_)));
    grid.store.vacate(session(2), Epoch(1)).await.unwrap();
    let mut changes = grid.store.changes();
    let (record, freed) = grid.store.revoke_key(key(1)).await.unwrap().unwrap();
    let policy = EndReason::Policy;
    assert_eq!(ended(&freed), [(1, policy), (3, policy)]);
    assert_eq!(placed(&freed), [4], "whom its lock held back");
    assert_eq!(grid.record(1).await.detail.as_deref(), Some(KEY_REVOKED));
    for one in &freed.ended {
        assert_eq!(changes.try_recv().ok(), Some(Change::Ended(*one)));
    }
    let now = grid.store.now().await.unwrap();
    assert_eq!(
        (record.revoked_at, record.held),
        (Some(now), 1),
        "its browser is still there"
    );
    assert_eq!(grid.store.stats().await.unwrap().busy, 2);
    assert_eq!(grid.store.locks().await.unwrap(), []);
    grid.check().await;

    grid.clock.advance(seconds(1));
    let (again, freed) = grid.store.revoke_key(key(1)).await.unwrap().unwrap();
    assert_eq!((again, freed), (record, Freed::default()));
    grid.store.vacate(session(1), Epoch(1)).await.unwrap();
    assert_eq!(held(&grid).await, 0);
    assert_eq!(grid.store.revoke_key(key(7)).await.unwrap(), None);
    assert!(matches!(
        grid.store
            .release_lock(&wish("exclusive", 1).name, token(1))
            .await
            .unwrap(),
        crate::Unlocking::NotYours(None)
    ));
    grid.check().await;
}

/// Who was let in by the front door a moment before may still knock here a moment after.
pub async fn revoked_key_is_admitted_no_more(harness: &dyn Harness) {
    let grid = grid_with_key(harness, 2).await;
    grid.store.revoke_key(key(1)).await.unwrap();
    let none = Submitted::QuotaReached { held: 0, limit: 0 };
    assert_eq!(grid.store.submit(of(1, 1)).await.unwrap(), none);
    grid.store.set_quota(key(1), None).await.unwrap();
    assert_eq!(grid.store.submit(of(1, 1)).await.unwrap(), none);
    grid.check().await;
}
