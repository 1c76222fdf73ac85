//! One step: a fleet of one size, measured from empty to full.
//!
//! Its own file because steps of different sizes are compared: each is a fleet of its own, on a fresh store.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use http::Method;
use wharf_e2e::samples::Samples;
use wharf_testkit::{Fleet, FleetStore, Member};

use crate::{
    api::Api,
    gauge::{Gauge, Look},
    load::{self, Churned, Waiting},
    options::Options,
    sim::Workers,
};

const COORDINATORS: usize = 3;
/// Hand-overs measured one by one.
const HAND_OVERS: usize = 200;
/// Statistics of PostgreSQL are a second old.
const SETTLE: Duration = Duration::from_millis(1500);

/// What one step measured.
pub struct Step {
    pub workers: usize,
    pub sessions: usize,
    pub empty: Churned,
    pub empty_cost: Look,
    pub full: Churned,
    pub full_cost: Look,
    pub idle_cost: Look,
    pub idle_seconds: f64,
    pub pss_empty: f64,
    pub pss_full: f64,
    pub hand_over: Samples,
    pub burst: f64,
    pub waiting: usize,
}

pub async fn measure(store: FleetStore, workers: usize, options: &Options) -> Result<Step> {
    let mut fleet = Fleet::builder()
        .store(store)
        .coordinators(COORDINATORS)
        .workers(0)
        .coordinator_flag("--queue=100000")
        .coordinator_flag("--idle-timeout=0")
        .coordinator_flag("--connect-timeout=0")
        .coordinator_flag("--queue-timeout=30m")
        .coordinator_flag("--log=warn")
        .start()
        .await?;
    let pids: Vec<_> = fleet.coordinators().iter().map(Member::pid).collect();
    let addrs: Vec<_> = fleet.coordinators().iter().map(Member::addr).collect();
    let gauge = Gauge::new(store, fleet.store().url(), pids);
    let apis: Arc<Vec<Api>> = Arc::new(addrs.iter().map(|addr| Api::new(*addr)).collect());
    let simulated = Workers::start(workers, options.slots, &addrs).await?;
    let sessions = workers * options.slots as usize;
    let say = |text: &str| eprintln!("scale: {workers} workers, {sessions} slots: {text}");

    say("churning while it is empty");
    // Allocators and pools fill once; what sessions cost is measured after that.
    load::churn(&apis, options.in_flight, Duration::from_secs(1)).await;
    tokio::time::sleep(SETTLE).await;
    let (pss_empty, before) = (gauge.coordinator_pss(), gauge.look()?);
    let empty = load::churn(&apis, options.in_flight, options.span).await;
    tokio::time::sleep(SETTLE).await;
    let empty_cost = gauge.look()?.since(before);

    say("filling up");
    let live = load::fill(&apis, sessions, options.in_flight).await?;
    tokio::time::sleep(2 * SETTLE).await;
    let pss_full = gauge.coordinator_pss();
    let before = gauge.look()?;
    tokio::time::sleep(options.span).await;
    let idle_cost = gauge.look()?.since(before);

    say("requests wait; slots are handed over");
    let mut live: VecDeque<_> = live.into();
    let mut waiting = Waiting::new(&apis, options.waiting + HAND_OVERS + options.waiting / 4);
    wait_for_queue(&apis[0], options.waiting).await?;
    let hand_over = waiting.hand_over(&apis[0], &mut live, HAND_OVERS).await?;
    let burst = waiting
        .burst(&apis, &mut live, (options.waiting / 4).clamp(1, 500))
        .await?;
    waiting.leave().await;
    wait_for_queue(&apis[0], 0).await?;

    say("churning while it is full");
    // Room for those in flight and for slots that are just being freed.
    for _ in 0..(2 * options.in_flight).min(sessions / 2) {
        let session = live.pop_front().context("no session is live")?;
        apis[0].release(&session).await?;
    }
    tokio::time::sleep(SETTLE).await;
    let before = gauge.look()?;
    let full = load::churn(&apis, options.in_flight, options.span).await;
    tokio::time::sleep(SETTLE).await;
    let full_cost = gauge.look()?.since(before);

    say("ending what is left");
    load::end_all(&apis, options.in_flight).await?;
    fleet.at_rest().await?;
    drop(simulated);
    fleet.finish().await?;
    Ok(Step {
        workers,
        sessions,
        empty,
        empty_cost,
        full,
        full_cost,
        idle_cost,
        idle_seconds: options.span.as_secs_f64(),
        pss_empty,
        pss_full,
        hand_over,
        burst,
        waiting: options.waiting,
    })
}

/// Until at least so many wait, or nobody does.
async fn wait_for_queue(api: &Api, count: usize) -> Result<()> {
    for _ in 0..600 {
        let pool = api.call(Method::GET, "/v1/pool", None::<&()>).await?;
        let queued = usize::try_from(pool["queued"].as_u64().unwrap_or(0)).unwrap_or(0);
        if (count > 0 && queued >= count) || (count == 0 && queued == 0) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    anyhow::bail!("the queue did not come to {count}")
}
