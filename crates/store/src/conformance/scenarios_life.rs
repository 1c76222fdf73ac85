//! The contract by example: placements, failures, endings, slots. One function per promise.
//!
//! Time stands still here; what time does is in `scenarios_time`.
#![expect(missing_docs, reason = "each function's name is its sentence")]
#![expect(
    clippy::unwrap_used,
    reason = "test code that engines' tests call; a store that fails is a failed test"
)]

use wharf_core::{EndReason, Epoch, SessionStatus, WorkerState};

use super::{
    Harness,
    kit::{Grid, heartbeat, placed, registration, session, worker},
};
use crate::{Ended, Freed, HeartbeatReply, PlacementFailure, Replaced};

fn failure(n: u128, epoch: u32) -> PlacementFailure {
    PlacementFailure {
        session: session(n),
        epoch: Epoch(epoch),
        cause: "no such binary".to_owned(),
        is_worker_absent: false,
    }
}

pub async fn claim_and_activate_refuse_old_placements(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 0).await;
    grid.queue(1).await;
    grid.store.register(registration(1, 1)).await.unwrap();
    assert_eq!(grid.store.claim(session(1), Epoch(2)).await.unwrap(), None);
    assert_eq!(grid.store.activate(session(1), Epoch(1)).await.unwrap(), None);
    let claimed = grid.store.claim(session(1), Epoch(1)).await.unwrap().unwrap();
    assert_eq!(claimed.state.status(), SessionStatus::Starting);
    assert_eq!(grid.store.claim(session(1), Epoch(1)).await.unwrap(), None);
    assert_eq!(grid.store.activate(session(1), Epoch(0)).await.unwrap(), None);
    let active = grid.store.activate(session(1), Epoch(1)).await.unwrap().unwrap();
    assert_eq!(active.state.status(), SessionStatus::Active);
    assert_eq!(active.times.started_at, Some(grid.store.now().await.unwrap()));
    grid.store.end(session(1), EndReason::Killed, None).await.unwrap();
    assert_eq!(grid.store.activate(session(1), Epoch(1)).await.unwrap(), None);
    assert_eq!(grid.store.claim(session(7), Epoch(1)).await.unwrap(), None);
    grid.check().await;
}

pub async fn end_twice_keeps_first_reason(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    grid.activate(1).await;
    let first = grid
        .store
        .end(session(1), EndReason::BrowserCrashed, Some("signal 11".to_owned()))
        .await
        .unwrap();
    let Ended::Now(record) = first else { panic!("{first:?}") };
    assert_eq!(record.detail.as_deref(), Some("signal 11"));
    let second = grid.store.end(session(1), EndReason::Released, None).await.unwrap();
    assert_eq!(second, Ended::Before(record));
    assert_eq!(
        grid.store.end(session(9), EndReason::Released, None).await.unwrap(),
        Ended::Unknown
    );
    grid.check().await;
}

pub async fn ended_session_keeps_its_slot_until_vacated(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    let active = grid.activate(1).await;
    grid.store.end(session(1), EndReason::Released, None).await.unwrap();
    grid.queue(2).await;
    let freed = grid.store.vacate(session(1), active.epoch).await.unwrap();
    assert_eq!((freed.ended.len(), placed(&freed)), (0, vec![2]));
    let again = grid.store.vacate(session(1), active.epoch).await.unwrap();
    assert_eq!(again, Freed::default());
    assert_eq!(grid.record(1).await.worker, Some(worker(1)));
    grid.check().await;
}

pub async fn stale_vacate_frees_nothing(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    grid.place(1).await;
    let again = grid.store.placement_failed(failure(1, 1)).await.unwrap();
    assert!(
        matches!(&again, Replaced::Placed(record) if record.epoch == Epoch(2)),
        "{again:?}"
    );
    assert_eq!(grid.store.vacate(session(1), Epoch(1)).await.unwrap(), Freed::default());
    assert_eq!(grid.store.vacate(session(9), Epoch(1)).await.unwrap(), Freed::default());
    assert_eq!(grid.store.stats().await.unwrap().busy, 1);
    grid.check().await;
}

pub async fn vacate_of_a_live_session_ends_it(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 2).await;
    grid.activate(1).await;
    grid.place(2).await;
    let freed = grid.store.vacate(session(1), Epoch(1)).await.unwrap();
    assert_eq!(freed.ended[0].reason, EndReason::BrowserCrashed);
    grid.store.vacate(session(2), Epoch(1)).await.unwrap();
    assert_eq!(grid.reason(2).await, Some(EndReason::LaunchFailed));
    assert_eq!(grid.store.stats().await.unwrap().busy, 0);
    grid.check().await;
}

pub async fn failed_placement_goes_elsewhere_at_its_old_place(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    grid.place(1).await;
    grid.queue(2).await;
    // One worker, one slot: the session that failed is first again, and no other worker can be tried.
    let Replaced::Placed(again) = grid.store.placement_failed(failure(1, 1)).await.unwrap() else {
        panic!()
    };
    assert_eq!(
        (again.epoch, again.worker, again.excluded.clone()),
        (Epoch(2), Some(worker(1)), vec![worker(1)])
    );
    assert_eq!(
        grid.store.placement_failed(failure(1, 1)).await.unwrap(),
        Replaced::Stale
    );
    assert_eq!(
        grid.store.placement_failed(failure(9, 1)).await.unwrap(),
        Replaced::Stale
    );
    // Broken worker: it waits, still ahead of those who came later.
    let broken = crate::Heartbeat {
        is_circuit_open: true,
        ..heartbeat(1, &[(1, 2)])
    };
    grid.store.heartbeat(broken).await.unwrap();
    let Replaced::Queued(waiting) = grid.store.placement_failed(failure(1, 2)).await.unwrap() else {
        panic!()
    };
    assert_eq!((waiting.number, waiting.times.placed_at), (again.number, None));
    assert_eq!(grid.store.position(session(1)).await.unwrap(), Some(1));
    let arrived = grid.store.register(registration(2, 1)).await.unwrap();
    assert_eq!(
        (placed(&arrived.freed), arrived.freed.placed[0].seat.epoch),
        (vec![1], Epoch(3))
    );
    grid.check().await;
}

pub async fn failed_placements_end_after_max_attempts(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    grid.place(1).await;
    grid.queue(2).await;
    for epoch in [1, 2] {
        assert!(matches!(
            grid.store.placement_failed(failure(1, epoch)).await.unwrap(),
            Replaced::Placed(_)
        ));
    }
    let Replaced::Ended(record) = grid.store.placement_failed(failure(1, 3)).await.unwrap() else {
        panic!()
    };
    assert_eq!(record.reason(), Some(EndReason::LaunchFailed));
    assert_eq!(record.detail.as_deref(), Some("no such binary"));
    assert_eq!(grid.record(2).await.state.status(), SessionStatus::Placed);
    grid.check().await;
}

/// A worker that went away costs nobody an attempt, and gets nobody until it has reported.
pub async fn absent_worker_costs_no_attempt_and_gets_nothing_until_it_reports(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 2).await;
    let mut epoch = grid.place(1).await.epoch;
    for _ in 0..5 {
        let failure = PlacementFailure {
            session: session(1),
            epoch,
            cause: "it is draining".to_owned(),
            is_worker_absent: true,
        };
        assert!(matches!(
            grid.store.placement_failed(failure).await.unwrap(),
            Replaced::Queued(_)
        ));
        assert!(
            grid.store.dispatch().await.unwrap().is_empty(),
            "nothing until it reports"
        );
        let freed = grid.beat(1, &[]).await.1;
        assert_eq!(placed(&freed), [1]);
        epoch = epoch.next();
        grid.store.claim(session(1), epoch).await.unwrap().unwrap();
    }
    assert!(grid.record(1).await.excluded.is_empty());
    grid.check().await;
}

pub async fn failure_after_the_end_frees_the_slot(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    grid.place(1).await;
    grid.queue(2).await;
    grid.store.end(session(1), EndReason::Cancelled, None).await.unwrap();
    let Replaced::Ended(record) = grid.store.placement_failed(failure(1, 1)).await.unwrap() else {
        panic!()
    };
    assert_eq!(record.reason(), Some(EndReason::Cancelled));
    assert_eq!(grid.record(2).await.state.status(), SessionStatus::Placed);
    grid.check().await;
}

pub async fn least_loaded_worker_is_chosen(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 2).await;
    grid.store.register(registration(2, 4)).await.unwrap();
    let mut chosen = Vec::new();
    for n in 1..=6 {
        chosen.push(grid.place(n).await.worker.unwrap().as_uuid().as_u128());
    }
    // 0/2 0/4: id; 1/2 0/4; 1/2 1/4; tie 1/2 2/4: lifetime; …
    assert_eq!(chosen, [1, 2, 2, 2, 1, 2]);
    grid.check().await;
}

pub async fn drained_and_broken_workers_get_nothing(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 5).await;
    let open = crate::Heartbeat {
        is_circuit_open: true,
        ..heartbeat(1, &[])
    };
    grid.store.heartbeat(open).await.unwrap();
    grid.queue(1).await;
    let (_, freed) = grid.beat(1, &[]).await;
    assert_eq!(placed(&freed), [1]);
    let drain = crate::Heartbeat {
        is_draining: true,
        ..heartbeat(1, &[(1, 1)])
    };
    let reply = grid.store.heartbeat(drain).await.unwrap();
    assert!(
        matches!(&reply, HeartbeatReply::Known { end, .. } if end.is_empty()),
        "{reply:?}"
    );
    grid.queue(2).await;
    grid.beat(1, &[(1, 1)]).await;
    assert_eq!(grid.store.workers(None).await.unwrap()[0].state, WorkerState::Draining);
    assert_eq!(grid.store.stats().await.unwrap().queued, 1);
    grid.check().await;
}
