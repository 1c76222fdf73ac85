//! How fast the embedded store is with a long queue: `cargo run --release --example throughput -p wharf-store-sqlite`.
//!
//! 64 callers submit 10,000 sessions to a grid of 100 slots, so that nearly all wait; then every slot is handed over
//! from session to session until the queue is empty. A hand-over is end + vacate (which places the next waiter) and
//! the next one's claim + activate: four answered commits.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::task::JoinSet;
use uuid::Uuid;
use wharf_core::{CoordinatorId, EndReason, Epoch, SessionId, SessionSpec, WorkerId};
use wharf_store::{Registration, Store, StoreRules, Submission, Submitted, conformance::ManualClock};
use wharf_store_sqlite::{Durability, SqliteStore};

const SESSIONS: u64 = 10_000;
const CALLERS: u64 = 64;
const WORKERS: u32 = 20;
const SLOTS: u32 = 5;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A slot in use.
type Running = (SessionId, Epoch);

#[tokio::main]
async fn main() -> Result<(), Failure> {
    for durability in [Durability::Normal, Durability::Full] {
        let folder = tempfile::tempdir()?;
        let clock = Arc::new(ManualClock::new());
        let path = folder.path().join("wharf.db");
        let store = Arc::new(SqliteStore::open(&path, durability, clock, StoreRules::default())?);
        println!("{durability:?}:");
        measure(&store).await?;
        store.close().await?;
    }
    Ok(())
}

async fn measure(store: &Arc<SqliteStore>) -> Result<(), Failure> {
    for n in 0..WORKERS {
        store.register(registration(n)).await?;
    }
    let began = Instant::now();
    let (running, times) = submit_all(store).await?;
    report("submit", 1, began.elapsed(), times);
    let waiting = store.stats().await?.queued;

    let alone = Instant::now();
    let last = SessionId::from_uuid(Uuid::from_u128(u128::from(SESSIONS)));
    store.end(last, EndReason::Cancelled, None).await?;
    println!("  one cancel among {waiting} waiters, alone: {:?}", alone.elapsed());
    let swept = Instant::now();
    store.sweep().await?;
    println!("  one sweep with nothing due: {:?}", swept.elapsed());

    let began = Instant::now();
    let times = hand_over_all(store, running).await?;
    report("hand-over", 4, began.elapsed(), times);
    Ok(())
}

fn registration(n: u32) -> Registration {
    Registration {
        worker: WorkerId::from_uuid(Uuid::from_u128(u128::from(n))),
        pool: Default::default(),
        browsers: vec![Default::default()],
        slots: SLOTS,
        address: String::new(),
        is_ready: true,
    }
}

async fn submit_all(store: &Arc<SqliteStore>) -> Result<(Vec<Running>, Vec<Duration>), Failure> {
    let next = Arc::new(AtomicU64::new(1));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (store, next) = (Arc::clone(store), Arc::clone(&next));
        callers.spawn(async move {
            let (mut running, mut times) = (Vec::new(), Vec::new());
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n > SESSIONS {
                    return Ok::<_, Failure>((running, times));
                }
                let began = Instant::now();
                let answer = store.submit(submission(n)).await?;
                times.push(began.elapsed());
                if let Submitted::Placed(record) = answer {
                    store.activate(record.id, record.epoch).await?;
                    running.push((record.id, record.epoch));
                }
            }
        });
    }
    let (mut running, mut times) = (Vec::new(), Vec::new());
    while let Some(done) = callers.join_next().await {
        let (more_running, more_times) = done??;
        running.extend(more_running);
        times.extend(more_times);
    }
    Ok((running, times))
}

fn submission(n: u64) -> Submission {
    Submission {
        session: SessionId::from_uuid(Uuid::from_u128(u128::from(n))),
        coordinator: CoordinatorId::from_uuid(Uuid::from_u128(1)),
        spec: SessionSpec {
            data: serde_json::json!({ "note": "x".repeat(300) }),
            ..SessionSpec::default()
        },
        owner: None,
        idempotency_key: None,
        queue_limit: SESSIONS,
    }
}

/// Each slot is one caller: it ends what runs there, takes whoever the store places next, and goes on.
async fn hand_over_all(store: &Arc<SqliteStore>, running: Vec<Running>) -> Result<Vec<Duration>, Failure> {
    let mut slots = JoinSet::new();
    for (mut session, mut epoch) in running {
        let store = Arc::clone(store);
        slots.spawn(async move {
            let mut times = Vec::new();
            loop {
                let began = Instant::now();
                store.end(session, EndReason::Released, None).await?;
                let freed = store.vacate(session, epoch).await?;
                let Some(placement) = freed.placed.first() else {
                    return Ok::<_, Failure>(times);
                };
                (session, epoch) = (placement.session, placement.seat.epoch);
                store.claim(session, epoch).await?;
                store.activate(session, epoch).await?;
                times.push(began.elapsed());
            }
        });
    }
    let mut times = Vec::new();
    while let Some(done) = slots.join_next().await {
        times.extend(done??);
    }
    Ok(times)
}

fn report(what: &str, commits: u64, took: Duration, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: f64| {
        times
            .get(((times.len() as f64 - 1.0) * share) as usize)
            .copied()
            .unwrap_or_default()
    };
    let rate = times.len() as f64 / took.as_secs_f64();
    let operations = rate * commits as f64;
    println!(
        "  {what}: {} in {took:.2?}: {rate:.0}/s ({operations:.0} operations/s), p50 {:.2?}, p99 {:.2?}",
        times.len(),
        at(0.5),
        at(0.99)
    );
}
