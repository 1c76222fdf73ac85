//! The contract by example: the fleet as an operator sees it. One function per promise.
//!
//! Its own file because these are not about any session: draining, removing and recycling workers, their load, and the
//! log of events, which must tell all of it once, in order.
#![expect(missing_docs, reason = "each function's name is its sentence")]
#![expect(
    clippy::unwrap_used,
    reason = "test code that engines' tests call; a store that fails is a failed test"
)]

use wharf_core::{EndReason, Epoch, LimitScope, PoolName, WorkerState};

use super::{
    Harness,
    kit::{
        Grid, ended, heartbeat, key, lock_name, new_key, operation, placed, pool, registration, seconds, session,
        submission, token, wish, worker,
    },
};
use crate::{
    Change, EVENTS_KEPT, Event, EventPage, Happening, Heartbeat, HeartbeatReply, Load, LockWish, Locking,
    PlacementFailure, Registration, Replaced, SessionChange, Submission, Submitted, Touch, WorkerRecord,
};

/// Sessions that come and go in one round of [`old_events_are_forgotten_and_the_page_says_so`].
const CROWD: u32 = 100;

/// A report that must be known; whether the worker is to drain.
async fn told_to_drain(grid: &Grid, beat: Heartbeat) -> bool {
    match grid.store.heartbeat(beat).await.unwrap() {
        HeartbeatReply::Known { drain, .. } => drain,
        HeartbeatReply::Unknown => panic!("expected it to be known"),
    }
}

/// A report of a worker that would like to begin anew.
fn tired(n: u128, held: &[(u128, u32)]) -> Heartbeat {
    Heartbeat {
        wants_recycling: true,
        ..heartbeat(n, held)
    }
}

async fn row(grid: &Grid, n: u128) -> WorkerRecord {
    let mut rows = grid.store.workers(None).await.unwrap().into_iter();
    rows.find(|row| row.id == worker(n)).expect("it is known")
}

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
async fn since(grid: &Grid, after: u64) -> (Vec<String>, u64) {
    let page = grid.store.events(after, u32::MAX).await.unwrap();
    let numbers = page.events.iter().map(|event| event.number);
    assert!(numbers.eq(after + 1..=page.newest), "{page:?}");
    (page.events.iter().map(words).collect(), page.newest)
}

/// Asserts what has happened since a number, and moves the number on.
async fn happened(grid: &Grid, after: &mut u64, expected: &[&str]) {
    let (found, newest) = since(grid, *after).await;
    assert_eq!(found, expected);
    *after = newest;
}

// === draining ===

pub async fn drained_by_order_gets_nothing_and_is_told(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 2).await;
    grid.activate(1).await;
    assert!(!told_to_drain(&grid, heartbeat(1, &[(1, 1)])).await);
    let before = row(&grid, 1).await;
    grid.clock.advance(seconds(1));
    let drained = grid.store.drain_worker(worker(1)).await.unwrap().unwrap();
    let expected = WorkerRecord {
        state: WorkerState::Draining,
        ..before
    };
    assert_eq!(drained, expected, "it was not heard, only told of");
    assert_eq!(row(&grid, 1).await, expected);
    grid.queue(2).await;
    assert_eq!(grid.store.dispatch().await.unwrap(), []);
    assert!(told_to_drain(&grid, heartbeat(1, &[(1, 1)])).await);
    assert_eq!(grid.reason(1).await, None, "what runs goes on");
    assert_eq!(grid.store.drain_worker(worker(9)).await.unwrap(), None);
    grid.check().await;
}

pub async fn drain_order_survives_reports_and_is_told_until_it_leaves(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    grid.store.register(registration(2, 0)).await.unwrap();
    grid.store.drain_worker(worker(1)).await.unwrap();
    let (_, newest) = since(&grid, 0).await;
    for _ in 0..3 {
        grid.clock.advance(seconds(3));
        // It neither drains by its own word nor is it any less ready.
        assert!(told_to_drain(&grid, heartbeat(1, &[])).await);
        assert!(!told_to_drain(&grid, heartbeat(2, &[])).await);
        let again = grid.store.drain_worker(worker(1)).await.unwrap().unwrap();
        assert_eq!(again.state, WorkerState::Draining);
    }
    assert_eq!(since(&grid, newest).await.0, Vec::<String>::new());
    grid.queue(1).await;
    grid.store.deregister(worker(1)).await.unwrap();
    let gone = grid.store.drain_worker(worker(1)).await.unwrap().unwrap();
    assert_eq!(
        gone.state,
        WorkerState::Gone,
        "one that is no longer live stays as it is"
    );
    // One that registers begins anew.
    let registered = grid.store.register(registration(1, 1)).await.unwrap();
    assert_eq!(placed(&registered.freed), [1]);
    assert!(!told_to_drain(&grid, heartbeat(1, &[(1, 1)])).await);
    grid.check().await;
}

pub async fn removed_worker_ends_its_sessions_and_must_register(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 3).await;
    grid.activate(1).await;
    grid.place(2).await;
    grid.activate(3).await;
    grid.store.end(session(3), EndReason::Released, None).await.unwrap();
    let all = PoolName::default();
    grid.store.set_limit(&all, LimitScope::Pool, Some(3)).await.unwrap();
    grid.store.register(registration(2, 1)).await.unwrap();
    grid.queue(4).await;
    let before = row(&grid, 1).await;
    let mut changes = grid.store.changes();
    let (removed, freed) = grid.store.remove_worker(worker(1)).await.unwrap().unwrap();
    assert_eq!((removed.busy, &removed), (3, &before), "it is answered as it was");
    assert_eq!(ended(&freed), [(1, EndReason::WorkerLost), (2, EndReason::WorkerLost)]);
    assert_eq!(grid.reason(3).await, Some(EndReason::Released), "the first end wins");
    assert_eq!(placed(&freed), [4], "its leases no longer count for the limit");
    for ended in freed.ended {
        assert_eq!(changes.try_recv(), Ok(Change::Ended(ended)));
    }
    let rows = grid.store.workers(None).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.id).collect::<Vec<_>>(), [worker(2)]);
    assert_eq!(grid.store.remove_worker(worker(1)).await.unwrap(), None);
    let reply = grid.store.heartbeat(heartbeat(1, &[(1, 1)])).await.unwrap();
    assert_eq!(reply, HeartbeatReply::Unknown);
    grid.check().await;
    grid.store.register(registration(1, 1)).await.unwrap();
    grid.beat(1, &[]).await;
    grid.place(5).await;
    grid.check().await;
}

// === recycling ===

pub async fn recycling_is_one_at_a_time(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    for n in [2, 3] {
        grid.store.register(registration(n, 1)).await.unwrap();
    }
    let elsewhere = Registration {
        pool: pool("other"),
        ..registration(4, 1)
    };
    grid.store.register(elsewhere).await.unwrap();
    assert!(told_to_drain(&grid, tired(1, &[])).await);
    assert!(!told_to_drain(&grid, tired(2, &[])).await);
    assert_eq!(row(&grid, 2).await.state, WorkerState::Available);
    assert!(told_to_drain(&grid, tired(4, &[])).await, "each pool by itself");
    assert!(told_to_drain(&grid, tired(1, &[])).await, "it is its own turn still");
    assert_eq!(grid.place(1).await.worker, Some(worker(2)));
    grid.store.deregister(worker(1)).await.unwrap();
    assert!(told_to_drain(&grid, tired(2, &[(1, 1)])).await);
    assert!(!told_to_drain(&grid, tired(3, &[])).await);
    // Silence ends a turn too, once the sweep has seen it.
    grid.clock.advance(seconds(6));
    grid.beat(3, &[]).await;
    grid.clock.advance(seconds(6));
    grid.store.sweep().await.unwrap();
    assert_eq!(row(&grid, 2).await.state, WorkerState::Lost);
    // An operator's drain counts like any other.
    grid.store.register(registration(5, 1)).await.unwrap();
    grid.store.drain_worker(worker(5)).await.unwrap();
    assert!(!told_to_drain(&grid, tired(3, &[])).await);
    grid.store.remove_worker(worker(5)).await.unwrap();
    assert!(told_to_drain(&grid, tired(3, &[])).await);
    grid.check().await;
}

pub async fn recycling_alone_is_allowed_at_once(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 2).await;
    grid.activate(1).await;
    let (_, mut seen) = since(&grid, 0).await;
    assert!(told_to_drain(&grid, tired(1, &[(1, 1)])).await);
    happened(&grid, &mut seen, &["worker.draining 1"]).await;
    assert_eq!(grid.reason(1).await, None, "what runs goes on");
    grid.queue(2).await;
    // A drain is never undone, whatever it would like later.
    assert!(told_to_drain(&grid, heartbeat(1, &[(1, 1)])).await);
    grid.check().await;
}

// === load ===

pub async fn load_is_reported(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    grid.store.register(registration(2, 1)).await.unwrap();
    assert_eq!(row(&grid, 1).await.load, Load::default());
    let load = Load {
        cpu_permille: 987,
        memory_used: 3 << 40,
        memory_limit: (4 << 40) + 1,
        pressure_permille: 1_000,
    };
    let busy = Heartbeat {
        load,
        ..heartbeat(1, &[])
    };
    grid.store.heartbeat(busy).await.unwrap();
    assert_eq!(
        (row(&grid, 1).await.load, row(&grid, 2).await.load),
        (load, Load::default())
    );
    assert_eq!(grid.place(1).await.worker, Some(worker(1)), "nothing is placed by it");
    grid.beat(1, &[(1, 1)]).await;
    assert_eq!(row(&grid, 1).await.load, Load::default(), "the last report counts");
    let busy = Heartbeat {
        load,
        ..heartbeat(1, &[(1, 1)])
    };
    grid.store.heartbeat(busy).await.unwrap();
    grid.store.register(registration(1, 1)).await.unwrap();
    assert_eq!(
        row(&grid, 1).await.load,
        Load::default(),
        "one that registers begins anew"
    );
    grid.check().await;
}

// === events ===

pub async fn events_tell_a_session_s_life_in_order(harness: &dyn Harness) {
    let grid = Grid::open(harness).await;
    let nothing = EventPage {
        events: Vec::new(),
        oldest: 1,
        newest: 0,
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
    // Each session is told of four times: it waits, the queue is longer, it is placed, it is lost.
    while newest < EVENTS_KEPT + 1_000 {
        for n in next..next + u128::from(CROWD) {
            grid.queue(n).await;
        }
        next += u128::from(CROWD);
        grid.store.register(registration(2, CROWD)).await.unwrap();
        grid.store.remove_worker(worker(2)).await.unwrap();
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
