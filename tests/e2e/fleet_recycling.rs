//! Workers begin anew after so many sessions, one at a time, and nobody notices.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use wharf_testkit::{Fleet, FleetStore, eventually};

use crate::fleet_support::{attach_path, create, finish, id, is_whole, listed, release, worker, workers};

const ANEW: &str = "beginning anew";
/// More than enough for both to have their turn.
const TURNS: Duration = Duration::from_secs(30);

/// Waits until nobody is due, or on the way: a signal would meet a process that has just begun anew.
async fn settled(fleet: &Fleet) -> Result<()> {
    eventually("nobody to be recycled", async || {
        for record in workers(&fleet.http_at(0)).await? {
            let is_due = record["lifetime"].as_u64().is_none_or(|lifetime| lifetime >= 3);
            ensure!(!is_due && record["state"] == "available", "{record}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn workers_are_recycled_one_at_a_time_without_loss() -> Result<()> {
    let builder = Fleet::builder().coordinators(2).workers(2).slots(2);
    let mut fleet = builder.worker_flag("--recycle-sessions=3").start().await?;
    let mut events = fleet.http_at(0).events("/v1/events?type=worker.").await?;
    let ids = [fleet.worker(0).id()?, fleet.worker(1).id()?];
    let pids = [fleet.worker(0).pid(), fleet.worker(1).pid()];
    let mut served: HashMap<String, u64> = HashMap::new();
    let (mut count, began) = (0, Instant::now());
    while (0..2).any(|index| !fleet.worker(index).log().contains(ANEW)) {
        ensure!(began.elapsed() < TURNS, "not both were recycled after {count} sessions");
        // A client is at work when the worker begins to drain, and is not disturbed.
        let session = create(&fleet.http_at(count % 2), json!({})).await?;
        let mut client = fleet.cdp_at((count + 1) % 2, &attach_path(&session)).await?;
        for _ in 0..5 {
            client.call("Browser.getVersion", json!({})).await?;
        }
        release(&fleet.http_at(0), &id(&session)).await?;
        ensure!(client.closed().await?.reason.starts_with("released"));
        *served
            .entry(session["worker"].as_str().unwrap_or_default().to_owned())
            .or_default() += 1;
        count += 1;
    }
    eprintln!("measured: both workers recycled after {count} sessions in all");
    fleet.all_available(2).await?;
    for (index, own) in ids.iter().enumerate() {
        ensure!(
            fleet.worker(index).id()? == *own && fleet.worker(index).pid() == pids[index],
            "{own} is another"
        );
        let record = worker(&fleet.http_at(1), own).await?;
        let lifetime = record["lifetime"].as_u64().context("no lifetime")?;
        ensure!(
            lifetime + 3 <= served[own],
            "its lifetime goes on: {record}, served {}",
            served[own]
        );
    }
    let history = listed(&fleet.http_at(0), "/v1/sessions/history?limit=1000").await?;
    ensure!(
        history.len() == count && history.iter().all(|record| record["reason"] == "released"),
        "{history:?}"
    );
    // From the stream: never two that drain.
    let (mut draining, mut away, mut back) = (HashSet::new(), HashSet::new(), 0);
    while back < 2 {
        let event = events.next().await?;
        let who = event.json()?["worker"].as_str().unwrap_or_default().to_owned();
        match event.event.as_str() {
            "worker.draining" => {
                draining.insert(who.clone());
                away.insert(who);
            }
            "worker.gone" => drop(draining.remove(&who)),
            "worker.available" => back += u32::from(away.remove(&who)),
            _ => {}
        }
        ensure!(draining.len() <= 1, "both drain: {draining:?}");
        if away.len() > 1 {
            eprintln!("note: one worker drains while the other has not come back yet");
        }
    }
    is_whole(&mut fleet, 4).await?;
    settled(&fleet).await?;
    finish(fleet).await
}

/// On a file, too: the smallest fleet there is.
#[tokio::test]
async fn recycling_by_exit_leaves_the_restart_to_a_supervisor() -> Result<()> {
    let builder = Fleet::builder().store(FleetStore::Sqlite).coordinators(1).workers(1);
    let builder = builder
        .worker_flag("--recycle-sessions=2")
        .worker_flag("--recycle=exit");
    let mut fleet = builder.start().await?;
    for _ in 0..2 {
        let session = create(&fleet.http(), json!({})).await?;
        release(&fleet.http(), &id(&session)).await?;
    }
    let status = fleet.workers()[0].wait_end().await?;
    ensure!(status.success() && !fleet.worker(0).log().contains(ANEW), "{status}");
    let own = fleet.worker(0).id()?;
    fleet.workers()[0].start_again().await?;
    fleet.all_available(1).await?;
    eventually("its lifetime to begin anew", async || {
        let record = worker(&fleet.http(), &own).await?;
        ensure!(record["lifetime"] == 0, "{record}");
        Ok(())
    })
    .await?;
    fleet.finish().await
}
