//! (f) What the grid's own process takes: memory idle and with sessions, CPU per session.
//!
//! Its own file because it looks at the wharf process alone (`smaps_rollup`, `stat`), never at the browsers. Idle
//! sessions have one client attached each, as an agent that thinks.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use wharf_testkit::{BrowserUnderTest, Cdp, Grid, Http};

use crate::{
    bed::{Bed, warm},
    churn::{self, Churned},
    door::{Door, Open, create},
    figure::{Figure, Of},
    machine::{cpu_ms, pss_kb},
};

/// Sessions created at once while filling up.
const AT_ONCE: usize = 16;
const IDLE_MB: f64 = 15.0;
const SESSION_KB: f64 = 50.0;

pub async fn measure(bed: &mut Bed) -> Result<Vec<Figure>> {
    let mut figures = with_sessions(bed, BrowserUnderTest::HeadlessShell, bed.pick(20, 6)).await?;
    figures.extend(with_sessions(bed, BrowserUnderTest::Fake, bed.pick(1000, 100)).await?);
    figures.push(cpu_per_session(bed).await?);
    Ok(figures)
}

async fn with_sessions(bed: &mut Bed, browser: BrowserUnderTest, count: u32) -> Result<Vec<Figure>> {
    let fake = browser == BrowserUnderTest::Fake;
    let kind = if fake { "fake" } else { "real" };
    let grid = bed.grid(browser).slots(count).min(2).start().await?;
    warm(&grid, 2).await?;
    tokio::time::sleep(Duration::from_secs(bed.pick(3, 1))).await;
    let idle = pss_kb(grid.pid());
    bed.say(&format!("(f) {count} {kind} sessions"));
    let sessions = fill(&grid.http(), count as usize).await?;
    tokio::time::sleep(Duration::from_secs(bed.pick(5, 1))).await;
    let full = pss_kb(grid.pid());
    let idle_cpu = idle_cpu(&grid, Duration::from_secs(bed.pick(5, 2))).await;
    release(sessions).await?;
    let after = pss_kb(grid.pid());
    bed.finish(grid).await;
    let each = (full - idle) / f64::from(count);
    let mut figures = Vec::new();
    if !fake {
        figures.push(
            Figure::new('f', "PSS idle", "MB")
                .value(idle / 1000.0)
                .at_most(Of::Value, IDLE_MB)
                .note("the wharf process alone, two warm browsers, no session"),
        );
    }
    figures.push(
        Figure::new('f', format!("PSS with {count} {kind} idle sessions"), "MB")
            .value(full / 1000.0)
            .note(format!(
                "one client attached to each; {:.1} MB after their release",
                after / 1000.0
            )),
    );
    figures.push(
        Figure::new('f', format!("… per session, {kind}"), "kB")
            .value(each)
            .at_most(Of::Value, SESSION_KB),
    );
    figures.push(Figure::new('f', format!("… CPU of wharf meanwhile, {count} {kind}"), "% of a core").value(idle_cpu));
    Ok(figures)
}

async fn fill(http: &Http, count: usize) -> Result<Vec<(Open, Cdp)>> {
    let mut sessions = Vec::with_capacity(count);
    let mut creating = JoinSet::new();
    while sessions.len() < count {
        while creating.len() < AT_ONCE && sessions.len() + creating.len() < count {
            let http = http.clone();
            creating.spawn(async move { attached(&http).await });
        }
        if let Some(made) = creating.join_next().await {
            sessions.push(made??);
        }
    }
    Ok(sessions)
}

async fn attached(http: &Http) -> Result<(Open, Cdp)> {
    let open = create(http, &json!({"idle_timeout": Value::Null})).await?;
    let mut cdp = Cdp::connect(&open.url).await?;
    cdp.call("Browser.getVersion", json!({})).await?;
    Ok((open, cdp))
}

async fn release(sessions: Vec<(Open, Cdp)>) -> Result<()> {
    for (open, cdp) in sessions {
        open.release().await?;
        cdp.abandon();
    }
    Ok(())
}

async fn idle_cpu(grid: &Grid, span: Duration) -> f64 {
    let before = cpu_ms(grid.pid());
    tokio::time::sleep(span).await;
    (cpu_ms(grid.pid()) - before) / span.as_secs_f64() / 10.0
}

async fn cpu_per_session(bed: &mut Bed) -> Result<Figure> {
    bed.say("(f) CPU per session");
    let grid = churn::grid(bed, BrowserUnderTest::HeadlessShell).await?;
    warm(&grid, 2).await?;
    let mut churned = Churned::default();
    let before = cpu_ms(grid.pid());
    let span = Duration::from_secs(bed.pick(15, 4));
    churn::churn(&Door::Wharf(grid.http()), &bed.page, span, &mut churned).await;
    let cpu = (cpu_ms(grid.pid()) - before) / churned.done.max(1) as f64;
    bed.finish(grid).await;
    Ok(Figure::new('f', "CPU of wharf per session", "ms")
        .value(cpu)
        .at_most(Of::Value, 5.0)
        .note(format!(
            "user and system time of the wharf process over {} sessions of (e)'s kind",
            churned.done
        )))
}
