//! (g) Ten thousand waiters at four slots: admission, hand-over, drain.
//!
//! Its own file because it is about the queue alone: fake browsers, so that browsers do not decide. Two halves. The
//! first asks with `Prefer: respond-async`, where the answer itself is the admission. The second holds ten thousand
//! connections open, as blocking clients do, and sees how long after a release the next one is served: first one
//! release at a time (the pool has a warm browser each time), then flat out.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::{sync::mpsc, task::JoinSet};
use wharf_testkit::{BrowserUnderTest, Grid, GridBuilder, Http, eventually};

use crate::{
    bed::{Bed, queued, warm},
    figure::Figure,
    machine::pss_kb,
    stats::{Samples, ms},
};

const SLOTS: u32 = 4;
/// Requests under way at once while the queue fills.
const AT_ONCE: usize = 32;
/// Between two releases of the paced half: more than a fake launch.
const PACE: Duration = Duration::from_millis(40);
const LIMIT: Duration = Duration::from_secs(900);
/// A drain that takes longer is broken off: its pace is known by then.
const LONGEST_DRAIN: Duration = Duration::from_secs(90);
const WISHES: &str = r#"{"queue_timeout": 1200, "connect_timeout": null, "idle_timeout": null}"#;

/// A served waiter.
struct Served {
    id: String,
    at: Instant,
}

pub async fn measure(bed: &mut Bed) -> Result<Vec<Figure>> {
    let waiters = bed.pick(10_000, 1_000);
    let mut figures = admission(bed, waiters).await?;
    figures.extend(handover(bed, waiters).await?);
    Ok(figures)
}

fn grid(bed: &mut Bed, waiters: usize) -> GridBuilder {
    let places = u32::try_from(waiters).unwrap_or(u32::MAX);
    bed.grid(BrowserUnderTest::Fake).slots(SLOTS).min(SLOTS).queue(places)
}

fn wishes() -> Result<Value> {
    Ok(serde_json::from_str(WISHES)?)
}

async fn admission(bed: &mut Bed, waiters: usize) -> Result<Vec<Figure>> {
    let grid = grid(bed, waiters).start().await?;
    warm(&grid, SLOTS).await?;
    let http = grid.http().header("prefer", "respond-async").limit(LIMIT);
    let mut times = Samples::default();
    let mut asking = JoinSet::new();
    let began = Instant::now();
    let mut ids = Vec::with_capacity(waiters);
    let total = waiters + SLOTS as usize;
    let mut asked = 0;
    while ids.len() < total {
        while asking.len() < AT_ONCE && asked < total {
            asked += 1;
            let (http, wishes) = (http.clone(), wishes()?);
            asking.spawn(async move {
                let started = Instant::now();
                let body = http.post("/v1/sessions", &wishes).await?.expect(202)?;
                anyhow::Ok((
                    ms(started.elapsed()),
                    body["id"].as_str().unwrap_or_default().to_owned(),
                ))
            });
        }
        if let Some(answer) = asking.join_next().await {
            let (time, id) = answer??;
            times.push(time);
            ids.push(id);
            if ids.len() % 500 == 0 {
                bed.say(&format!("(g) {} admitted", ids.len()));
            }
        }
    }
    let filled = began.elapsed();
    let one = one_more(&grid, &http, &ids).await?;
    let memory = pss_kb(grid.pid());
    // Newest first, so that nobody is served while we leave.
    let began = Instant::now();
    let left = leave(&http, &ids).await?;
    let emptied = began.elapsed();
    bed.finish(grid).await;
    Ok(vec![
        Figure::new(
            'g',
            format!("admission, {waiters} waiters, {AT_ONCE} asking at once"),
            "ms",
        )
        .samples(&times)
        .note(format!(
            "respond-async; all in {:.1} s, {:.0}/s; wharf then has {:.1} MB",
            filled.as_secs_f64(),
            total as f64 / filled.as_secs_f64(),
            memory / 1000.0
        )),
        Figure::new('g', format!("admission behind {waiters}, one at a time"), "ms").samples(&one),
        Figure::new('g', format!("leaving the queue of {waiters}"), "ms")
            .samples(&left)
            .note(format!(
                "DELETE, {AT_ONCE} at once; all in {:.1} s",
                emptied.as_secs_f64()
            )),
    ])
}

/// The last one makes room, then one at a time comes and goes: admission at full depth without our own crowd.
async fn one_more(grid: &Grid, http: &Http, ids: &[String]) -> Result<Samples> {
    let mut times = Samples::default();
    let last = ids.last().context("somebody waits")?.clone();
    http.delete(&format!("/v1/sessions/{last}")).await?.expect(204)?;
    let http = grid.http().header("prefer", "respond-async").limit(LIMIT);
    for _ in 0..100 {
        let started = Instant::now();
        let body = http.post("/v1/sessions", &wishes()?).await?.expect(202)?;
        times.push_ms(started.elapsed());
        let id = body["id"].as_str().unwrap_or_default();
        http.delete(&format!("/v1/sessions/{id}")).await?.expect(204)?;
    }
    Ok(times)
}

async fn leave(http: &Http, ids: &[String]) -> Result<Samples> {
    let mut times = Samples::default();
    let mut leaving = JoinSet::new();
    let mut rest = ids.iter().rev();
    loop {
        while leaving.len() < AT_ONCE {
            let Some(id) = rest.next() else { break };
            let (http, path) = (http.clone(), format!("/v1/sessions/{id}"));
            leaving.spawn(async move {
                let started = Instant::now();
                http.delete(&path).await?.expect(204)?;
                anyhow::Ok(ms(started.elapsed()))
            });
        }
        match leaving.join_next().await {
            Some(time) => times.push(time??),
            None => return Ok(times),
        }
    }
}

async fn handover(bed: &mut Bed, waiters: usize) -> Result<Vec<Figure>> {
    let grid = grid(bed, waiters).start().await?;
    warm(&grid, SLOTS).await?;
    let http = grid.http().limit(LIMIT);
    let (tell, mut served) = mpsc::channel(1024);
    let began = Instant::now();
    let mut clients = JoinSet::new();
    for number in 0..waiters + SLOTS as usize {
        let (http, tell, wishes) = (http.clone(), tell.clone(), wishes()?);
        clients.spawn(async move {
            let body = http.post("/v1/sessions", &wishes).await?.expect(201)?;
            let id = body["id"].as_str().unwrap_or_default().to_owned();
            let _ = tell.send(Served { id, at: Instant::now() }).await;
            anyhow::Ok(())
        });
        // Connections are opened no faster than the listener's backlog takes them.
        if number % 64 == 63 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    drop(tell);
    queued(&grid, waiters as f64).await?;
    let filled = began.elapsed();
    let memory = pss_kb(grid.pid());
    let mut held = Vec::new();
    for _ in 0..SLOTS {
        held.push(served.recv().await.context("the first are served at once")?);
    }
    let paced = paced(bed, &http, &mut served, &mut held).await?;
    let began = Instant::now();
    let (flat, drained) = flat_out(bed, &http, &mut served, held).await?;
    let took = began.elapsed();
    let left = waiters + SLOTS as usize - drained - paced.len() - SLOTS as usize;
    if left > 0 {
        // They hang up, and the grid must forget them.
        clients.abort_all();
    }
    let mut errors = 0;
    while let Some(client) = clients.join_next().await {
        errors += usize::from(matches!(client, Ok(Err(_))));
    }
    end_all(&grid).await?;
    bed.finish(grid).await;
    Ok(vec![
        Figure::new(
            'g',
            format!("hand-over with {waiters} held connections, one at a time"),
            "ms",
        )
        .samples(&paced)
        .note(format!(
            "DELETE sent until the next client has its 201; queue filled in {:.1} s, wharf then has {:.1} MB",
            filled.as_secs_f64(),
            memory / 1000.0
        )),
        Figure::new('g', format!("hand-over flat out, {SLOTS} slots"), "ms")
            .samples(&flat)
            .note("includes launching the next fake browser"),
        Figure::new('g', format!("drain of {drained} waiters"), "s")
            .value(took.as_secs_f64())
            .note(format!(
                "{:.0}/s, {errors} errors, {left} still waiting when broken off",
                drained as f64 / took.as_secs_f64()
            )),
    ])
}

/// Ends sessions whose answer was on its way when its client hung up: delivered, as far as the grid can know, and
/// without time-outs by our own wish.
async fn end_all(grid: &Grid) -> Result<()> {
    let http = grid.http();
    eventually("no session", async || {
        let list = http.get("/v1/sessions?limit=1000").await?.expect(200)?;
        let sessions = list["sessions"].as_array().cloned().unwrap_or_default();
        for session in &sessions {
            let id = session["id"].as_str().unwrap_or_default();
            http.delete(&format!("/v1/sessions/{id}")).await?.expect(204)?;
        }
        ensure!(sessions.is_empty(), "{} sessions were left", sessions.len());
        Ok(())
    })
    .await
}

async fn paced(bed: &Bed, http: &Http, served: &mut mpsc::Receiver<Served>, held: &mut Vec<Served>) -> Result<Samples> {
    let mut times = Samples::default();
    for round in 0..bed.pick(200, 40) {
        bed.say(&format!("(g) hand-over {round}"));
        tokio::time::sleep(PACE).await;
        let oldest = held.remove(0);
        let started = Instant::now();
        let path = format!("/v1/sessions/{}", oldest.id);
        let (released, next) = tokio::join!(http.delete(&path), served.recv());
        released?.expect(204)?;
        let next = next.context("somebody waits")?;
        times.push_ms(next.at.saturating_duration_since(started));
        held.push(next);
    }
    Ok(times)
}

/// Everybody who is served leaves at once, for a while. The n-th release is paired with the n-th service after it.
async fn flat_out(
    bed: &Bed,
    http: &Http,
    served: &mut mpsc::Receiver<Served>,
    held: Vec<Served>,
) -> Result<(Samples, usize)> {
    let mut releases = Vec::new();
    let mut services = Vec::new();
    let mut leaving = JoinSet::new();
    let mut go = |session: Served, leaving: &mut JoinSet<Result<()>>| {
        releases.push(Instant::now());
        let http = http.clone();
        leaving.spawn(async move {
            http.delete(&format!("/v1/sessions/{}", session.id))
                .await?
                .expect(204)?;
            Ok(())
        });
    };
    for session in held {
        go(session, &mut leaving);
    }
    let deadline = tokio::time::Instant::now() + LONGEST_DRAIN;
    while let Ok(Some(session)) = tokio::time::timeout_at(deadline, served.recv()).await {
        services.push(session.at);
        if services.len() % 500 == 0 {
            bed.say(&format!("(g) {} served", services.len()));
        }
        go(session, &mut leaving);
        while leaving.try_join_next().is_some() {}
    }
    while let Some(left) = leaving.join_next().await {
        left??;
    }
    let mut times = Samples::default();
    for (release, service) in releases.iter().zip(&services) {
        times.push_ms(service.saturating_duration_since(*release));
    }
    Ok((times, services.len()))
}
