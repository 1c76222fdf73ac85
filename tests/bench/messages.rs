//! (c) Round trips and throughput of small messages, (d) large messages: what the relay costs.
//!
//! One file because both compare two connections to the very same page of the very same browser, one through the
//! grid and one to the browser's own port, in alternating blocks.

use std::time::Instant;

use anyhow::{Result, ensure};
use serde_json::json;
use wharf_testkit::{BrowserUnderTest, Grid};

use crate::{
    bed::{Bed, only_endpoint},
    door::{Open, create},
    figure::{Figure, Of},
    stats::Samples,
    wire::Wire,
};

const BLOCK: usize = 250;
const IN_FLIGHT: usize = 64;
const LARGE: usize = 5 << 20;
const EVALUATE: &str = "Runtime.evaluate";
const ONE: &str = r#"{"expression":"1"}"#;

/// One browser, two ways in.
struct Pair {
    grid: Grid,
    session: Open,
    relayed: Wire,
    direct: Wire,
}

// === impl Pair ===

impl Pair {
    async fn open(bed: &mut Bed) -> Result<Self> {
        let grid = bed
            .grid(BrowserUnderTest::HeadlessShell)
            .slots(1)
            .min(1)
            .spare(0)
            .start()
            .await?;
        let session = create(&grid.http(), &json!({})).await?;
        let relayed = Wire::to_first_page(&session.url).await?;
        let direct = Wire::to_first_page(&only_endpoint(&grid)?).await?;
        Ok(Self {
            grid,
            session,
            relayed,
            direct,
        })
    }

    /// Both, in an order that alternates.
    fn sides(&mut self, round: usize) -> [(usize, &mut Wire); 2] {
        let (relayed, direct) = ((0, &mut self.relayed), (1, &mut self.direct));
        if round.is_multiple_of(2) {
            [relayed, direct]
        } else {
            [direct, relayed]
        }
    }

    async fn close(self, bed: &mut Bed) -> Result<()> {
        drop((self.relayed, self.direct));
        self.session.release().await?;
        bed.finish(self.grid).await;
        Ok(())
    }
}

pub async fn round_trips(bed: &mut Bed) -> Result<Vec<Figure>> {
    let mut pair = Pair::open(bed).await?;
    let mut trips = [Samples::default(), Samples::default()];
    let blocks = bed.pick(24, 4);
    for round in 0..=blocks {
        bed.say(&format!("(c) round trips, block {round} of {blocks}"));
        for (side, wire) in pair.sides(round) {
            for _ in 0..BLOCK {
                let started = Instant::now();
                wire.call(EVALUATE, ONE).await?;
                // The first block warms up.
                if round > 0 {
                    trips[side].push_ms(started.elapsed());
                }
            }
        }
    }
    let mut rates = [Samples::default(), Samples::default()];
    let (rounds, count) = (bed.pick(20, 4), bed.pick(2500, 1000));
    for round in 0..rounds {
        bed.say(&format!("(c) {IN_FLIGHT} in flight, block {round} of {rounds}"));
        for (side, wire) in pair.sides(round) {
            let started = Instant::now();
            wire.pipelined(count, IN_FLIGHT, EVALUATE, ONE).await?;
            rates[side].push(count as f64 / started.elapsed().as_secs_f64());
        }
    }
    pair.close(bed).await?;
    Ok(vec![
        Figure::new('c', "round trip of Runtime.evaluate", "ms")
            .samples(&trips[0])
            .direct(&trips[1])
            .at_most(Of::Added, 0.12)
            .note(format!("same browser, blocks of {BLOCK}")),
        Figure::new('c', format!("throughput, {IN_FLIGHT} in flight"), "msg/s")
            .rates(&rates[0], &rates[1])
            .at_least(Of::Ratio, 0.95)
            .note(format!("same browser, blocks of {count}")),
    ])
}

pub async fn large(bed: &mut Bed) -> Result<Vec<Figure>> {
    let mut pair = Pair::open(bed).await?;
    let mut down = [Samples::default(), Samples::default()];
    let mut up = [Samples::default(), Samples::default()];
    let from_browser = format!(r#"{{"expression":"'x'.repeat({LARGE})","returnByValue":true}}"#);
    let to_browser = format!(r#"{{"expression":"'{}'.length"}}"#, "x".repeat(LARGE));
    let megabytes = LARGE as f64 / 1e6;
    let rounds = bed.pick(30, 5);
    for round in 0..=rounds {
        bed.say(&format!("(d) 5 MB messages, {round} of {rounds}"));
        for (side, wire) in pair.sides(round) {
            let started = Instant::now();
            let answer = wire.call(EVALUATE, &from_browser).await?;
            let took = started.elapsed().as_secs_f64();
            ensure!(answer.len() > LARGE, "only {} bytes came", answer.len());
            let started = Instant::now();
            let answer = wire.call(EVALUATE, &to_browser).await?;
            let took_up = started.elapsed().as_secs_f64();
            ensure!(answer.contains(&LARGE.to_string()), "the browser saw {answer}");
            if round > 0 {
                down[side].push(megabytes / took);
                up[side].push(megabytes / took_up);
            }
        }
    }
    pair.close(bed).await?;
    let figure = |name: &str, samples: &[Samples; 2]| {
        Figure::new('d', name, "MB/s")
            .rates(&samples[0], &samples[1])
            .at_least(Of::Ratio, 0.9)
            .note("same browser, alternating")
    };
    Ok(vec![
        figure("5 MB from the browser", &down),
        figure("5 MB to the browser", &up),
    ])
}
