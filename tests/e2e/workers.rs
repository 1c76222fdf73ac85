//! `/v1/workers` and `wharf workers`: who offers slots, draining with and without waiting, forgetting; how many there
//! should be.

use std::{process::Output, time::Duration};

use anyhow::{Context, Result, ensure};
use http::Method;
use serde_json::{Value, json};
use tokio::{process::Command, task::JoinSet};
use wharf_testkit::{Grid, Http, binaries::built_binary, eventually, patience};

use crate::support::{Raw, create, create_async, ends_as, id, is_whole, metric_is, refuses, release};

const NOBODY: &str = "wrk_00000000000070008000000000000000";

/// The one worker of a grid.
async fn only_worker(grid: &Grid) -> Result<Value> {
    let list = grid.http().get("/v1/workers").await?.expect(200)?;
    let workers = list["workers"].as_array().context("no list")?;
    ensure!(workers.len() == 1, "{list}");
    Ok(workers[0].clone())
}

async fn wharf(grid: &Grid, args: &[&str]) -> Result<Output> {
    let mut command = Command::new(built_binary("wharf")?);
    command
        .arg("workers")
        .args(args)
        .env("WHARF_URL", grid.url())
        .env_remove("WHARF_TOKEN");
    Ok(tokio::time::timeout(patience() * 2, command.output()).await??)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
async fn worker_is_shown_with_what_it_has() -> Result<()> {
    let grid = Grid::builder().slots(3).min(2).start().await?;
    let session = create(&grid, json!({})).await?;
    let worker = only_worker(&grid).await?;
    ensure!(id(&worker).starts_with("wrk_"), "{worker}");
    ensure!(
        worker["state"] == "available" && worker["slots"] == 3 && worker["busy"] == 1 && worker["lifetime"] == 1,
        "{worker}"
    );
    ensure!(
        worker["pool"] == "default" && worker["is_circuit_open"] == false && worker["address"] == "",
        "{worker}"
    );
    for time in ["registered_at", "heard_at"] {
        ensure!(
            worker[time].as_str().is_some_and(|text| text.ends_with('Z')),
            "{worker}"
        );
    }
    for number in ["cpu", "memory_used", "memory_limit", "pressure"] {
        ensure!(worker["load"][number].is_number(), "{worker}");
    }
    let one = grid
        .http()
        .get(&format!("/v1/workers/{}", id(&worker)))
        .await?
        .expect(200)?;
    ensure!(one["id"] == worker["id"], "{one}");
    let none = grid.http().get("/v1/workers?pool=elsewhere").await?.expect(200)?;
    ensure!(none["workers"] == json!([]), "{none}");
    let list = text(&wharf(&grid, &[]).await?.stdout);
    ensure!(
        list.starts_with("WORKER") && list.contains(&id(&worker)) && list.contains("1/3"),
        "{list}"
    );
    let answer: Value = serde_json::from_slice(&wharf(&grid, &["list", "--json"]).await?.stdout)?;
    ensure!(answer["workers"][0]["id"] == worker["id"], "{answer}");
    release(&grid, &id(&session)).await?;
    grid.finish().await
}

#[tokio::test]
async fn unknown_workers_wrong_words_and_foreign_keys_are_refused() -> Result<()> {
    let mut grid = Grid::builder().start().await?;
    let worker = id(&only_worker(&grid).await?);
    let at = |rest: &str| format!("/v1/workers/{worker}{rest}");
    let (soon, long, maybe, typo) = (
        at("/drain?wait=soon"),
        at("/drain?wait=48h"),
        at("?force=maybe"),
        at("?fource=true"),
    );
    refuses(
        &grid,
        &[
            (Method::POST, &soon, "", "`wait`"),
            (Method::POST, &long, "", "24 h"),
            (Method::DELETE, &maybe, "", "force"),
            (Method::DELETE, &typo, "", "fource"),
            (Method::GET, "/v1/workers?pool=NO", "", "`pool`"),
            (Method::GET, "/v1/workers/ses_1", "", "wrk_"),
            (Method::POST, "/v1/workers/x/drain", "", "wrk_"),
            (Method::DELETE, "/v1/workers/x", "", "wrk_"),
        ],
    )
    .await?;
    let nobody = format!("/v1/workers/{NOBODY}");
    let http = grid.http();
    for reply in [
        http.get(&nobody).await?,
        http.post(&format!("{nobody}/drain"), &json!(null)).await?,
        http.delete(&format!("{nobody}?force=true")).await?,
    ] {
        ensure!(
            reply.status == 404 && reply.error_code().as_deref() == Some("worker_not_found"),
            "{}",
            reply.text()
        );
    }
    ensure!(
        only_worker(&grid).await?["state"] == "available",
        "a refused request drained it"
    );
    let admin = http
        .post("/v1/keys", &json!({"name": "ops", "role": "admin"}))
        .await?
        .expect(201)?;
    let bearer = |key: &Value| format!("Bearer {}", key["token"].as_str().unwrap_or_default());
    grid.set_header("authorization", &bearer(&admin));
    let key = grid
        .http()
        .post("/v1/keys", &json!({"name": "ci"}))
        .await?
        .expect(201)?;
    let client = Http::new(grid.addr()).header("authorization", &bearer(&key));
    client.get("/v1/workers").await?.expect(200)?;
    client.get(&at("")).await?.expect(200)?;
    for reply in [
        client.post(&at("/drain"), &json!(null)).await?,
        client.delete(&at("?force=true")).await?,
    ] {
        ensure!(reply.status == 403, "{} {}", reply.status, reply.text());
    }
    is_alive(&grid).await?;
    grid.finish().await
}

/// The grid still answers and its worker still serves.
async fn is_alive(grid: &Grid) -> Result<()> {
    ensure!(only_worker(grid).await?["state"] == "available");
    ensure!(grid.http().get("/readyz").await?.status == 200);
    Ok(())
}

#[tokio::test]
async fn drain_is_answered_at_once_or_when_the_worker_is_empty() -> Result<()> {
    let grid = Grid::builder().slots(2).start().await?;
    let session = create(&grid, json!({})).await?;
    let worker = id(&only_worker(&grid).await?);
    let mut events = grid.http().events("/v1/events?type=worker.").await?;
    let path = format!("/v1/workers/{worker}/drain");
    // Whoever waits and leaves takes nothing back.
    let mut leaver = Raw::connect(grid.addr()).await?;
    leaver
        .send(format!(
            "POST {path}?wait=1h HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n"
        ))
        .await?;
    let told = events.next_named("worker.draining").await?;
    ensure!(told.json()?["worker"] == worker.as_str(), "{told:?}");
    drop(leaver);
    let now = grid.http().post(&path, &json!(null)).await?.expect(202)?;
    ensure!(now["state"] == "draining" && now["busy"] == 1, "{now}");
    let began = std::time::Instant::now();
    let late = grid
        .http()
        .post(&format!("{path}?wait=300ms"), &json!(null))
        .await?
        .expect(202)?;
    ensure!(
        late["busy"] == 1 && began.elapsed() >= Duration::from_millis(300),
        "{late}"
    );
    let not_yet = wharf(&grid, &["drain", &worker, "--wait", "200ms"]).await?;
    ensure!(
        not_yet.status.code() == Some(1) && text(&not_yet.stderr).contains("still holds 1 session"),
        "{not_yet:?}"
    );
    // A newcomer is not placed there, and waits in vain.
    let reply = grid
        .http()
        .post("/v1/sessions", &json!({"queue_timeout": "300ms"}))
        .await?;
    ensure!(reply.status == 503, "{} {}", reply.status, reply.text());
    let (http, waiting) = (grid.http(), format!("{path}?wait=40s"));
    let mut waiter = JoinSet::new();
    waiter.spawn(async move { http.post(&waiting, &json!(null)).await });
    release(&grid, &id(&session)).await?;
    let done = waiter.join_next().await.context("no waiter")???.expect(200)?;
    ensure!(done["busy"] == 0, "{done}");
    let drained = wharf(&grid, &["drain", &worker, "--wait", "5s"]).await?;
    ensure!(
        drained.status.success() && text(&drained.stdout).contains("is drained"),
        "{drained:?}"
    );
    grid.finish().await
}

#[tokio::test]
async fn worker_that_serves_is_removed_by_force_only_and_comes_back() -> Result<()> {
    let grid = Grid::builder().slots(2).start().await?;
    let worker = id(&only_worker(&grid).await?);
    let path = format!("/v1/workers/{worker}");
    let reply = grid.http().delete(&path).await?;
    ensure!(
        reply.status == 409 && reply.error_code().as_deref() == Some("worker_in_use"),
        "{}",
        reply.text()
    );
    ensure!(reply.text().contains("drain it first"), "{}", reply.text());
    let session = create(&grid, json!({})).await?;
    let mut events = grid.http().events("/v1/events").await?;
    let removed = grid.http().delete(&format!("{path}?force=true")).await?.expect(200)?;
    ensure!(
        removed["worker"]["id"] == worker.as_str() && removed["ended"] == json!([id(&session)]),
        "{removed}"
    );
    ends_as(&grid, &id(&session), "worker_lost").await?;
    for name in ["worker.removed", "session.ended", "worker.available"] {
        events.next_named(name).await?;
    }
    eventually("the worker to be back", async || {
        ensure!(only_worker(&grid).await?["state"] == "available");
        Ok(())
    })
    .await?;
    is_whole(&grid, 2).await?;
    let refused = wharf(&grid, &["remove", &worker]).await?;
    ensure!(
        refused.status.code() == Some(1) && text(&refused.stderr).contains("worker_in_use"),
        "{refused:?}"
    );
    let forced = wharf(&grid, &["remove", &worker, "--force"]).await?;
    ensure!(
        forced.status.success() && text(&forced.stdout).contains(&worker),
        "{forced:?}"
    );
    let help = text(&wharf(&grid, &["--help"]).await?.stdout);
    ensure!(help.contains("Examples:"), "{help}");
    eventually("the worker to be back", async || only_worker(&grid).await.map(drop)).await?;
    grid.finish().await
}

#[tokio::test]
async fn desired_workers_follow_what_a_slot_would_serve() -> Result<()> {
    let grid = Grid::builder().slots(2).start().await?;
    let gauge = "wharf_desired_workers{pool=\"default\"}";
    let desired = async || -> Result<u64> {
        let pool = grid.http().get("/v1/pool").await?.expect(200)?;
        ensure!(
            pool["scale_down"].as_array().is_some_and(|order| order.len() == 1),
            "{pool}"
        );
        pool["desired_workers"].as_u64().context("no number")
    };
    ensure!(desired().await? == 1);
    metric_is(&grid, gauge, 1.0).await?;
    let mut sessions = vec![create(&grid, json!({})).await?, create(&grid, json!({})).await?];
    for _ in 0..3 {
        sessions.push(create_async(&grid, json!({"operation": "scrape"})).await?);
    }
    ensure!(desired().await? == 3, "five and one spare, on workers of two");
    metric_is(&grid, gauge, 3.0).await?;
    // Who waits for a limit would wait with any number of machines.
    let limit = json!({"operation": "scrape", "max": 0});
    grid.http().put("/v1/pool/limits", &limit).await?.expect(200)?;
    ensure!(desired().await? == 2);
    metric_is(&grid, gauge, 2.0).await?;
    for session in sessions.iter().rev() {
        release(&grid, &id(session)).await?;
    }
    metric_is(&grid, gauge, 1.0).await?;
    grid.finish().await
}
