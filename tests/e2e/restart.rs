//! Wharf itself ends and starts again on the same directories: every session has a reason, nothing is half-alive.

use anyhow::{Result, ensure};
use serde_json::json;
use wharf_testkit::{BrowserUnderTest, Grid, eventually};

use crate::support::{
    attach_path, browser_roots, create, create_async, end_of, ends_as, id, is_whole, last_ended, listed, release,
};

#[tokio::test]
async fn restart_by_sigterm_keeps_the_history_and_says_why() -> Result<()> {
    let mut grid = Grid::builder().slots(1).arg("--drain-timeout", "500ms").start().await?;
    let released = create(&grid, json!({"data": "before"})).await?;
    release(&grid, &id(&released)).await?;
    let active = create(&grid, json!({"data": "active"})).await?;
    let mut cdp = grid.cdp(&attach_path(&active)).await?;
    cdp.call("Browser.getVersion", json!({})).await?;
    let queued = create_async(&grid, json!({})).await?;
    grid.restart().await?;
    let end = cdp.closed().await?;
    ensure!(
        end.code == Some(1001) && end.reason.starts_with("worker_drained"),
        "{end:?}"
    );
    ends_as(&grid, &id(&released), "released").await?;
    ends_as(&grid, &id(&active), "worker_drained").await?;
    let (reason, _) = end_of(&grid, &id(&queued)).await?;
    ensure!(["cancelled", "worker_drained"].contains(&reason.as_str()), "{reason}");
    ensure!(listed(&grid, "/v1/sessions").await?.is_empty());
    ensure!(listed(&grid, "/v1/sessions/history").await?.len() == 3);
    is_whole(&grid, 1).await?;
    grid.finish().await
}

async fn killed_wharf_leaves_nothing_half_alive(browser: BrowserUnderTest) -> Result<()> {
    let mut grid = Grid::builder().browser(browser).slots(2).min(2).start().await?;
    let released = create(&grid, json!({})).await?;
    release(&grid, &id(&released)).await?;
    let active = create(&grid, json!({})).await?;
    let mut cdp = grid.cdp(&attach_path(&active)).await?;
    cdp.new_page("about:blank").await?;
    let second = create(&grid, json!({})).await?;
    let queued = create_async(&grid, json!({})).await?;
    ensure!(!browser_roots(&grid).is_empty());
    // Waits until every process of the grid is gone by itself.
    grid.kill9().await?;
    let end = cdp.closed().await?;
    ensure!(end.code.is_none(), "a killed process cannot say goodbye: {end:?}");
    eventually("the guard to remove the session directories", async || {
        let dirs = grid.session_dirs();
        ensure!(dirs.is_empty(), "{dirs:?}");
        Ok(())
    })
    .await?;
    grid.restart().await?;
    ends_as(&grid, &id(&released), "released").await?;
    for session in [&active, &second] {
        ends_as(&grid, &id(session), "worker_lost").await?;
    }
    ends_as(&grid, &id(&queued), "cancelled").await?;
    ensure!(listed(&grid, "/v1/sessions").await?.is_empty());
    let record = last_ended(&grid).await?;
    ensure!(record["ended_at"].is_string(), "{record}");
    is_whole(&grid, 2).await?;
    grid.finish().await
}

#[tokio::test]
async fn sigkill_of_wharf_leaves_nothing_half_alive() -> Result<()> {
    killed_wharf_leaves_nothing_half_alive(BrowserUnderTest::Fake).await
}

#[tokio::test]
async fn sigkill_of_wharf_leaves_no_headless_shell() -> Result<()> {
    killed_wharf_leaves_nothing_half_alive(BrowserUnderTest::HeadlessShell).await
}

#[tokio::test]
async fn sigkill_of_wharf_leaves_no_full_chromium() -> Result<()> {
    let builder = Grid::builder()
        .browser(BrowserUnderTest::Chromium)
        .arg("--browser", "chromium")
        .slots(1);
    let mut grid = builder.start().await?;
    let mut cdp = grid.cdp("/").await?;
    cdp.new_page("about:blank").await?;
    grid.kill9().await?;
    eventually("the guard to remove the session directories", async || {
        let dirs = grid.session_dirs();
        ensure!(dirs.is_empty(), "{dirs:?}");
        Ok(())
    })
    .await?;
    grid.finish().await
}

#[tokio::test]
async fn sigkill_of_wharf_takes_along_children_that_hide() -> Result<()> {
    let builder = Grid::builder().slots(1).fault("leak_child").fault("ignore_sigterm");
    let mut grid = builder.start().await?;
    let mut cdp = grid.cdp("/").await?;
    cdp.call("Fake.leakChild", json!({})).await?;
    // A stopped process does not act on any signal but SIGKILL.
    for pid in browser_roots(&grid) {
        crate::support::signal(pid, rustix::process::Signal::STOP)?;
    }
    grid.kill9().await?;
    grid.restart().await?;
    is_whole(&grid, 1).await?;
    grid.finish().await
}

#[tokio::test]
async fn memory_store_forgets_and_the_grid_still_starts() -> Result<()> {
    let mut grid = Grid::builder().slots(1).store("memory:").start().await?;
    let session = create(&grid, json!({})).await?;
    grid.kill9().await?;
    grid.restart().await?;
    let reply = grid.http().get(&format!("/v1/sessions/{}", id(&session))).await?;
    ensure!(
        reply.status == 404 && reply.error_code().as_deref() == Some("session_not_found"),
        "{}",
        reply.text()
    );
    is_whole(&grid, 1).await?;
    grid.finish().await
}
