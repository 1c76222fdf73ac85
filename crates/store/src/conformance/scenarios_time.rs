//! The contract by example: what time, silence and return do. One function per promise.
//!
//! The clock is the test's own; every span is one of the rules' defaults or of the session's timeouts.
#![expect(missing_docs, reason = "each function's name is its sentence")]
#![expect(
    clippy::unwrap_used,
    reason = "test code that engines' tests call; a store that fails is a failed test"
)]

use std::time::Duration;

use wharf_core::{EndReason, Epoch, SessionStatus, WorkerState};

use super::{
    Harness,
    kit::{Grid, coordinator, ended, heartbeat, placed, registration, seconds, session, submission, worker},
};
use crate::{Freed, HeartbeatReply, Submission, Submitted, TICKET_LAPSED, Touch};

// === waiting ===

pub async fn dead_waiter_blocks_nobody(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    grid.activate(1).await;
    grid.queue(2).await;
    let other = Submission {
        coordinator: coordinator(2),
        ..submission(3)
    };
    assert!(matches!(
        grid.store.submit(other).await.unwrap(),
        Submitted::Queued { position: 2, .. }
    ));
    for _ in 0..4 {
        grid.clock.advance(seconds(3));
        grid.beat(1, &[(1, 1)]).await;
        assert_eq!(grid.store.renew_tickets(coordinator(2)).await.unwrap(), 1);
    }
    let freed = grid.store.sweep().await.unwrap();
    assert_eq!(ended(&freed), [(2, EndReason::Cancelled)]);
    let lapsed = grid.store.session(session(2)).await.unwrap().unwrap();
    assert_eq!(lapsed.detail.as_deref(), Some(TICKET_LAPSED), "not by its client");
    grid.store.end(session(1), EndReason::Released, None).await.unwrap();
    assert_eq!(placed(&grid.store.vacate(session(1), Epoch(1)).await.unwrap()), [3]);
    grid.check().await;
}

pub async fn renewed_tickets_do_not_lapse(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 0).await;
    grid.queue(1).await;
    grid.clock.advance(seconds(9));
    assert_eq!(grid.store.renew_tickets(coordinator(1)).await.unwrap(), 1);
    assert_eq!(grid.store.renew_tickets(coordinator(2)).await.unwrap(), 0);
    grid.clock.advance(seconds(9));
    assert_eq!(ended(&grid.store.sweep().await.unwrap()), []);
    // A ticket given out after the last renewal has its own full lease.
    grid.queue(2).await;
    grid.clock.advance(seconds(1));
    assert_eq!(ended(&grid.store.sweep().await.unwrap()), [(1, EndReason::Cancelled)]);
    grid.clock.advance(seconds(9));
    assert_eq!(ended(&grid.store.sweep().await.unwrap()), [(2, EndReason::Cancelled)]);
    grid.check().await;
}

pub async fn queue_time_passes(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 0).await;
    let mut hasty = submission(1);
    hasty.spec.timeouts.queue = seconds(5);
    grid.store.submit(hasty).await.unwrap();
    grid.clock.advance(seconds(5) - Duration::from_micros(1));
    assert_eq!(grid.store.sweep().await.unwrap(), Freed::default());
    grid.clock.advance(Duration::from_micros(1));
    assert_eq!(
        ended(&grid.store.sweep().await.unwrap()),
        [(1, EndReason::QueueTimeout)]
    );
    grid.check().await;
}

// === using ===

pub async fn connect_idle_and_maximum_times_pass(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 3).await;
    grid.activate(1).await;
    grid.activate(2).await;
    let mut limited = submission(3);
    limited.spec.timeouts.max_duration = Some(seconds(100));
    grid.store.submit(limited).await.unwrap();
    grid.store.activate(session(3), Epoch(1)).await.unwrap();
    let held = [(1, 1), (2, 1), (3, 1)];
    let touch = |n| Touch {
        session: session(n),
        idle_for: Duration::ZERO,
        is_attached: true,
    };
    grid.store.touch(&[touch(2), touch(3), touch(77)]).await.unwrap();
    let mut seen = Vec::new();
    for _ in 0..11 {
        for _ in 0..2 {
            grid.clock.advance(seconds(5));
            grid.beat(1, &held).await;
        }
        grid.store.touch(&[touch(3)]).await.unwrap();
        seen.extend(ended(&grid.store.sweep().await.unwrap()));
    }
    let expected = [
        (1, EndReason::ConnectTimeout),
        (2, EndReason::IdleTimeout),
        (3, EndReason::MaxDuration),
    ];
    assert_eq!(seen, expected);
    assert_eq!(
        grid.store.stats().await.unwrap().busy,
        3,
        "an ended session keeps its slot until it is vacated"
    );
    grid.check().await;
}

pub async fn touch_keeps_a_session_alive(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    let active = grid.activate(1).await;
    let touch = |idle| Touch {
        session: session(1),
        idle_for: seconds(idle),
        is_attached: true,
    };
    grid.store.touch(&[touch(1_000)]).await.unwrap();
    let times = grid.record(1).await.times;
    assert_eq!(
        (times.active_at, times.attached_at),
        (active.times.started_at, active.times.started_at)
    );
    grid.clock.advance(seconds(7));
    grid.store.touch(&[touch(2)]).await.unwrap();
    grid.store.touch(&[touch(4)]).await.unwrap();
    let record = grid.record(1).await;
    assert_eq!(
        record.times.active_at,
        active.times.started_at.map(|at| at + seconds(5)),
        "an older one changes nothing"
    );
    assert_eq!(record.times.attached_at, active.times.started_at);
    assert_eq!(
        record.deadline().map(|(_, reason)| reason),
        Some(EndReason::IdleTimeout)
    );
    grid.store.end(session(1), EndReason::Released, None).await.unwrap();
    let before = grid.record(1).await;
    grid.store.touch(&[touch(0)]).await.unwrap();
    assert_eq!(grid.record(1).await, before);
}

pub async fn unclaimed_placement_fails_and_frees_its_slot(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    grid.place(1).await;
    grid.queue(2).await;
    for _ in 0..12 {
        grid.clock.advance(seconds(5));
        grid.beat(1, &[(1, 1)]).await;
        grid.store.renew_tickets(coordinator(1)).await.unwrap();
    }
    let freed = grid.store.sweep().await.unwrap();
    assert_eq!(
        (ended(&freed), placed(&freed)),
        (vec![(1, EndReason::LaunchFailed)], vec![2])
    );
    assert_eq!(freed.ended[0].seat.map(|seat| seat.epoch), Some(Epoch(1)));
    let (end, _) = grid.beat(1, &[(1, 1), (2, 1)]).await;
    assert_eq!(end, [(session(1), Epoch(1))]);
    grid.check().await;
}

// === silence and return ===

pub async fn silent_worker_is_lost(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 2).await;
    grid.activate(1).await;
    grid.activate(2).await;
    grid.store.end(session(2), EndReason::Released, None).await.unwrap();
    grid.clock.advance(seconds(10));
    assert!(
        matches!(grid.submit(3).await, Submitted::Queued { .. }),
        "a stale worker gets nothing, swept or not"
    );
    let freed = grid.store.sweep().await.unwrap();
    assert_eq!(ended(&freed), [(1, EndReason::WorkerLost)]);
    assert_eq!(grid.store.workers(None).await.unwrap()[0].state, WorkerState::Lost);
    assert_eq!(grid.store.stats().await.unwrap().busy, 0);
    assert_eq!(grid.store.vacate(session(1), Epoch(1)).await.unwrap(), Freed::default());
    assert_eq!(
        grid.store.heartbeat(heartbeat(1, &[(1, 1)])).await.unwrap(),
        HeartbeatReply::Unknown
    );
    let back = grid.store.register(registration(1, 2)).await.unwrap();
    assert_eq!((ended(&back.freed), placed(&back.freed)), (vec![], vec![3]));
    grid.check().await;
}

pub async fn unknown_worker_must_register(harness: &dyn Harness) {
    let grid = Grid::open(harness).await;
    assert_eq!(
        grid.store.heartbeat(heartbeat(1, &[])).await.unwrap(),
        HeartbeatReply::Unknown
    );
    grid.store.register(registration(1, 1)).await.unwrap();
    grid.beat(1, &[]).await;
    assert_eq!(grid.store.deregister(worker(1)).await.unwrap(), Freed::default());
    assert_eq!(
        grid.store.heartbeat(heartbeat(1, &[])).await.unwrap(),
        HeartbeatReply::Unknown
    );
    assert_eq!(grid.store.deregister(worker(9)).await.unwrap(), Freed::default());
}

pub async fn returning_worker_ends_its_past_life(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 2).await;
    grid.activate(1).await;
    grid.place(2).await;
    grid.queue(3).await;
    let back = grid.store.register(registration(1, 1)).await.unwrap();
    let lost = EndReason::WorkerLost;
    assert_eq!(
        (ended(&back.freed), placed(&back.freed)),
        (vec![(1, lost)], vec![2]),
        "what had no browser yet waits for one, before those who came later"
    );
    let row = &grid.store.workers(None).await.unwrap()[0];
    assert_eq!(
        (row.slots, row.busy, row.lifetime),
        (1, 1, 1),
        "the row is written anew"
    );
    grid.check().await;
}

pub async fn departing_worker_ends_its_sessions(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 2).await;
    grid.activate(1).await;
    grid.activate(2).await;
    grid.store.end(session(2), EndReason::Released, None).await.unwrap();
    let freed = grid.store.deregister(worker(1)).await.unwrap();
    assert_eq!(ended(&freed), [(1, EndReason::WorkerDrained)]);
    assert_eq!(grid.reason(2).await, Some(EndReason::Released));
    assert_eq!(grid.store.workers(None).await.unwrap()[0].state, WorkerState::Gone);
    assert_eq!(grid.store.stats().await.unwrap(), crate::Stats::default());
    assert_eq!(grid.store.deregister(worker(1)).await.unwrap(), Freed::default());
    grid.check().await;
}

pub async fn unreported_lease_is_dropped_after_the_grace(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 2).await;
    grid.activate(1).await;
    grid.activate(2).await;
    grid.store.end(session(2), EndReason::Released, None).await.unwrap();
    grid.queue(3).await;
    grid.clock.advance(seconds(8));
    let (_, freed) = grid.beat(1, &[]).await;
    assert_eq!(freed, Freed::default(), "within the grace the worker may not know yet");
    grid.store.renew_tickets(coordinator(1)).await.unwrap();
    grid.clock.advance(seconds(7));
    let (end, freed) = grid.beat(1, &[]).await;
    assert_eq!(
        (end, ended(&freed), placed(&freed)),
        (vec![], vec![(1, EndReason::WorkerLost)], vec![3])
    );
    assert_eq!(grid.store.stats().await.unwrap().busy, 1);
    grid.check().await;
}

/// A coordinator that dies between a placement and its taking up: the worker is not to blame.
pub async fn placement_that_nobody_takes_up_is_cancelled_after_the_grace(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 0).await;
    grid.queue(1).await;
    let freed = grid.store.register(registration(1, 1)).await.unwrap().freed;
    assert_eq!(placed(&freed), [1]);
    grid.clock.advance(seconds(8));
    assert_eq!(grid.beat(1, &[]).await.1, Freed::default());
    grid.clock.advance(seconds(7));
    let (_, freed) = grid.beat(1, &[]).await;
    assert_eq!(ended(&freed), [(1, EndReason::Cancelled)]);
    let record = grid.store.session(session(1)).await.unwrap().unwrap();
    assert_eq!(record.detail.as_deref(), Some(TICKET_LAPSED));
    assert_eq!(grid.store.stats().await.unwrap().busy, 0);
    grid.check().await;
}

pub async fn worker_is_told_what_to_end(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 3).await;
    grid.activate(1).await;
    grid.activate(2).await;
    grid.store.end(session(2), EndReason::Killed, None).await.unwrap();
    let (end, freed) = grid.beat(1, &[(1, 1), (2, 1), (1, 7), (50, 1)]).await;
    assert_eq!(
        end,
        [(session(2), Epoch(1)), (session(1), Epoch(7)), (session(50), Epoch(1))]
    );
    assert_eq!(freed, Freed::default());
    grid.store.register(registration(2, 1)).await.unwrap();
    let (end, _) = grid.beat(2, &[(1, 1)]).await;
    assert_eq!(end, [(session(1), Epoch(1))], "another worker's session is not its own");
    assert_eq!(grid.record(1).await.state.status(), SessionStatus::Active);
    grid.check().await;
}

// === keeping house ===

pub async fn history_is_pruned_but_not_while_leased(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 2).await;
    let keyed = |n| Submission {
        idempotency_key: Some("k".to_owned()),
        ..submission(n)
    };
    grid.store.submit(keyed(1)).await.unwrap();
    grid.place(2).await;
    for n in [1, 2] {
        grid.store.end(session(n), EndReason::Released, None).await.unwrap();
    }
    grid.store.vacate(session(1), Epoch(1)).await.unwrap();
    grid.clock.advance(seconds(24 * 60 * 60) - Duration::from_micros(1));
    grid.beat(1, &[(2, 1)]).await;
    grid.store.sweep().await.unwrap();
    assert!(grid.store.session(session(1)).await.unwrap().is_some());
    grid.clock.advance(Duration::from_micros(1));
    grid.store.sweep().await.unwrap();
    assert_eq!(grid.store.session(session(1)).await.unwrap(), None);
    assert!(
        grid.store.session(session(2)).await.unwrap().is_some(),
        "its browser may still be there"
    );
    assert!(
        matches!(grid.store.submit(keyed(3)).await.unwrap(), Submitted::Placed(_)),
        "the key is free again"
    );
    grid.store.deregister(worker(1)).await.unwrap();
    grid.clock.advance(seconds(24 * 60 * 60));
    grid.store.sweep().await.unwrap();
    assert_eq!(grid.store.snapshot().await.unwrap().workers, []);
    grid.check().await;
}

pub async fn sweep_and_dispatch_are_idempotent(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    grid.activate(1).await;
    grid.queue(2).await;
    grid.clock.advance(seconds(400));
    assert_eq!(grid.store.sweep().await.unwrap().ended.len(), 2);
    assert_eq!(grid.store.sweep().await.unwrap(), Freed::default());
    assert_eq!(grid.store.dispatch().await.unwrap(), []);
    grid.check().await;
}
