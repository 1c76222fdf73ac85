//! Limits: of the pool, of an operation, changed while hundreds wait; forced release; clearing the queue.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use http::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use wharf_testkit::{BrowserUnderTest, Grid, eventually};

use crate::support::{
    becomes_active, count_is, create, create_async, ends_as, get, id, is_whole, last_ended, listed, patient, refuses,
    release, store_is_sound,
};

const CLIENTS: usize = 200;
const SLOTS: u32 = 8;

async fn limit(grid: &Grid, operation: Option<&str>, max: Value) -> Result<Value> {
    let mut body = json!({ "max": max });
    if let Some(operation) = operation {
        body["operation"] = json!(operation);
    }
    grid.http().put("/v1/pool/limits", &body).await?.expect(200)
}

async fn pool(grid: &Grid) -> Result<Value> {
    grid.http().get("/v1/pool").await?.expect(200)
}

fn running(pool: &Value, operation: &str) -> u64 {
    let rows = pool["operations"].as_array().into_iter().flatten();
    rows.filter(|row| row["operation"] == operation)
        .filter_map(|row| row["running"].as_u64())
        .sum()
}

#[tokio::test]
async fn operation_at_its_limit_waits_while_others_pass_and_a_raise_serves_at_once() -> Result<()> {
    let grid = Grid::builder().slots(4).start().await?;
    limit(&grid, Some("scrape"), json!(1)).await?;
    let first = create(&grid, json!({"operation": "scrape", "description": "the one"})).await?;
    let mut waiting = Vec::new();
    for n in 0..2 {
        let session = create_async(&grid, json!({"operation": "scrape", "data": n})).await?;
        ensure!(
            session["status"] == "queued" && session["position"] == n + 1,
            "{session}"
        );
        waiting.push(id(&session));
    }
    // Slots are free, and somebody else's work does not wait behind the scrapes.
    let agent = create(&grid, json!({"operation": "agent"})).await?;
    let status = pool(&grid).await?;
    ensure!(
        status["running"] == 2 && status["queued"] == 2 && status["available"] == 2,
        "{status}"
    );
    let scrape = status["operations"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|row| row["operation"] == "scrape");
    ensure!(
        scrape == Some(&json!({"operation": "scrape", "running": 1, "queued": 2, "limit": 1})),
        "{status}"
    );
    let holder = &status["holders"][0];
    ensure!(
        holder["session"] == first["id"] && holder["description"] == "the one",
        "{status}"
    );
    ensure!(holder["held_for"].as_f64().is_some_and(|seconds| seconds >= 0.0) && holder["since"].is_string());
    let queue = grid.http().get("/v1/queue").await?.expect(200)?;
    let order: Vec<_> = queue["waiting"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|row| row["session"].clone())
        .collect();
    ensure!(
        order == waiting.iter().map(|id| json!(id)).collect::<Vec<_>>(),
        "{queue}"
    );

    limit(&grid, Some("scrape"), json!(2)).await?;
    becomes_active(&grid, &waiting[0]).await?;
    ensure!(get(&grid, &waiting[1]).await?["status"] == "queued");
    limit(&grid, Some("scrape"), Value::Null).await?;
    becomes_active(&grid, &waiting[1]).await?;
    for session in [id(&first), id(&agent), waiting[0].clone(), waiting[1].clone()] {
        release(&grid, &session).await?;
    }
    is_whole(&grid, 4).await?;
    grid.finish().await
}

#[tokio::test]
async fn pool_limit_holds_lets_nobody_in_when_lowered_and_survives_a_restart() -> Result<()> {
    let mut grid = Grid::builder().slots(3).start().await?;
    let sessions = [create(&grid, json!({})).await?, create(&grid, json!({})).await?];
    let lowered = limit(&grid, None, json!(1)).await?;
    ensure!(
        lowered["limit"] == 1 && lowered["effective_max"] == 1 && lowered["running"] == 2,
        "{lowered}"
    );
    let waiter = create_async(&grid, json!({})).await?;
    ensure!(waiter["status"] == "queued", "{waiter}");
    release(&grid, &id(&sessions[0])).await?;
    eventually("the slot to be free", async || {
        let pool = pool(&grid).await?;
        ensure!(pool["running"] == 1, "{pool}");
        Ok(())
    })
    .await?;
    ensure!(get(&grid, &id(&waiter)).await?["status"] == "queued", "one too many");
    release(&grid, &id(&sessions[1])).await?;
    becomes_active(&grid, &id(&waiter)).await?;
    release(&grid, &id(&waiter)).await?;
    grid.leak_check().await?;
    grid.terminate().await?;
    grid.restart().await?;
    ensure!(pool(&grid).await?["limit"] == 1);
    limit(&grid, None, Value::Null).await?;
    is_whole(&grid, 3).await?;
    grid.finish().await
}

/// 200 clients of three operations, limits that change all the time: never one too many, everybody is served once.
#[tokio::test]
async fn limits_hold_under_two_hundred_clients_while_they_change() -> Result<()> {
    let mut grid = Grid::builder().slots(SLOTS).min(SLOTS).queue(500).start().await?;
    let operations = ["scrape", "agent", "test_run"];
    limit(&grid, Some("scrape"), json!(2)).await?;
    limit(&grid, Some("agent"), json!(3)).await?;
    let mut clients = JoinSet::new();
    for n in 0..CLIENTS {
        let http = patient(&grid);
        let operation = operations[n % operations.len()];
        clients.spawn(async move {
            let session = http
                .post("/v1/sessions", &json!({"operation": operation, "data": n}))
                .await?
                .expect(201)?;
            let path = format!("/v1/sessions/{}", id(&session));
            http.get(&path).await?.expect(200)?;
            http.delete(&path).await?.expect(204)?;
            anyhow::Ok(n)
        });
    }
    // The watcher changes the limits and sees that they hold. Agents always have 3; scrapes alternate between 1 and 2.
    let watch = async {
        let mut seen = 0;
        loop {
            let max = 1 + seen % 2;
            limit(&grid, Some("scrape"), json!(max)).await?;
            let status = pool(&grid).await?;
            ensure!(running(&status, "agent") <= 3, "too many agents: {status}");
            ensure!(running(&status, "scrape") <= 2, "too many scrapes: {status}");
            ensure!(
                status["running"].as_u64() <= Some(u64::from(SLOTS)),
                "too many: {status}"
            );
            seen += 1;
            let history = listed(&grid, "/v1/sessions/history?limit=1000").await?;
            if history.len() >= CLIENTS {
                return anyhow::Ok(seen);
            }
        }
    };
    let served = async {
        let mut served = Vec::new();
        while let Some(client) = clients.join_next().await {
            served.push(client??);
        }
        anyhow::Ok(served)
    };
    let (looks, served) = tokio::try_join!(watch, served)?;
    ensure!(served.len() == CLIENTS);
    println!("{looks} looks at the pool while {CLIENTS} clients were served");
    check_history(&grid).await?;
    limit(&grid, Some("scrape"), Value::Null).await?;
    limit(&grid, Some("agent"), Value::Null).await?;
    is_whole(&grid, SLOTS as usize).await?;
    store_is_sound(&mut grid).await?;
    grid.finish().await
}

/// Everybody ended once, as released; and by the store's own times, no operation ever had more than its limit.
async fn check_history(grid: &Grid) -> Result<()> {
    let history = listed(grid, "/v1/sessions/history?limit=1000").await?;
    ensure!(history.len() == CLIENTS, "{} ended", history.len());
    let mut data: Vec<_> = history.iter().filter_map(|row| row["data"].as_u64()).collect();
    data.sort_unstable();
    data.dedup();
    ensure!(data.len() == CLIENTS, "somebody was served twice");
    ensure!(
        history.iter().all(|row| row["reason"] == "released"),
        "not all were released"
    );
    let mut events: BTreeMap<&str, Vec<(String, i64)>> = BTreeMap::new();
    for row in &history {
        let operation = row["operation"].as_str().context("an operation")?;
        let at = |name: &str| row[name].as_str().map(str::to_owned).context("a time");
        let list = events.entry(operation).or_default();
        list.push((at("started_at")?, 1));
        list.push((at("ended_at")?, -1));
    }
    for (operation, most) in [("agent", 3), ("scrape", 2)] {
        let mut list = events.remove(operation).unwrap_or_default();
        // Ends before starts at the same instant.
        list.sort();
        let mut now = 0;
        for (at, change) in list {
            now += change;
            ensure!(now <= most, "{now} of {operation} at {at}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn stale_sessions_are_released_by_force_and_young_ones_are_not() -> Result<()> {
    let grid = Grid::builder().slots(2).start().await?;
    let old = create(&grid, json!({"connect_timeout": null, "idle_timeout": null})).await?;
    let wait = json!({"max_age": "1h"});
    let none = grid.http().post("/v1/pool/cleanup", &wait).await?.expect(200)?;
    ensure!(none == json!({"ended": []}), "{none}");
    let ended = grid
        .http()
        .post("/v1/pool/cleanup", &json!({"max_age": 0}))
        .await?
        .expect(200)?;
    ensure!(ended["ended"] == json!([old["id"]]), "{ended}");
    let message = ends_as(&grid, &id(&old), "killed").await?;
    ensure!(message.contains("released by force"), "{message}");
    let recent = grid.http().get("/v1/pool/recent?limit=1").await?.expect(200)?;
    ensure!(
        recent["sessions"][0]["id"] == old["id"] && recent["sessions"][0]["reason"] == "killed",
        "{recent}"
    );
    is_whole(&grid, 2).await?;
    grid.finish().await
}

#[tokio::test]
async fn cleared_queue_tells_its_waiters_and_frees_their_places() -> Result<()> {
    let grid = Grid::builder().slots(1).start().await?;
    let holder = create(&grid, json!({})).await?;
    let mut waiters = JoinSet::new();
    for n in 0..5 {
        let http = patient(&grid);
        let operation = if n < 3 { "scrape" } else { "agent" };
        waiters.spawn(async move { http.post("/v1/sessions", &json!({ "operation": operation })).await });
    }
    count_is(&grid, "queued", 5).await?;
    let cleared = grid.http().delete("/v1/queue?operation=scrape").await?.expect(200)?;
    ensure!(
        cleared["ended"].as_array().is_some_and(|ended| ended.len() == 3),
        "{cleared}"
    );
    for _ in 0..3 {
        let reply = waiters.join_next().await.context("a waiter")???;
        ensure!(
            reply.status == 503 && reply.error_code().as_deref() == Some("queue_cleared"),
            "{}",
            reply.text()
        );
        ensure!(reply.json()?["error"]["reason"] == "killed", "{}", reply.text());
    }
    count_is(&grid, "queued", 2).await?;
    let cleared = grid.http().delete("/v1/queue").await?.expect(200)?;
    ensure!(
        cleared["ended"].as_array().is_some_and(|ended| ended.len() == 2),
        "{cleared}"
    );
    while let Some(waiter) = waiters.join_next().await {
        ensure!(waiter??.status == 503);
    }
    ensure!(last_ended(&grid).await?["reason"] == "killed");
    release(&grid, &id(&holder)).await?;
    is_whole(&grid, 1).await?;
    grid.finish().await
}

#[tokio::test]
async fn nonsense_is_refused_precisely_and_changes_nothing() -> Result<()> {
    let grid = Grid::builder().slots(1).start().await?;
    let cases = [
        (Method::PUT, "/v1/pool/limits", "", "the body is missing"),
        (Method::PUT, "/v1/pool/limits", "{}", "max"),
        (Method::PUT, "/v1/pool/limits", r#"{"max":-1}"#, "-1"),
        (Method::PUT, "/v1/pool/limits", r#"{"max":1e30}"#, "`max`"),
        (Method::PUT, "/v1/pool/limits", r#"{"max":9999999}"#, "9999999"),
        (Method::PUT, "/v1/pool/limits", r#"{"max":"5"}"#, "`max`"),
        (
            Method::PUT,
            "/v1/pool/limits",
            r#"{"max":5,"operatoin":"x"}"#,
            "operatoin",
        ),
        (Method::PUT, "/v1/pool/limits", r#"{"max":5,"max":6}"#, "duplicate"),
        (Method::PUT, "/v1/pool/limits", r#"{"max":5,"operation":"A B"}"#, "A B"),
        (Method::POST, "/v1/pool/cleanup", r#"{"max_age":"soon"}"#, "soon"),
        (Method::POST, "/v1/pool/cleanup", r#"{"max_age":-5}"#, "-5"),
        (Method::POST, "/v1/pool/cleanup", "[1", "not valid"),
        (Method::GET, "/v1/pool?pool=A%00B", "", "pool"),
        (Method::GET, "/v1/pool?nonsense=1", "", "nonsense"),
        (Method::GET, "/v1/pool/recent?limit=0", "", "limit"),
        (Method::GET, "/v1/pool/recent?limit=99999999999", "", "limit"),
        (Method::GET, "/v1/queue?limit=-1", "", "limit"),
        (Method::DELETE, "/v1/queue?operation=../x", "", "operation"),
    ];
    refuses(&grid, &cases).await?;
    ensure!(pool(&grid).await?["limit"].is_null());
    is_whole(&grid, 1).await?;
    grid.finish().await
}

#[tokio::test]
async fn pool_of_headless_shell_shows_warm_browsers_and_holders() -> Result<()> {
    let grid = Grid::builder()
        .browser(BrowserUnderTest::HeadlessShell)
        .slots(2)
        .min(1)
        .start()
        .await?;
    eventually("a warm browser to be reported", async || {
        let pool = pool(&grid).await?;
        ensure!(
            pool["warm"] == 1 && pool["max"] == 2 && pool["workers"] == 1 && pool["available"] == 2,
            "{pool}"
        );
        Ok(())
    })
    .await?;
    let session = create(&grid, json!({"operation": "agent", "max_duration": "90s"})).await?;
    let status = pool(&grid).await?;
    ensure!(
        status["active"] == 1 && status["holders"][0]["max_duration"] == 90.0,
        "{status}"
    );
    release(&grid, &id(&session)).await?;
    grid.finish().await
}
