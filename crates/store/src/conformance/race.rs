//! Locks and limits raced against placement: many threads at once, the invariants judged while each hold is in force.
//!
//! Its own file because it is the one part of the suite that does not repeat: it looks for what only happens when two
//! callers meet. The clock ticks with every reading, so whatever was placed after a lock was taken has a later time, and
//! I5 and I1 are exact. History is short, so that snapshots stay small.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use wharf_core::{Cover, EndReason, LimitScope, PoolName, SessionId, SessionState};

use super::{
    Harness, ManualClock,
    kit::{limit_scope, lock_name, operation, registration, run, submission_for, token, wish},
};
use crate::{LockView, LockWish, Locking, Snapshot, Store, StoreRules, Submitted, invariants};

/// Nothing ends by time but locks and history; a reading of the clock is a microsecond.
const RULES: StoreRules = StoreRules {
    liveness_ttl: Duration::from_secs(3_600),
    ticket_lease: Duration::from_secs(3_600),
    starting_grace: Duration::from_secs(3_600),
    lease_grace: Duration::from_secs(3_600),
    history: Duration::from_micros(400),
    max_attempts: 3,
};

const OPERATIONS: [&str; 3] = ["scrape", "pdf", "session"];
const LOCKS: [&str; 2] = ["exclusive", "other"];
const CLIENTS: u64 = 3;
/// Those who take locks or set limits.
const HOLDERS: u64 = 3;

/// A small generator of its own: the interleaving is the chance here, the choices only need to differ.
struct Dice(u64);

/// What all threads share.
struct Table {
    store: Arc<dyn Store>,
    is_over: AtomicBool,
    /// Takings or settings still to be done.
    left: AtomicU64,
}

/// Takes this many locks, one way or another, while clients come and go; no covered session may be placed under one.
pub fn locks(harness: &dyn Harness, takings: u64) {
    play(harness, takings, |table, seed| run(holder(table, seed)));
}

/// Sets this many limits while clients come and go; nobody may be placed beyond one, and nobody kept out within it.
pub fn limits(harness: &dyn Harness, settings: u64) {
    play(harness, settings, |table, seed| run(limiter(table, seed)));
}

fn play(harness: &dyn Harness, turns: u64, hold: impl Fn(&Table, u64) + Sync) {
    let mut store = None;
    run(async {
        let opened = harness.open(Arc::new(ManualClock::ticking()), RULES).await;
        opened.register(registration(1, 3)).await.expect("register");
        opened.register(registration(2, 2)).await.expect("register");
        store = Some(opened);
    });
    let table = Table {
        store: store.expect("it was opened above"),
        is_over: AtomicBool::new(false),
        left: AtomicU64::new(turns),
    };
    thread::scope(|scope| {
        let table = &table;
        let hold = &hold;
        let holders: Vec<_> = (0..HOLDERS)
            .map(|seed| scope.spawn(move || hold(table, seed + 1)))
            .collect();
        for seed in 0..CLIENTS {
            scope.spawn(move || run(client(table, seed + 100)));
        }
        scope.spawn(move || run(sweeper(table)));
        let played: Vec<_> = holders.into_iter().map(thread::ScopedJoinHandle::join).collect();
        // Over even if a holder found something wrong, or the clients would go on for ever.
        table.is_over.store(true, Ordering::SeqCst);
        for one in played {
            one.unwrap_or_else(|found| std::panic::resume_unwind(found));
        }
    });
    run(wind_up(&table));
}

/// Holds gone, queue and slots emptied: nothing is lost and nothing is left.
async fn wind_up(table: &Table) {
    let store = &table.store;
    for name in LOCKS {
        store.force_unlock(&lock_name(name)).await.expect("force_unlock");
    }
    for limit in store.limits().await.expect("limits") {
        store
            .set_limit(&limit.pool, limit.scope, None)
            .await
            .expect("set_limit");
    }
    loop {
        let snapshot = table.judge().await;
        if snapshot.leases.is_empty() {
            assert!(snapshot.sessions.iter().all(|record| record.state.is_ended()));
            break;
        }
        for (session, seat) in snapshot.leases {
            store.vacate(session, seat.epoch).await.expect("vacate");
        }
    }
    assert_eq!(store.stats().await.expect("stats").busy, 0);
    store.close().await.expect("close");
}

// === those who race ===

/// Submits, serves whoever of its own was placed, ends and vacates; now and then it gives up waiting.
async fn client(table: &Table, seed: u64) {
    let store = &table.store;
    let mut dice = Dice(seed);
    let mut waiting: Vec<SessionId> = Vec::new();
    for n in 1.. {
        if table.is_over() {
            break;
        }
        let name = OPERATIONS[dice.roll(OPERATIONS.len())];
        let one = submission_for(u128::from(seed) << 64 | n, name);
        match store.submit(one).await.expect("submit") {
            Submitted::Placed(record) => leave(store, record.id).await,
            Submitted::Queued { record, .. } => waiting.push(record.id),
            _ => thread::yield_now(),
        }
        let mut still = Vec::new();
        for session in waiting {
            match store
                .session(session)
                .await
                .expect("session")
                .map(|record| record.state)
            {
                Some(SessionState::Queued) if dice.roll(12) == 0 => {
                    store.end(session, EndReason::Cancelled, None).await.expect("end");
                    // It may have been placed just before: then it has a slot to give back.
                    leave(store, session).await;
                }
                Some(SessionState::Queued) => still.push(session),
                Some(_) => leave(store, session).await,
                None => {}
            }
        }
        waiting = still;
        thread::yield_now();
    }
}

/// Gives back what a session has.
async fn leave(store: &Arc<dyn Store>, session: SessionId) {
    if let Some(record) = store.session(session).await.expect("session") {
        store.end(session, EndReason::Released, None).await.expect("end");
        store.vacate(session, record.epoch).await.expect("vacate");
    }
}

async fn sweeper(table: &Table) {
    while !table.is_over() {
        table.store.sweep().await.expect("sweep");
        thread::yield_now();
    }
}

/// Takes locks; gives each back, has it taken away, or lets it expire.
async fn holder(table: &Table, seed: u64) {
    let store = &table.store;
    let mut dice = Dice(seed);
    for n in 1.. {
        let name = LOCKS[dice.roll(LOCKS.len())];
        let by = u128::from(seed) << 64 | n;
        let operations = [
            vec![],
            vec![operation("scrape")],
            vec![operation("pdf"), operation("session")],
        ];
        let wish = LockWish {
            cover: Cover {
                pools: Vec::new(),
                operations: operations[dice.roll(3)].clone(),
            },
            ttl: Duration::from_micros([5, 40, 10_000][dice.roll(3)]),
            ..wish(name, by)
        };
        let Locking::Taken(view) = store.acquire_lock(wish).await.expect("acquire_lock") else {
            thread::yield_now();
            continue;
        };
        table.judge_lock(&view).await;
        thread::yield_now();
        table.judge_lock(&view).await;
        match dice.roll(4) {
            0 => {
                store.force_unlock(&lock_name(name)).await.expect("force_unlock");
            }
            // Left to expire, unless somebody forces it.
            1 => {
                let span = Duration::from_micros(20);
                store
                    .renew_lock(&lock_name(name), token(by), span)
                    .await
                    .expect("renew_lock");
            }
            _ => {
                store
                    .release_lock(&lock_name(name), token(by))
                    .await
                    .expect("release_lock");
            }
        }
        if table.is_done() {
            break;
        }
    }
}

/// Sets and lifts limits, up and down.
async fn limiter(table: &Table, seed: u64) {
    let mut dice = Dice(seed);
    loop {
        let scope = match dice.roll(OPERATIONS.len() + 1) {
            0 => LimitScope::Pool,
            index => limit_scope(OPERATIONS[index - 1]),
        };
        let max = [None, Some(0), Some(1), Some(2), Some(4)][dice.roll(5)];
        let set = table.store.set_limit(&PoolName::default(), scope, max).await;
        set.expect("set_limit");
        table.judge().await;
        thread::yield_now();
        if table.is_done() {
            break;
        }
    }
}

// === impl Table ===

impl Table {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// One turn less; whether that was the last.
    fn is_done(&self) -> bool {
        let before = self
            .left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        !matches!(before, Ok(2..))
    }

    /// The invariants hold now.
    async fn judge(&self) -> Snapshot {
        let snapshot = self.store.snapshot().await.expect("snapshot");
        assert_eq!(invariants::violations(&snapshot), Vec::<String>::new());
        snapshot
    }

    /// While this taking lasts, there is nothing under the lock that was not there when it was taken.
    async fn judge_lock(&self, taken: &LockView) {
        let snapshot = self.judge().await;
        let lasting = snapshot.locks.iter().find(|lock| lock.token == taken.lock.token);
        if lasting.is_none_or(|lock| lock.until <= snapshot.at) {
            return;
        }
        let records = snapshot.sessions.iter();
        let covered = records.filter(|record| taken.lock.cover.covers(&record.spec.pool, &record.spec.operation));
        let held: Vec<_> = snapshot.leases.iter().map(|(session, _)| *session).collect();
        let running = covered.filter(|record| held.contains(&record.id)).count() as u64;
        assert!(running <= taken.running, "{running} run under {taken:?}");
    }
}

// === impl Dice ===

impl Dice {
    /// One of this many.
    fn roll(&mut self, sides: usize) -> usize {
        // Knuth's MMIX constants; the high bits are the good ones.
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap_or(0) % sides
    }
}
