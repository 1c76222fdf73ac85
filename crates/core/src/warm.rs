//! The warm pool's decisions (DESIGN.md §7): how many browsers to launch, when to retire one.
//!
//! Its own file because what is launched, when and how often decides everything: the browser is the cost, the grid is
//! not. The invariant: launches in flight count, so nothing overshoots `max + spare`; and with every slot busy no more
//! than `spare` browsers are warm or on their way.

use std::time::Duration;

use crate::Timestamp;

/// The settings of a worker's pool of browsers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WarmRules {
    /// Browsers kept up when nothing happens.
    pub min: usize,
    /// Slots.
    pub max: usize,
    /// Warm browsers allowed beyond `max`.
    pub spare: usize,
    /// Launches at once, at most. As many as there are cores: the launch rate is flat beyond.
    pub parallel_launches: usize,
    /// Memory that browsers may use together, in bytes of PSS.
    pub memory_budget: Option<u64>,
}

/// What the pool looks like now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WarmView {
    /// Idle and ready.
    pub warm: usize,
    /// On their way for the pool.
    pub launching: usize,
    /// On their way for one session that asked for launch options of its own.
    pub bound: usize,
    /// In use by sessions.
    pub leased: usize,
    /// Being killed.
    pub closing: usize,
    /// Sessions that hold a slot and wait for a browser of the pool.
    pub waiting: usize,
    /// Sessions that hold a slot, want launch options of their own, and for which nothing is launching yet.
    pub special: usize,
    /// Browsers' memory together, as last measured.
    pub memory_used: u64,
    /// What one more browser will probably use.
    pub memory_each: u64,
    /// The host is short of CPU or memory (PSI).
    pub is_pressed: bool,
    /// What demand alone would keep warm, from [`Demand`].
    pub demand: usize,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WarmPlan {
    /// Launches to start for sessions that wait.
    pub urgent: usize,
    /// Launches to start to refill, at low priority.
    pub refill: usize,
    /// Warm browsers to close because a session with launch options of its own needs the room.
    pub evict: usize,
}

/// How many warm browsers the pool should have now.
pub fn warm_target(rules: &WarmRules, view: &WarmView) -> usize {
    let in_use = view.in_use();
    let free_slots = rules.max.saturating_sub(in_use);
    // `min` is the floor of browsers kept up, in use or not. Beyond it demand decides, and while sessions run one
    // browser stays ready for the next. A session that still waits for its browser comes before that one.
    let floor = rules.min.saturating_sub(in_use);
    let next = usize::from(view.leased > 0);
    floor.max(view.demand).max(next).min(free_slots + rules.spare)
}

/// What to launch now.
pub fn plan(rules: &WarmRules, view: &WarmView) -> WarmPlan {
    let alive = view.alive();
    let room = (rules.max + rules.spare).saturating_sub(alive);
    let lanes = rules
        .parallel_launches
        .max(1)
        .saturating_sub(view.launching + view.bound);

    let plain = view.waiting.saturating_sub(view.launching + view.warm);
    let uncovered = plain + view.special;
    let urgent = uncovered.min(room).min(lanes);
    let evict = if urgent == 0 && lanes > 0 {
        view.special.min(view.warm).min(1)
    } else {
        0
    };

    // Launches in flight serve waiters first; only the rest will be warm.
    let coming = (view.launching + urgent.saturating_sub(view.special) + view.warm).saturating_sub(view.waiting);
    let mut wanted = warm_target(rules, view).saturating_sub(coming);
    if view.is_pressed {
        // Slow down before it hurts sessions: one at a time, and beyond the floor only if nothing is ready.
        let floor = rules.min.saturating_sub(view.in_use());
        wanted = if view.launching == 0 && coming < floor.max(1) {
            wanted.min(1)
        } else {
            0
        };
    }
    if let Some(budget) = rules.memory_budget {
        let left = budget.saturating_sub(view.memory_used);
        // Launches in flight are not measured yet; the floor of `min` is not denied by the budget.
        let fits = left.checked_div(view.memory_each).map_or(wanted, |n| n as usize);
        let floor = rules.min.saturating_sub(alive);
        wanted = wanted
            .min(fits.saturating_sub(view.launching + urgent))
            .max(floor.min(wanted));
    }
    let refill = if uncovered > urgent {
        0
    } else {
        wanted.min(room - urgent).min(lanes - urgent)
    };
    WarmPlan { urgent, refill, evict }
}

/// Counts idle ticks; says when to retire one warm browser.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shrink {
    idle_ticks: u32,
}

/// The arrival rate, as a decaying average, and the launch time: together the number of browsers to keep warm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Demand {
    rate: f64,
    updated_at: Timestamp,
    launch_seconds: f64,
}

// === impl WarmView ===

impl WarmView {
    /// Processes that exist or are about to.
    pub fn alive(&self) -> usize {
        self.warm + self.launching + self.bound + self.leased + self.closing
    }

    /// Slots held by sessions.
    pub fn in_use(&self) -> usize {
        self.leased + self.bound + self.waiting + self.special
    }
}

// === impl Shrink ===

impl Shrink {
    /// Two idle ticks before one browser goes.
    const TICKS: u32 = 2;

    /// Called on every tick; `true` means: retire one warm browser now.
    pub fn tick(&mut self, rules: &WarmRules, view: &WarmView) -> bool {
        let alive = view.alive() - view.closing;
        let is_idle = view.waiting + view.special == 0 && view.warm > warm_target(rules, view) && alive > rules.min;
        self.idle_ticks = if is_idle { self.idle_ticks + 1 } else { 0 };
        if self.idle_ticks >= Self::TICKS {
            self.idle_ticks = 0;
            return true;
        }
        false
    }

    /// A burst cancels a pending shrink.
    pub fn reset(&mut self) {
        self.idle_ticks = 0;
    }
}

// === impl Demand ===

impl Demand {
    /// The average forgets half of what it knew in this time.
    const HALF_LIFE: Duration = Duration::from_secs(10);

    /// Knows nothing yet. `launch_time` is a first guess.
    pub fn new(now: Timestamp, launch_time: Duration) -> Self {
        Self {
            rate: 0.0,
            updated_at: now,
            launch_seconds: launch_time.as_secs_f64(),
        }
    }

    fn decay(&mut self, now: Timestamp) {
        let passed = now.since(self.updated_at).as_secs_f64();
        self.rate *= 0.5f64.powf(passed / Self::HALF_LIFE.as_secs_f64());
        self.updated_at = now;
    }

    /// A session arrived.
    pub fn arrived(&mut self, now: Timestamp) {
        self.decay(now);
        // An impulse whose decaying integral is one arrival.
        self.rate += std::f64::consts::LN_2 / Self::HALF_LIFE.as_secs_f64();
    }

    /// A launch took this long.
    pub fn launched(&mut self, took: Duration) {
        self.launch_seconds += 0.2 * (took.as_secs_f64() - self.launch_seconds);
    }

    /// How many browsers to keep warm: those that will be asked for while one launches.
    pub fn warm(&mut self, now: Timestamp) -> usize {
        self.decay(now);
        // Under a tenth of a browser is noise, not demand.
        let expected = self.rate * self.launch_seconds;
        if expected < 0.1 { 0 } else { expected.ceil() as usize }
    }

    /// The typical launch time.
    pub fn launch_time(&self) -> Duration {
        Duration::try_from_secs_f64(self.launch_seconds).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RULES: WarmRules = WarmRules {
        min: 2,
        max: 10,
        spare: 1,
        parallel_launches: 2,
        memory_budget: None,
    };

    #[test]
    fn starts_with_min_two_at_a_time() {
        let rules = WarmRules { min: 5, ..RULES };
        assert_eq!(
            plan(&rules, &WarmView::default()),
            WarmPlan {
                refill: 2,
                ..Default::default()
            }
        );
        assert_eq!(
            plan(
                &rules,
                &WarmView {
                    launching: 2,
                    ..Default::default()
                }
            ),
            WarmPlan::default()
        );
        assert_eq!(
            plan(
                &rules,
                &WarmView {
                    warm: 5,
                    ..Default::default()
                }
            ),
            WarmPlan::default()
        );
    }

    #[test]
    fn taking_the_last_warm_browser_starts_the_next_launch() {
        let view = WarmView {
            leased: 2,
            ..Default::default()
        };
        assert_eq!(
            plan(&RULES, &view),
            WarmPlan {
                refill: 1,
                ..Default::default()
            }
        );
    }

    #[test]
    fn with_every_slot_busy_only_spare_is_refilled() {
        let view = WarmView {
            leased: 10,
            demand: 8,
            ..Default::default()
        };
        assert_eq!(
            plan(&RULES, &view),
            WarmPlan {
                refill: 1,
                ..Default::default()
            }
        );
        assert_eq!(plan(&RULES, &WarmView { warm: 1, ..view }), WarmPlan::default());
    }

    #[test]
    fn spare_zero_makes_max_a_ceiling_of_processes() {
        let rules = WarmRules { spare: 0, ..RULES };
        let view = WarmView {
            leased: 9,
            closing: 1,
            waiting: 1,
            ..Default::default()
        };
        assert_eq!(plan(&rules, &view), WarmPlan::default());
    }

    #[test]
    fn waiters_come_before_refill() {
        let view = WarmView {
            waiting: 3,
            demand: 5,
            ..Default::default()
        };
        assert_eq!(
            plan(&RULES, &view),
            WarmPlan {
                urgent: 2,
                ..Default::default()
            }
        );
    }

    #[test]
    fn a_session_with_its_own_options_is_not_served_by_warm_browsers() {
        let view = WarmView {
            warm: 2,
            special: 1,
            ..Default::default()
        };
        assert_eq!(plan(&RULES, &view).urgent, 1);
        let full = WarmView { warm: 11, ..view };
        assert_eq!(
            plan(&RULES, &full),
            WarmPlan {
                evict: 1,
                ..Default::default()
            }
        );
    }

    #[test]
    fn pressure_slows_refilling_to_one_at_a_time_and_to_none_beyond_the_floor() {
        let view = WarmView {
            demand: 5,
            is_pressed: true,
            ..Default::default()
        };
        assert_eq!(plan(&RULES, &view).refill, 1);
        assert_eq!(plan(&RULES, &WarmView { launching: 1, ..view }).refill, 0);
        assert_eq!(plan(&RULES, &WarmView { warm: 1, ..view }).refill, 1);
        assert_eq!(plan(&RULES, &WarmView { warm: 2, ..view }).refill, 0);
    }

    #[test]
    fn memory_budget_stops_refilling_beyond_min() {
        let rules = WarmRules {
            memory_budget: Some(1000),
            ..RULES
        };
        let view = WarmView {
            leased: 4,
            memory_used: 900,
            memory_each: 200,
            ..Default::default()
        };
        assert_eq!(plan(&rules, &view).refill, 0);
        assert_eq!(
            plan(
                &rules,
                &WarmView {
                    memory_used: 700,
                    ..view
                }
            )
            .refill,
            1
        );
    }

    #[test]
    fn shrinks_by_one_after_two_idle_ticks_and_a_burst_cancels_it() {
        let mut shrink = Shrink::default();
        let idle = WarmView {
            warm: 4,
            ..Default::default()
        };
        assert!(!shrink.tick(&RULES, &idle));
        shrink.reset();
        assert!(!shrink.tick(&RULES, &idle));
        assert!(shrink.tick(&RULES, &idle));
        assert!(!shrink.tick(&RULES, &idle));
        assert!(!shrink.tick(&RULES, &WarmView { warm: 2, ..idle }));
        assert!(!shrink.tick(&RULES, &WarmView { warm: 2, ..idle }));
    }

    #[test]
    fn demand_follows_arrivals_and_fades() {
        let mut at = Timestamp::from_micros(0);
        let mut demand = Demand::new(at, Duration::from_millis(200));
        for _ in 0..400 {
            at = at + Duration::from_millis(100);
            demand.arrived(at);
        }
        // Ten a second, each launch a fifth of one.
        assert_eq!(demand.warm(at), 2);
        assert_eq!(demand.warm(at + Duration::from_secs(120)), 0);
    }

    proptest! {
        #[test]
        fn never_overshoots(
            (min, max, spare, lanes) in (0usize..6, 1usize..8, 0usize..3, 1usize..4),
            (warm, launching, leased, closing, waiting, demand) in
                (0usize..8, 0usize..8, 0usize..8, 0usize..8, 0usize..8, 0usize..12),
            (bound, special) in (0usize..3, 0usize..3),
            is_pressed in prop::bool::ANY,
        ) {
            let rules = WarmRules { min, max, spare, parallel_launches: lanes, memory_budget: None };
            let view = WarmView {
                warm, launching, bound, leased, closing, waiting, special, demand, is_pressed, ..Default::default()
            };
            let WarmPlan { urgent, refill, evict } = plan(&rules, &view);
            let alive = warm + launching + bound + leased + closing;
            prop_assert!(urgent + refill == 0 || alive + urgent + refill <= max + spare);
            prop_assert!(urgent + refill == 0 || launching + bound + urgent + refill <= lanes);
            if view.in_use() >= max && refill > 0 {
                prop_assert!((warm + launching + refill).saturating_sub(waiting) <= spare);
            }
            prop_assert!(urgent <= waiting + special);
            prop_assert!(evict <= warm);
        }

        #[test]
        fn a_waiter_is_always_helped_when_there_is_room(
            (warm, leased) in (0usize..1, 0usize..9), waiting in 1usize..3,
        ) {
            let view = WarmView { warm, leased, waiting: waiting.min(10 - leased), ..Default::default() };
            prop_assert!(plan(&RULES, &view).urgent >= 1);
        }
    }
}
