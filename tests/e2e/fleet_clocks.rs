//! Machines disagree about the time by hours: sessions, limits and records do not (I8).

use std::{
    path::PathBuf,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use wharf_core::Timestamp;
use wharf_testkit::{Fleet, FleetStore};

use crate::fleet_support::{QUICK, attach_path, create, end_of, ends_as, finish, id, is_whole, listed, release, took};

/// As `cargo xtask setup` installs it.
fn faketime() -> Result<String> {
    let places = std::fs::read_dir("/usr/lib")?.flatten();
    let mut found = places.map(|place| place.path().join("faketime/libfaketimeMT.so.1"));
    let found: Option<PathBuf> = found.find(|path| path.is_file());
    let found = found.context("no libfaketime below /usr/lib; run `cargo xtask setup` (package libfaketime)")?;
    Ok(found.display().to_string())
}

fn about_now(value: &Value) -> Result<()> {
    let text = value.as_str().with_context(|| format!("no time: {value}"))?;
    let at: Timestamp = serde_json::from_value(value.clone())?;
    #[expect(
        clippy::disallowed_methods,
        reason = "the test's own clock is what the grid's is compared with"
    )]
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let at = u64::try_from(at.as_micros() / 1_000_000)?;
    ensure!(at.abs_diff(now) < 600, "{text} is not about now");
    Ok(())
}

async fn clock_skew_changes_nothing(store: FleetStore) -> Result<()> {
    let library = faketime()?;
    let mut builder = Fleet::builder().store(store).coordinators(2).workers(2).slots(1);
    for (index, (front, host)) in [("+2h", "-2h"), ("-2h", "+3h")].into_iter().enumerate() {
        for (name, front, host) in [
            ("LD_PRELOAD", library.as_str(), library.as_str()),
            ("FAKETIME", front, host),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1", "1"),
        ] {
            builder = builder
                .coordinator_env_at(index, name, front)
                .worker_env_at(index, name, host);
        }
    }
    let mut fleet = QUICK
        .iter()
        .fold(builder, |builder, flag| builder.flag(flag))
        .start()
        .await?;
    let [early, late] = [0, 1].map(|index| fleet.http_at(index));
    // The library works: each one's log has its own hour.
    let hour = |log: &str| log.split("\"timestamp\":\"").nth(1).map(|rest| rest[..13].to_owned());
    ensure!(
        hour(&fleet.coordinator(0).log()) != hour(&fleet.coordinator(1).log()),
        "both have the same time"
    );

    let idle = create(&early, json!({"idle_timeout": "3s"})).await?;
    about_now(&idle["created_at"])?;
    fleet.cdp_at(1, &attach_path(&idle)).await?.close().await;
    let began = Instant::now();
    ends_as(&late, &id(&idle), "idle_timeout").await?;
    let span = took("idle timeout of 3 s with clocks four hours apart", began);
    ensure!(span > Duration::from_secs(2), "too early");
    let mortal = create(&late, json!({"max_duration": "2s"})).await?;
    let began = Instant::now();
    ends_as(&early, &id(&mortal), "max_duration").await?;
    let span = took("max duration of 2 s", began);
    ensure!(span > Duration::from_secs(1), "too early");

    // A queue, fed by both, with a waiter whose time runs out.
    let held = [create(&early, json!({})).await?, create(&late, json!({})).await?];
    let (http, mut waiter) = (late.clone(), JoinSet::new());
    waiter.spawn(async move { create(&http, json!({"data": "next"})).await });
    let began = Instant::now();
    let reply = early.post("/v1/sessions", &json!({"queue_timeout": "2s"})).await?;
    took("queue timeout of 2 s", began);
    ensure!(
        reply.status == 503 && began.elapsed() > Duration::from_secs(1),
        "{}",
        reply.text()
    );
    release(&late, &id(&held[0])).await?;
    let next = waiter.join_next().await.context("no waiter")???;
    ensure!(next["data"] == "next", "{next}");
    for session in [&held[1], &next] {
        release(&early, &id(session)).await?;
        ensure!(end_of(&late, &id(session)).await? == "released");
    }
    for http in [&early, &late] {
        let history = listed(http, "/v1/sessions/history").await?;
        ensure!(history.len() == 6, "{history:?}");
        for record in history {
            about_now(&record["created_at"])?;
            about_now(&record["ended_at"])?;
            let run = record["run_time"].as_f64().unwrap_or_default();
            ensure!((0.0..120.0).contains(&run), "{record}");
        }
    }
    fleet.all_available(2).await?;
    is_whole(&mut fleet, 2).await?;
    finish(fleet).await
}

#[tokio::test]
async fn clock_skew_changes_nothing_on_postgres() -> Result<()> {
    clock_skew_changes_nothing(FleetStore::Postgres).await
}
