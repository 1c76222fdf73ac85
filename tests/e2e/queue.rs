//! The queue: order, limits, position, priority.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use futures_util::future::try_join_all;
use serde_json::json;
use tokio::{sync::mpsc, task::JoinSet};
use wharf_testkit::{BrowserUnderTest, Cdp, CdpError, Grid, eventually};

use crate::support::{
    becomes_active, count_is, create, create_async, end_of, ends_as, get, id, is_whole, listed, patient, release,
};

const CLIENTS: usize = 100;
const SLOTS: usize = 4;

#[tokio::test]
async fn ten_parallel_creates_on_four_slots_of_headless_shell_are_unique() -> Result<()> {
    let grid = Grid::builder()
        .browser(BrowserUnderTest::HeadlessShell)
        .slots(4)
        .min(4)
        .start()
        .await?;
    let one = async |n: usize| -> Result<String> {
        let session = patient(&grid)
            .post("/v1/sessions", &json!({"data": n}))
            .await?
            .expect(201)?;
        ensure!(session["data"] == n, "{session}");
        let mut cdp = Cdp::connect(session["connect"]["cdp"].as_str().unwrap_or_default()).await?;
        let page = cdp.new_page(&format!("data:text/html,<title>{n}</title>")).await?;
        let title = cdp
            .call_in(&page, "Runtime.evaluate", json!({"expression": "location.href"}))
            .await?;
        ensure!(title["result"]["value"].is_string(), "{title}");
        cdp.close().await;
        release(&grid, &id(&session)).await?;
        Ok(id(&session))
    };
    let ids: BTreeSet<_> = try_join_all((0..10).map(one)).await?.into_iter().collect();
    ensure!(ids.len() == 10, "{ids:?}");
    let history = listed(&grid, "/v1/sessions/history").await?;
    ensure!(
        history.len() == 10 && history.iter().all(|record| record["reason"] == "released"),
        "{history:?}"
    );
    grid.finish().await
}

/// Starts the clients one by one, each after the arrival of the one before it was seen; what they are given comes
/// through the channel.
async fn arrive(grid: &Grid, tasks: &mut JoinSet<Result<()>>, served: &mpsc::Sender<(usize, String)>) -> Result<()> {
    for n in 0..CLIENTS {
        let (http, served) = (patient(grid), served.clone());
        tasks.spawn(async move {
            let session = http.post("/v1/sessions", &json!({"data": n})).await?.expect(201)?;
            served.send((n, id(&session))).await.context("nobody listens")
        });
        if n < SLOTS {
            count_is(grid, "active", n + 1).await?;
        } else {
            count_is(grid, "queued", n + 1 - SLOTS).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn hundred_clients_on_four_slots_are_served_in_order_of_arrival() -> Result<()> {
    let grid = Grid::builder()
        .slots(4)
        .min(4)
        .spare(1)
        .arg("--connect-timeout", "5m")
        .start()
        .await?;
    let (send, mut served) = mpsc::channel(CLIENTS);
    let mut clients = JoinSet::new();
    arrive(&grid, &mut clients, &send).await?;
    drop(send);
    // One slot is given back at a time: whoever is served then is the next in line, or the order is broken.
    let mut order = Vec::new();
    while let Some((n, session)) = served.recv().await {
        order.push(n);
        // The first three keep their slots until the line is through.
        if order.len() >= SLOTS {
            release(&grid, &session).await?;
        }
    }
    let mut first: Vec<_> = order.drain(..SLOTS).collect();
    first.sort_unstable();
    ensure!(first == (0..SLOTS).collect::<Vec<_>>(), "{first:?}");
    ensure!(
        order == (SLOTS..CLIENTS).collect::<Vec<_>>(),
        "served in the order {order:?}"
    );
    while let Some(client) = clients.join_next().await {
        client??;
    }
    for session in count_is(&grid, "active", SLOTS - 1).await? {
        release(&grid, &id(&session)).await?;
    }
    ensure!(listed(&grid, "/v1/sessions/history?limit=1000").await?.len() == CLIENTS);
    grid.finish().await
}

#[tokio::test]
async fn hundred_websocket_clients_all_get_a_browser_in_order() -> Result<()> {
    let grid = Grid::builder().slots(4).min(4).spare(1).start().await?;
    let (send, mut served) = mpsc::channel(CLIENTS);
    let mut clients = JoinSet::new();
    for n in 0..CLIENTS {
        let (url, served) = (grid.ws_url(), send.clone());
        let (go, wait) = tokio::sync::oneshot::channel::<()>();
        clients.spawn(async move {
            let mut cdp = Cdp::connect(&url).await?;
            cdp.call("Browser.getVersion", json!({})).await?;
            served.send((n, go)).await.ok().context("nobody listens")?;
            let _ = wait.await;
            cdp.close().await;
            anyhow::Ok(())
        });
        if n < SLOTS {
            count_is(&grid, "active", n + 1).await?;
        } else {
            count_is(&grid, "queued", n + 1 - SLOTS).await?;
        }
    }
    drop(send);
    // As above: one slot turns over, the other clients stay until the line is through.
    let (mut order, mut kept) = (Vec::new(), Vec::new());
    while let Some((n, go)) = served.recv().await {
        order.push(n);
        if order.len() < SLOTS {
            kept.push(go);
        } else {
            go.send(()).ok().context("the client is gone")?;
        }
        if order.len() == CLIENTS {
            break;
        }
    }
    drop(kept);
    while let Some(client) = clients.join_next().await {
        client??;
    }
    let mut first: Vec<_> = order.drain(..SLOTS).collect();
    first.sort_unstable();
    ensure!(first == (0..SLOTS).collect::<Vec<_>>(), "{first:?}");
    ensure!(
        order == (SLOTS..CLIENTS).collect::<Vec<_>>(),
        "served in the order {order:?}"
    );
    grid.finish().await
}

#[tokio::test]
async fn newcomer_never_overtakes_a_waiter() -> Result<()> {
    let grid = Grid::builder().slots(1).spare(1).start().await?;
    for round in 0..15 {
        let holder = create(&grid, json!({})).await?;
        let waiter = create_async(&grid, json!({"data": round})).await?;
        ensure!(waiter["position"] == 1, "{waiter}");
        let holder = id(&holder);
        let (released, newcomer) = tokio::join!(release(&grid, &holder), create_async(&grid, json!({})));
        released?;
        let newcomer = id(&newcomer?);
        becomes_active(&grid, &id(&waiter)).await?;
        let state = get(&grid, &newcomer).await?;
        ensure!(
            state["status"] == "queued" && state["position"] == 1,
            "round {round}: {state}"
        );
        release(&grid, &id(&waiter)).await?;
        becomes_active(&grid, &newcomer).await?;
        release(&grid, &newcomer).await?;
    }
    grid.finish().await
}

#[tokio::test]
async fn priority_goes_first_and_positions_follow() -> Result<()> {
    let grid = Grid::builder().slots(1).start().await?;
    let holder = create(&grid, json!({})).await?;
    let low = create_async(&grid, json!({"priority": -5})).await?;
    let plain = create_async(&grid, json!({})).await?;
    let high = create_async(&grid, json!({"priority": 50})).await?;
    let second = create_async(&grid, json!({"priority": 50})).await?;
    let mut last_wait = 0.0;
    for (place, session) in [&high, &second, &plain, &low].into_iter().enumerate() {
        let now = get(&grid, &id(session)).await?;
        ensure!(now["position"] == place + 1, "{now}");
        let wait = now["estimated_wait"].as_f64().unwrap_or_default();
        ensure!(wait > last_wait, "the estimate does not grow with the position: {now}");
        last_wait = wait;
    }
    release(&grid, &id(&holder)).await?;
    for session in [&high, &second, &plain, &low] {
        becomes_active(&grid, &id(session)).await?;
        release(&grid, &id(session)).await?;
    }
    grid.finish().await
}

#[tokio::test]
async fn queue_full_is_refused_naming_the_limit() -> Result<()> {
    let grid = Grid::builder().slots(1).queue(2).start().await?;
    let holder = create(&grid, json!({})).await?;
    let waiters = [
        create_async(&grid, json!({})).await?,
        create_async(&grid, json!({})).await?,
    ];
    let reply = grid.http().post("/v1/sessions", &json!({})).await?;
    ensure!(
        reply.status == 503 && reply.error_code().as_deref() == Some("queue_full"),
        "{}",
        reply.text()
    );
    let error = reply.json()?["error"].take();
    ensure!(error["limit"] == 2 && error["current"] == 2, "{error}");
    ensure!(
        error["message"].as_str().is_some_and(|text| text.contains("`queue`")),
        "{error}"
    );
    let seconds: u64 = reply.header("retry-after").context("no Retry-After")?.parse()?;
    ensure!(
        (1..=60).contains(&seconds) && error["retry_after_ms"] == seconds * 1000,
        "{error}"
    );
    let Err(CdpError::Refused(upgrade)) = grid.cdp("/").await else {
        bail!("the upgrade was not refused")
    };
    ensure!(upgrade.status == 503 && upgrade.header("retry-after").is_some());
    ensure!(upgrade.text().starts_with("queue_full"), "{}", upgrade.text());
    ensure!(listed(&grid, "/v1/sessions").await?.len() == 3);
    for session in waiters.iter().chain([&holder]) {
        release(&grid, &id(session)).await?;
    }
    is_whole(&grid, 1).await?;
    grid.finish().await
}

#[tokio::test]
async fn queue_of_zero_places_or_refuses_at_once() -> Result<()> {
    let grid = Grid::builder().slots(1).queue(0).start().await?;
    let holder = create(&grid, json!({})).await?;
    let reply = grid.http().post("/v1/sessions", &json!({})).await?;
    ensure!(
        reply.status == 503 && reply.json()?["error"]["limit"] == 0,
        "{}",
        reply.text()
    );
    release(&grid, &id(&holder)).await?;
    eventually("the slot to be usable", async || {
        let session = create(&grid, json!({})).await?;
        release(&grid, &id(&session)).await
    })
    .await?;
    grid.finish().await
}

#[tokio::test]
async fn queue_timeout_is_503_with_position_and_retry_after() -> Result<()> {
    let grid = Grid::builder().slots(1).start().await?;
    let holder = create(&grid, json!({})).await?;
    let first = create_async(&grid, json!({})).await?;
    let reply = grid
        .http()
        .post("/v1/sessions", &json!({"queue_timeout": "300ms"}))
        .await?;
    ensure!(
        reply.status == 503 && reply.error_code().as_deref() == Some("queue_timeout"),
        "{}",
        reply.text()
    );
    let error = reply.json()?["error"].take();
    ensure!(error["position"] == 2 && error["reason"] == "queue_timeout", "{error}");
    ensure!(reply.header("retry-after").is_some() && error["message"].as_str().is_some_and(|m| m.contains("300ms")));
    ends_as(&grid, error["session"].as_str().unwrap_or_default(), "queue_timeout").await?;
    let ticket = create_async(&grid, json!({"queue_timeout": 0.2})).await?;
    ends_as(&grid, &id(&ticket), "queue_timeout").await?;
    ensure!(get(&grid, &id(&first)).await?["position"] == 1);
    release(&grid, &id(&first)).await?;
    release(&grid, &id(&holder)).await?;
    grid.finish().await
}

#[tokio::test]
async fn queued_session_deleted_leaves_the_queue_as_cancelled() -> Result<()> {
    let grid = Grid::builder().slots(1).start().await?;
    let holder = create(&grid, json!({})).await?;
    let (http, mut blocked) = (grid.http(), JoinSet::new());
    blocked.spawn(async move { http.post("/v1/sessions", &json!({})).await });
    let waiting = id(&count_is(&grid, "queued", 1).await?[0]);
    let second = create_async(&grid, json!({})).await?;
    release(&grid, &waiting).await?;
    let reply = blocked.join_next().await.context("no client")???;
    ensure!(
        reply.status == 404 && reply.error_code().as_deref() == Some("session_ended"),
        "{}",
        reply.text()
    );
    ensure!(get(&grid, &id(&second)).await?["position"] == 1);
    release(&grid, &id(&holder)).await?;
    becomes_active(&grid, &id(&second)).await?;
    release(&grid, &id(&second)).await?;
    let (reason, _) = end_of(&grid, &waiting).await?;
    ensure!(
        reason == "cancelled",
        "withdrawn before it was active, but it says {reason}"
    );
    grid.finish().await
}
