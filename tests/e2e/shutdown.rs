//! The graceful stop: not ready, waiters sent away, sessions may finish, a second signal forces, nothing is left.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::json;
use tokio::task::JoinSet;
use wharf_testkit::{CdpError, Grid, eventually};

use crate::support::{attach_path, count_is, create};

/// Longer than any stop that waits for nothing.
const SOON: Duration = Duration::from_secs(15);

async fn is_draining(grid: &Grid) -> Result<()> {
    eventually("readyz to say draining", async || {
        let reply = grid.http().get("/readyz").await?;
        ensure!(
            reply.status == 503 && reply.text().contains("draining"),
            "{} {}",
            reply.status,
            reply.text()
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn sigterm_at_rest_ends_at_once_with_exit_0() -> Result<()> {
    for signal in [Signal::TERM, Signal::INT] {
        let mut grid = Grid::builder().slots(3).min(3).start().await?;
        ensure!(grid.http().get("/readyz").await?.status == 200 && grid.http().get("/livez").await?.status == 200);
        grid.signal(signal)?;
        let stopped = grid.wait_stopped().await?;
        ensure!(
            stopped.status.success() && stopped.took < SOON,
            "{signal:?}: {stopped:?}"
        );
        grid.finish().await?;
    }
    Ok(())
}

#[tokio::test]
async fn sigterm_lets_sessions_finish_and_sends_everybody_else_away() -> Result<()> {
    let mut grid = Grid::builder().slots(1).start().await?;
    let mut cdp = grid.cdp("/").await?;
    cdp.call("Browser.getVersion", json!({})).await?;
    let (http, mut waiter) = (grid.http(), JoinSet::new());
    waiter.spawn(async move { http.post("/v1/sessions", &json!({})).await });
    let url = grid.ws_url();
    let mut socket = JoinSet::new();
    socket.spawn(async move { wharf_testkit::Cdp::connect(&url).await });
    count_is(&grid, "queued", 2).await?;
    grid.signal(Signal::TERM)?;

    let waited = waiter.join_next().await.context("no waiter")???;
    ensure!(
        waited.status == 503 && waited.error_code().as_deref() == Some("draining"),
        "{}",
        waited.text()
    );
    ensure!(waited.header("retry-after").is_some(), "no Retry-After");
    let Err(CdpError::Refused(refused)) = socket.join_next().await.context("no client")?? else {
        bail!("a waiting upgrade was not refused")
    };
    ensure!(
        refused.status == 503 && refused.header("retry-after").is_some(),
        "{}",
        refused.text()
    );
    is_draining(&grid).await?;
    let late = grid.http().post("/v1/sessions", &json!({})).await?;
    ensure!(
        late.status == 503 && late.error_code().as_deref() == Some("draining"),
        "{}",
        late.text()
    );
    ensure!(late.header("retry-after").is_some() && grid.http().get("/livez").await?.status == 200);

    // The session is not disturbed; its end lets the process go.
    for _ in 0..20 {
        cdp.call("Browser.getVersion", json!({})).await?;
    }
    cdp.close().await;
    let stopped = grid.wait_stopped().await?;
    ensure!(stopped.status.success(), "{stopped:?}");
    grid.finish().await
}

#[tokio::test]
async fn drain_timeout_closes_the_rest_with_1001_worker_drained() -> Result<()> {
    let mut grid = Grid::builder().slots(2).arg("--drain-timeout", "1s").start().await?;
    let mut own = grid.cdp("/").await?;
    let session = create(&grid, json!({})).await?;
    let mut attached = grid.cdp(&attach_path(&session)).await?;
    grid.signal(Signal::TERM)?;
    for cdp in [&mut own, &mut attached] {
        let end = cdp.closed().await?;
        ensure!(
            end.code == Some(1001) && end.reason.starts_with("worker_drained"),
            "{end:?}"
        );
    }
    let stopped = grid.wait_stopped().await?;
    ensure!(stopped.status.success(), "{stopped:?}");
    grid.finish().await
}

#[tokio::test]
async fn second_signal_forces_and_still_leaves_nothing() -> Result<()> {
    let mut grid = Grid::builder().slots(2).min(2).start().await?;
    let mut cdp = grid.cdp("/").await?;
    cdp.call("Browser.getVersion", json!({})).await?;
    grid.signal(Signal::TERM)?;
    is_draining(&grid).await?;
    cdp.call("Browser.getVersion", json!({})).await?;
    grid.signal(Signal::TERM)?;
    let end = cdp.closed().await?;
    ensure!(end.code == Some(1001), "{end:?}");
    let stopped = grid.wait_stopped().await?;
    ensure!(stopped.took < SOON, "{stopped:?}");
    grid.finish().await
}

#[tokio::test]
async fn sigterm_during_a_launch_leaves_nothing() -> Result<()> {
    let mut grid = Grid::builder().slots(2).min(0).fault("slow_start:3s").start().await?;
    let (http, mut client) = (grid.http(), JoinSet::new());
    client.spawn(async move { http.post("/v1/sessions", &json!({})).await });
    count_is(&grid, "starting", 1).await?;
    grid.signal(Signal::TERM)?;
    let reply = client.join_next().await.context("no client")???;
    ensure!(reply.status == 503, "{} {}", reply.status, reply.text());
    let stopped = grid.wait_stopped().await?;
    ensure!(stopped.status.success(), "{stopped:?}");
    grid.finish().await
}
