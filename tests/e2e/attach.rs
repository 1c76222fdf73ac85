//! Who attaches, who leaves, and what ends then.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use wharf_testkit::{BrowserUnderTest, CdpError, Grid};

use crate::support::{
    attach_path, count_is, create, ends_as, get, id, is_gone, is_whole, metric_is, only_active, only_browser, release,
};

#[tokio::test]
async fn two_clients_share_one_session_in_headless_shell() -> Result<()> {
    let grid = Grid::builder().browser(BrowserUnderTest::HeadlessShell).start().await?;
    let session = create(&grid, json!({})).await?;
    let mut first = grid.cdp(&attach_path(&session)).await?;
    let mut second = grid.cdp(&attach_path(&session)).await?;
    metric_is(&grid, "wharf_relays_active", 2.0).await?;
    let target = first
        .call("Target.createTarget", json!({"url": "data:text/html,shared"}))
        .await?;
    let targets = second.call("Target.getTargets", json!({})).await?;
    let seen = targets["targetInfos"].as_array().into_iter().flatten();
    ensure!(
        seen.map(|info| &info["targetId"]).any(|id| *id == target["targetId"]),
        "{targets}"
    );
    first.close().await;
    second.call("Browser.getVersion", json!({})).await?;
    second.abandon();
    metric_is(&grid, "wharf_relays_active", 0.0).await?;
    ensure!(
        get(&grid, &id(&session)).await?["status"] == "active",
        "detaching ended the session"
    );
    let mut third = grid.cdp(&attach_path(&session)).await?;
    let targets = third.call("Target.getTargets", json!({})).await?;
    let mut seen = targets["targetInfos"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|info| &info["targetId"]);
    ensure!(
        seen.any(|id| *id == target["targetId"]),
        "the page did not survive: {targets}"
    );
    third.close().await;
    release(&grid, &id(&session)).await?;
    grid.finish().await
}

#[tokio::test]
async fn idle_timeout_closes_the_client_with_4409_and_reason() -> Result<()> {
    let grid = Grid::builder().slots(1).arg("--idle-timeout", "1s").start().await?;
    let session = create(&grid, json!({})).await?;
    let mut cdp = grid.cdp(&attach_path(&session)).await?;
    cdp.call("Browser.getVersion", json!({})).await?;
    let end = cdp.closed().await?;
    ensure!(
        end.code == Some(4409) && end.reason.starts_with("idle_timeout"),
        "{end:?}"
    );
    ends_as(&grid, &id(&session), "idle_timeout").await?;
    // A session that was attached to once and left alone ends the same way.
    let session = create(&grid, json!({})).await?;
    grid.cdp(&attach_path(&session)).await?.close().await;
    ends_as(&grid, &id(&session), "idle_timeout").await?;
    is_whole(&grid, 1).await?;
    grid.finish().await
}

#[tokio::test]
async fn idle_timeout_counts_from_the_clients_last_message() -> Result<()> {
    let grid = Grid::builder().slots(1).arg("--idle-timeout", "2s").start().await?;
    let mut cdp = grid.cdp("/").await?;
    let started = std::time::Instant::now();
    // Busy for twice the timeout: it must not be ended.
    while started.elapsed() < std::time::Duration::from_secs(4) {
        cdp.call("Browser.getVersion", json!({})).await?;
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    let end = cdp.closed().await?;
    ensure!(end.code == Some(4409), "{end:?}");
    grid.finish().await
}

#[tokio::test]
async fn keep_alive_off_ends_with_the_last_client() -> Result<()> {
    let grid = Grid::builder().start().await?;
    let session = create(&grid, json!({"keep_alive": false})).await?;
    let first = grid.cdp(&attach_path(&session)).await?;
    let mut second = grid.cdp(&attach_path(&session)).await?;
    first.close().await;
    second.call("Browser.getVersion", json!({})).await?;
    ensure!(
        get(&grid, &id(&session)).await?["status"] == "active",
        "it ended with the first of two clients"
    );
    second.close().await;
    ends_as(&grid, &id(&session), "released").await?;
    let session = create(&grid, json!({"keep_alive": false})).await?;
    grid.cdp(&attach_path(&session)).await?.abandon();
    ends_as(&grid, &id(&session), "client_disconnected").await?;
    grid.finish().await
}

async fn browser_close_releases(browser: BrowserUnderTest) -> Result<()> {
    let grid = Grid::builder().browser(browser).slots(1).start().await?;
    for kept in [false, true] {
        let (session, path) = if kept {
            let session = create(&grid, json!({})).await?;
            (Some(id(&session)), attach_path(&session))
        } else {
            (None, "/".to_owned())
        };
        let mut cdp = grid.cdp(&path).await?;
        cdp.call("Browser.getVersion", json!({})).await?;
        let session = match session {
            Some(session) => session,
            None => only_active(&grid).await?,
        };
        // The answer may or may not come before the end.
        match cdp.call("Browser.close", json!({})).await {
            Ok(Value::Object(_)) | Err(CdpError::Ended(_)) => {}
            other => ensure!(false, "{other:?}"),
        }
        let end = cdp.closed().await?;
        ensure!(end.code.is_some_and(|code| code == 1000 || code == 1001), "{end:?}");
        ends_as(&grid, &session, "released").await?;
    }
    is_whole(&grid, 1).await?;
    grid.finish().await
}

#[tokio::test]
async fn browser_close_from_a_client_releases_the_session() -> Result<()> {
    browser_close_releases(BrowserUnderTest::Fake).await
}

#[tokio::test]
async fn browser_close_from_a_client_releases_the_session_on_headless_shell() -> Result<()> {
    browser_close_releases(BrowserUnderTest::HeadlessShell).await
}

#[tokio::test]
async fn connection_closed_is_released_and_broken_is_client_disconnected() -> Result<()> {
    let grid = Grid::builder().slots(1).start().await?;
    for (is_clean, reason) in [(true, "released"), (false, "client_disconnected")] {
        let mut cdp = grid.cdp("/").await?;
        cdp.call("Browser.getVersion", json!({})).await?;
        let (session, browser) = (only_active(&grid).await?, only_browser(&grid).await?);
        if is_clean {
            cdp.close().await;
        } else {
            cdp.abandon();
        }
        ends_as(&grid, &session, reason).await?;
        is_gone(browser).await?;
    }
    grid.finish().await
}

#[tokio::test]
async fn session_deleted_closes_every_attached_client() -> Result<()> {
    let grid = Grid::builder().start().await?;
    let session = create(&grid, json!({})).await?;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(grid.cdp(&attach_path(&session)).await?);
    }
    release(&grid, &id(&session)).await?;
    for client in &mut clients {
        let end = client.closed().await?;
        ensure!(end.code == Some(1001) && end.reason.starts_with("released"), "{end:?}");
    }
    let late = grid
        .cdp(&attach_path(&session))
        .await
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    ensure!(late.contains("404") && late.contains("released"), "{late}");
    count_is(&grid, "active", 0).await?;
    grid.finish().await
}
