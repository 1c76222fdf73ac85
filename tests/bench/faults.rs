//! (h) A browser is killed, or stops answering: when is the client told, when is the slot usable again.
//!
//! Its own file because it does harm: it finds the browser of a session (the browser itself knows its pid) and sends
//! it a signal. All slots are taken beforehand and somebody waits, so "usable" means that the waiter was served and
//! its browser answered.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use wharf_testkit::{BrowserUnderTest, Cdp, CdpEnd, Grid, Http};

use crate::{
    bed::{Bed, queued, warm},
    door::{Open, create, first_reply},
    figure::{Figure, Of},
    stats::Samples,
};

const SLOTS: u32 = 4;
const HANGS: u32 = 5;
/// Between two hangs: spreads them over the interval of the probes.
const STAGGER: Duration = Duration::from_millis(2300);
const LIMIT: Duration = Duration::from_secs(60);

/// A session with its client and the pid of its browser.
struct Victim {
    open: Open,
    cdp: Cdp,
    pid: Pid,
}

#[derive(Default)]
struct Times {
    told: Samples,
    back: Samples,
    /// How clients were told, each way once.
    ends: Vec<String>,
}

pub async fn measure(bed: &mut Bed) -> Result<Vec<Figure>> {
    let killed = kills(bed).await?;
    let hung = hangs(bed).await?;
    Ok(vec![
        Figure::new('h', "kill -9: client told", "ms")
            .samples(&killed.told)
            .at_most(Of::Value, 50.0)
            .note(killed.ends.join("; ")),
        Figure::new('h', "kill -9: slot usable again", "ms")
            .samples(&killed.back)
            .at_most(Of::Value, 100.0)
            .note("all slots were full; a waiting client has a session and its first reply"),
        Figure::new('h', "SIGSTOP: hang noticed, client told", "ms")
            .samples(&hung.told)
            .at_most(Of::Value, 12_000.0)
            .note(hung.ends.join("; ")),
        Figure::new('h', "SIGSTOP: slot usable again after that", "ms").samples(&hung.back),
    ])
}

fn wishes() -> Value {
    json!({"idle_timeout": null, "connect_timeout": null})
}

async fn victim(http: &Http) -> Result<Victim> {
    let open = create(http, &wishes()).await?;
    let mut cdp = Cdp::connect(&open.url).await?;
    cdp.set_limit(LIMIT);
    let info = cdp.call("SystemInfo.getProcessInfo", json!({})).await?;
    let all = info["processInfo"].as_array().cloned().unwrap_or_default();
    let own = all.iter().find(|process| process["type"] == "browser");
    let pid = own.and_then(|process| process["id"].as_i64());
    let pid = pid.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    Ok(Victim {
        open,
        cdp,
        pid: pid.context("a browser knows its own pid")?,
    })
}

/// Somebody in the queue: ends when served and answered.
async fn waiter(http: Http) -> Result<(Instant, Open)> {
    let open = create(&http.limit(LIMIT), &wishes()).await?;
    let mut cdp = Cdp::connect(&open.url).await?;
    first_reply(&mut cdp).await?;
    Ok((Instant::now(), open))
}

/// Sends the signal; returns when it was sent and when and how the client learnt of it.
async fn harm(mut victim: Victim, signal: Signal) -> Result<(Instant, Instant, CdpEnd, Open)> {
    let sent = Instant::now();
    kill_process(victim.pid, signal)?;
    let end = victim.cdp.closed().await?;
    Ok((sent, Instant::now(), end, victim.open))
}

async fn full_grid(bed: &mut Bed, slots: u32) -> Result<(Grid, Vec<Victim>)> {
    let grid = bed
        .grid(BrowserUnderTest::HeadlessShell)
        .slots(slots)
        .min(2)
        .start()
        .await?;
    let mut victims = Vec::new();
    for _ in 0..slots {
        victims.push(victim(&grid.http()).await?);
    }
    Ok((grid, victims))
}

async fn kills(bed: &mut Bed) -> Result<Times> {
    let (grid, mut victims) = full_grid(bed, SLOTS).await?;
    let mut times = Times::default();
    let rounds = bed.pick(12, 3);
    for round in 0..rounds {
        bed.say(&format!("(h) kill -9, {round} of {rounds}"));
        let mut waiting = JoinSet::new();
        waiting.spawn(waiter(grid.http()));
        queued(&grid, 1.0).await?;
        // The spare browser is what the waiter will get.
        warm(&grid, 1).await?;
        let (sent, told, end, gone) = harm(victims.remove(0), Signal::KILL).await?;
        let (back, open) = waiting.join_next().await.context("one waits")???;
        times.told.push_ms(told - sent);
        times.back.push_ms(back.saturating_duration_since(sent));
        times.note(&end);
        gone.release().await?;
        open.release().await?;
        victims.push(victim(&grid.http()).await?);
    }
    release(victims).await?;
    bed.finish(grid).await;
    Ok(times)
}

async fn hangs(bed: &mut Bed) -> Result<Times> {
    let count = bed.pick(HANGS, 1);
    let (grid, victims) = full_grid(bed, count).await?;
    let mut waiting = JoinSet::new();
    for _ in 0..count {
        waiting.spawn(waiter(grid.http()));
    }
    queued(&grid, f64::from(count)).await?;
    warm(&grid, 1).await?;
    bed.say(&format!("(h) SIGSTOP, {count} browsers"));
    let mut harmed = JoinSet::new();
    for (number, victim) in (0_u32..).zip(victims) {
        harmed.spawn(async move {
            tokio::time::sleep(STAGGER * number).await;
            harm(victim, Signal::STOP).await
        });
    }
    let mut times = Times::default();
    let mut told_at = Vec::new();
    while let Some(done) = harmed.join_next().await {
        let (sent, told, end, gone) = done??;
        times.told.push_ms(told - sent);
        times.note(&end);
        told_at.push(told);
        gone.release().await?;
    }
    let mut served_at = Vec::new();
    while let Some(served) = waiting.join_next().await {
        let (at, open) = served??;
        served_at.push(at);
        open.release().await?;
    }
    told_at.sort();
    served_at.sort();
    for (told, served) in told_at.iter().zip(&served_at) {
        times.back.push_ms(served.saturating_duration_since(*told));
    }
    bed.finish(grid).await;
    Ok(times)
}

async fn release(victims: Vec<Victim>) -> Result<()> {
    for victim in victims {
        victim.open.release().await?;
        victim.cdp.abandon();
    }
    Ok(())
}

// === impl Times ===

impl Times {
    fn note(&mut self, end: &CdpEnd) {
        let code = end
            .code
            .map_or_else(|| "no close frame".to_owned(), |code| format!("close {code}"));
        let text = format!("{code} {}", end.reason.chars().take(60).collect::<String>());
        if !self.ends.contains(&text) {
            self.ends.push(text);
        }
    }
}
