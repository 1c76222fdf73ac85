//! (b) The four-step cycle: create, connect, go to a page and read its title, release.
//!
//! Its own file because it is a whole short session, step by step, one at a time.

use anyhow::Result;
use wharf_testkit::BrowserUnderTest;

use crate::{
    bed::{Bed, warm},
    door::{Door, Steps},
    figure::{Figure, Of},
    stats::Samples,
};

#[derive(Default)]
struct Times {
    total: Samples,
    steps: [Samples; 4],
}

const NAMES: [&str; 4] = ["create", "connect", "goto and title", "release"];

pub async fn measure(bed: &mut Bed) -> Result<Vec<Figure>> {
    let browser = BrowserUnderTest::HeadlessShell;
    let launch = Door::Direct(bed.recipe(browser).await?);
    let grid = bed.grid(browser).slots(4).min(2).start().await?;
    let door = Door::Wharf(grid.http());
    let (mut wharf, mut direct) = (Times::default(), Times::default());
    let rounds = bed.pick(30, 4);
    for round in 0..rounds {
        bed.say(&format!("(b) cycle {round} of {rounds}"));
        warm(&grid, 2).await?;
        wharf.add(&door.steps(&bed.page).await?);
        warm(&grid, 2).await?;
        direct.add(&launch.steps(&bed.page).await?);
    }
    bed.finish(grid).await;
    let total = Figure::new('b', "create, connect, goto, release", "ms")
        .samples(&wharf.total)
        .direct(&direct.total)
        .at_most(Of::Ratio, 1.0)
        .note("headless shell, warm pool, one at a time");
    let step = |at: usize| {
        Figure::new('b', format!("… {}", NAMES[at]), "ms")
            .samples(&wharf.steps[at])
            .direct(&direct.steps[at])
    };
    Ok(std::iter::once(total).chain((0..4).map(step)).collect())
}

// === impl Times ===

impl Times {
    fn add(&mut self, steps: &Steps) {
        self.total.push_ms(steps.total());
        let all = [steps.create, steps.connect, steps.goto, steps.release];
        for (samples, time) in self.steps.iter_mut().zip(all) {
            samples.push_ms(time);
        }
    }
}
