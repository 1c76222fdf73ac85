//! (j) One hop and two: round trips through one process, through a fleet, and through a fleet behind nginx.
//!
//! Its own file because it compares four ways, each to a browser of its own: one that we launched, `wharf up`, coordinator and
//! worker apart, and the same through the nginx of `deploy/`. They take short turns, and every round has fresh browsers, so that
//! neither a busy moment nor a slow browser falls on one way only.
//!
//! The cheapest call there is measures sockets; the other two are what clients do all day.

use std::time::Instant;

use anyhow::{Result, ensure};
use serde_json::json;
use wharf_testkit::{BrowserUnderTest, Fleet, Grid, eventually_within};

use crate::{
    bed::{Bed, PATIENCE},
    door::{Door, Open, create},
    figure::{Figure, Of},
    page_server::TITLE,
    stats::Samples,
    wire::Wire,
};

/// The first way is what the others are compared with.
const WAYS: [&str; 4] = ["direct", "one hop", "two hops", "two hops and nginx"];
/// What two hops may cost, by the project's aim.
const AIM: f64 = 1.3;
/// The way the aim is for.
const TWO_HOPS: usize = 2;
const TEXT: &str = r#"{"expression":"document.body.innerText"}"#;

/// A call that is measured.
#[derive(Debug, Clone, Copy)]
enum Call {
    Version,
    Read,
    Screenshot,
}

const CALLS: [Call; 3] = [Call::Version, Call::Read, Call::Screenshot];

/// Of each call, of each way.
type Trips = [[Samples; WAYS.len()]; CALLS.len()];

/// Where the hops are.
struct Grids {
    direct: Door,
    grid: Grid,
    /// One coordinator, one worker, nginx: the coordinator is also called past nginx.
    fleet: Fleet,
}

/// The four ways, with a page on each.
struct Ways {
    open: Vec<Open>,
    wires: Vec<Wire>,
}

pub async fn measure(bed: &mut Bed) -> Result<Vec<Figure>> {
    let grids = Grids::start(bed).await?;
    let (rounds, turns) = (bed.pick(8, 2), bed.pick(20, 5));
    let (mut trips, mut unused) = (Trips::default(), Trips::default());
    for round in 0..rounds {
        bed.say(&format!("(j) hops, {round} of {rounds}"));
        let mut ways = grids.open(&bed.page).await?;
        // The first turn warms up.
        ways.take_turn(0, &mut unused).await?;
        for turn in 0..turns {
            ways.take_turn(turn, &mut trips).await?;
        }
        ways.close().await?;
    }
    grids.finish(bed).await;
    Ok(figures(&trips))
}

fn figures(trips: &Trips) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (call, ways) in CALLS.iter().zip(trips) {
        for (number, way) in WAYS.iter().enumerate().skip(1) {
            let figure = Figure::new('j', format!("{}, {way}", call.name()), "ms")
                .samples(&ways[number])
                .direct(&ways[0])
                .note(format!("turns of {}, a browser each", call.turn()));
            figures.push(match number == TWO_HOPS {
                true => figure.at_most(Of::Ratio, AIM),
                false => figure,
            });
        }
    }
    figures
}

// === impl Call ===

impl Call {
    fn name(self) -> &'static str {
        match self {
            Self::Version => "Browser.getVersion",
            Self::Read => "Runtime.evaluate of a page's text",
            Self::Screenshot => "Page.captureScreenshot",
        }
    }

    /// Calls in one turn: some tens of milliseconds.
    fn turn(self) -> usize {
        match self {
            Self::Version | Self::Read => 50,
            Self::Screenshot => 2,
        }
    }

    async fn send(self, wire: &mut Wire) -> Result<()> {
        let (answer, wanted) = match self {
            Self::Version => (wire.call_browser("Browser.getVersion", "{}").await?, "protocolVersion"),
            Self::Read => (wire.call("Runtime.evaluate", TEXT).await?, "A page."),
            Self::Screenshot => (wire.call("Page.captureScreenshot", "{}").await?, "\"data\""),
        };
        ensure!(answer.contains(wanted), "{self:?} was answered with {answer}");
        Ok(())
    }
}

// === impl Grids ===

impl Grids {
    async fn start(bed: &mut Bed) -> Result<Self> {
        let shell = BrowserUnderTest::HeadlessShell;
        let direct = Door::Direct(bed.recipe(shell).await?);
        // As many slots as sessions: nothing is launched beside the measurement.
        let grid = bed.grid(shell).slots(1).min(1).spare(0).start().await?;
        let fleet = Fleet::builder()
            .coordinators(1)
            .workers(1)
            .slots(2)
            .balancer(true)
            .browser(shell)
            .start()
            .await?;
        Ok(Self { direct, grid, fleet })
    }

    async fn open(&self, page: &str) -> Result<Ways> {
        let none = json!({});
        let mut ways = Ways {
            open: vec![
                self.direct.open().await?,
                create(&self.grid.http(), &none).await?,
                create(&self.fleet.http_at(0), &none).await?,
                create(&self.fleet.http(), &none).await?,
            ],
            wires: Vec::new(),
        };
        let (coordinator, nginx) = (self.fleet.coordinator(0).addr(), self.fleet.front());
        for (open, through) in [(&ways.open[2], coordinator), (&ways.open[3], nginx)] {
            let host = format!("ws://{through}/");
            ensure!(open.url.starts_with(&host), "{} does not go through {host}", open.url);
        }
        for open in &ways.open {
            // A browser that was just launched may answer before its first page exists.
            let wire = eventually_within(PATIENCE, "a first page", async || Wire::to_first_page(&open.url).await);
            let mut wire = wire.await?;
            visit(&mut wire, page).await?;
            ways.wires.push(wire);
        }
        Ok(ways)
    }

    async fn finish(self, bed: &mut Bed) {
        bed.finish(self.grid).await;
        let ended = self.fleet.finish().await;
        bed.note_leftovers(ended);
    }
}

// === impl Ways ===

impl Ways {
    /// Every call on every way.
    async fn take_turn(&mut self, turn: usize, trips: &mut Trips) -> Result<()> {
        for (call, samples) in CALLS.iter().zip(trips) {
            for number in order(turn) {
                for _ in 0..call.turn() {
                    let started = Instant::now();
                    call.send(&mut self.wires[number]).await?;
                    samples[number].push_ms(started.elapsed());
                }
            }
        }
        Ok(())
    }

    async fn close(self) -> Result<()> {
        drop(self.wires);
        for open in self.open {
            open.release().await?;
        }
        Ok(())
    }
}

/// Every way once, beginning with another one each time.
fn order(turn: usize) -> impl Iterator<Item = usize> {
    (0..WAYS.len()).map(move |number| (number + turn) % WAYS.len())
}

/// Goes to the page, and returns when it is there.
async fn visit(wire: &mut Wire, page: &str) -> Result<()> {
    wire.call("Page.navigate", &json!({ "url": page }).to_string()).await?;
    let loaded = r#"{"expression":"document.readyState + ' ' + document.title"}"#;
    let wanted = format!("complete {TITLE}");
    eventually_within(PATIENCE, "the page to be loaded", async || {
        let answer = wire.call("Runtime.evaluate", loaded).await?;
        ensure!(answer.contains(&wanted), "{answer}");
        Ok(())
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_begin_with_each_way_in_turn() {
        let begun: Vec<_> = (0..5).filter_map(|turn| order(turn).next()).collect();
        assert_eq!(begun, [0, 1, 2, 3, 0]);
        let mut all: Vec<_> = order(3).collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3]);
    }

    #[test]
    fn aim_is_for_two_hops_of_every_call() {
        let mut trips = Trips::default();
        for ways in &mut trips {
            for (way, value) in ways.iter_mut().zip([1.0, 1.1, 1.4, 1.5]) {
                way.push(value);
            }
        }
        let all = figures(&trips);
        assert_eq!(all.len(), 9);
        let aimed: Vec<_> = all.iter().filter(|figure| !figure.targets.is_empty()).collect();
        assert_eq!(aimed.len(), 3);
        assert!(aimed.iter().all(|figure| figure.name.ends_with("two hops")));
        assert!(aimed.iter().all(|figure| !figure.targets[0].met));
    }
}
