//! The store alone: sessions a second from submission to a free slot, with one and with three replicas in this process.
//!
//! Its own file because it leaves out everything but the journal: what coordinators can do at best on an engine.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use tokio::task::JoinSet;
use uuid::Uuid;
use wharf_core::{BrowserKind, CoordinatorId, EndReason, PoolName, SessionId, SessionSpec, WorkerId};
use wharf_e2e::{observer, samples::Samples};
use wharf_journal::JournalStore;
use wharf_store::{Heartbeat, Load, Registration, Store as _, Submission, Submitted};

use crate::{engine::Engine, options::Options};

/// Enough that nobody waits.
const WORKERS: usize = 10;
const SLOTS: u32 = 1000;

pub struct Raw {
    pub engine: Engine,
    pub replicas: usize,
    pub rate: f64,
    /// From submission to active, in milliseconds.
    pub admission: Samples,
    /// Operations in one page.
    pub batch: f64,
}

/// So many replicas, as many callers in all as requests would be in flight, for a while.
pub async fn measure(engine: Engine, url: &str, replicas: usize, options: &Options) -> Result<Raw> {
    let (callers, span) = (options.in_flight, options.span);
    let mut stores = Vec::new();
    for _ in 0..replicas {
        stores.push(Arc::new(observer::open(url, observer::default_rules()).await?));
    }
    let workers = register(&stores[0]).await?;
    let count = |store: &Arc<JournalStore>| {
        let traffic = store.traffic();
        let read = |of: &std::sync::atomic::AtomicU64| of.load(std::sync::atomic::Ordering::Relaxed);
        (read(&traffic.operations), read(&traffic.appends))
    };
    let before: Vec<_> = stores.iter().map(count).collect();
    let (started, mut calling) = (Instant::now(), JoinSet::new());
    for number in 0..callers {
        calling.spawn(call(stores[number % replicas].clone(), started, span));
    }
    let beating = beat(&stores[0], &workers);
    let gather = async {
        let (mut sessions, mut admission) = (0_u64, Samples::default());
        while let Some(done) = calling.join_next().await {
            let own = done??;
            sessions += own.len() as u64;
            admission.extend(own);
        }
        anyhow::Ok((sessions, admission))
    };
    let (sessions, admission) = tokio::select! {
        gathered = gather => gathered?,
        ended = beating => bail!("the reports ended: {ended:?}"),
    };
    let took = started.elapsed();
    let after = stores
        .iter()
        .map(count)
        .zip(before)
        .map(|(now, then)| (now.0 - then.0, now.1 - then.1));
    let (operations, pages) = after.fold((0, 0), |sum, own| (sum.0 + own.0, sum.1 + own.1));
    for worker in workers {
        stores[0].remove_worker(worker).await?;
    }
    for store in stores {
        store.close().await?;
    }
    Ok(Raw {
        engine,
        replicas,
        rate: sessions as f64 / took.as_secs_f64(),
        admission,
        batch: operations as f64 / pages.max(1) as f64,
    })
}

async fn register(store: &JournalStore) -> Result<Vec<WorkerId>> {
    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        let worker = WorkerId::from_uuid(Uuid::now_v7());
        let registration = Registration {
            worker,
            pool: PoolName::default(),
            browsers: vec![BrowserKind::Chromium],
            slots: SLOTS,
            address: String::new(),
            is_ready: true,
        };
        store.register(registration).await?;
        workers.push(worker);
    }
    Ok(workers)
}

/// Keeps the workers alive. Reports nothing held: leases are younger than the grace.
async fn beat(store: &JournalStore, workers: &[WorkerId]) -> Result<()> {
    loop {
        tokio::time::sleep(Duration::from_secs(3)).await;
        for worker in workers {
            let heartbeat = Heartbeat {
                worker: *worker,
                held: Vec::new(),
                is_circuit_open: false,
                is_ready: true,
                is_draining: false,
                warm: 0,
                launching: 0,
                load: Load::default(),
                wants_recycling: false,
            };
            store.heartbeat(heartbeat).await?;
        }
    }
}

async fn call(store: Arc<JournalStore>, started: Instant, span: Duration) -> Result<Samples> {
    let (mut samples, coordinator) = (Samples::default(), CoordinatorId::from_uuid(Uuid::now_v7()));
    while started.elapsed() < span {
        let asked = Instant::now();
        let submission = Submission {
            session: SessionId::from_uuid(Uuid::now_v7()),
            coordinator,
            spec: spec(),
            owner: None,
            idempotency_key: None,
            queue_limit: 1000,
        };
        let Submitted::Placed(record) = store.submit(submission).await? else {
            bail!("a session had to wait");
        };
        store
            .activate(record.id, record.epoch)
            .await?
            .context("a placement went stale")?;
        samples.push_time(asked.elapsed());
        store.end(record.id, EndReason::Released, None).await?;
        store.vacate(record.id, record.epoch).await?;
    }
    Ok(samples)
}

fn spec() -> SessionSpec {
    SessionSpec {
        pool: PoolName::default(),
        browser: BrowserKind::default(),
        priority: wharf_core::Priority::default(),
        operation: wharf_core::Operation::default(),
        description: String::new(),
        data: serde_json::Value::Null,
        options: serde_json::json!({}),
        isolation: wharf_core::Isolation::default(),
        timeouts: wharf_core::Timeouts::default(),
        keep_alive: true,
    }
}
