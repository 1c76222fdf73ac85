//! The lease desk: the one actor that owns every browser and every lease of this worker.
//!
//! - `book`: what is where (browsers by state, leases, who waits): data and look-ups.
//! - `serve`: what to do on each request and event.
//! - `program`: telling a program of its session, before it is given out and before it is killed.
//!
//! An actor, so that events from clients, launches, exits and timers are put in one order; the invariants of the book
//! (a browser serves one session, a session holds one browser) then need no locks.

mod book;
mod program;
mod serve;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use tokio::sync::{Notify, mpsc, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use wharf_core::{BrowserId, breaker::Breaker, warm::Demand, warm::Shrink};
use wharf_driver::{Browser, LaunchError};

use crate::{
    DrainOrder, WorkerHandle, WorkerParts,
    handle::{Held, Request},
    supervisor::Trouble,
};
use book::Book;
use serve::Mode;

/// What the desk's own tasks report.
pub(crate) enum Event {
    Launched {
        id: BrowserId,
        result: Result<Arc<dyn Browser>, LaunchError>,
        took: std::time::Duration,
    },
    Troubled {
        id: BrowserId,
        trouble: Trouble,
    },
    /// What a program answered to its session's begin, or why it did not.
    Begun {
        id: BrowserId,
        result: Result<serde_json::Value, String>,
    },
    Gone {
        id: BrowserId,
    },
    Measured {
        used: u64,
        browsers: usize,
    },
}

pub(crate) struct Desk {
    config: Arc<crate::WorkerConfig>,
    driver: Arc<dyn wharf_driver::Driver>,
    uplink: Arc<dyn crate::Uplink>,
    clock: Arc<dyn wharf_core::Clock>,
    metrics: Arc<crate::WorkerMetrics>,
    tasks: TaskTracker,
    events: mpsc::Sender<Event>,
    held: Held,
    changed: Arc<Notify>,
    /// Warm browsers and launches in flight, for the report.
    counts: watch::Sender<(usize, usize)>,
    book: Book,
    breaker: Breaker,
    demand: Demand,
    shrink: Shrink,
    mode: Mode,
    /// PSS of all browsers and of one, as last measured.
    memory: (u64, u64),
    is_pressed: bool,
    /// Sessions that got a browser.
    served: u64,
}

/// Requests that may wait for the desk; it answers in microseconds, so a full queue means trouble, not load.
const REQUESTS: usize = 4096;
/// Events come from as many tasks as there are browsers; senders wait when it is full.
const EVENTS: usize = 1024;
/// A first guess of one browser's PSS until one was measured (headless shell, reference/performance.md §1).
const MEMORY_EACH: u64 = 200 << 20;
/// A first guess of the launch time until one was measured.
const LAUNCH_TIME: std::time::Duration = std::time::Duration::from_millis(200);

pub(crate) fn spawn(
    parts: &WorkerParts,
    tasks: &TaskTracker,
    order: watch::Receiver<Option<DrainOrder>>,
) -> WorkerHandle {
    let (requests, inbox) = mpsc::channel(REQUESTS);
    let (events, reports) = mpsc::channel(EVENTS);
    let held = Held::default();
    let changed = Arc::new(Notify::new());
    let (counts, counted) = watch::channel((0, 0));
    let desk = Desk {
        config: Arc::new(parts.config.clone()),
        driver: parts.driver.clone(),
        uplink: parts.uplink.clone(),
        clock: parts.clock.clone(),
        metrics: parts.metrics.clone(),
        tasks: tasks.clone(),
        events,
        held: held.clone(),
        changed: changed.clone(),
        counts,
        book: Book::default(),
        breaker: Breaker::default(),
        demand: Demand::new(parts.clock.now(), LAUNCH_TIME),
        shrink: Shrink::default(),
        mode: Mode::Serving,
        memory: (0, MEMORY_EACH),
        is_pressed: false,
        served: 0,
    };
    tasks.spawn(desk.run(inbox, reports));
    WorkerHandle {
        id: parts.config.id,
        requests,
        held,
        changed,
        counts: counted,
        tasks: tasks.clone(),
        order,
    }
}

// === impl Desk ===

impl Desk {
    async fn run(mut self, mut inbox: mpsc::Receiver<Request>, mut reports: mpsc::Receiver<Event>) {
        let mut tick = tokio::time::interval(self.config.tick);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            self.refill();
            self.publish();
            if self.is_finished() {
                break;
            }
            let pause = self.until_next_launch();
            tokio::select! {
                // Biased: what ended comes before who asks, so that a freed browser is counted before it is missed.
                biased;
                Some(event) = reports.recv() => self.event(event),
                request = inbox.recv() => match request {
                    Some(request) => self.request(request),
                    None => self.stop(wharf_core::EndReason::Internal, None),
                },
                _ = tick.tick() => self.tick(),
                () = sleep_for(pause) => {}
            }
        }
        self.finish();
    }
}

/// Sleeps for the span, or for ever.
async fn sleep_for(span: Option<std::time::Duration>) {
    match span {
        Some(span) => tokio::time::sleep(span).await,
        None => std::future::pending().await,
    }
}

pub(crate) struct Kept {
    pub state: wharf_core::BrowserState,
    /// Set once it is launched.
    pub browser: Option<Arc<dyn Browser>>,
    pub purpose: book::Purpose,
    /// The session it serves.
    pub lease: Option<book::Lease>,
    /// Whom to answer when its program has taken the session.
    pub beginning: Option<program::Beginning>,
    /// Ends its launch or its supervisor.
    pub stop: CancellationToken,
}
