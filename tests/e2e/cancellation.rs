//! Clients that leave: in the queue, during the launch, at the hand-over. Each frees what it held at once.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use wharf_testkit::{Cdp, Grid, eventually};

use crate::support::{
    Raw, browser_roots, count_is, create, ends_as, id, is_whole, listed, metric_is, post, release, upgrade,
};

/// The two ways to ask for a session and wait.
const ASKS: [fn() -> String; 2] = [|| post("/v1/sessions", "{}"), || upgrade("/")];

#[tokio::test]
async fn client_gone_in_the_queue_blocks_nobody() -> Result<()> {
    let grid = Grid::builder().slots(1).spare(1).start().await?;
    for ask in ASKS {
        let holder = create(&grid, json!({})).await?;
        let mut leaver = Raw::connect(grid.addr()).await?;
        leaver.send(ask()).await?;
        let leaving = id(&count_is(&grid, "queued", 1).await?[0]);
        let (http, mut next) = (grid.http(), JoinSet::new());
        next.spawn(async move { http.post("/v1/sessions", &json!({})).await?.expect(201) });
        count_is(&grid, "queued", 2).await?;
        drop(leaver);
        ends_as(&grid, &leaving, "cancelled").await?;
        let left = count_is(&grid, "queued", 1).await?;
        let place = crate::support::get(&grid, &id(&left[0])).await?;
        ensure!(place["position"] == 1, "{place}");
        release(&grid, &id(&holder)).await?;
        let served = next.join_next().await.context("no client")???;
        release(&grid, &id(&served)).await?;
    }
    is_whole(&grid, 1).await?;
    grid.finish().await
}

#[tokio::test]
async fn many_clients_gone_in_the_queue_leave_it_empty() -> Result<()> {
    let grid = Grid::builder().slots(1).queue(1000).start().await?;
    let holder = create(&grid, json!({})).await?;
    let mut leavers = Vec::new();
    for n in 0..200 {
        let mut leaver = Raw::connect(grid.addr()).await?;
        leaver.send(ASKS[n % 2]()).await?;
        leavers.push(leaver);
    }
    count_is(&grid, "queued", 200).await?;
    drop(leavers);
    count_is(&grid, "queued", 0).await?;
    release(&grid, &id(&holder)).await?;
    let cancelled = listed(&grid, "/v1/sessions/history?reason=cancelled&limit=1000").await?;
    ensure!(cancelled.len() == 200, "{}", cancelled.len());
    is_whole(&grid, 1).await?;
    grid.finish().await
}

#[tokio::test]
async fn client_gone_during_the_launch_frees_the_slot_for_the_next() -> Result<()> {
    let grid = Grid::builder().slots(1).min(0).fault("slow_start:1s").start().await?;
    for ask in ASKS {
        let mut leaver = Raw::connect(grid.addr()).await?;
        leaver.send(ask()).await?;
        let starting = id(&count_is(&grid, "starting", 1).await?[0]);
        let (http, mut next) = (grid.http(), JoinSet::new());
        next.spawn(async move { http.post("/v1/sessions", &json!({})).await?.expect(201) });
        count_is(&grid, "queued", 1).await?;
        drop(leaver);
        ends_as(&grid, &starting, "cancelled").await?;
        let served = next.join_next().await.context("no client")???;
        release(&grid, &id(&served)).await?;
        ensure!(browser_roots(&grid).len() <= 1, "more browsers than slots");
    }
    metric_is(&grid, "wharf_slots_busy", 0.0).await?;
    grid.finish().await
}

/// How long a whole request takes here, so that leaving can be aimed at every point of it.
async fn usual_time(grid: &Grid) -> Result<Duration> {
    let mut longest = Duration::ZERO;
    for _ in 0..3 {
        let started = Instant::now();
        let session = create(grid, json!({})).await?;
        longest = longest.max(started.elapsed());
        release(grid, &id(&session)).await?;
        metric_is(grid, "wharf_slots_busy", 0.0).await?;
        eventually("a warm browser", async || {
            ensure!(grid.metric("wharf_browsers{state=\"warm\"}").await? >= 1.0);
            Ok(())
        })
        .await?;
    }
    Ok(longest)
}

/// Leaves at `rounds` points in time between "just asked" and "long answered".
async fn leave_everywhere(grid: &Grid, ask: fn() -> String, rounds: u32) -> Result<()> {
    let usual = usual_time(grid).await?;
    for round in 0..rounds {
        let mut leaver = Raw::connect(grid.addr()).await?;
        if round % 2 == 0 {
            // RST instead of FIN, as a killed client's unread data makes it.
            leaver.0.set_zero_linger()?;
        }
        leaver.send(ask()).await?;
        // Not a wait for anything: the point in time is what is tried.
        tokio::time::sleep(usual * 2 * round / rounds).await;
        drop(leaver);
    }
    Ok(())
}

async fn reasons(grid: &Grid) -> Result<Vec<String>> {
    let history = listed(grid, "/v1/sessions/history?limit=1000").await?;
    Ok(history
        .iter()
        .map(|record| record["reason"].as_str().unwrap_or_default().to_owned())
        .collect())
}

#[tokio::test]
async fn client_gone_around_the_answer_leaks_nothing() -> Result<()> {
    let grid = Grid::builder()
        .slots(2)
        .min(2)
        .spare(1)
        .arg("--connect-timeout", "1s")
        .start()
        .await?;
    leave_everywhere(&grid, ASKS[0], 60).await?;
    // What was handed over in full lives until somebody attaches or its connect timeout.
    grid.leak_check().await?;
    let reasons = reasons(&grid).await?;
    let expected = ["cancelled", "connect_timeout", "released"];
    ensure!(
        reasons.iter().all(|reason| expected.contains(&reason.as_str())),
        "{reasons:?}"
    );
    is_whole(&grid, 2).await?;
    grid.finish().await
}

#[tokio::test]
async fn websocket_client_gone_around_the_upgrade_leaks_nothing() -> Result<()> {
    let grid = Grid::builder().slots(2).min(2).spare(1).start().await?;
    leave_everywhere(&grid, ASKS[1], 60).await?;
    grid.leak_check().await?;
    let reasons = reasons(&grid).await?;
    let expected = ["cancelled", "client_disconnected", "released"];
    ensure!(
        reasons.iter().all(|reason| expected.contains(&reason.as_str())),
        "{reasons:?}"
    );
    is_whole(&grid, 2).await?;
    grid.finish().await
}

#[tokio::test]
async fn clients_gone_at_the_hand_over_from_the_queue_let_the_next_be_served() -> Result<()> {
    let grid = Grid::builder()
        .slots(1)
        .spare(1)
        .arg("--connect-timeout", "1s")
        .start()
        .await?;
    for round in 0u32..20 {
        let holder = create(&grid, json!({})).await?;
        let mut leaver = Raw::connect(grid.addr()).await?;
        leaver.send(ASKS[round as usize % 2]()).await?;
        count_is(&grid, "queued", 1).await?;
        let (url, mut next) = (grid.ws_url(), JoinSet::new());
        next.spawn(async move {
            let mut cdp = Cdp::connect(&url).await?;
            let version = cdp.call("Browser.getVersion", json!({})).await?;
            cdp.close().await;
            anyhow::Ok(version)
        });
        count_is(&grid, "queued", 2).await?;
        // The slot comes free and its next owner leaves, a little sooner or later.
        let holder = id(&holder);
        let leave = async {
            tokio::time::sleep(Duration::from_millis(u64::from(round / 2))).await;
            drop(leaver);
        };
        let (released, ()) = tokio::join!(release(&grid, &holder), leave);
        released?;
        let version: Value = next.join_next().await.context("no client")???;
        ensure!(version["product"].is_string(), "{version}");
        eventually("the grid to be empty", async || {
            let left = listed(&grid, "/v1/sessions").await?;
            ensure!(left.is_empty(), "{left:?}");
            Ok(())
        })
        .await?;
    }
    is_whole(&grid, 1).await?;
    grid.finish().await
}
