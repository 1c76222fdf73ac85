//! The contract by example: the queue and the pool seen as a whole, and the queue cleared. One function per promise.
//!
//! What an operator looks at and does; neither places anybody.
#![expect(missing_docs, reason = "each function's name is its sentence")]
#![expect(
    clippy::unwrap_used,
    reason = "test code that engines' tests call; a store that fails is a failed test"
)]

use wharf_core::{BrowserKind, EndReason, Epoch, LimitScope, PoolName, SessionStatus};

use super::{
    Harness,
    kit::{
        Grid, ended, heartbeat, key, limit_scope, operation, pool, priority, registration, session, submission_for,
        told,
    },
};
use crate::{Change, OperationReport, PoolReport, QueueFilter, Registration};

async fn limit(grid: &Grid, scope: LimitScope, max: u64) {
    let pool = PoolName::default();
    grid.store.set_limit(&pool, scope, Some(max)).await.unwrap();
}

pub async fn queue_is_listed_in_the_order_of_service(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 0).await;
    let both = Registration {
        browsers: vec![BrowserKind::Firefox, BrowserKind::Chromium],
        ..registration(2, 0)
    };
    grid.store.register(both).await.unwrap();
    limit(&grid, limit_scope("scrape"), 0).await;
    for (n, name, urgency) in [
        (1, "a", 0),
        (2, "scrape", 0),
        (3, "b", 2),
        (4, "scrape", 1),
        (5, "a", 2),
    ] {
        let mut one = submission_for(n, name);
        one.spec.priority = priority(urgency);
        if n % 2 == 0 {
            one.spec.browser = BrowserKind::Firefox;
        }
        grid.store.submit(one).await.unwrap();
    }
    let listed = |limit| async move {
        let found = grid.store.queue(&PoolName::default(), limit).await.unwrap();
        found.into_iter().map(|record| record.id).collect::<Vec<_>>()
    };
    assert_eq!(listed(9).await, [3, 5, 4, 1, 2].map(session));
}

pub async fn queue_is_cleared_by_pool_operation_and_owner(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 1).await;
    let elsewhere = Registration {
        pool: pool("other"),
        ..registration(2, 0)
    };
    grid.store.register(elsewhere).await.unwrap();
    grid.place(1).await;
    for n in 2..=9 {
        let mut one = submission_for(n, if n % 2 == 0 { "even" } else { "odd" });
        one.owner = (n % 3 == 0).then(|| key(3));
        one.spec.pool = pool(if n > 7 { "other" } else { "default" });
        grid.store.submit(one).await.unwrap();
    }
    let mut changes = grid.store.changes();
    let mut clear = async |filter| {
        let freed = grid
            .store
            .clear_queue(filter, EndReason::Killed, "by hand")
            .await
            .unwrap();
        assert_eq!(freed.placed, []);
        let ends: Vec<_> = freed.ended.iter().map(|one| Change::Ended(*one)).collect();
        assert_eq!(told(&mut changes), ends);
        ended(&freed).into_iter().map(|(n, _)| n).collect::<Vec<_>>()
    };
    let any = QueueFilter::default;
    let (owner, even, other) = (Some(key(3)), Some(operation("even")), Some(pool("other")));
    assert_eq!(
        clear(QueueFilter {
            owner,
            operation: even.clone(),
            ..any()
        })
        .await,
        [6]
    );
    assert_eq!(clear(QueueFilter { pool: other, ..any() }).await, [8, 9]);
    assert_eq!(clear(QueueFilter { owner, ..any() }).await, [3]);
    assert_eq!(
        clear(QueueFilter {
            operation: even,
            ..any()
        })
        .await,
        [2, 4]
    );
    assert_eq!(clear(any()).await, [5, 7]);
    assert_eq!(clear(any()).await, Vec::<u128>::new());
    let cleared = grid.record(5).await;
    assert_eq!(
        (cleared.reason(), cleared.detail.as_deref()),
        (Some(EndReason::Killed), Some("by hand"))
    );
    assert_eq!(grid.record(1).await.state.status(), SessionStatus::Starting);
    grid.check().await;
}

pub async fn pool_report_counts_what_is_there(harness: &dyn Harness) {
    let grid = Grid::with_worker(harness, 3).await;
    let elsewhere = Registration {
        pool: pool("other"),
        ..registration(2, 4)
    };
    grid.store.register(elsewhere).await.unwrap();
    grid.store
        .heartbeat(crate::Heartbeat {
            warm: 2,
            launching: 1,
            ..heartbeat(1, &[])
        })
        .await
        .unwrap();
    limit(&grid, limit_scope("pdf"), 7).await;
    limit(&grid, LimitScope::Pool, 3).await;
    for (n, name) in [(1, "scrape"), (2, "scrape"), (3, "session"), (4, "scrape"), (5, "late")] {
        grid.store.submit(submission_for(n, name)).await.unwrap();
    }
    grid.store.activate(session(1), Epoch(1)).await.unwrap();
    grid.store.activate(session(2), Epoch(1)).await.unwrap();
    grid.store.end(session(2), EndReason::Released, None).await.unwrap();
    grid.store.end(session(5), EndReason::Cancelled, None).await.unwrap();
    let line = |name: &str, running, queued, limit| OperationReport {
        operation: operation(name),
        running,
        queued,
        limit,
    };
    let expected = PoolReport {
        queued: 1,
        starting: 1,
        active: 1,
        running: 3,
        slots: 3,
        workers: 1,
        warm: 2,
        launching: 1,
        operations: vec![
            line("pdf", 0, 0, Some(7)),
            line("scrape", 2, 1, None),
            line("session", 1, 0, None),
        ],
        limit: Some(3),
    };
    assert_eq!(grid.store.pool(&PoolName::default()).await.unwrap(), expected);
    assert_eq!(grid.store.pool(&pool("none")).await.unwrap(), PoolReport::default());
    let workers = grid.store.workers(Some(&PoolName::default())).await.unwrap();
    assert_eq!((workers[0].warm, workers[0].launching), (2, 1));
    grid.check().await;
}
