//! The store is down and comes back: what runs goes on, what is new is told to come again, nobody needs a restart.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tokio::task::JoinSet;
use wharf_testkit::{Fleet, FleetStore, eventually};

use crate::fleet_support::{QUICK, attach_path, create, finish, get, id, is_whole, listed, release, took, worker};

/// Longer than the liveness time to live and than the time after which a worker ends what nobody can reach: whoever counts
/// silence during the outage gives somebody up.
const OUTAGE: Duration = Duration::from_secs(12);

async fn is_ready(fleet: &Fleet, index: usize, ready: bool) -> Result<()> {
    eventually(format!("readyz of {index} to say {ready}"), async || {
        let reply = fleet.http_at(index).get("/readyz").await?;
        let expected = if ready { 200 } else { 503 };
        ensure!(reply.status == expected, "{} {}", reply.status, reply.text());
        Ok(())
    })
    .await
}

async fn store_down_and_back(store: FleetStore) -> Result<()> {
    let builder = Fleet::builder().store(store).coordinators(2).workers(2).slots(2);
    let builder = QUICK.iter().fold(builder, |builder, flag| builder.flag(flag));
    let mut fleet = builder.worker_flag("--fence-after=8s").start().await?;
    let attached = create(&fleet.http_at(0), json!({})).await?;
    let alone = create(&fleet.http_at(1), json!({"connect_timeout": "5m"})).await?;
    let mut clients = [
        fleet.cdp_at(0, &attach_path(&attached)).await?,
        fleet.cdp_at(1, &attach_path(&attached)).await?,
    ];
    let pids = [fleet.coordinator(0).pid(), fleet.worker(0).pid(), fleet.worker(1).pid()];

    let began = Instant::now();
    fleet.store().crash().await?;
    let (http, mut newcomer) = (fleet.http_at(0), JoinSet::new());
    newcomer.spawn(async move {
        let asked = Instant::now();
        let reply = http.post("/v1/sessions", &json!({})).await?;
        took("store down: a new session refused", asked);
        ensure!(reply.status == 503, "{} {}", reply.status, reply.text());
        ensure!(
            reply.header("retry-after").is_some(),
            "no Retry-After: {:?}",
            reply.headers
        );
        Ok(())
    });
    let not_ready = async {
        is_ready(&fleet, 0, false).await?;
        is_ready(&fleet, 1, false).await?;
        took("store down: both coordinators not ready", began);
        anyhow::Ok(())
    };
    let traffic = async {
        let (mut calls, mut slowest) = (0, Duration::ZERO);
        while began.elapsed() < OUTAGE {
            for client in &mut clients {
                let asked = Instant::now();
                client.call("Browser.getVersion", json!({})).await?;
                slowest = slowest.max(asked.elapsed());
                calls += 1;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        eprintln!("measured: store down for {OUTAGE:?}: {calls} calls relayed, the slowest in {slowest:?}");
        anyhow::Ok(())
    };
    tokio::try_join!(not_ready, traffic)?;
    newcomer
        .join_next()
        .await
        .context("no newcomer")??
        .context("the newcomer")?;
    let asked = Instant::now();
    let probe = fleet.http_at(1).get("/readyz").await?;
    took("store down: readyz answered", asked);
    ensure!(probe.status == 503, "{}", probe.text());
    let livez = fleet.http_at(0).get("/livez").await?;
    ensure!(livez.status == 200, "{}", livez.text());

    let back = Instant::now();
    fleet.store().start().await?;
    took("the store's own start", back);
    for index in 0..2 {
        is_ready(&fleet, index, true).await?;
    }
    took("store back: both coordinators ready", back);
    let fresh = eventually("a session after the outage", async || {
        create(&fleet.http_at(1), json!({})).await
    })
    .await?;
    took("store back: a new session active", back);
    fleet.all_available(2).await?;
    for client in &mut clients {
        client.call("Browser.getVersion", json!({})).await?;
    }
    for session in [&attached, &alone, &fresh] {
        ensure!(
            get(&fleet.http_at(0), &id(session)).await?["status"] == "active",
            "{session} was lost"
        );
    }
    // The outage is over for longer than anybody is waited for: still nobody was given up.
    let heard = worker(&fleet.http_at(0), &fleet.worker(0).id()?).await?["heard_at"].clone();
    eventually("two more reports", async || {
        let now = worker(&fleet.http_at(0), &fleet.worker(0).id()?).await?["heard_at"].clone();
        ensure!(now != heard);
        Ok(())
    })
    .await?;
    let history = listed(&fleet.http_at(0), "/v1/sessions/history").await?;
    ensure!(history.is_empty(), "sessions were lost: {history:?}");
    ensure!(
        pids == [fleet.coordinator(0).pid(), fleet.worker(0).pid(), fleet.worker(1).pid()],
        "somebody was restarted"
    );
    for session in [&attached, &alone, &fresh] {
        release(&fleet.http_at(1), &id(session)).await?;
    }
    for client in &mut clients {
        ensure!(client.closed().await?.reason.starts_with("released"));
    }
    is_whole(&mut fleet, 4).await?;
    finish(fleet).await
}

#[tokio::test]
async fn store_down_and_back_on_postgres() -> Result<()> {
    store_down_and_back(FleetStore::Postgres).await
}

#[tokio::test]
async fn store_down_and_back_on_redis() -> Result<()> {
    store_down_and_back(FleetStore::Redis).await
}
