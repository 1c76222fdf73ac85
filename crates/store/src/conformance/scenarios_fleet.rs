//! The contract by example: the fleet as an operator sees it. One function per promise.
//!
//! Its own file because these begin with a worker and not with a session: draining, removing and recycling workers, what
//! becomes of sessions that were still to get a browser there, and their load.
#![expect(missing_docs, reason = "each function's name is its sentence")]
#![expect(
    clippy::unwrap_used,
    reason = "test code that engines' tests call; a store that fails is a failed test"
)]

use wharf_core::{EndReason, Epoch, LimitScope, PoolName, WorkerState};

use super::{
    Harness,
    kit::{Grid, ended, heartbeat, placed, pool, registration, seconds, session, told, worker},
    scenarios_events::{happened, since},
};
use crate::{Change, Freed, Heartbeat, HeartbeatReply, Load, PlacementFailure, Registration, Replaced, WorkerRecord};

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
    grid.store.register(registration(2, 2)).await.unwrap();
    grid.queue(4).await;
    let before = row(&grid, 1).await;
    let mut changes = grid.store.changes();
    let (removed, freed) = grid.store.remove_worker(worker(1)).await.unwrap().unwrap();
    assert_eq!((removed.busy, &removed), (3, &before), "it is answered as it was");
    assert_eq!(ended(&freed), [(1, EndReason::WorkerLost)]);
    assert_eq!(grid.reason(3).await, Some(EndReason::Released), "the first end wins");
    assert_eq!(
        placed(&freed),
        [2, 4],
        "its leases no longer count for the limit; what had no browser yet gets one elsewhere"
    );
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
    assert!(
        !told_to_drain(&grid, tired(2, &[(1, 1)])).await,
        "it is away, and expected back"
    );
    let starting = Registration {
        is_ready: false,
        ..registration(1, 1)
    };
    grid.store.register(starting).await.unwrap();
    assert!(!told_to_drain(&grid, tired(2, &[(1, 1)])).await, "it is not there yet");
    grid.beat(1, &[]).await;
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

pub async fn recycling_does_not_wait_long_for_one_that_does_not_come_back(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    for n in [2, 3] {
        grid.store.register(registration(n, 1)).await.unwrap();
    }
    grid.store.deregister(worker(1)).await.unwrap();
    let starting = Registration {
        is_ready: false,
        ..registration(2, 1)
    };
    grid.store.register(starting).await.unwrap();
    let not_ready = Heartbeat {
        is_ready: false,
        ..heartbeat(2, &[])
    };
    grid.clock.advance(seconds(10) - std::time::Duration::from_micros(1));
    grid.store.heartbeat(not_ready).await.unwrap();
    assert!(!told_to_drain(&grid, tired(3, &[])).await);
    grid.clock.advance(std::time::Duration::from_micros(1));
    assert!(told_to_drain(&grid, tired(3, &[])).await);
    grid.check().await;
}

// === sessions whose worker goes before they have a browser ===

/// How a worker may go.
#[derive(Debug, Clone, Copy)]
enum Going {
    Deregistered,
    Removed,
    Lost,
    Restarted,
}

pub async fn session_without_a_browser_is_placed_elsewhere_when_its_worker_goes(harness: &dyn Harness) {
    for going in [Going::Deregistered, Going::Removed, Going::Lost, Going::Restarted] {
        let grid = Grid::with_worker(harness, 1).await;
        grid.place(1).await;
        grid.clock.advance(seconds(9));
        grid.store.register(registration(2, 1)).await.unwrap();
        let (_, mut seen) = since(&grid, 0).await;
        let mut changes = grid.store.changes();
        let (freed, word) = match going {
            Going::Deregistered => (grid.store.deregister(worker(1)).await.unwrap(), "worker.gone 1"),
            Going::Removed => (
                grid.store.remove_worker(worker(1)).await.unwrap().unwrap().1,
                "worker.removed 1",
            ),
            Going::Lost => {
                grid.clock.advance(seconds(1));
                (grid.store.sweep().await.unwrap(), "worker.lost 1")
            }
            Going::Restarted => {
                let starting = Registration {
                    is_ready: false,
                    ..registration(1, 1)
                };
                (
                    grid.store.register(starting).await.unwrap().freed,
                    "worker.registered 1",
                )
            }
        };
        assert_eq!((ended(&freed), placed(&freed)), (vec![], vec![1]), "{going:?}");
        assert_eq!(freed.placed[0].seat.worker, worker(2), "{going:?}");
        let expected = [word, "session.queued 1 on 1", "session.placed 1 on 2"];
        happened(&grid, &mut seen, &expected).await;
        assert_eq!(told(&mut changes), [Change::Placed(freed.placed[0])], "{going:?}");
        // Whatever is still said of the first placement is too late.
        assert_eq!(grid.store.activate(session(1), Epoch(1)).await.unwrap(), None);
        assert_eq!(grid.store.vacate(session(1), Epoch(1)).await.unwrap(), Freed::default());
        let late = PlacementFailure {
            session: session(1),
            epoch: Epoch(1),
            cause: "it went".to_owned(),
            is_worker_absent: true,
        };
        assert_eq!(grid.store.placement_failed(late).await.unwrap(), Replaced::Stale);
        grid.store.claim(session(1), Epoch(2)).await.unwrap().unwrap();
        grid.store.activate(session(1), Epoch(2)).await.unwrap().unwrap();
        grid.check().await;
    }
}

pub async fn session_without_a_browser_keeps_its_place_when_its_worker_goes(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 2).await;
    grid.activate(1).await;
    grid.place(2).await;
    grid.queue(3).await;
    grid.store.register(registration(2, 0)).await.unwrap();
    let freed = grid.store.deregister(worker(1)).await.unwrap();
    assert_eq!(
        (ended(&freed), placed(&freed)),
        (vec![(1, EndReason::WorkerDrained)], vec![])
    );
    assert_eq!(grid.store.position(session(2)).await.unwrap(), Some(1));
    assert_eq!(grid.store.position(session(3)).await.unwrap(), Some(2));
    // Its coordinator must be there: the ticket is good for one lease.
    grid.clock.advance(seconds(10));
    grid.beat(2, &[]).await;
    let freed = grid.store.sweep().await.unwrap();
    assert_eq!(
        ended(&freed),
        [(2, EndReason::Cancelled), (3, EndReason::Cancelled)],
        "nobody renewed"
    );
    grid.check().await;
}

pub async fn session_without_a_browser_ends_with_the_last_worker_that_could_serve_it(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    let elsewhere = Registration {
        pool: pool("other"),
        ..registration(2, 1)
    };
    grid.store.register(elsewhere).await.unwrap();
    grid.place(1).await;
    let freed = grid.store.deregister(worker(1)).await.unwrap();
    assert_eq!(
        (ended(&freed), placed(&freed)),
        (vec![(1, EndReason::WorkerDrained)], vec![])
    );
    grid.store.register(registration(1, 1)).await.unwrap();
    grid.place(3).await;
    // Its only worker goes over to another pool.
    let moved = Registration {
        pool: pool("other"),
        ..registration(1, 1)
    };
    let freed = grid.store.register(moved).await.unwrap().freed;
    assert_eq!(ended(&freed), [(3, EndReason::WorkerLost)]);
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
