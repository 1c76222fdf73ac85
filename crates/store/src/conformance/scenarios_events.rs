//! The contract by example: the log of events. One function per promise.
//!
//! Its own file because the log is a promise of its own: it tells everything that happens once, in order, and says what
//! it has forgotten.
#![expect(missing_docs, reason = "each function's name is its sentence")]
#![expect(
    clippy::unwrap_used,
    reason = "test code that engines' tests call; a store that fails is a failed test"
)]

use wharf_core::{EndReason, Epoch, PoolName};

use super::{
    Harness,
    kit::{
        Grid, heartbeat, key, lock_name, new_key, operation, pool, registration, seconds, session, submission, token,
        wish, worker,
    },
};
use crate::{
    Change, EVENTS_KEPT, Event, EventPage, Happening, Heartbeat, LockWish, Locking, PlacementFailure, QueueFilter,
    Registration, Replaced, SessionChange, Submission, Submitted, Touch,
};

/// Sessions that come and go in one round of [`old_events_are_forgotten_and_the_page_says_so`].
const CROWD: u32 = 100;

/// An event in a few words.
fn words(event: &Event) -> String {
    let name = event.what.name();
    match &event.what {
        Happening::Session {
            session,
            worker,
            change,
            ..
        } => {
            let on = worker.map_or(String::new(), |worker| format!(" on {}", worker.as_uuid().as_u128()));
            let why = match change {
                SessionChange::Ended(reason) => format!(": {reason}"),
                _ => String::new(),
            };
            format!("{name} {}{on}{why}", session.as_uuid().as_u128())
        }
        Happening::Worker { worker, .. } => format!("{name} {}", worker.as_uuid().as_u128()),
        Happening::Lock { name: lock, holder, .. } => format!("{name} {lock} by {holder}"),
        Happening::Queue { pool, waiting } => format!("{name} {pool} {waiting}"),
    }
}

/// The events after a number, which come without gaps; and the newest number.
pub(super) async fn since(grid: &Grid, after: u64) -> (Vec<String>, u64) {
    let page = grid.store.events(after, u32::MAX).await.unwrap();
    let numbers = page.events.iter().map(|event| event.number);
    assert!(numbers.eq(after + 1..=page.newest), "{page:?}");
    (page.events.iter().map(words).collect(), page.newest)
}

/// Asserts what has happened since a number, and moves the number on.
pub(super) async fn happened(grid: &Grid, after: &mut u64, expected: &[&str]) {
    let (found, newest) = since(grid, *after).await;
    assert_eq!(found, expected);
    *after = newest;
}

// === events ===

pub async fn events_tell_a_session_s_life_in_order(harness: &dyn Harness) {
    let grid = Grid::open(harness).await;
    let nothing = EventPage {
        oldest: 1,
        ..EventPage::default()
    };
    assert_eq!(grid.store.events(0, 9).await.unwrap(), nothing);
    let mut seen = 0;
    grid.store.register(registration(1, 1)).await.unwrap();
    happened(&grid, &mut seen, &["worker.registered 1", "worker.available 1"]).await;
    let mut first = Submission {
        owner: Some(key(7)),
        ..submission(1)
    };
    first.spec.operation = operation("scrape");
    grid.clock.advance(seconds(1));
    grid.store.submit(first).await.unwrap();
    let expected = Event {
        number: 3,
        at: grid.store.now().await.unwrap(),
        what: Happening::Session {
            session: session(1),
            pool: PoolName::default(),
            operation: operation("scrape"),
            owner: Some(key(7)),
            worker: Some(worker(1)),
            change: SessionChange::Placed,
        },
    };
    assert_eq!(grid.store.events(2, 9).await.unwrap().events, [expected]);
    grid.store.activate(session(1), Epoch(1)).await.unwrap();
    grid.queue(2).await;
    let touch = Touch {
        session: session(1),
        idle_for: seconds(0),
        is_attached: true,
    };
    grid.store.touch(&[touch]).await.unwrap();
    for reason in [EndReason::Released, EndReason::Cancelled] {
        grid.store.end(session(1), reason, None).await.unwrap();
    }
    let life = [
        "session.placed 1 on 1",
        "session.active 1 on 1",
        "session.queued 2",
        "queue.changed default 1",
        "session.ended 1 on 1: released",
    ];
    happened(&grid, &mut seen, &life).await;
    let mut changes = grid.store.changes();
    let freed = grid.store.vacate(session(1), Epoch(1)).await.unwrap();
    assert_eq!(changes.try_recv(), Ok(Change::Placed(freed.placed[0])));
    assert_eq!(
        changes.try_recv(),
        Ok(Change::Noted(seen + 2)),
        "once, after the others"
    );
    happened(&grid, &mut seen, &["session.placed 2 on 1", "queue.changed default 0"]).await;
    grid.store.claim(session(2), Epoch(1)).await.unwrap().unwrap();
    let failure = |epoch| PlacementFailure {
        session: session(2),
        epoch: Epoch(epoch),
        cause: "no such binary".to_owned(),
        is_worker_absent: false,
    };
    let replaced = grid.store.placement_failed(failure(1)).await.unwrap();
    assert!(matches!(replaced, Replaced::Placed(_)), "{replaced:?}");
    assert_eq!(
        changes.try_recv(),
        Ok(Change::Noted(seen + 1)),
        "even if nobody else is told"
    );
    grid.store.drain_worker(worker(1)).await.unwrap();
    let replaced = grid.store.placement_failed(failure(2)).await.unwrap();
    assert!(matches!(replaced, Replaced::Queued(_)), "{replaced:?}");
    grid.store.end(session(2), EndReason::Cancelled, None).await.unwrap();
    let again = [
        "session.placed 2 on 1",
        "worker.draining 1",
        "session.queued 2 on 1",
        "queue.changed default 1",
        "session.ended 2 on 1: cancelled",
        "queue.changed default 0",
    ];
    happened(&grid, &mut seen, &again).await;
    grid.check().await;
}

pub async fn events_tell_of_workers_and_locks(harness: &dyn Harness) {
    let grid = Grid::open(harness).await;
    let mut seen = 0;
    let starting = Registration {
        is_ready: false,
        ..registration(1, 1)
    };
    grid.store.register(starting).await.unwrap();
    for is_circuit_open in [false, true, true, false] {
        let beat = Heartbeat {
            is_circuit_open,
            ..heartbeat(1, &[])
        };
        grid.store.heartbeat(beat).await.unwrap();
    }
    for _ in 0..2 {
        grid.store.drain_worker(worker(1)).await.unwrap();
    }
    for _ in 0..2 {
        grid.store.deregister(worker(1)).await.unwrap();
    }
    grid.store.register(registration(1, 1)).await.unwrap();
    grid.clock.advance(seconds(10));
    for _ in 0..2 {
        grid.store.sweep().await.unwrap();
        grid.store.remove_worker(worker(2)).await.unwrap();
    }
    grid.store.remove_worker(worker(1)).await.unwrap();
    let life = "registered available circuit_opened circuit_closed draining gone registered available lost removed";
    let life: Vec<_> = life.split(' ').map(|change| format!("worker.{change} 1")).collect();
    happened(&grid, &mut seen, &life.iter().map(String::as_str).collect::<Vec<_>>()).await;

    let name = lock_name("exclusive");
    grid.store.create_key(new_key(1)).await.unwrap();
    let owned = LockWish {
        owner: Some(key(1)),
        ..wish("exclusive", 1)
    };
    for by in [1, 1, 2] {
        grid.store.acquire_lock(wish("exclusive", by)).await.unwrap();
        grid.store.renew_lock(&name, token(by), seconds(9)).await.unwrap();
    }
    for by in [2, 1, 1] {
        grid.store.release_lock(&name, token(by)).await.unwrap();
    }
    grid.store.acquire_lock(wish("exclusive", 2)).await.unwrap();
    for _ in 0..2 {
        grid.store.force_unlock(&name).await.unwrap();
    }
    grid.store.acquire_lock(owned).await.unwrap();
    let page = grid.store.events(seen, u32::MAX).await.unwrap();
    assert_eq!(page.events.last().unwrap().what.owner(), Some(key(1)));
    for _ in 0..2 {
        grid.store.revoke_key(key(1)).await.unwrap();
    }
    let life = [
        "lock.acquired exclusive by holder 1",
        "lock.renewed exclusive by holder 1",
        "lock.renewed exclusive by holder 1",
        "lock.released exclusive by holder 1",
        "lock.acquired exclusive by holder 2",
        "lock.forced exclusive by holder 2",
        "lock.acquired exclusive by holder 1",
        "lock.released exclusive by holder 1",
    ];
    happened(&grid, &mut seen, &life).await;
    grid.check().await;
}

pub async fn events_of_one_step_come_workers_locks_sessions_queues(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 0).await;
    let elsewhere = |slots| Registration {
        pool: pool("a"),
        ..registration(2, slots)
    };
    grid.store.register(elsewhere(1)).await.unwrap();
    let there = |n| {
        let mut one = submission(n);
        one.spec.pool = pool("a");
        one
    };
    grid.store.submit(there(1)).await.unwrap();
    grid.queue(2).await;
    grid.store.submit(there(3)).await.unwrap();
    let (mut short, long) = (wish("exclusive", 1), wish("another", 2));
    short.ttl = seconds(5);
    for wish in [
        short,
        LockWish {
            ttl: seconds(4),
            ..long
        },
    ] {
        grid.store.acquire_lock(wish).await.unwrap();
    }
    // The slot is free, and the locks keep it so.
    grid.store.vacate(session(1), Epoch(1)).await.unwrap();
    grid.clock.advance(seconds(5));
    let (_, mut seen) = since(&grid, 0).await;
    grid.store.register(registration(1, 1)).await.unwrap();
    let step = [
        "worker.registered 1",
        "worker.available 1",
        "lock.expired another by holder 2",
        "lock.expired exclusive by holder 1",
        "session.placed 3 on 2",
        "session.placed 2 on 1",
        "queue.changed a 0",
        "queue.changed default 0",
    ];
    happened(&grid, &mut seen, &step).await;
    grid.check().await;
}

pub async fn expired_lock_is_told_once(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    let (_, mut seen) = since(&grid, 0).await;
    let take = |by: u128| {
        let owner = Some(key(by));
        grid.store.acquire_lock(LockWish {
            owner,
            ..wish("exclusive", by)
        })
    };
    take(1).await.unwrap();
    let past = async || {
        grid.clock.advance(seconds(6));
        grid.beat(1, &[]).await;
        grid.clock.advance(seconds(4));
    };
    past().await;
    happened(&grid, &mut seen, &["lock.acquired exclusive by holder 1"]).await;
    assert_eq!(grid.store.locks().await.unwrap(), []);
    for _ in 0..2 {
        grid.store.sweep().await.unwrap();
        grid.store.dispatch().await.unwrap();
    }
    happened(&grid, &mut seen, &["lock.expired exclusive by holder 1"]).await;
    // The next holder's step tells of it, if nobody did before.
    take(1).await.unwrap();
    past().await;
    assert!(matches!(take(2).await.unwrap(), Locking::Taken(_)));
    let followed = [
        "lock.acquired exclusive by holder 1",
        "lock.expired exclusive by holder 1",
        "lock.acquired exclusive by holder 2",
    ];
    happened(&grid, &mut seen, &followed).await;
    // It had expired before its key was revoked.
    past().await;
    grid.store.create_key(new_key(2)).await.unwrap();
    for _ in 0..2 {
        grid.store.revoke_key(key(2)).await.unwrap();
    }
    happened(&grid, &mut seen, &["lock.expired exclusive by holder 2"]).await;
    grid.check().await;
}

pub async fn refused_newcomers_leave_no_event(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 0).await;
    let quota = crate::NewKey {
        max_sessions: Some(0),
        ..new_key(1)
    };
    grid.store.create_key(quota).await.unwrap();
    let keyed = Submission {
        idempotency_key: Some("again".to_owned()),
        ..submission(1)
    };
    grid.store.submit(keyed.clone()).await.unwrap();
    let (_, newest) = since(&grid, 0).await;
    let mut changes = grid.store.changes();
    let mut nowhere = submission(2);
    nowhere.spec.pool = pool("nowhere");
    let full = Submission {
        queue_limit: 1,
        ..submission(2)
    };
    let owned = Submission {
        owner: Some(key(1)),
        ..submission(2)
    };
    let mut other = keyed.clone();
    other.spec.description = "another".to_owned();
    let mut answers = Vec::new();
    for one in [nowhere, full, owned, keyed, other] {
        answers.push(grid.store.submit(one).await.unwrap());
    }
    assert!(
        matches!(
            answers[..],
            [
                Submitted::NoSuchPool,
                Submitted::QueueFull { .. },
                Submitted::QuotaReached { .. },
                Submitted::Known(_),
                Submitted::KeyReused(_)
            ]
        ),
        "{answers:?}"
    );
    assert_eq!(since(&grid, newest).await, (vec![], newest));
    assert!(changes.try_recv().is_err());
    grid.store.acquire_lock(wish("exclusive", 1)).await.unwrap();
    assert!(matches!(grid.submit(2).await, Submitted::Locked(_)));
    assert_eq!(since(&grid, newest).await.0, ["lock.acquired exclusive by holder 1"]);
    grid.check().await;
}

// === reading on ===

pub async fn events_resume_without_loss_or_repeat(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 0).await;
    for n in 1..=300 {
        let one = Submission {
            queue_limit: u64::MAX,
            ..submission(n)
        };
        grid.store.submit(one).await.unwrap();
    }
    // One step with more events than any page below, and steps with one.
    grid.store.register(registration(2, 300)).await.unwrap();
    for n in 1..=5 {
        grid.store.end(session(n), EndReason::Released, None).await.unwrap();
    }
    let whole = grid.store.events(0, u32::MAX).await.unwrap();
    assert_eq!((whole.oldest, whole.newest, whole.events.len()), (1, 910, 910));
    for size in [1, 2, 7, 299, 910, 911] {
        let mut after = 0;
        let mut read = Vec::new();
        loop {
            let page = grid.store.events(after, size).await.unwrap();
            assert_eq!((page.oldest, page.newest), (1, 910));
            let full = usize::try_from(size).unwrap().min(910 - read.len());
            assert_eq!(page.events.len(), full, "pages of {size} after {after}");
            let Some(last) = page.events.last() else { break };
            after = last.number;
            read.extend(page.events);
        }
        assert_eq!(read, whole.events, "pages of {size}");
    }
    for (after, limit) in [(0, 0), (910, 9), (999, 9), (u64::MAX, 9)] {
        let page = grid.store.events(after, limit).await.unwrap();
        assert_eq!((page.events, page.oldest, page.newest), (vec![], 1, 910));
    }
    grid.store.end(session(6), EndReason::Released, None).await.unwrap();
    assert_eq!(since(&grid, 910).await.0, ["session.ended 6 on 2: released"]);
    grid.check().await;
}

pub async fn old_events_are_forgotten_and_the_page_says_so(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 0).await;
    let mut next = 1;
    let mut newest = 0;
    // Each session is told of: it waits, the queue is longer, it is placed, it waits again, it ends.
    while newest < EVENTS_KEPT + 1_000 {
        for n in next..next + u128::from(CROWD) {
            grid.queue(n).await;
        }
        next += u128::from(CROWD);
        grid.store.register(registration(2, CROWD)).await.unwrap();
        grid.store.remove_worker(worker(2)).await.unwrap();
        let everybody = QueueFilter::default();
        let cleared = grid.store.clear_queue(everybody, EndReason::Killed, "enough").await;
        assert_eq!(cleared.unwrap().ended.len(), CROWD as usize);
        newest = grid.store.events(u64::MAX, 0).await.unwrap().newest;
    }
    let mut oldest = 1;
    // An engine may do so over several sweeps.
    for _ in 0..20 {
        grid.store.sweep().await.unwrap();
        oldest = grid.store.events(u64::MAX, 0).await.unwrap().oldest;
    }
    assert!(oldest > 1, "nothing was forgotten of {newest}");
    assert!(newest - oldest + 1 >= EVENTS_KEPT, "{oldest} to {newest}");
    for after in [0, 1, oldest - 1] {
        let page = grid.store.events(after, u32::MAX).await.unwrap();
        assert_eq!((page.oldest, page.newest), (oldest, newest));
        let numbers = page.events.iter().map(|event| event.number);
        assert!(numbers.eq(oldest..=newest), "after {after}");
    }
    let page = grid.store.events(oldest, 1).await.unwrap();
    assert_eq!((page.events.len(), page.events[0].number), (1, oldest + 1));
    grid.store.deregister(worker(1)).await.unwrap();
    assert_eq!(since(&grid, newest).await.0, ["worker.gone 1"]);
    grid.check().await;
}
