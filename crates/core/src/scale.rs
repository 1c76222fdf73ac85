//! How many workers a pool should have, and which go first when it has too many (DESIGN.md §7).
//!
//! Its own file because whoever adds and removes machines (Kubernetes, an operator, a script) reads one number and does
//! what it says: the number must not jump about, and must never ask for less than what runs. The rule:
//!
//! ```text
//! demand = sessions holding a slot + waiting ones that a slot alone would serve
//! spare  = the larger of one slot and 20 % of the demand
//! low    = workers for demand + spare            fewer than this: grow
//! high   = workers for demand + 2 × spare        more than this: shrink
//! desired = the live workers, moved into low ..= high, then into min ..= max
//! ```
//!
//! Between `low` and `high` nothing changes: a worker that was added for a session is not removed when that session ends,
//! and what remains after shrinking has room for the demand and its spare. For a constant demand the number is a fixed
//! point: doing what it says makes it say the same again. `max` never asks for less than what holds the running sessions.
//! A draining worker counts as live: whether it comes back (recycling) or not (scaling down), the band answers alike.

use std::cmp::Reverse;

use crate::{WorkerId, WorkerState};

/// The bounds and the headroom of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScaleRules {
    /// Never fewer workers. One at least: a pool without a worker refuses newcomers, so nothing would ask for it again.
    pub min: u64,
    /// Never more workers, unless sessions run on them.
    pub max: u64,
    /// Free slots to keep, in percent of the demand; one at least.
    pub headroom_percent: u64,
}

/// What a pool looks like now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScaleView {
    /// Sessions that hold a slot, closing ones included.
    pub holding: u64,
    /// Waiting sessions that a slot alone would serve; see [`servable`].
    pub waiting: u64,
    /// Slots of the live workers together.
    pub slots: u64,
    /// Live workers, draining ones included.
    pub workers: u64,
    /// Slots of one worker, as last known, for when none is live.
    pub last_slots: Option<u64>,
}

/// The waiting sessions of one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waiting {
    /// How many wait.
    pub queued: u64,
    /// How many more its limit lets in; `None` without a limit, zero under a lock.
    pub room: Option<u64>,
}

/// What a worker is, as far as scaling down is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaver {
    /// Who.
    pub worker: WorkerId,
    /// Its state.
    pub state: WorkerState,
    /// Its launches keep failing.
    pub is_circuit_open: bool,
    /// Sessions it holds.
    pub busy: u32,
    /// Sessions it was ever given.
    pub lifetime: u64,
}

/// A worker's slots when nothing is known of any: the default of `max`.
const USUAL_SLOTS: u64 = 10;

/// How many workers the pool should have.
pub fn desired_workers(rules: &ScaleRules, view: &ScaleView) -> u64 {
    let demand = view.holding.saturating_add(view.waiting);
    let spare = demand.saturating_mul(rules.headroom_percent).div_ceil(100).max(1);
    let low = view.workers_for(demand.saturating_add(spare));
    let high = view.workers_for(demand.saturating_add(spare.saturating_mul(2)));
    view.workers
        .clamp(low, high)
        .max(rules.min)
        .min(rules.max)
        .max(view.workers_for(view.holding))
}

/// Waiting sessions that more slots would serve. Who waits for a limit or a lock is not helped by a worker. `room` is
/// what the pool's own limit lets in, `None` without one.
pub fn servable(operations: impl IntoIterator<Item = Waiting>, room: Option<u64>) -> u64 {
    let served = operations
        .into_iter()
        .map(|waiting| waiting.room.map_or(waiting.queued, |room| room.min(waiting.queued)))
        .fold(0u64, u64::saturating_add);
    room.map_or(served, |room| room.min(served))
}

/// The live workers in the order in which they should go: those that drain already; then those whose launches fail, since
/// they serve nobody; then the fewest sessions, idle ones first; then the highest lifetime count, since those are the
/// next to be recycled anyway; then by id.
pub fn scale_down(workers: impl IntoIterator<Item = Leaver>) -> Vec<WorkerId> {
    let mut leavers: Vec<_> = workers.into_iter().filter(|leaver| leaver.state.is_live()).collect();
    leavers.sort_by_key(|leaver| {
        (
            leaver.state != WorkerState::Draining,
            !(leaver.is_circuit_open && leaver.busy == 0),
            leaver.busy,
            Reverse(leaver.lifetime),
            leaver.worker,
        )
    });
    leavers.into_iter().map(|leaver| leaver.worker).collect()
}

// === impl ScaleRules ===

impl Default for ScaleRules {
    fn default() -> Self {
        Self {
            min: 1,
            max: u64::MAX,
            headroom_percent: 20,
        }
    }
}

// === impl ScaleView ===

impl ScaleView {
    /// Workers of the mean size that have so many slots together, rounded up. Never by division of a mean: 7 slots on 2
    /// workers are neither 3 nor 4 each.
    fn workers_for(&self, slots: u64) -> u64 {
        let (of, on) = match (self.slots, self.workers) {
            (0, _) | (_, 0) => (self.last_slots.filter(|slots| *slots > 0).unwrap_or(USUAL_SLOTS), 1),
            known => known,
        };
        let workers = (u128::from(slots) * u128::from(on)).div_ceil(u128::from(of));
        u64::try_from(workers).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    const RULES: ScaleRules = ScaleRules {
        min: 1,
        max: u64::MAX,
        headroom_percent: 20,
    };

    fn view(holding: u64, waiting: u64, workers: u64, each: u64) -> ScaleView {
        ScaleView {
            holding,
            waiting,
            slots: workers * each,
            workers,
            last_slots: Some(each),
        }
    }

    #[test]
    fn demand_brings_workers_and_its_end_takes_them_away_later() {
        let desired = |holding, waiting, workers| desired_workers(&RULES, &view(holding, waiting, workers, 10));
        assert_eq!(desired(0, 0, 1), 1, "idle");
        assert_eq!(desired(8, 0, 1), 1, "8 and 2 spare fit");
        assert_eq!(desired(9, 0, 1), 2, "9 and 2 spare do not");
        assert_eq!(desired(8, 0, 2), 2, "nor is the second one taken away at once");
        assert_eq!(desired(7, 0, 2), 2);
        assert_eq!(desired(6, 0, 2), 1, "6 and twice the spare fit in one");
        assert_eq!(desired(10, 30, 1), 5, "40 and 8 spare");
        assert_eq!(desired(0, 0, 0), 1, "the floor");
        assert_eq!(desired(0, 0, 7), 1);
    }

    #[test]
    fn bounds_hold_but_running_sessions_keep_their_workers() {
        let rules = ScaleRules {
            min: 2,
            max: 4,
            ..RULES
        };
        assert_eq!(desired_workers(&rules, &view(0, 0, 1, 10)), 2);
        assert_eq!(desired_workers(&rules, &view(10, 500, 4, 10)), 4);
        assert_eq!(
            desired_workers(&rules, &view(55, 0, 6, 10)),
            6,
            "not below what holds sessions"
        );
    }

    #[test]
    fn without_a_live_worker_the_last_known_size_counts() {
        let lost = ScaleView {
            waiting: 9,
            last_slots: Some(2),
            ..ScaleView::default()
        };
        assert_eq!(desired_workers(&RULES, &lost), 6);
        let never = ScaleView {
            last_slots: None,
            ..lost
        };
        assert_eq!(desired_workers(&RULES, &never), 2);
        let without_slots = ScaleView {
            workers: 3,
            last_slots: Some(0),
            ..lost
        };
        assert_eq!(desired_workers(&RULES, &without_slots), 2);
    }

    #[test]
    fn who_waits_for_a_limit_or_a_lock_is_no_demand() {
        let free = Waiting { queued: 5, room: None };
        let limited = Waiting {
            queued: 5,
            room: Some(2),
        };
        let locked = Waiting {
            queued: 5,
            room: Some(0),
        };
        assert_eq!(servable([free, limited, locked], None), 7);
        assert_eq!(servable([free, limited, locked], Some(3)), 3);
        assert_eq!(servable([free], Some(0)), 0);
        assert_eq!(servable([], None), 0);
    }

    #[test]
    fn idle_workers_go_first_and_given_up_ones_are_gone_already() {
        let leaver = |id: u128, state, busy, lifetime| Leaver {
            worker: WorkerId::from_uuid(Uuid::from_u128(id)),
            state,
            is_circuit_open: false,
            busy,
            lifetime,
        };
        use WorkerState::{Available, Draining, Gone, Lost, Starting};
        let broken = Leaver {
            is_circuit_open: true,
            ..leaver(7, Available, 0, 0)
        };
        let order = scale_down([
            leaver(1, Available, 3, 9),
            leaver(2, Available, 0, 4),
            leaver(3, Available, 0, 9),
            leaver(4, Draining, 5, 0),
            leaver(5, Lost, 0, 0),
            leaver(6, Starting, 0, 0),
            broken,
            leaver(8, Gone, 0, 0),
            leaver(9, Available, 1, 50),
        ]);
        let ids: Vec<_> = order.iter().map(|worker| worker.as_uuid().as_u128()).collect();
        assert_eq!(ids, [4, 7, 3, 2, 6, 9, 1]);
    }

    fn rules() -> impl Strategy<Value = ScaleRules> {
        (0u64..5, 0u64..40, 0u64..100).prop_map(|(min, more, headroom_percent)| ScaleRules {
            min,
            max: min + more,
            headroom_percent,
        })
    }

    proptest! {
        #[test]
        fn more_demand_never_means_fewer_workers(
            rules in rules(), holding in 0u64..500, waiting in 0u64..500, workers in 0u64..60, each in 1u64..30,
        ) {
            let now = desired_workers(&rules, &view(holding, waiting, workers, each));
            prop_assert!(desired_workers(&rules, &view(holding + 1, waiting, workers, each)) >= now);
            prop_assert!(desired_workers(&rules, &view(holding, waiting + 1, workers, each)) >= now);
            prop_assert!(desired_workers(&rules, &view(holding, waiting, workers + 1, each)) >= now);
        }

        #[test]
        fn never_less_than_what_holds_sessions(
            rules in rules(), holding in 0u64..500, waiting in 0u64..500, workers in 0u64..60, each in 1u64..30,
        ) {
            let desired = desired_workers(&rules, &view(holding, waiting, workers, each));
            prop_assert!(desired * each >= holding);
            prop_assert!(desired >= rules.min);
            prop_assert!(desired <= rules.max.max(holding.div_ceil(each)));
        }

        #[test]
        fn doing_what_it_says_makes_it_say_the_same(
            rules in rules(), holding in 0u64..500, waiting in 0u64..500, workers in 0u64..60, each in 1u64..30,
        ) {
            let first = desired_workers(&rules, &view(holding, waiting, workers, each));
            let again = desired_workers(&rules, &view(holding, waiting, first, each));
            prop_assert_eq!(first, again);
        }

        /// However slowly the workers follow (one at a time), the number does not turn back on the way.
        #[test]
        fn constant_demand_is_approached_from_one_side(
            rules in rules(), holding in 0u64..200, waiting in 0u64..200, start in 0u64..60, each in 1u64..30,
        ) {
            let mut workers = start;
            let mut directions = Vec::new();
            for _ in 0..500 {
                let desired = desired_workers(&rules, &view(holding, waiting, workers, each));
                match desired.cmp(&workers) {
                    std::cmp::Ordering::Equal => break,
                    towards => {
                        directions.push(towards);
                        workers = if towards.is_gt() { workers + 1 } else { workers - 1 };
                    }
                }
            }
            directions.dedup();
            prop_assert!(directions.len() <= 1, "{directions:?}");
            prop_assert_eq!(desired_workers(&rules, &view(holding, waiting, workers, each)), workers);
        }

        #[test]
        fn shrinking_leaves_room_for_the_demand_and_its_spare(
            holding in 0u64..500, waiting in 0u64..500, workers in 1u64..60, each in 1u64..30,
        ) {
            let desired = desired_workers(&RULES, &view(holding, waiting, workers, each));
            if desired < workers {
                let demand = holding + waiting;
                prop_assert!(desired * each > demand + demand / 5);
            }
        }
    }
}
