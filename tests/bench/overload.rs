//! (i) A hundred clients at four slots, each holding its browser for 200 ms: served, in which order, how long.
//!
//! Its own file because it is the fairness figure. The direct side is the same work with a plain fair semaphore of
//! four before the launch: the lower bound for a grid without a pool.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::{sync::Semaphore, task::JoinSet};
use wharf_testkit::{BrowserUnderTest, Cdp, Grid, Http, eventually};

use crate::{
    bed::{Bed, warm},
    door::{Door, first_reply},
    figure::{Figure, Of},
    stats::{Samples, ms},
};

const SLOTS: u32 = 4;
const HOLD: Duration = Duration::from_millis(200);
/// Between two arrivals: enough that "first" means something.
const APART: Duration = Duration::from_millis(2);

/// What came of a crowd.
#[derive(Default)]
struct Crowd {
    /// By order of arrival: when served.
    served: Vec<Option<Instant>>,
    waits: Samples,
    seconds: f64,
    error: String,
}

pub async fn measure(bed: &mut Bed) -> Result<Vec<Figure>> {
    let clients = bed.pick(100, 20);
    let browser = BrowserUnderTest::HeadlessShell;
    let recipe = bed.recipe(browser).await?;
    let grid = bed.grid(browser).slots(SLOTS).min(2).start().await?;
    warm(&grid, 2).await?;
    bed.say(&format!("(i) {clients} clients"));
    let wharf = through_wharf(&grid, clients).await?;
    let placed = order_of_placement(&grid.http(), clients).await?;
    bed.finish(grid).await;
    bed.say(&format!("(i) {clients} clients, direct"));
    let direct = directly(Door::Direct(recipe), clients).await?;
    Ok(vec![
        Figure::new('i', format!("served of {clients} clients at {SLOTS} slots"), "")
            .value(wharf.count())
            .direct_value(direct.count())
            .at_least(Of::Value, clients as f64)
            .note(wharf.error.clone()),
        Figure::new('i', "inversions: served before an earlier arrival", "pairs")
            .value(placed)
            .direct_value(direct.inversions())
            .at_most(Of::Value, 0.0)
            .note(format!(
                "by the grid's history of queued_at and started_at; {} as clients saw it",
                wharf.inversions()
            )),
        Figure::new('i', "drained after", "s")
            .value(wharf.seconds)
            .direct_value(direct.seconds)
            .note("each held 200 ms; direct: a semaphore of four before each launch"),
        Figure::new('i', "wait until served", "ms")
            .samples(&wharf.waits)
            .direct(&direct.waits),
    ])
}

async fn through_wharf(grid: &Grid, clients: usize) -> Result<Crowd> {
    let url = format!("{}/", grid.ws_url());
    crowd(clients, move || {
        let url = url.clone();
        async move {
            let mut cdp = Cdp::connect(&url).await?;
            let served = Instant::now();
            first_reply(&mut cdp).await?;
            tokio::time::sleep(HOLD).await;
            cdp.close().await;
            Ok(served)
        }
    })
    .await
}

async fn directly(door: Door, clients: usize) -> Result<Crowd> {
    let slots = Arc::new(Semaphore::new(SLOTS as usize));
    crowd(clients, move || {
        let (door, slots) = (door.clone(), Arc::clone(&slots));
        async move {
            let _slot = slots.acquire_owned().await?;
            let open = door.open().await?;
            let mut cdp = Cdp::connect(&open.url).await?;
            let served = Instant::now();
            first_reply(&mut cdp).await?;
            tokio::time::sleep(HOLD).await;
            open.release().await?;
            Ok(served)
        }
    })
    .await
}

async fn crowd<F>(clients: usize, visit: impl Fn() -> F) -> Result<Crowd>
where
    F: Future<Output = Result<Instant>> + Send + 'static,
{
    let began = Instant::now();
    let mut visits = JoinSet::new();
    for number in 0..clients {
        let visit = visit();
        visits.spawn(async move {
            let came = Instant::now();
            (number, came, visit.await)
        });
        tokio::time::sleep(APART).await;
    }
    let mut crowd = Crowd {
        served: vec![None; clients],
        ..Crowd::default()
    };
    while let Some(done) = visits.join_next().await {
        match done? {
            (number, came, Ok(at)) => {
                crowd.served[number] = Some(at);
                crowd.waits.push(ms(at - came));
            }
            (_, _, Err(error)) => crowd.error = format!("{error:#}"),
        }
    }
    crowd.seconds = began.elapsed().as_secs_f64();
    Ok(crowd)
}

// === impl Crowd ===

impl Crowd {
    fn count(&self) -> f64 {
        self.served.iter().flatten().count() as f64
    }

    /// Pairs of which the later arrival was served first.
    fn inversions(&self) -> f64 {
        let order: Vec<_> = self.served.iter().flatten().copied().collect();
        inversions(&order)
    }
}

fn inversions<T: PartialOrd>(order: &[T]) -> f64 {
    let later = |at: usize| order[at + 1..].iter().filter(|next| **next < order[at]).count();
    (0..order.len()).map(later).sum::<usize>() as f64
}

/// The same question to the grid's own records: in order of arrival, were they started in that order?
async fn order_of_placement(http: &Http, clients: usize) -> Result<f64> {
    let path = format!("/v1/sessions/history?limit={clients}");
    // The last ones may still be ending. A short list would answer "no inversion" for want of sessions.
    let sessions = eventually("the history of everybody", async || {
        let body = http.get(&path).await?.expect(200)?;
        let sessions = body["sessions"].as_array().cloned().unwrap_or_default();
        ensure!(sessions.len() == clients, "{} of {clients} have ended", sessions.len());
        Ok(sessions)
    })
    .await?;
    let mut times = sessions
        .iter()
        .map(|session| Ok((instant(&session["queued_at"])?, instant(&session["started_at"])?)))
        .collect::<Result<Vec<_>>>()?;
    times.sort();
    let started: Vec<_> = times.into_iter().map(|(_, started)| started).collect();
    Ok(inversions(&started))
}

/// A point in time as text that sorts: the fraction is written without trailing zeros, so it is filled up.
fn instant(value: &Value) -> Result<String> {
    let text = value.as_str().with_context(|| format!("not a time: {value}"))?;
    let (whole, fraction) = text
        .trim_end_matches('Z')
        .split_once('.')
        .unwrap_or((text.trim_end_matches('Z'), ""));
    Ok(format!("{whole}.{fraction:0<9}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inversions_count_pairs() {
        assert_eq!(inversions(&[1, 2, 3]), 0.0);
        assert_eq!(inversions(&[2, 1, 3]), 1.0);
        assert_eq!(inversions(&[3, 2, 1]), 3.0);
    }

    #[test]
    fn instants_sort_whatever_their_fraction() {
        let at = |text: &str| instant(&Value::from(text)).unwrap();
        assert!(at("2026-01-01T00:00:07.36Z") < at("2026-01-01T00:00:07.362Z"));
        assert!(at("2026-01-01T00:00:07Z") < at("2026-01-01T00:00:07.1Z"));
        assert!(instant(&Value::Null).is_err());
    }
}
