//! (e) Sessions per second, four clients at once, each: create, connect, goto, title, release.
//!
//! Its own file because it is the figure where a warm pool can lose: refilling competes with live sessions. Blocks of
//! the two sides alternate. A warm pool has work in hand when a block begins; so the grid's block is counted once
//! until its last session ends, and once until the pool is as full again as it was.

use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::task::JoinSet;
use wharf_testkit::{BrowserUnderTest, Grid};

use crate::{
    bed::{Bed, warm},
    door::Door,
    figure::{Figure, Of},
    machine::cpu_ms,
    stats::{Samples, ms},
};

const CLIENTS: usize = 4;
const SLOTS: u32 = 4;
const MIN: u32 = 2;

/// What one side did.
#[derive(Default)]
pub struct Churned {
    pub done: usize,
    pub errors: Vec<String>,
    pub seconds: f64,
    pub sessions: Samples,
}

pub async fn measure(bed: &mut Bed) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (browser, name) in [
        (BrowserUnderTest::HeadlessShell, "headless shell"),
        (BrowserUnderTest::Chromium, "full Chromium"),
    ] {
        figures.extend(compare(bed, browser, name).await?);
    }
    Ok(figures)
}

pub async fn grid(bed: &mut Bed, browser: BrowserUnderTest) -> Result<Grid> {
    bed.grid(browser).slots(SLOTS).min(MIN).start().await
}

async fn compare(bed: &mut Bed, browser: BrowserUnderTest, name: &str) -> Result<Vec<Figure>> {
    let launch = Door::Direct(bed.recipe(browser).await?);
    let grid = grid(bed, browser).await?;
    let door = Door::Wharf(grid.http());
    let (mut wharf, mut direct) = (Churned::default(), Churned::default());
    let (mut refilled, mut cpu) = (0.0, 0.0);
    let rounds = bed.pick(3, 1);
    let span = Duration::from_secs(bed.pick(10, 3));
    for round in 0..rounds {
        bed.say(&format!("(e) {name}, block {round} of {rounds}"));
        warm(&grid, MIN).await?;
        let (began, before) = (Instant::now(), cpu_ms(grid.pid()));
        churn(&door, &bed.page, span, &mut wharf).await;
        cpu += cpu_ms(grid.pid()) - before;
        refilled += full_again(&grid, began).await?;
        churn(&launch, &bed.page, span, &mut direct).await;
    }
    bed.finish(grid).await;
    let done = wharf.done.max(1) as f64;
    let errors = [&wharf.errors[..], &direct.errors[..]].concat();
    let mut figures = vec![
        Figure::new('e', format!("sessions per second, {name}"), "1/s")
            .value(wharf.rate())
            .direct_value(direct.rate())
            .at_least(Of::Ratio, 1.0)
            .note(format!(
                "{CLIENTS} at once, {} and {} sessions in {rounds} blocks of {span:?}",
                wharf.done, direct.done
            )),
        Figure::new('e', format!("… counted until the pool is full again, {name}"), "1/s")
            .value(done / refilled)
            .direct_value(direct.rate()),
        Figure::new('e', format!("… one session, {name}"), "ms")
            .samples(&wharf.sessions)
            .direct(&direct.sessions),
        Figure::new('e', format!("… errors, {name}"), "")
            .value(wharf.errors.len() as f64)
            .direct_value(direct.errors.len() as f64)
            .at_most(Of::Value, 0.0)
            .note(errors.first().cloned().unwrap_or_default()),
    ];
    figures.push(Figure::new('e', format!("… CPU of wharf per session, {name}"), "ms").value(cpu / done));
    Ok(figures)
}

/// Seconds from `began` until the pool is as it was.
async fn full_again(grid: &Grid, began: Instant) -> Result<f64> {
    let waiting = Instant::now();
    warm(grid, MIN).await?;
    // `warm` ends with a pause of its own.
    let settled = Duration::from_millis(150).min(waiting.elapsed());
    Ok((began.elapsed() - settled).as_secs_f64())
}

/// Keeps the clients busy for a span; sessions begun within it are finished and counted.
pub async fn churn(door: &Door, page: &str, span: Duration, sum: &mut Churned) {
    let began = Instant::now();
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (door, page) = (door.clone(), page.to_owned());
        clients.spawn(async move {
            let mut mine = Churned::default();
            while began.elapsed() < span {
                match door.steps(&page).await {
                    Ok(steps) => {
                        mine.done += 1;
                        mine.sessions.push(ms(steps.total()));
                    }
                    Err(error) => mine.errors.push(format!("{error:#}")),
                }
            }
            mine
        });
    }
    while let Some(client) = clients.join_next().await {
        match client {
            Ok(mine) => sum.add(mine),
            Err(error) => sum.errors.push(error.to_string()),
        }
    }
    sum.seconds += began.elapsed().as_secs_f64();
}

// === impl Churned ===

impl Churned {
    fn add(&mut self, other: Self) {
        self.done += other.done;
        self.errors.extend(other.errors);
        self.sessions.extend(&other.sessions);
    }

    pub fn rate(&self) -> f64 {
        self.done as f64 / self.seconds
    }
}
