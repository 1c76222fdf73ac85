//! What the fleet's topics need: sessions through any coordinator, and the end with the store's own word.
//!
//! Its own file because `support` speaks of one grid, and here it matters through which coordinator something is said.

use std::{
    process::Output,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tokio::process::Command;
use uuid::Uuid;
use wharf_core::CoordinatorId;
use wharf_journal::{Journal, JournalStore, ReplicaConfig, Upkeep, Writer};
use wharf_store::{Store as _, StoreRules, invariants::violations};
use wharf_store_postgres::PostgresJournal;
use wharf_store_redis::RedisJournal;
use wharf_testkit::{Fleet, Http, binaries::built_binary, eventually, patience};

pub use crate::support::{attach_path, id};

/// Reports and losses in seconds, so that a test waits for few of them.
pub const QUICK: [&str; 2] = ["--heartbeat-interval=1s", "--liveness-ttl=3s"];

/// A session, answered when it is active.
pub async fn create(http: &Http, body: Value) -> Result<Value> {
    http.post("/v1/sessions", &body).await?.expect(201)
}

pub async fn get(http: &Http, session: &str) -> Result<Value> {
    http.get(&format!("/v1/sessions/{session}")).await?.expect(200)
}

pub async fn release(http: &Http, session: &str) -> Result<()> {
    let reply = http.delete(&format!("/v1/sessions/{session}")).await?;
    reply.expect(204).map(drop)
}

/// The live sessions as a coordinator lists them.
pub async fn listed(http: &Http, path: &str) -> Result<Vec<Value>> {
    let mut answer = http.get(path).await?.expect(200)?;
    match answer["sessions"].take() {
        Value::Array(sessions) => Ok(sessions),
        other => bail!("{path} answered no list but {other}"),
    }
}

/// Waits until there are exactly so many sessions in a state.
pub async fn count_is(http: &Http, status: &str, count: usize) -> Result<()> {
    eventually(format!("{count} sessions {status}"), async || {
        let sessions = listed(http, &format!("/v1/sessions?status={status}&limit=1000")).await?;
        ensure!(sessions.len() == count, "{} are {status}", sessions.len());
        Ok(())
    })
    .await
}

/// Waits for the end of a session; the reason.
pub async fn end_of(http: &Http, session: &str) -> Result<String> {
    eventually(format!("the end of {session}"), async || {
        let reply = http.get(&format!("/v1/sessions/{session}")).await?;
        ensure!(reply.status == 404, "it is {}", reply.text());
        let error = reply.json()?["error"].take();
        ensure!(error["code"] == "session_ended", "{error}");
        Ok(error["reason"].as_str().unwrap_or_default().to_owned())
    })
    .await
}

pub async fn ends_as(http: &Http, session: &str, reason: &str) -> Result<()> {
    let found = end_of(http, session).await?;
    ensure!(found == reason, "expected {reason}, {session} ended with {found}");
    Ok(())
}

/// The workers, by id.
pub async fn workers(http: &Http) -> Result<Vec<Value>> {
    let list = http.get("/v1/workers").await?.expect(200)?;
    list["workers"].as_array().cloned().context("no list")
}

/// One worker as a coordinator sees it.
pub async fn worker(http: &Http, id: &str) -> Result<Value> {
    http.get(&format!("/v1/workers/{id}")).await?.expect(200)
}

/// Waits until a worker is in a state.
pub async fn worker_is(http: &Http, id: &str, state: &str) -> Result<()> {
    eventually(format!("{id} to be {state}"), async || {
        let now = worker(http, id).await?;
        ensure!(now["state"] == state, "{now}");
        Ok(())
    })
    .await
}

/// Every slot of every worker works: so many sessions at once through all coordinators in turn, then all released.
pub async fn is_whole(fleet: &mut Fleet, slots: usize) -> Result<()> {
    let count = fleet.coordinators().len();
    let mut sessions = Vec::new();
    for n in 0..slots {
        let session = create(&fleet.http_at(n % count), json!({"queue_timeout": "20s"})).await?;
        let mut cdp = fleet.cdp_at((n + 1) % count, &attach_path(&session)).await?;
        cdp.call("Browser.getVersion", json!({})).await?;
        cdp.close().await;
        sessions.push(id(&session));
    }
    for session in sessions {
        release(&fleet.http_at(0), &session).await?;
    }
    fleet.at_rest().await
}

/// Ends the fleet and asks its store: no invariant is broken, everybody has ended once, no slot is held. Then nothing is
/// left.
pub async fn finish(mut fleet: Fleet) -> Result<()> {
    fleet.stop().await?;
    let url = fleet.store().url();
    let journal: Arc<dyn Journal> = if url.starts_with("postgres") {
        Arc::new(PostgresJournal::connect(&url, wharf_store_postgres::Options::default()).await?)
    } else {
        Arc::new(RedisJournal::connect(&url, wharf_store_redis::Options::default()).await?)
    };
    let config = ReplicaConfig {
        writer: Writer(Uuid::now_v7()),
        coordinator: CoordinatorId::from_uuid(Uuid::now_v7()),
        rules: StoreRules::default(),
        upkeep: Upkeep::default(),
        clock: None,
    };
    let store = JournalStore::open(journal, config).await?;
    let snapshot = store.snapshot().await?;
    let broken = violations(&snapshot);
    ensure!(broken.is_empty(), "{broken:?}");
    ensure!(!snapshot.workers.is_empty(), "the store of the fleet is another one");
    ensure!(snapshot.leases.is_empty(), "slots are held: {:?}", snapshot.leases);
    let mut alive = snapshot.sessions.iter().filter(|record| !record.state.is_ended());
    if let Some(record) = alive.next() {
        bail!("not ended: {record:?}");
    }
    store.close().await?;
    fleet.finish().await
}

/// A command of `wharf` with this environment and nothing of ours; ends within patience.
pub async fn wharf(args: &[&str], env: &[(&str, &str)]) -> Result<Output> {
    let mut command = Command::new(built_binary("wharf")?);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("WHARF_")) {
        command.env_remove(name);
    }
    command.args(args).envs(env.iter().copied()).kill_on_drop(true);
    let output = tokio::time::timeout(patience() * 2, command.output()).await;
    Ok(output.with_context(|| format!("{args:?} does not end"))??)
}

/// Tells how long something took, for whoever reads the test's output.
pub fn took(what: &str, since: Instant) -> Duration {
    let span = since.elapsed();
    eprintln!("measured: {what}: {:.1} ms", span.as_secs_f64() * 1000.0);
    span
}
