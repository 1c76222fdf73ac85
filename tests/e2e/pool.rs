//! The warm pool: the floor, growth on demand, the ceiling, shrinking, and the numbers that show it.

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use serde_json::json;
use wharf_core::{EndReason, ErrorCode};
use wharf_testkit::{BrowserUnderTest, Grid, Metrics, eventually};

use crate::support::{attach_path, browser_roots, create, id, metric_is, release};

/// Every metric that the reference page names.
const NAMES: [&str; 29] = [
    "wharf_sessions_active",
    "wharf_sessions_starting",
    "wharf_sessions_ended_total",
    "wharf_queue_depth",
    "wharf_queue_wait_seconds_bucket",
    "wharf_acquire_wait_seconds_bucket",
    "wharf_session_duration_seconds_bucket",
    "wharf_slots",
    "wharf_slots_busy",
    "wharf_workers",
    "wharf_desired_workers",
    "wharf_event_streams",
    "wharf_events_sent_total",
    "wharf_event_streams_closed_slow_total",
    "wharf_relays_active",
    "wharf_relay_bytes_total",
    "wharf_requests_refused_total",
    "wharf_connections",
    "wharf_orphan_processes",
    "wharf_browsers",
    "wharf_launches_total",
    "wharf_launch_seconds_bucket",
    "wharf_leases_total",
    "wharf_browsers_retired_total",
    "wharf_browsers_hung_total",
    "wharf_workers_current",
    "wharf_workers_pending",
    "wharf_circuit_open",
    "wharf_browsers_memory_bytes",
];

async fn warm_is(grid: &Grid, count: f64) -> Result<()> {
    metric_is(grid, "wharf_browsers{state=\"warm\"}", count).await
}

#[tokio::test]
async fn minimum_is_kept_warm_and_refilled() -> Result<()> {
    let grid = Grid::builder().slots(5).min(3).start().await?;
    warm_is(&grid, 3.0).await?;
    ensure!(browser_roots(&grid).len() == 3 && grid.session_dirs().len() == 3);
    let session = create(&grid, json!({})).await?;
    ensure!(
        grid.metric("wharf_leases_total{outcome=\"warm\"}").await? == 1.0,
        "the lease was not served warm"
    );
    release(&grid, &id(&session)).await?;
    warm_is(&grid, 3.0).await?;
    ensure!(browser_roots(&grid).len() == 3);
    grid.finish().await
}

#[tokio::test]
async fn demand_scales_up_to_max_and_never_beyond_max_and_spare() -> Result<()> {
    let grid = Grid::builder()
        .slots(6)
        .min(1)
        .spare(1)
        .fault("slow_start:100ms")
        .start()
        .await?;
    let body = json!({"connect_timeout": "5m"});
    let all = try_join_all((0..12).map(|_| async {
        let session = crate::support::create_async(&grid, body.clone()).await?;
        let browsers = browser_roots(&grid).len();
        ensure!(browsers <= 7, "{browsers} browsers for 6 slots and 1 spare");
        Ok(id(&session))
    }));
    let sessions = all.await?;
    eventually("six active sessions", async || {
        let (active, browsers) = (grid.metric("wharf_sessions_active").await?, browser_roots(&grid).len());
        ensure!(browsers <= 7, "{browsers} browsers for 6 slots and 1 spare");
        ensure!(
            active == 6.0 && grid.metric("wharf_queue_depth").await? == 6.0,
            "{active} are active"
        );
        Ok(())
    })
    .await?;
    metric_is(&grid, "wharf_slots_busy", 6.0).await?;
    for session in sessions {
        release(&grid, &session).await?;
        let browsers = browser_roots(&grid).len();
        ensure!(browsers <= 7, "{browsers} browsers for 6 slots and 1 spare");
    }
    grid.finish().await
}

#[tokio::test]
async fn spare_of_zero_makes_max_a_ceiling_of_processes() -> Result<()> {
    let grid = Grid::builder().slots(2).min(2).spare(0).start().await?;
    for _ in 0..10 {
        let sessions = [create(&grid, json!({})).await?, create(&grid, json!({})).await?];
        ensure!(browser_roots(&grid).len() <= 2, "{:?}", browser_roots(&grid));
        for session in sessions {
            release(&grid, &id(&session)).await?;
            ensure!(browser_roots(&grid).len() <= 2, "{:?}", browser_roots(&grid));
        }
    }
    grid.finish().await
}

#[tokio::test]
async fn idle_ticks_shrink_the_pool_back_to_its_minimum() -> Result<()> {
    let grid = Grid::builder().slots(6).min(1).arg("--tick", "200ms").start().await?;
    let sessions = try_join_all((0..6).map(|_| create(&grid, json!({})))).await?;
    metric_is(&grid, "wharf_sessions_active", 6.0).await?;
    for session in &sessions {
        release(&grid, &id(session)).await?;
    }
    // Demand is forgotten by half in ten seconds; then two idle ticks take one browser each.
    wharf_testkit::eventually_within(wharf_testkit::patience() * 4, "the pool to shrink", async || {
        let browsers = browser_roots(&grid).len();
        ensure!(browsers == 1, "there are {browsers} browsers");
        Ok(())
    })
    .await?;
    metric_is(&grid, "wharf_workers_current", 1.0).await?;
    grid.finish().await
}

#[tokio::test]
async fn warm_headless_shell_has_its_first_page_up() -> Result<()> {
    let grid = Grid::builder().browser(BrowserUnderTest::HeadlessShell).start().await?;
    warm_is(&grid, 1.0).await?;
    let session = create(&grid, json!({})).await?;
    ensure!(grid.metric("wharf_leases_total{outcome=\"warm\"}").await? == 1.0);
    let mut cdp = grid.cdp(&attach_path(&session)).await?;
    let targets = cdp.call("Target.getTargets", json!({})).await?;
    let infos = targets["targetInfos"].as_array().context("no targets")?;
    let pages: Vec<_> = infos.iter().filter(|info| info["type"] == "page").collect();
    ensure!(pages.len() == 1 && pages[0]["url"] == "about:blank", "{targets}");
    let attach = json!({"targetId": pages[0]["targetId"], "flatten": true});
    let attached = cdp.call("Target.attachToTarget", attach).await?;
    let page = attached["sessionId"].as_str().context("not attached")?;
    let sum = cdp
        .call_in(page, "Runtime.evaluate", json!({"expression": "6*7"}))
        .await?;
    ensure!(sum["result"]["value"] == 42, "{sum}");
    cdp.close().await;
    release(&grid, &id(&session)).await?;
    grid.finish().await
}

#[tokio::test]
async fn metrics_have_their_documented_names_and_labels() -> Result<()> {
    let grid = Grid::builder().slots(3).min(2).start().await?;
    let mut cdp = grid.cdp("/").await?;
    cdp.call("Browser.getVersion", json!({})).await?;
    ensure!(grid.http().get("/nothing").await?.status == 404);
    let text = grid.http().get("/metrics").await?.text();
    let metrics = Metrics::parse(&text)?;
    let missing: Vec<_> = NAMES
        .iter()
        .filter(|name| !metrics.names().any(|found| found == **name))
        .collect();
    ensure!(missing.is_empty(), "{missing:?} are missing from\n{text}");
    let known = |name: &str| {
        let stem = |name: &str| {
            ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|end| name.strip_suffix(end).map(str::to_owned))
        };
        NAMES.contains(&name) || stem(name).is_some_and(|stem| NAMES.contains(&format!("{stem}_bucket").as_str()))
    };
    let unknown: Vec<_> = metrics.names().filter(|name| !known(name)).collect();
    ensure!(unknown.is_empty(), "{unknown:?} are not documented");
    for reason in EndReason::ALL {
        let query = format!("wharf_sessions_ended_total{{reason=\"{reason}\"}}");
        ensure!(metrics.get(&query) == Some(0.0), "{query} is {:?}", metrics.get(&query));
    }
    for (query, value) in [
        ("wharf_sessions_active", 1.0),
        ("wharf_slots", 3.0),
        ("wharf_slots_busy", 1.0),
        ("wharf_workers", 1.0),
        ("wharf_relays_active", 1.0),
        ("wharf_orphan_processes", 0.0),
        ("wharf_browsers{state=\"leased\"}", 1.0),
        ("wharf_acquire_wait_seconds_count", 1.0),
        ("wharf_circuit_open", 0.0),
    ] {
        ensure!(metrics.get(query) == Some(value), "{query} is {:?}", metrics.get(query));
    }
    let refused = format!("wharf_requests_refused_total{{code=\"{}\"}}", ErrorCode::RouteNotFound);
    ensure!(
        metrics.get(&refused) == Some(1.0),
        "{refused} is {:?}",
        metrics.get(&refused)
    );
    ensure!(
        !text.contains("\"ses_") && !text.contains("\"brw_"),
        "an id became a label"
    );
    cdp.close().await;
    metric_is(&grid, "wharf_sessions_ended_total{reason=\"released\"}", 1.0).await?;
    metric_is(&grid, "wharf_session_duration_seconds_count", 1.0).await?;
    grid.finish().await
}
