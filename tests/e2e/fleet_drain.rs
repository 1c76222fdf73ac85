//! The graceful stop of either role: not ready first, sessions may finish, a limit, a second signal, exit 0.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::json;
use tokio::task::JoinSet;
use wharf_testkit::{Cdp, Fleet, FleetStore, Member, eventually};

use crate::fleet_support::{
    attach_path, count_is, create, ends_as, finish, get, id, is_whole, release, took, wharf, worker_is,
};

/// What was logged since, in this order.
fn said_in_order(log: &str, words: &[&str]) -> Result<()> {
    let mut rest = log;
    for word in words {
        let at = rest
            .find(word)
            .with_context(|| format!("`{word}` is missing or too early in:\n{log}"))?;
        rest = &rest[at + word.len()..];
    }
    Ok(())
}

async fn is_draining(member: &Member) -> Result<()> {
    eventually(format!("readyz of {} to say draining", member.name()), async || {
        let reply = member.http().get("/readyz").await?;
        ensure!(
            reply.status == 503 && reply.text().contains("draining"),
            "{} {}",
            reply.status,
            reply.text()
        );
        ensure!(member.http().get("/livez").await?.status == 200);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn worker_drains_by_signal_by_call_and_by_command() -> Result<()> {
    let mut fleet = Fleet::builder().coordinators(1).workers(2).slots(2).start().await?;
    let http = fleet.http();
    let session = create(&http, json!({})).await?;
    let at = usize::from(session["worker"] != fleet.worker(0).id()?.as_str());
    let own = fleet.worker(at).id()?;
    let mut client = fleet.cdp(&attach_path(&session)).await?;

    let began = Instant::now();
    fleet.worker(at).signal(Signal::TERM)?;
    is_draining(fleet.worker(at)).await?;
    took("SIGTERM to a worker: readyz says draining", began);
    worker_is(&http, &own, "draining").await?;
    for _ in 0..3 {
        let elsewhere = create(&http, json!({})).await?;
        ensure!(
            elsewhere["worker"] != own.as_str(),
            "placed on a worker that drains: {elsewhere}"
        );
        client.call("Browser.getVersion", json!({})).await?;
        release(&http, &id(&elsewhere)).await?;
    }
    release(&http, &id(&session)).await?;
    ensure!(client.closed().await?.reason.starts_with("released"));
    ensure!(fleet.workers()[at].wait_end().await?.success());
    let order = [
        "shutdown signal received",
        "marked not ready",
        "draining",
        "waiting for sessions to finish",
        "all sessions have finished",
        "stopped; nothing is left",
    ];
    said_in_order(&fleet.worker(at).log(), &order)?;
    worker_is(&http, &own, "gone").await?;

    // By a call that waits, as a preStop hook does: the answer comes when it is empty, and the process leaves by itself.
    fleet.workers()[at].start_again().await?;
    fleet.all_available(2).await?;
    let session = create(&http, json!({})).await?;
    ensure!(
        session["worker"] == own.as_str() || create_on(&fleet, &own).await?,
        "{session}"
    );
    let (caller, path, mut call) = (
        fleet.http(),
        format!("/v1/workers/{own}/drain?wait=40s"),
        JoinSet::new(),
    );
    call.spawn(async move { caller.post(&path, &json!(null)).await });
    worker_is(&http, &own, "draining").await?;
    for session in listed_on(&fleet, &own).await? {
        release(&http, &session).await?;
    }
    let done = call.join_next().await.context("no call")???.expect(200)?;
    ensure!(done["busy"] == 0, "{done}");
    ensure!(fleet.workers()[at].wait_end().await?.success());

    fleet.workers()[at].start_again().await?;
    fleet.all_available(2).await?;
    let command = wharf(
        &["workers", "drain", &own, "--wait", "20s"],
        &[("WHARF_URL", fleet.url())],
    )
    .await?;
    ensure!(command.status.success(), "{command:?}");
    ensure!(fleet.workers()[at].wait_end().await?.success());

    // A second signal forces.
    fleet.workers()[at].start_again().await?;
    fleet.all_available(2).await?;
    create_on(&fleet, &own).await?;
    let session = listed_on(&fleet, &own).await?.pop().context("no session there")?;
    let mut client = fleet.cdp(&format!("/devtools/browser/{session}")).await?;
    fleet.worker(at).signal(Signal::TERM)?;
    is_draining(fleet.worker(at)).await?;
    client.call("Browser.getVersion", json!({})).await?;
    fleet.worker(at).signal(Signal::TERM)?;
    let end = client.closed().await?;
    ensure!(
        end.code == Some(1001) && end.reason.starts_with("worker_drained"),
        "{end:?}"
    );
    ensure!(fleet.workers()[at].wait_end().await?.success());
    fleet.workers()[at].start_again().await?;
    fleet.all_available(2).await?;
    for session in crate::fleet_support::listed(&http, "/v1/sessions").await? {
        release(&http, &id(&session)).await?;
    }
    is_whole(&mut fleet, 4).await?;
    finish(fleet).await
}

/// Sessions until one is on this worker.
async fn create_on(fleet: &Fleet, worker: &str) -> Result<bool> {
    for _ in 0..4 {
        if create(&fleet.http(), json!({"queue_timeout": "5s"})).await?["worker"] == worker {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn listed_on(fleet: &Fleet, worker: &str) -> Result<Vec<String>> {
    let all = crate::fleet_support::listed(&fleet.http(), "/v1/sessions").await?;
    Ok(all
        .iter()
        .filter(|session| session["worker"] == worker)
        .map(id)
        .collect())
}

#[tokio::test]
async fn drain_timeout_ends_sessions_of_a_worker_and_sends_clients_of_a_coordinator_elsewhere() -> Result<()> {
    let builder = Fleet::builder()
        .store(FleetStore::Redis)
        .coordinators(2)
        .workers(1)
        .slots(2);
    let builder = builder.flag("--drain-timeout=1s").flag("--termination-grace=30s");
    let mut fleet = builder.start().await?;
    // The worker: whoever has not finished is told why.
    let session = create(&fleet.http_at(0), json!({})).await?;
    let mut client = fleet.cdp_at(1, &attach_path(&session)).await?;
    fleet.worker(0).signal(Signal::TERM)?;
    let end = client.closed().await?;
    ensure!(
        end.code == Some(1001) && end.reason.starts_with("worker_drained"),
        "{end:?}"
    );
    ends_as(&fleet.http_at(0), &id(&session), "worker_drained").await?;
    ensure!(fleet.workers()[0].wait_end().await?.success());
    said_in_order(
        &fleet.worker(0).log(),
        &["draining", "waiting for sessions", "drain timeout", "nothing is left"],
    )?;
    fleet.workers()[0].start_again().await?;
    fleet.all_available(1).await?;

    // The coordinator: its clients are sent away, their sessions live on.
    let kept = create(&fleet.http_at(0), json!({})).await?;
    let mut client = fleet.cdp_at(0, &attach_path(&kept)).await?;
    let connected = fleet.cdp_at(0, "/").await?;
    fleet.coordinator(0).signal(Signal::TERM)?;
    let end = client.closed().await?;
    ensure!(end.code == Some(1001), "{end:?}");
    eprintln!("a client of a coordinator that left was told: {}", end.reason);
    let mut again = fleet.cdp_at(1, &attach_path(&kept)).await?;
    again.call("Browser.getVersion", json!({})).await?;
    ensure!(fleet.coordinators()[0].wait_end().await?.success());
    said_in_order(
        &fleet.coordinator(0).log(),
        &["shutdown signal received", "marked not ready", "draining", "stopped"],
    )?;
    // The session that was made by connecting is nobody's any more.
    count_is(&fleet.http_at(1), "active", 1).await?;
    drop(connected);
    release(&fleet.http_at(1), &id(&kept)).await?;
    fleet.coordinators()[0].start_again().await?;
    is_whole(&mut fleet, 2).await?;
    finish(fleet).await
}

#[tokio::test]
async fn coordinator_drains_waiters_are_sent_away_and_clients_may_finish() -> Result<()> {
    let mut fleet = Fleet::builder().coordinators(2).workers(1).slots(1).start().await?;
    let session = create(&fleet.http_at(1), json!({})).await?;
    let mut client = fleet.cdp_at(0, &attach_path(&session)).await?;
    let (http, mut waiter) = (fleet.http_at(0), JoinSet::new());
    waiter.spawn(async move { http.post("/v1/sessions", &json!({})).await });
    let (url, mut socket) = (format!("ws://{}/", fleet.coordinator(0).addr()), JoinSet::new());
    socket.spawn(async move { Cdp::connect(&url).await });
    count_is(&fleet.http_at(1), "queued", 2).await?;
    fleet.coordinator(0).signal(Signal::TERM)?;
    let sent_away = waiter.join_next().await.context("no waiter")???;
    ensure!(
        sent_away.status == 503 && sent_away.header("retry-after").is_some(),
        "{}",
        sent_away.text()
    );
    let Err(wharf_testkit::CdpError::Refused(refused)) = socket.join_next().await.context("no client")?? else {
        anyhow::bail!("a waiting upgrade was not refused")
    };
    ensure!(
        refused.status == 503 && refused.header("retry-after").is_some(),
        "{}",
        refused.text()
    );
    is_draining(fleet.coordinator(0)).await?;
    let late = fleet.http_at(0).post("/v1/sessions", &json!({})).await?;
    ensure!(
        late.status == 503 && late.header("retry-after").is_some(),
        "{}",
        late.text()
    );
    count_is(&fleet.http_at(1), "queued", 0).await?;
    for _ in 0..10 {
        client.call("Browser.getVersion", json!({})).await?;
    }
    client.close().await;
    let began = Instant::now();
    ensure!(fleet.coordinators()[0].wait_end().await?.success());
    took("the last client of a draining coordinator left: its exit", began);
    ensure!(get(&fleet.http_at(1), &id(&session)).await?["status"] == "active");
    release(&fleet.http_at(1), &id(&session)).await?;
    fleet.coordinators()[0].start_again().await?;
    is_whole(&mut fleet, 1).await?;
    finish(fleet).await
}
