//! After the faults: everything is as before, and every account agrees.
//!
//! Its own file because it is the verdict: slots free, queue empty, no lease, no browser too many, every session ended once
//! with a reason, every coordinator serves and says the same.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use wharf_core::{EndReason, WorkerState};
use wharf_journal::JournalStore;
use wharf_store::{Snapshot, Store as _};
use wharf_testkit::{Http, eventually_within};

use crate::{
    book::{Book, Sort},
    client::{World, calls, close},
    follow::Heard,
    kernel::{self, Roster},
    told::{self, Anchor},
    watch,
};

/// Idle time-outs, lapsed tickets, given-up workers that return: all of it is over by then.
const CALM_WITHIN: Duration = Duration::from_secs(75);
const SOON: Duration = Duration::from_secs(20);

/// What the store holds when all is over, by reason.
pub struct Account {
    pub sessions: usize,
    pub ends: BTreeMap<&'static str, usize>,
}

/// Waits for calm, then checks. Findings go to the book.
pub async fn check(world: &World, observer: &Arc<JournalStore>, roster: &Roster, heard: &Heard) -> Result<Account> {
    let book = &world.book;
    let calm = eventually_within(CALM_WITHIN, "all sessions to end", async || {
        let snapshot = observer.snapshot().await?;
        is_calm(&snapshot, world.workers.read().len())?;
        Ok(snapshot)
    });
    let snapshot = match calm.await {
        Ok(snapshot) => snapshot,
        Err(error) => {
            book.finding(Sort::Leak, format!("{error:#}"));
            observer.snapshot().await?
        }
    };
    watch::check(&snapshot, book);
    for addr in world.coordinators.iter().chain([&world.door]) {
        if let Err(error) = serves(world, *addr).await {
            book.finding(Sort::Rest, format!("{addr} does not serve afterwards: {error:#}"));
        }
    }
    let snapshot = observer.snapshot().await?;
    let anchor = Anchor::on(&snapshot);
    ended_once(&snapshot, heard, book);
    keys_made_one(&snapshot, book);
    losses_have_causes(&snapshot, anchor, world);
    told::measure(&snapshot, anchor, book);
    if let Err(error) = agree(world).await {
        book.finding(Sort::Rest, format!("{error:#}"));
    }
    for (worker, post) in roster.all().iter().enumerate() {
        let at_rest = eventually_within(SOON, "a worker's browsers to be at rest", async || {
            let (browsers, dirs) = (kernel::browsers(&post.run_dir), kernel::directories(&post.run_dir));
            ensure!(browsers.len() <= post.slots, "{browsers:?}");
            ensure!(dirs.len() == browsers.len(), "{browsers:?} and {dirs:?}");
            Ok(())
        });
        if let Err(error) = at_rest.await {
            book.finding(Sort::Leak, format!("worker {worker}: {error:#}"));
        }
    }
    Ok(account(&snapshot))
}

fn is_calm(snapshot: &Snapshot, workers: usize) -> Result<()> {
    let live: Vec<_> = snapshot
        .sessions
        .iter()
        .filter(|record| !record.state.is_ended())
        .collect();
    ensure!(
        live.is_empty(),
        "{} sessions are live, the first: {:?}",
        live.len(),
        live[0]
    );
    ensure!(snapshot.leases.is_empty(), "leases are held: {:?}", snapshot.leases);
    let available = snapshot
        .workers
        .iter()
        .filter(|worker| worker.state == WorkerState::Available);
    let (available, busy) = available.fold((0, 0), |(count, busy), worker| (count + 1, busy + worker.busy));
    ensure!(
        available == workers && busy == 0,
        "{available} workers are available, {busy} slots busy"
    );
    let rows = snapshot.workers.len();
    ensure!(rows == workers, "{rows} workers are known, not {workers}");
    Ok(())
}

/// A session from creation to release through one door.
async fn serves(world: &World, addr: std::net::SocketAddr) -> Result<()> {
    eventually_within(SOON, "a session", async || {
        let made = world.http(addr).post("/v1/sessions", &json!({})).await?.expect(201)?;
        let id = made["id"].as_str().context("no id")?;
        let cdp = world.connect(addr, &format!("/devtools/browser/{id}")).await;
        let mut cdp = cdp.map_err(|outcome| anyhow::anyhow!("{outcome:?}"))?;
        let called = calls(&mut cdp, 2, Duration::ZERO).await;
        called.map_err(|outcome| anyhow::anyhow!("{outcome:?}"))?;
        close(cdp).await;
        world
            .http(addr)
            .delete(&format!("/v1/sessions/{id}"))
            .await?
            .expect(204)?;
        Ok(())
    })
    .await
}

/// I4, by two accounts: the records, and what was told as it happened.
fn ended_once(snapshot: &Snapshot, heard: &Heard, book: &Book) {
    for record in &snapshot.sessions {
        let told = heard.ends_of(&record.id.to_string());
        if record.reason().is_none() || record.ended_at.is_none() {
            book.finding(Sort::Leak, format!("{} is {:?} at the end", record.id, record.state));
        }
        if record.reason() == Some(EndReason::Internal) {
            book.finding(
                Sort::Imprecise,
                format!("{} ended as internal: {:?}", record.id, record.detail),
            );
        }
        // The last sessions, those of `serves`, may have ended after the followers stopped.
        let is_late = snapshot.at.since(record.ended_at.unwrap_or(snapshot.at)) < SOON;
        if told > 1 || (told == 0 && !is_late) {
            book.finding(Sort::Events, format!("the end of {} was told {told} times", record.id));
        }
    }
}

/// A browser or worker is lost by a fault, and only by one.
fn losses_have_causes(snapshot: &Snapshot, anchor: Anchor, world: &World) {
    for record in &snapshot.sessions {
        let (Some(reason), Some(ended_at), Some(worker)) = (record.reason(), record.ended_at, record.worker) else {
            continue;
        };
        let is_loss = matches!(
            reason,
            EndReason::BrowserCrashed
                | EndReason::BrowserHung
                | EndReason::WorkerLost
                | EndReason::WorkerDrained
                | EndReason::LaunchFailed
        );
        let (Some(number), Some(then)) = (world.number(&worker.to_string()), anchor.here(ended_at)) else {
            continue;
        };
        if is_loss && !world.book.is_loss_explained(number, reason, then) {
            let life = match record.times.started_at {
                Some(_) => "active",
                None => "never active",
            };
            let text = format!(
                "{} of {}, {life}, on worker {number} ended as {reason} at {:.3} s, and no fault explains it: {:?}",
                record.id,
                record.coordinator,
                world.book.seconds_at(then),
                record.detail
            );
            world.book.finding(Sort::Imprecise, text);
        }
    }
}

/// However often a client asked under one key, at most one session of it was ever active.
fn keys_made_one(snapshot: &Snapshot, book: &Book) {
    let mut made: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for record in snapshot
        .sessions
        .iter()
        .filter(|record| record.times.started_at.is_some())
    {
        if let Some(key) = &record.idempotency_key {
            made.entry(key).or_default().push(record.id.to_string());
        }
    }
    for (key, sessions) in made.into_iter().filter(|(_, sessions)| sessions.len() > 1) {
        book.finding(Sort::Imprecise, format!("the idempotency key {key} made {sessions:?}"));
    }
}

/// All coordinators say the same of sessions, pool, workers and events.
async fn agree(world: &World) -> Result<()> {
    let started = Instant::now();
    loop {
        let mut said = Vec::new();
        for addr in &world.coordinators {
            said.push(account_of(&world.http(*addr)).await?);
        }
        match said.iter().position(|other| *other != said[0]) {
            None => return Ok(()),
            // A heartbeat between two looks.
            Some(_) if started.elapsed() < SOON => tokio::time::sleep(Duration::from_millis(300)).await,
            Some(other) => bail!(
                "coordinators differ: 0 says {} and {other} says {}",
                said[0],
                said[other]
            ),
        }
    }
}

async fn account_of(http: &Http) -> Result<Value> {
    let live = http.get("/v1/sessions?limit=1000").await?.expect(200)?;
    let history = http.get("/v1/sessions/history?limit=1000").await?.expect(200)?;
    let history = history["sessions"].as_array().context("no history")?;
    let ended: Vec<_> = history
        .iter()
        .map(|one| json!([one["id"], one["reason"], one["ended_at"]]))
        .collect();
    let pool = http.get("/v1/pool").await?.expect(200)?;
    let pool = json!([
        pool["queued"],
        pool["running"],
        pool["slots"],
        pool["available"],
        pool["limit"]
    ]);
    let workers = http.get("/v1/workers").await?.expect(200)?;
    let workers = workers["workers"].as_array().context("no workers")?;
    let workers: Vec<_> = workers
        .iter()
        .map(|one| json!([one["id"], one["state"], one["busy"]]))
        .collect();
    // From the oldest that is kept: which one that is, they must agree on, too.
    let mut stream = http.events("/v1/events?after=0").await?;
    let mut events: Vec<String> = Vec::new();
    while let Some(event) = stream.next_within(Duration::from_millis(500)).await? {
        events.push(event.id);
    }
    // The numbers alone: what each says was compared as it came.
    let events = [events.first().cloned(), events.last().cloned()];
    Ok(json!({"live": live["sessions"], "ended": ended, "pool": pool, "workers": workers, "events": events}))
}

fn account(snapshot: &Snapshot) -> Account {
    let mut ends: BTreeMap<&'static str, usize> = BTreeMap::new();
    for reason in snapshot.sessions.iter().filter_map(wharf_store::SessionRecord::reason) {
        *ends.entry(reason.as_str()).or_default() += 1;
    }
    Account {
        sessions: snapshot.sessions.len(),
        ends,
    }
}
