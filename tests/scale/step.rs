//! One step: a fleet of one size, measured from empty to full.
//!
//! Its own file because steps of different sizes are compared: each is a fleet of its own, on a fresh store.

use std::{collections::VecDeque, time::Duration};

use anyhow::{Context, Result};
use wharf_e2e::samples::Samples;

use crate::{
    api::Occupied,
    bed::Bed,
    engine::Engine,
    gauge::Look,
    load::{self, Churned, Waiting},
    options::{HAND_OVERS, Options},
};

/// Allocators and pools fill once; what sessions cost is measured after that.
const WARM_UP: Duration = Duration::from_secs(1);

/// What one step measured.
pub struct Step {
    pub engine: Engine,
    pub workers: usize,
    pub sessions: usize,
    pub empty: Load,
    pub full: Load,
    pub idle: Look,
    pub idle_seconds: f64,
    /// Of a coordinator, in kB.
    pub memory: Memory,
    pub hand_over: Samples,
    pub burst: f64,
    pub waiting: usize,
}

/// A churn and its cost.
pub struct Load {
    pub churned: Churned,
    pub cost: Look,
}

/// A coordinator's, in kB.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// No session is live.
    pub empty: f64,
    /// Every slot has one.
    pub full: f64,
    /// And so many requests wait.
    pub waiting: f64,
    /// How many, at all coordinators together.
    pub waiters: usize,
}

/// What the queue's part of a step measured.
struct Queued {
    memory: f64,
    hand_over: Samples,
    burst: f64,
}

// === impl Step ===

impl Step {
    pub async fn measure(engine: Engine, workers: usize, options: &Options) -> Result<Self> {
        let bed = Bed::start(engine, workers, options).await?;
        let say = |text: &str| {
            let durability = engine.durability();
            eprintln!(
                "scale: {}, {durability}, {workers} workers, {} slots: {text}",
                engine.name(),
                bed.slots
            );
        };
        say("churning while it is empty");
        load::churn(&bed.apis, options.in_flight, WARM_UP).await;
        let empty = Load::put(&bed, 0, options).await?;
        // After the churn: the log of events is full then, which it stays.
        let memory_empty = bed.gauge.coordinator_pss();

        say("filling up");
        let mut live: VecDeque<_> = load::fill(&bed.apis, bed.slots, options.in_flight).await?.into();
        let busy = Occupied {
            running: bed.slots,
            queued: 0,
        };
        bed.settled(busy).await?;
        let memory_full = bed.gauge.coordinator_pss();
        let before = bed.gauge.look()?;
        tokio::time::sleep(options.span).await;
        let idle = bed.gauge.look()?.since(before);

        say("requests wait; slots are handed over");
        let queued = Queued::measure(&bed, &mut live, options).await?;
        bed.settled(busy).await?;

        say("churning while it is full");
        // Room for those in flight and for slots that are just being freed.
        let room = (2 * options.in_flight).min(bed.slots / 2);
        let leaving: Vec<_> = live.drain(..room).collect();
        load::release(&bed.apis, leaving, options.in_flight).await?;
        let full = Load::put(&bed, bed.slots - room, options).await?;

        say("ending what is left");
        let sessions = bed.slots;
        bed.finish(options.in_flight).await?;
        Ok(Self {
            engine,
            workers,
            sessions,
            empty,
            full,
            idle,
            idle_seconds: options.span.as_secs_f64(),
            memory: Memory {
                empty: memory_empty,
                full: memory_full,
                waiting: queued.memory,
                waiters: options.waiters(),
            },
            hand_over: queued.hand_over,
            burst: queued.burst,
            waiting: options.waiting,
        })
    }
}

// === impl Load ===

impl Load {
    /// Churns on a fleet with so many slots taken, from rest to rest.
    async fn put(bed: &Bed, running: usize, options: &Options) -> Result<Self> {
        let rest = Occupied { running, queued: 0 };
        bed.settled(rest).await?;
        let before = bed.gauge.look()?;
        let churned = load::churn(&bed.apis, options.in_flight, options.span).await;
        let cost = bed.gauge.look()?.since(before);
        bed.settled(rest).await?;
        Ok(Self { churned, cost })
    }

    /// Sessions a second if all cores had been for us, at what a session cost. An estimate, and none of what locks or disks allow.
    pub fn alone(&self) -> f64 {
        self.churned.rate() * self.cost.machine.total / self.cost.ours()
    }

    /// Of a cost of the whole churn.
    pub fn per_session(&self, cost: f64) -> f64 {
        cost / self.churned.sessions.max(1) as f64
    }
}

// === impl Queued ===

impl Queued {
    async fn measure(bed: &Bed, live: &mut VecDeque<String>, options: &Options) -> Result<Self> {
        let mut waiting = Waiting::new(&bed.apis, options.waiters());
        bed.settled(Occupied {
            running: bed.slots,
            queued: options.waiters(),
        })
        .await?;
        let memory = bed.gauge.coordinator_pss();
        let api = bed.apis.first().context("a fleet has a coordinator")?;
        let hand_over = waiting.hand_over(api, live, HAND_OVERS).await?;
        let count = options.burst().min(live.len());
        let burst = waiting.burst(&bed.apis, live, count).await?;
        waiting.leave().await;
        Ok(Self {
            memory,
            hand_over,
            burst,
        })
    }
}
