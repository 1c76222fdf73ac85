//! The clients at work: each makes its visits one after the other until told to stop.
//!
//! Its own file because it is the list of what users do. A visit's outcome is the first thing that it was told and that
//! ended it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use wharf_testkit::Cdp;

use crate::{
    book::Sort,
    client::{LIMIT, Own, World, calls, close, own_calls},
    outcome::Outcome,
    plan::{Task, Visit},
};

/// Between attempts of a client that was told to come back.
const RETRY: Duration = Duration::from_millis(100);
/// Longer than any lock test holds one.
const LOCK_TTL: u64 = 10;

/// One client's life.
pub async fn work(world: Arc<World>, client: usize, stop: CancellationToken) {
    let mut number = 0;
    while !stop.is_cancelled() {
        let visit = Visit::plan(world.seed, client, number, world.coordinators.len());
        let label = format!("{client}-{number}");
        let outcome = visit_once(&world, &visit.task, &label, &stop).await;
        world.book.visit(visit.task.name(), &outcome);
        number += 1;
        sleep(visit.pause).await;
    }
}

async fn visit_once(world: &World, task: &Task, label: &str, stop: &CancellationToken) -> Outcome {
    let done = match task {
        Task::Api { calls, think } => api(world, label, "agent", *calls, *think).await,
        Task::Direct { calls, think } => direct(world, *calls, *think).await,
        Task::Waiter { calls } => waiter(world, label, *calls).await,
        Task::Vanish { by_api, after } => vanish(world, label, *by_api, *after).await,
        Task::Wander { through, calls } => wander(world, label, through, *calls).await,
        Task::Stay { span, beat } => stay(world, label, *span, *beat, stop).await,
        Task::Lock { span } => lock(world, label, *span).await,
        Task::Limit { max, span } => limit(world, label, *max, *span).await,
    };
    done.err().unwrap_or(Outcome::Done)
}

async fn api(world: &World, label: &str, operation: &str, count: usize, think: Duration) -> Result<(), Outcome> {
    let own = world.create(label, operation, None).await?;
    use_it(world, &own, count, think).await
}

/// Attaches through the balancer, calls, detaches, releases.
async fn use_it(world: &World, own: &Own, count: usize, think: Duration) -> Result<(), Outcome> {
    let used = async {
        let mut cdp = world.attach(world.door, own).await?;
        own_calls(own, &mut cdp, count, think).await?;
        close(cdp).await;
        Ok(())
    };
    let used = used.await;
    world.finish(own, used).await
}

async fn direct(world: &World, count: usize, think: Duration) -> Result<(), Outcome> {
    let mut cdp = world.connect(world.door, "/").await?;
    calls(&mut cdp, count, think).await?;
    close(cdp).await;
    Ok(())
}

/// Asks until it is told something final. A second answer for the same key must name the same session.
async fn waiter(world: &World, label: &str, count: usize) -> Result<(), Outcome> {
    let key = format!("{}-{label}", world.seed);
    let started = Instant::now();
    let own = loop {
        match world.create(label, "agent", Some(&key)).await {
            Ok(own) => break own,
            Err(outcome) if outcome.is_passing() && started.elapsed() < LIMIT => sleep(RETRY).await,
            Err(outcome) => return Err(outcome),
        }
    };
    if let Ok(again) = world.create(label, "agent", Some(&key)).await
        && again.id != own.id
    {
        return Err(Outcome::Strange(format!(
            "the key {key} made {} and {}",
            own.id, again.id
        )));
    }
    use_it(world, &own, count, Duration::ZERO).await
}

async fn vanish(world: &World, label: &str, by_api: bool, after: Duration) -> Result<(), Outcome> {
    let outcome = match by_api {
        true => timeout(after, world.create(label, "agent", None))
            .await
            .map(|made| made.err()),
        false => {
            let visit = async {
                let mut cdp = world.connect(world.door, "/").await?;
                calls(&mut cdp, 1, Duration::ZERO).await?;
                // Until the time is up; then the socket is dropped without a close frame.
                std::future::pending::<Result<(), Outcome>>().await
            };
            timeout(after, visit).await.map(Result::err)
        }
    };
    match outcome {
        Ok(Some(outcome)) => Err(outcome),
        Ok(None) | Err(_) => Err(Outcome::Left),
    }
}

/// One coordinator after the other, each its own connection to the same browser.
async fn wander(world: &World, label: &str, through: &[usize], count: usize) -> Result<(), Outcome> {
    let own = world.create(label, "agent", None).await?;
    let mut wandered = Ok(());
    for (step, coordinator) in through.iter().enumerate() {
        let used = async {
            let mut cdp = world.attach(world.coordinators[*coordinator], &own).await?;
            own_calls(&own, &mut cdp, count, Duration::ZERO).await?;
            match step % 2 {
                0 => cdp.abandon(),
                _ => close(cdp).await,
            }
            Ok(())
        };
        match used.await {
            // That coordinator is down or going: another one serves.
            Err(passing) if Outcome::is_passing(&passing) => world.book.visit("wander", &passing),
            Err(other) => {
                wandered = Err(other);
                break;
            }
            Ok(()) => {}
        }
    }
    world.finish(&own, wandered).await
}

async fn stay(
    world: &World,
    label: &str,
    span: Duration,
    beat: Duration,
    stop: &CancellationToken,
) -> Result<(), Outcome> {
    let own = world.create(label, "test_run", None).await?;
    let started = Instant::now();
    let lived = async {
        let mut cdp = world.attach(world.door, &own).await?;
        while started.elapsed() < span && !stop.is_cancelled() {
            match own_calls(&own, &mut cdp, 1, beat).await {
                Ok(()) => {}
                Err(outcome) if outcome.is_passing() => {
                    world.book.visit("stay (cut off)", &outcome);
                    cdp = reattach(world, &own).await?;
                }
                Err(outcome) => return Err(outcome),
            }
        }
        close(cdp).await;
        Ok(())
    };
    let lived = lived.await;
    world.finish(&own, lived).await
}

/// Back to a live session after being cut off, through whoever the balancer finds.
async fn reattach(world: &World, own: &Own) -> Result<Cdp, Outcome> {
    let cut_off = Instant::now();
    loop {
        let back = async {
            let mut cdp = world.attach(world.door, own).await?;
            own_calls(own, &mut cdp, 1, Duration::ZERO).await?;
            Ok(cdp)
        };
        match back.await {
            Ok(cdp) => {
                world.book.measured("cut off -> attached again", cut_off.elapsed());
                return Ok(cdp);
            }
            Err(outcome) if Outcome::is_passing(&outcome) && cut_off.elapsed() < LIMIT => sleep(RETRY).await,
            Err(outcome) => return Err(outcome),
        }
    }
}

/// While it is held, what it covers is refused; afterwards not.
async fn lock(world: &World, label: &str, span: Duration) -> Result<(), Outcome> {
    let (http, path) = (world.http(world.door), "/v1/locks/chaos");
    let wish = json!({"holder": label, "ttl": LOCK_TTL, "operations": ["locked"]});
    let asked = Instant::now();
    let taken = http
        .post(path, &wish)
        .await
        .map_err(|error| Outcome::of_transport(&error))?;
    let held: Value = match Outcome::of_reply(&taken) {
        Outcome::Done => taken.json().unwrap_or_default(),
        other => return Err(other),
    };
    sleep(span).await;
    let inside = world.create(label, "locked", None).await;
    if let Ok(own) = &inside {
        let _ = world.release(own).await;
        if asked.elapsed() < Duration::from_secs(LOCK_TTL) {
            let text = format!("I5: {} was placed while {label} held the lock", own.id);
            world.book.finding(Sort::Invariant, text);
        }
    }
    let token = held["token"].as_str().unwrap_or_default();
    let reply = http.delete(&format!("{path}?lock_token={token}")).await;
    let reply = reply.map_err(|error| Outcome::of_transport(&error))?;
    match Outcome::of_reply(&reply) {
        Outcome::Done => Ok(()),
        other => Err(other),
    }
}

async fn limit(world: &World, label: &str, max: u64, span: Duration) -> Result<(), Outcome> {
    let http = world.http(world.door);
    let set = async |max: Value| {
        let body = json!({"operation": "limited", "max": max});
        match http.put("/v1/pool/limits", &body).await {
            Ok(reply) => Outcome::of_reply(&reply),
            Err(error) => Outcome::of_transport(&error),
        }
    };
    let before = set(json!(max)).await;
    if before != Outcome::Done {
        return Err(before);
    }
    let used = api(world, label, "limited", 1, span).await;
    match set(Value::Null).await {
        Outcome::Done => used,
        other => Err(used.err().unwrap_or(other)),
    }
}
