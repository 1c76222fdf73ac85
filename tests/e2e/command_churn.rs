//! A thousand sessions through a pool of programs for each way they fail: every session ends once, with the reason its
//! client was told, and the pool is whole again afterwards.
//!
//! Its own file because it is the driver's load test: what a single fault does is shown in `command`.

use std::{
    collections::{BTreeMap, HashMap},
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use futures_util::future::try_join_all;
use serde_json::{Value, json};
use tempfile::TempDir;
use wharf_core::EndReason;
use wharf_testkit::{BrowserUnderTest, Grid};

use crate::support::{id, listed, metric_is, patient};

/// For each fault that the worker contract names.
const SESSIONS: usize = 1000;
/// For their variants.
const FEWER: usize = 300;
const CLIENTS: usize = 16;
const MIN: u32 = 4;

/// How one session went, as its client saw it: the id (unknown if it was refused) and the reason it was told.
type Seen = (Option<String>, String);

/// Creates, looks and deletes; whatever fails must fail with a reason.
async fn one_session(grid: &Grid, n: usize) -> Result<Seen> {
    let http = patient(grid);
    let reply = http.post("/sessions", &json!({"n": n})).await?;
    if reply.status == 502 {
        let error = reply.json()?["error"].take();
        return Ok((error["session"].as_str().map(str::to_owned), reason(&error)?));
    }
    let session = reply.expect(201)?;
    let path = format!("/sessions/{}", id(&session));
    let seen = http.get(&path).await?;
    if seen.status == 404 {
        let error = seen.json()?["error"].take();
        return Ok((Some(id(&session)), reason(&error)?));
    }
    let seen = seen.expect(200)?;
    ensure!(
        seen["data"] == json!({"n": n}) && seen["id"] == session["id"],
        "somebody else's session: {seen}"
    );
    http.delete(&path).await?.expect(204)?;
    Ok((Some(id(&session)), "released".to_owned()))
}

fn reason(error: &Value) -> Result<String> {
    let reason = error["reason"]
        .as_str()
        .with_context(|| format!("no reason: {error}"))?;
    Ok(reason.to_owned())
}

/// Every session, with what the history says of it.
async fn history(grid: &Grid) -> Result<HashMap<String, String>> {
    let mut all = HashMap::new();
    let mut after = String::new();
    loop {
        let page = listed(grid, &format!("/v1/sessions/history?limit=1000{after}")).await?;
        let Some(last) = page.last() else { return Ok(all) };
        after = format!("&after={}", id(last));
        for session in &page {
            let reason = session["reason"].as_str().unwrap_or_default().to_owned();
            ensure!(all.insert(id(session), reason).is_none(), "listed twice: {session}");
        }
    }
}

/// Runs the churn. `must` are the reasons that this fault leads to, besides `released`; `may` are those that it leads to
/// if a session happens to be hit.
async fn churn(sessions: usize, fault: &str, must: &[&str], may: &[&str]) -> Result<()> {
    let counter = TempDir::new()?;
    let seed = format!("--seed=42@{}", counter.path().join("launches").display());
    let mut builder = Grid::builder()
        .browser(BrowserUnderTest::Program)
        .slots(u32::try_from(CLIENTS)?)
        .min(MIN)
        .spare(2)
        .store("memory:")
        .browser_arg(&seed)
        .arg("--forward-timeout", "500ms")
        .arg("--log", "warn")
        .patience(Duration::from_secs(60));
    if !fault.is_empty() {
        builder = builder.fault(fault);
    }
    let grid = builder.start().await?;
    let begun = Instant::now();
    let next = AtomicUsize::new(0);
    let client = || async {
        let mut seen = Vec::new();
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= sessions {
                return Ok::<_, anyhow::Error>(seen);
            }
            seen.push(one_session(&grid, n).await.with_context(|| format!("session {n}"))?);
        }
    };
    let seen: Vec<Seen> = try_join_all((0..CLIENTS).map(|_| client())).await?.concat();
    let took = begun.elapsed();
    grid.leak_check().await?;

    let mut told: BTreeMap<&str, usize> = BTreeMap::new();
    let history = history(&grid).await?;
    for (session, reason) in &seen {
        *told.entry(reason).or_default() += 1;
        let session = session.as_ref().context("a refusal without its session")?;
        let recorded = history
            .get(session)
            .with_context(|| format!("{session} has no record"))?;
        ensure!(
            recorded == reason,
            "{session}: its client was told {reason}, the record says {recorded}"
        );
    }
    println!(
        "{}: {sessions} sessions in {took:?}: {told:?}",
        if fault.is_empty() { "healthy" } else { fault }
    );
    ensure!(
        history.len() == sessions,
        "{} records of {sessions} sessions",
        history.len()
    );
    for reason in told.keys().filter(|reason| **reason != "released") {
        ensure!(must.contains(reason) || may.contains(reason), "{fault}: {told:?}");
    }
    for expected in must {
        ensure!(told.contains_key(expected), "{fault} never led to {expected}: {told:?}");
    }
    // Each ended once: the counters add up to what clients were told.
    let metrics = grid.metrics().await?;
    for reason in EndReason::ALL {
        let name = format!("wharf_sessions_ended_total{{reason=\"{reason}\"}}");
        let counted = metrics.get(&name).unwrap_or_default();
        let expected = told.get(reason.as_str()).copied().unwrap_or_default();
        ensure!(
            counted == expected as f64,
            "{name} is {counted}, clients were told {expected} times"
        );
    }
    is_whole_again(&grid).await?;
    grid.finish().await
}

/// The floor is warm again (the pool may still be shrinking towards it), nothing is leased, nothing is dying.
async fn is_whole_again(grid: &Grid) -> Result<()> {
    metric_is(grid, "wharf_browsers{state=\"leased\"}", 0.0).await?;
    metric_is(grid, "wharf_browsers{state=\"closing\"}", 0.0).await?;
    wharf_testkit::eventually("the floor of warm programs", async || {
        let warm = grid.metric("wharf_browsers{state=\"warm\"}").await?;
        if warm < f64::from(MIN) {
            bail!("{warm} are warm");
        }
        Ok(())
    })
    .await
}

macro_rules! churns {
    ($($name:ident: $sessions:ident, $fault:literal => [$($must:literal),*] may [$($may:literal),*];)*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() -> Result<()> {
            churn($sessions, $fault, &[$($must),*], &[$($may),*]).await
        })*
    };
}

churns! {
    thousand_sessions_with_crashes: SESSIONS, "crash_after:1call%0.3" => ["browser_crashed"] may [];
    thousand_sessions_with_hanging_creates: SESSIONS, "hang_on_create%0.1" => ["launch_failed"] may [];
    thousand_sessions_with_slow_starts: SESSIONS, "slow_health:150ms%0.3" => [] may [];
    thousand_sessions_with_garbage: SESSIONS, "garbage%0.3" => ["launch_failed"] may [];
    thousand_sessions_of_stubborn_programs: SESSIONS, "ignore_sigterm" => [] may [];
    thousand_sessions_that_leak_children: SESSIONS, "leak_child" => [] may [];
    hundreds_of_sessions_of_healthy_programs: FEWER, "" => [] may [];
    hundreds_of_sessions_with_crashes_by_time: FEWER, "crash_after:150ms%0.3" => [] may ["browser_crashed", "launch_failed"];
    hundreds_of_sessions_with_hanging_looks: FEWER, "hang_on_get%0.1" => ["browser_hung"] may [];
    hundreds_of_sessions_with_hanging_deletes: FEWER, "hang_on_delete%0.1" => [] may [];
    hundreds_of_sessions_with_broken_json: FEWER, "garbage:json%0.3" => ["launch_failed"] may [];
    hundreds_of_sessions_with_failing_launches: FEWER, "crash_at_start%0.2" => [] may [];
}
