//! A worker dies or is cut off: its clients are told, its sessions end, its browsers die, and it serves again.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tokio::task::JoinSet;
use wharf_testkit::{Fleet, eventually};

use crate::fleet_support::{
    QUICK, attach_path, count_is, create, ends_as, finish, get, id, is_whole, release, took, worker_is, workers,
};

#[tokio::test]
async fn worker_killed_its_clients_are_told_and_waiters_go_elsewhere() -> Result<()> {
    let mut fleet = Fleet::builder().coordinators(2).workers(2).start().await?;
    let (lost, kept) = (fleet.worker(0).id()?, fleet.worker(1).id()?);
    let (mut on_lost, mut on_kept) = (Vec::new(), Vec::new());
    for n in 0..4 {
        let session = create(&fleet.http_at(n % 2), json!({"connect_timeout": "5m"})).await?;
        match session["worker"] == lost.as_str() {
            true => on_lost.push(session),
            false => on_kept.push(session),
        }
    }
    ensure!(on_lost.len() == 2 && on_kept.len() == 2, "{on_lost:?} {on_kept:?}");
    // One of the lost ones has a client on either coordinator, the other has none.
    let mut told = [
        fleet.cdp_at(0, &attach_path(&on_lost[0])).await?,
        fleet.cdp_at(1, &attach_path(&on_lost[0])).await?,
    ];
    let mut untouched = fleet.cdp_at(1, &attach_path(&on_kept[0])).await?;
    let (http, mut waiter) = (fleet.http_at(0), JoinSet::new());
    waiter.spawn(async move { create(&http, json!({"data": "waited"})).await });
    count_is(&fleet.http_at(1), "queued", 1).await?;

    let began = Instant::now();
    fleet.workers()[0].kill9()?;
    for client in &mut told {
        let end = client.closed().await?;
        took("worker killed: an attached client told", began);
        ensure!(
            end.code == Some(1011) && end.reason.starts_with("worker_lost"),
            "{end:?}"
        );
    }
    ends_as(&fleet.http_at(1), &id(&on_lost[0]), "worker_lost").await?;
    ends_as(&fleet.http_at(1), &id(&on_lost[1]), "worker_lost").await?;
    took("worker killed: its session without a client ended", began);
    eventually("the browsers of a killed worker to die with it", async || {
        let left = fleet.worker(0).browser_pids();
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
    .await?;
    took("worker killed: its browsers gone", began);
    untouched.call("Browser.getVersion", json!({})).await?;
    release(&fleet.http_at(1), &id(&on_kept[1])).await?;
    let served = waiter.join_next().await.context("no waiter")???;
    ensure!(
        served["worker"] == kept.as_str() && served["data"] == "waited",
        "{served}"
    );

    fleet.workers()[0].start_again().await?;
    ensure!(fleet.worker(0).id()? == lost, "the id changed");
    fleet.all_available(2).await?;
    let again = create(&fleet.http_at(0), json!({})).await?;
    ensure!(
        again["worker"] == lost.as_str(),
        "the empty worker is not chosen: {again}"
    );
    for session in [&again, &served, &on_kept[0]] {
        release(&fleet.http_at(1), &id(session)).await?;
    }
    ensure!(untouched.closed().await?.reason.starts_with("released"));
    is_whole(&mut fleet, 4).await?;
    finish(fleet).await
}

#[tokio::test]
async fn worker_partitioned_is_given_up_told_on_return_and_serves_again() -> Result<()> {
    let builder = Fleet::builder().coordinators(2).workers(2).cutters(true);
    let mut fleet = QUICK
        .iter()
        .fold(builder, |builder, flag| builder.flag(flag))
        .start()
        .await?;
    let cut_off = fleet.worker(0).id()?;
    let mut sessions = Vec::new();
    for n in 0..4 {
        sessions.push(create(&fleet.http_at(n % 2), json!({"connect_timeout": "5m"})).await?);
    }
    let (lost, kept): (Vec<_>, Vec<_>) = sessions
        .iter()
        .partition(|session| session["worker"] == cut_off.as_str());
    ensure!(lost.len() == 2, "{sessions:?}");
    let mut client = fleet.cdp_at(0, &attach_path(lost[0])).await?;
    client.call("Browser.getVersion", json!({})).await?;

    let began = Instant::now();
    fleet.cutter_of_uplink(0).blackhole();
    fleet.cutter_of_gateway(0).blackhole();
    let end = client.closed().await?;
    took("worker partitioned (liveness_ttl 3 s): its client told", began);
    ensure!(
        end.code == Some(1011) && end.reason.starts_with("worker_lost"),
        "{end:?}"
    );
    for session in &lost {
        ends_as(&fleet.http_at(1), &id(session), "worker_lost").await?;
    }
    worker_is(&fleet.http_at(0), &cut_off, "lost").await?;
    for session in &kept {
        ensure!(get(&fleet.http_at(1), &id(session)).await?["status"] == "active");
    }
    // It does not know yet, and goes on with them.
    ensure!(
        !fleet.worker(0).browser_pids().is_empty(),
        "it gave up before it was told"
    );

    let began = Instant::now();
    fleet.heal_all();
    fleet.all_available(2).await?;
    took("partition healed: the worker available again", began);
    ensure!(
        workers(&fleet.http_at(0)).await?.len() == 2,
        "the returned worker is there twice"
    );
    eventually("what was given up to be ended there", async || {
        let dirs = fleet.worker(0).session_dirs().len();
        // One warm browser is kept up.
        ensure!(dirs <= 1, "{dirs} directories");
        Ok(())
    })
    .await?;
    for session in &kept {
        release(&fleet.http_at(1), &id(session)).await?;
    }
    is_whole(&mut fleet, 4).await?;
    finish(fleet).await
}

/// A session that has no browser yet is not lost with the worker that was to give it one: it waits again, and is served.
#[tokio::test]
async fn session_on_its_way_to_a_silent_worker_is_served_by_another() -> Result<()> {
    let builder = Fleet::builder().coordinators(2).workers(2).slots(1).cutters(true);
    let mut fleet = QUICK
        .iter()
        .fold(builder, |builder, flag| builder.flag(flag))
        .start()
        .await?;
    let first = create(&fleet.http_at(0), json!({"connect_timeout": "5m"})).await?;
    let silent = usize::from(first["worker"] == fleet.worker(0).id()?.as_str());
    let (dead, alive) = (fleet.worker(silent).id()?, fleet.worker(1 - silent).id()?);
    fleet.cutter_of_uplink(silent).blackhole();
    fleet.cutter_of_gateway(silent).blackhole();
    // For a moment the grid still counts on it.
    let (http, mut client) = (fleet.http_at(1), JoinSet::new());
    client.spawn(async move { create(&http, json!({"data": "patient"})).await });
    count_is(&fleet.http_at(0), "starting", 1).await?;
    let began = Instant::now();
    worker_is(&fleet.http_at(0), &dead, "lost").await?;
    count_is(&fleet.http_at(0), "queued", 1).await?;
    took(
        "worker silent (liveness_ttl 3 s): what it was to serve waits again",
        began,
    );
    release(&fleet.http_at(0), &id(&first)).await?;
    let served = client.join_next().await.context("no client")???;
    ensure!(
        served["worker"] == alive.as_str() && served["data"] == "patient",
        "{served}"
    );
    let mut cdp = fleet.cdp_at(0, &attach_path(&served)).await?;
    cdp.call("Browser.getVersion", json!({})).await?;
    cdp.close().await;
    fleet.heal_all();
    fleet.all_available(2).await?;
    release(&fleet.http_at(0), &id(&served)).await?;
    is_whole(&mut fleet, 2).await?;
    finish(fleet).await
}
