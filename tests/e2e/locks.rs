//! Exclusive locks: who is kept out, who waits, who may release, and what a holder that vanishes leaves.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use wharf_testkit::{Grid, Http, eventually};

use crate::support::{
    Raw, becomes_active, count_is, create, create_async, get, id, is_whole, listed, patient, post, refuses, release,
    store_is_sound,
};

const CLIENTS: usize = 200;
const SLOTS: u32 = 8;
/// Takings of the lock while clients come and go.
const TAKINGS: usize = 300;

async fn take(http: &Http, name: &str, body: Value) -> Result<Value> {
    http.post(&format!("/v1/locks/{name}"), &body).await?.expect(201)
}

fn token(lock: &Value) -> &str {
    lock["token"].as_str().unwrap_or_default()
}

async fn give_back(http: &Http, name: &str, lock: &Value) -> Result<()> {
    let path = format!("/v1/locks/{name}?lock_token={}", token(lock));
    http.delete(&path).await?.expect(204).map(drop)
}

#[tokio::test]
async fn held_lock_keeps_new_work_out_and_waiters_waiting_until_it_is_released() -> Result<()> {
    let grid = Grid::builder().slots(2).start().await?;
    let runs = create(&grid, json!({})).await?;
    let full = create(&grid, json!({})).await?;
    let waiter = create_async(&grid, json!({})).await?;
    let lock = take(
        &grid.http(),
        "load-test",
        json!({"holder": "ci run 42", "description": "k6", "ttl": "10m"}),
    )
    .await?;
    ensure!(lock["running"] == 2 && token(&lock).starts_with("lck_"), "{lock}");
    let reply = grid.http().post("/v1/sessions", &json!({})).await?;
    ensure!(
        reply.status == 409 && reply.error_code().as_deref() == Some("lock_held"),
        "{}",
        reply.text()
    );
    let error = &reply.json()?["error"];
    ensure!(
        error["lock"]["holder"] == "ci run 42" && error["lock"]["since"].is_string(),
        "{error}"
    );
    ensure!(
        error["message"].as_str().is_some_and(|text| text.contains("ci run 42")),
        "{error}"
    );
    ensure!(
        !reply.text().contains("lck_"),
        "the token is told to others: {}",
        reply.text()
    );
    let refused = grid.cdp("/").await.err().context("a browser under a lock")?;
    ensure!(
        refused.to_string().contains("409") && refused.to_string().contains("ci run 42"),
        "{refused}"
    );

    // What runs goes on; a slot that frees is given to nobody.
    get(&grid, &id(&runs)).await?;
    release(&grid, &id(&full)).await?;
    eventually("the slot to be free", async || {
        let pool = grid.http().get("/v1/pool").await?.expect(200)?;
        ensure!(pool["running"] == 1, "{pool}");
        ensure!(
            pool["available"] == 0 && pool["locks"][0]["name"] == "load-test",
            "{pool}"
        );
        Ok(())
    })
    .await?;
    ensure!(get(&grid, &id(&waiter)).await?["status"] == "queued");

    // Others may neither take, renew nor release it.
    let second = grid
        .http()
        .post("/v1/locks/load-test", &json!({"holder": "somebody"}))
        .await?;
    ensure!(
        second.status == 409 && second.text().contains("ci run 42"),
        "{}",
        second.text()
    );
    let stranger = "lck_00000000000040008000000000000000";
    let reply = grid
        .http()
        .put("/v1/locks/load-test", &json!({ "token": stranger }))
        .await?;
    ensure!(reply.status == 409, "{}", reply.text());
    let reply = grid
        .http()
        .delete(&format!("/v1/locks/load-test?lock_token={stranger}"))
        .await?;
    ensure!(reply.status == 409, "{}", reply.text());
    let renewed = grid
        .http()
        .put("/v1/locks/load-test", &json!({"token": token(&lock), "ttl": "1h"}))
        .await?
        .expect(200)?;
    ensure!(
        renewed["until"].as_str() > lock["until"].as_str() && renewed["token"].is_null(),
        "{renewed}"
    );

    give_back(&grid.http(), "load-test", &lock).await?;
    becomes_active(&grid, &id(&waiter)).await?;
    let again = grid
        .http()
        .delete(&format!("/v1/locks/load-test?lock_token={}", token(&lock)))
        .await?;
    ensure!(
        again.status == 404 && again.error_code().as_deref() == Some("lock_not_found"),
        "{}",
        again.text()
    );
    for session in [&runs, &waiter] {
        release(&grid, &id(session)).await?;
    }
    is_whole(&grid, 2).await?;
    grid.finish().await
}

#[tokio::test]
async fn lock_covers_what_it_names_and_is_forced_or_expires() -> Result<()> {
    let grid = Grid::builder().slots(2).start().await?;
    let wish = json!({"holder": "me", "operations": ["scrape"], "ttl": 3600});
    take(&grid.http(), "scrapes", wish).await?;
    let agent = create(&grid, json!({"operation": "agent"})).await?;
    let reply = grid
        .http()
        .post("/v1/sessions", &json!({"operation": "scrape"}))
        .await?;
    ensure!(reply.status == 409, "{}", reply.text());
    let forced = grid
        .http()
        .raw(Method::POST, "/v1/locks/scrapes/force-unlock", None, Bytes::new())
        .await?
        .expect(200)?;
    ensure!(forced["holder"] == "me" && forced["token"].is_null(), "{forced}");
    let scrape = create(&grid, json!({"operation": "scrape"})).await?;
    // Of another pool: nothing of ours is covered.
    take(&grid.http(), "elsewhere", json!({"holder": "me", "pools": ["other"]})).await?;
    release(&grid, &id(&agent)).await?;
    let agent = create(&grid, json!({"operation": "agent"})).await?;
    // A holder that vanishes loses it to its TTL, and waiters are served without anybody's help.
    let waiter = create_async(&grid, json!({"operation": "scrape"})).await?;
    take(&grid.http(), "short", json!({"holder": "gone", "ttl": "1s"})).await?;
    release(&grid, &id(&agent)).await?;
    becomes_active(&grid, &id(&waiter)).await?;
    let locks = grid.http().get("/v1/locks").await?.expect(200)?;
    let names: Vec<_> = locks["locks"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|lock| lock["name"].clone())
        .collect();
    ensure!(names == ["elsewhere"], "{locks}");
    for session in [&scrape, &waiter] {
        release(&grid, &id(session)).await?;
    }
    is_whole(&grid, 2).await?;
    grid.finish().await
}

#[tokio::test]
async fn draining_lock_waits_for_what_runs_or_is_given_back() -> Result<()> {
    let grid = Grid::builder().slots(2).start().await?;
    let runs = create(&grid, json!({})).await?;
    let reply = grid
        .http()
        .post("/v1/locks/quiet", &json!({"holder": "me", "drain": 0.2}))
        .await?;
    ensure!(
        reply.status == 409 && reply.error_code().as_deref() == Some("lock_not_drained"),
        "{}",
        reply.text()
    );
    ensure!(reply.json()?["error"]["current"] == 1, "{}", reply.text());
    eventually("the lock to be given back", async || {
        let reply = grid.http().get("/v1/locks/quiet").await?;
        ensure!(reply.status == 404, "{}", reply.text());
        Ok(())
    })
    .await?;
    let http = patient(&grid);
    let mut taking = JoinSet::new();
    taking.spawn(async move { take(&http, "quiet", json!({"holder": "me", "drain": "5m"})).await });
    eventually("the lock to be held", async || {
        grid.http().get("/v1/locks/quiet").await?.expect(200)
    })
    .await?;
    ensure!(grid.http().post("/v1/sessions", &json!({})).await?.status == 409);
    ensure!(
        taking.try_join_next().is_none(),
        "the lock was given while a session runs"
    );
    release(&grid, &id(&runs)).await?;
    let lock = taking.join_next().await.context("no taker")???;
    ensure!(lock["running"] == 0, "{lock}");
    give_back(&grid.http(), "quiet", &lock).await?;
    is_whole(&grid, 2).await?;
    grid.finish().await
}

#[tokio::test]
async fn client_that_leaves_while_its_lock_drains_leaves_no_lock() -> Result<()> {
    let grid = Grid::builder().slots(1).start().await?;
    let runs = create(&grid, json!({})).await?;
    let mut raw = Raw::connect(grid.addr()).await?;
    raw.send(post("/v1/locks/quiet", r#"{"holder":"leaves","drain":"10m"}"#))
        .await?;
    eventually("the lock to be held", async || {
        grid.http().get("/v1/locks/quiet").await?.expect(200)
    })
    .await?;
    drop(raw);
    eventually("the lock to be free", async || {
        let reply = grid.http().get("/v1/locks/quiet").await?;
        ensure!(reply.status == 404, "{}", reply.text());
        Ok(())
    })
    .await?;
    release(&grid, &id(&runs)).await?;
    is_whole(&grid, 1).await?;
    grid.finish().await
}

/// The lock raced against placement, live: whenever it is held and drained, nothing runs until it is released.
#[tokio::test]
async fn lock_races_with_two_hundred_clients_and_nothing_is_placed_under_it() -> Result<()> {
    let mut grid = Grid::builder().slots(SLOTS).min(SLOTS).queue(500).start().await?;
    let mut clients = JoinSet::new();
    for n in 0..CLIENTS {
        let http = patient(&grid);
        clients.spawn(async move {
            let mut kept_out = 0;
            loop {
                let reply = http.post("/v1/sessions", &json!({ "data": n })).await?;
                if reply.status == 409 {
                    kept_out += 1;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
                let session = reply.expect(201)?;
                http.delete(&format!("/v1/sessions/{}", id(&session)))
                    .await?
                    .expect(204)?;
                return anyhow::Ok(kept_out);
            }
        });
    }
    let racing = async {
        let http = patient(&grid);
        let mut held = Vec::new();
        for n in 0..TAKINGS {
            // Every other one waits until what runs has ended.
            let drain = if n % 2 == 0 { json!("2m") } else { Value::Null };
            let lock = take(&http, "race", json!({"holder": format!("n{n}"), "drain": drain})).await?;
            if n % 2 == 0 {
                let pool = http.get("/v1/pool").await?.expect(200)?;
                ensure!(pool["running"] == 0, "something was placed under the lock: {pool}");
            }
            give_back(&http, "race", &lock).await?;
            held.push(lock);
        }
        anyhow::Ok(held)
    };
    let served = async {
        let mut kept_out = 0;
        while let Some(client) = clients.join_next().await {
            kept_out += client??;
        }
        anyhow::Ok(kept_out)
    };
    let (held, kept_out) = tokio::try_join!(racing, served)?;
    println!(
        "{} takings, {CLIENTS} clients served, {kept_out} times kept out",
        held.len()
    );
    let history = listed(&grid, "/v1/sessions/history?limit=1000").await?;
    ensure!(history.len() == CLIENTS, "{} ended", history.len());
    ensure!(
        history.iter().all(|row| row["reason"] == "released"),
        "not all were released"
    );
    count_is(&grid, "queued", 0).await?;
    is_whole(&grid, SLOTS as usize).await?;
    store_is_sound(&mut grid).await?;
    grid.finish().await
}

#[tokio::test]
async fn nonsense_is_refused_and_takes_no_lock() -> Result<()> {
    let grid = Grid::builder().slots(1).start().await?;
    let cases = [
        (Method::POST, "/v1/locks/a", "", "the body is missing"),
        (Method::POST, "/v1/locks/a", "{}", "holder"),
        (Method::POST, "/v1/locks/a", r#"{"holder":""}"#, "1 to 200"),
        (Method::POST, "/v1/locks/a", "{\"holder\":\"a\\u0000b\"}", "control"),
        (Method::POST, "/v1/locks/a", r#"{"holder":"me","ttl":0}"#, "ttl"),
        (Method::POST, "/v1/locks/a", r#"{"holder":"me","ttl":"25h"}"#, "24 h"),
        (Method::POST, "/v1/locks/a", r#"{"holder":"me","pools":["A"]}"#, "`A`"),
        (Method::POST, "/v1/locks/a", r#"{"holder":"me","cover":1}"#, "cover"),
        (Method::POST, "/v1/locks/A%2F..", r#"{"holder":"me"}"#, "name"),
        (Method::PUT, "/v1/locks/a", r#"{"token":"x"}"#, "lck_"),
        (Method::DELETE, "/v1/locks/a", "", "lock_token"),
        (Method::DELETE, "/v1/locks/a?lock_token=ses_1", "", "lck_"),
    ];
    refuses(&grid, &cases).await?;
    ensure!(grid.http().get("/v1/locks").await?.expect(200)? == json!({"locks": []}));
    is_whole(&grid, 1).await?;
    grid.finish().await
}
