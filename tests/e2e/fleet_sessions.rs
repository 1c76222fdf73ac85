//! A session belongs to the fleet, not to the coordinator that made it; and the queue is one.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tokio::{sync::mpsc, task::JoinSet};
use wharf_testkit::{EventStream, Fleet, FleetStore, SseEvent, patience};

use crate::fleet_support::{attach_path, count_is, create, finish, get, id, is_whole, listed, release, took};

/// Everything up to the end of this session.
async fn until_end_of(stream: &mut EventStream, session: &str) -> Result<Vec<SseEvent>> {
    let mut events = Vec::new();
    loop {
        let event = stream.next().await?;
        let is_last = event.event == "session.ended" && event.json()?["session"] == session;
        events.push(event);
        if is_last {
            return Ok(events);
        }
    }
}

/// Made through A, attached through B, listed on C, ended through C.
async fn one_life(fleet: &Fleet) -> Result<String> {
    let [a, b, c] = [0, 1, 2].map(|index| fleet.http_at(index));
    let session = create(&a, json!({"data": "mine"})).await?;
    let mut client = fleet.cdp_at(1, &attach_path(&session)).await?;
    let page = client.new_page("data:text/html,here").await?;
    let seen = client
        .call_in(&page, "Runtime.evaluate", json!({"expression": "location.href"}))
        .await?;
    ensure!(seen["result"]["value"] == "data:text/html,here", "{seen}");
    for http in [&b, &c] {
        let all = listed(http, "/v1/sessions").await?;
        ensure!(all.iter().any(|other| other["id"] == session["id"]), "{all:?}");
        ensure!(get(http, &id(&session)).await?["data"] == "mine");
    }
    let began = Instant::now();
    release(&c, &id(&session)).await?;
    let end = client.closed().await?;
    took("a session ended through C: its client at B told", began);
    ensure!(end.reason.starts_with("released"), "{end:?}");
    Ok(id(&session))
}

async fn session_lives_across_coordinators(store: FleetStore) -> Result<()> {
    let builder = Fleet::builder().store(store).coordinators(3).workers(2);
    let mut fleet = builder.balancer(true).start().await?;
    let mut streams = Vec::new();
    for index in 0..3 {
        streams.push(fleet.http_at(index).events("/v1/events?type=session.").await?);
    }
    streams.push(fleet.http().events("/v1/events?type=session.").await?);
    let first = one_life(&fleet).await?;
    let second = one_life(&fleet).await?;
    let mut told = Vec::new();
    for stream in &mut streams {
        let mut events = until_end_of(stream, &first).await?;
        events.extend(until_end_of(stream, &second).await?);
        told.push(events);
    }
    ensure!(
        told.iter().all(|events| *events == told[0]),
        "not the same everywhere: {told:#?}"
    );
    ensure!(told[0].len() >= 6, "{told:#?}");
    // From each event on, on another coordinator and through nginx: exactly the rest.
    for (at, event) in told[0].iter().enumerate() {
        let http = if at % 4 == 3 {
            fleet.http()
        } else {
            fleet.http_at(at % 4)
        };
        let rest = &told[0][at + 1..];
        let mut stream = http
            .header("last-event-id", &event.id)
            .events("/v1/events?type=session.")
            .await?;
        for expected in rest {
            let next = stream.next().await?;
            ensure!(next == *expected, "after {}: {next:?}, not {expected:?}", event.id);
        }
    }
    // Through nginx: POST, WebSocket by the address it was told, and a session made by connecting.
    let session = create(&fleet.http(), json!({})).await?;
    let url = session["connect"]["cdp"].as_str().unwrap_or_default();
    ensure!(url.starts_with(&format!("ws://{}/", fleet.front())), "{session}");
    let mut client = fleet.cdp(url).await?;
    client.call("Browser.getVersion", json!({})).await?;
    release(&fleet.http(), &id(&session)).await?;
    ensure!(client.closed().await?.reason.starts_with("released"));
    let mut client = fleet.cdp("/").await?;
    client.call("Browser.getVersion", json!({})).await?;
    client.close().await;
    is_whole(&mut fleet, 4).await?;
    finish(fleet).await
}

#[tokio::test]
async fn session_lives_across_coordinators_on_postgres() -> Result<()> {
    session_lives_across_coordinators(FleetStore::Postgres).await
}

#[tokio::test]
async fn session_lives_across_coordinators_on_a_redis_cluster() -> Result<()> {
    session_lives_across_coordinators(FleetStore::RedisCluster).await
}

const CLIENTS: usize = 60;
const SLOTS: usize = 2;

#[tokio::test]
async fn queue_is_fair_across_coordinators() -> Result<()> {
    let builder = Fleet::builder().store(FleetStore::Redis).coordinators(3).workers(1);
    let builder = builder.slots(2).coordinator_flag("--connect-timeout=5m");
    let fleet = builder.start().await?;
    let (send, mut served) = mpsc::channel(CLIENTS);
    let mut clients = JoinSet::new();
    for n in 0..CLIENTS {
        let http = fleet.http_at(n % 3).limit(patience() * 4);
        let (arrived, served) = (http.clone(), send.clone());
        clients.spawn(async move {
            let session = create(&http, json!({"data": n})).await?;
            served.send((n, id(&session))).await.context("nobody listens")
        });
        match n < SLOTS {
            true => count_is(&arrived, "active", n + 1).await?,
            false => count_is(&arrived, "queued", n + 1 - SLOTS).await?,
        }
    }
    drop(send);
    // One slot is given back at a time, through another coordinator each time: whoever is served then is the next in line.
    let (mut order, mut last) = (Vec::new(), Vec::new());
    while let Some((n, session)) = served.recv().await {
        order.push(n);
        match order.len() < SLOTS {
            true => last.push(session),
            false => release(&fleet.http_at(order.len() % 3), &session).await?,
        }
    }
    order[..SLOTS].sort_unstable();
    ensure!(
        order == (0..CLIENTS).collect::<Vec<_>>(),
        "served in the order {order:?}"
    );
    while let Some(client) = clients.join_next().await {
        client??;
    }
    for session in last {
        release(&fleet.http_at(0), &session).await?;
    }
    finish(fleet).await
}
