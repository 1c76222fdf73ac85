//! (a) From nothing to the first answer: create, connect, `Browser.getVersion`; and to the first page.
//!
//! Its own file because it is the figure people feel. Warm: the pool is given time to refill before each try, on both
//! sides, so that no try pays for the one before.

use std::time::Instant;

use anyhow::Result;
use tokio::task::JoinSet;
use wharf_testkit::{BrowserUnderTest, Cdp, Grid};

use crate::{
    bed::{Bed, warm},
    door::{Door, first_page, first_reply},
    figure::{Figure, Of},
    stats::Samples,
};

const AT_ONCE: u32 = 8;

#[derive(Default)]
struct Times {
    reply: Samples,
    page: Samples,
}

pub async fn measure(bed: &mut Bed) -> Result<Vec<Figure>> {
    let mut figures = one_at_a_time(bed).await?;
    figures.extend(eight_at_once(bed).await?);
    Ok(figures)
}

/// Milliseconds to the first reply and to the first page.
async fn once(door: &Door) -> Result<(f64, f64)> {
    let started = Instant::now();
    let open = door.open().await?;
    let mut cdp = Cdp::connect(&open.url).await?;
    first_reply(&mut cdp).await?;
    let reply = started.elapsed();
    first_page(&mut cdp).await?;
    let page = started.elapsed();
    open.release().await?;
    Ok((crate::stats::ms(reply), crate::stats::ms(page)))
}

async fn by_connecting(grid: &Grid) -> Result<f64> {
    let started = Instant::now();
    let mut cdp = grid.cdp("/").await?;
    first_reply(&mut cdp).await?;
    let reply = started.elapsed();
    cdp.close().await;
    Ok(crate::stats::ms(reply))
}

async fn one_at_a_time(bed: &mut Bed) -> Result<Vec<Figure>> {
    let shell = BrowserUnderTest::HeadlessShell;
    let (wharf, direct, connected) = compare(bed, shell, bed.pick(40, 5)).await?;
    let (full, direct_full, _) = compare(bed, BrowserUnderTest::Chromium, bed.pick(15, 2)).await?;
    Ok(vec![
        Figure::new('a', "first reply, warm, headless shell", "ms")
            .samples(&wharf.reply)
            .direct(&direct.reply)
            .at_most(Of::Ratio, 0.02)
            .at_most(Of::Value, 10.0)
            .note("POST /v1/sessions, connect, Browser.getVersion; direct: launch, connect, same"),
        Figure::new('a', "first reply by connecting to /, headless shell", "ms")
            .samples(&connected)
            .direct(&direct.reply),
        Figure::new('a', "first page ready, headless shell", "ms")
            .samples(&wharf.page)
            .direct(&direct.page)
            .note("attached to the first page and evaluated"),
        Figure::new('a', "first reply, warm, full Chromium", "ms")
            .samples(&full.reply)
            .direct(&direct_full.reply)
            .at_most(Of::Ratio, 0.02)
            .at_most(Of::Value, 10.0),
        Figure::new('a', "first page ready, full Chromium", "ms")
            .samples(&full.page)
            .direct(&direct_full.page),
    ])
}

async fn compare(bed: &mut Bed, browser: BrowserUnderTest, rounds: usize) -> Result<(Times, Times, Samples)> {
    let launch = Door::Direct(bed.recipe(browser).await?);
    let grid = bed.grid(browser).slots(4).min(2).start().await?;
    let door = Door::Wharf(grid.http());
    let (mut wharf, mut direct, mut connected) = (Times::default(), Times::default(), Samples::default());
    for round in 0..rounds {
        bed.say(&format!("(a) one at a time, {browser:?}, {round} of {rounds}"));
        warm(&grid, 2).await?;
        wharf.add(once(&door).await?);
        warm(&grid, 2).await?;
        connected.push(by_connecting(&grid).await?);
        warm(&grid, 2).await?;
        direct.add(once(&launch).await?);
    }
    bed.finish(grid).await;
    Ok((wharf, direct, connected))
}

async fn eight_at_once(bed: &mut Bed) -> Result<Vec<Figure>> {
    let browser = BrowserUnderTest::HeadlessShell;
    let launch = Door::Direct(bed.recipe(browser).await?);
    let grid = bed.grid(browser).slots(AT_ONCE).min(AT_ONCE).start().await?;
    let door = Door::Wharf(grid.http());
    let (mut wharf, mut direct) = (Times::default(), Times::default());
    let rounds = bed.pick(5, 1);
    for round in 0..rounds {
        bed.say(&format!("(a) eight at once, {round} of {rounds}"));
        warm(&grid, AT_ONCE).await?;
        burst(&door, &mut wharf).await?;
        warm(&grid, AT_ONCE).await?;
        burst(&launch, &mut direct).await?;
    }
    bed.finish(grid).await;
    Ok(vec![
        Figure::new('a', "first reply, warm, eight at once", "ms")
            .samples(&wharf.reply)
            .direct(&direct.reply)
            .at_most(Of::Ratio, 0.02),
        Figure::new('a', "first page ready, eight at once", "ms")
            .samples(&wharf.page)
            .direct(&direct.page),
    ])
}

async fn burst(door: &Door, times: &mut Times) -> Result<()> {
    let mut clients = JoinSet::new();
    for _ in 0..AT_ONCE {
        let door = door.clone();
        clients.spawn(async move { once(&door).await });
    }
    while let Some(done) = clients.join_next().await {
        times.add(done??);
    }
    Ok(())
}

// === impl Times ===

impl Times {
    fn add(&mut self, (reply, page): (f64, f64)) {
        self.reply.push(reply);
        self.page.push(page);
    }
}
