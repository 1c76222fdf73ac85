//! Choosing a worker (DESIGN.md §6): who is eligible, and in which order.
//!
//! Its own file because the rule must be one: the embedded engine calls it inside its transaction, engines elsewhere
//! encode the same order. Nobody reads "free" and hopes: the caller reserves in the same atomic step.

use std::cmp::Reverse;

use crate::{BrowserKind, WorkerId, WorkerState};

/// What placement needs to know of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Who.
    pub worker: WorkerId,
    /// Its state.
    pub state: WorkerState,
    /// Its heartbeat is younger than the liveness TTL.
    pub is_fresh: bool,
    /// Its launches keep failing.
    pub is_circuit_open: bool,
    /// What it can launch.
    pub browsers: Vec<BrowserKind>,
    /// How many sessions it can hold.
    pub slots: u32,
    /// How many leases it holds.
    pub busy: u32,
    /// How many sessions it was ever given.
    pub lifetime: u64,
}

/// The worker for a session of this class, or none.
///
/// Least loaded first; ties to the highest lifetime count, so that restarts stagger; then id. Workers where this
/// session has already failed (`excluded`) are asked only when no other one is eligible: with a single worker the
/// alternative would be to refuse a session that a second launch could serve.
pub fn choose(class: BrowserKind, candidates: &[Candidate], excluded: &[WorkerId]) -> Option<WorkerId> {
    candidates
        .iter()
        .filter(|candidate| candidate.is_eligible(class))
        .min_by(|a, b| {
            let tried = |c: &Candidate| excluded.contains(&c.worker);
            // busy/slots compared without division: a.busy/a.slots < b.busy/b.slots.
            let load = (u64::from(a.busy) * u64::from(b.slots)).cmp(&(u64::from(b.busy) * u64::from(a.slots)));
            tried(a)
                .cmp(&tried(b))
                .then(load)
                .then(Reverse(a.lifetime).cmp(&Reverse(b.lifetime)))
                .then(a.worker.cmp(&b.worker))
        })
        .map(|candidate| candidate.worker)
}

// === impl Candidate ===

impl Candidate {
    /// Whether this worker may take a session of this class now.
    pub fn is_eligible(&self, class: BrowserKind) -> bool {
        self.state == WorkerState::Available
            && self.is_fresh
            && !self.is_circuit_open
            && self.busy < self.slots
            && self.browsers.contains(&class)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    fn candidate(n: u128, slots: u32, busy: u32, lifetime: u64) -> Candidate {
        Candidate {
            worker: WorkerId::from_uuid(Uuid::from_u128(n)),
            state: WorkerState::Available,
            is_fresh: true,
            is_circuit_open: false,
            browsers: vec![BrowserKind::Chromium],
            slots,
            busy,
            lifetime,
        }
    }

    fn pick(candidates: &[Candidate], excluded: &[WorkerId]) -> Option<u128> {
        choose(BrowserKind::Chromium, candidates, excluded).map(|id| id.as_uuid().as_u128())
    }

    #[test]
    fn least_loaded_is_by_share_not_by_count() {
        assert_eq!(pick(&[candidate(1, 2, 1, 0), candidate(2, 10, 4, 0)], &[]), Some(2));
    }

    #[test]
    fn ties_go_to_the_highest_lifetime_then_the_id() {
        assert_eq!(pick(&[candidate(1, 2, 0, 3), candidate(2, 2, 0, 9)], &[]), Some(2));
        assert_eq!(pick(&[candidate(2, 2, 0, 3), candidate(1, 2, 0, 3)], &[]), Some(1));
    }

    #[test]
    fn excluded_worker_is_the_last_resort() {
        let both = [candidate(1, 2, 0, 0), candidate(2, 2, 1, 0)];
        assert_eq!(pick(&both, &[both[0].worker]), Some(2));
        assert_eq!(pick(&both[..1], &[both[0].worker]), Some(1));
    }

    #[test]
    fn unfit_workers_get_nothing() {
        let fit = candidate(1, 1, 0, 0);
        for unfit in [
            Candidate { busy: 1, ..fit.clone() },
            Candidate {
                is_fresh: false,
                ..fit.clone()
            },
            Candidate {
                is_circuit_open: true,
                ..fit.clone()
            },
            Candidate {
                state: WorkerState::Draining,
                ..fit.clone()
            },
            Candidate {
                browsers: vec![BrowserKind::Firefox],
                ..fit.clone()
            },
        ] {
            assert_eq!(pick(&[unfit], &[]), None);
        }
        assert_eq!(pick(&[fit], &[]), Some(1));
    }

    proptest! {
        #[test]
        fn chosen_worker_always_has_a_free_slot_and_no_other_is_less_loaded(
            workers in prop::collection::vec((1u32..6, 0u32..6, 0u64..4), 0..8),
        ) {
            let all: Vec<_> =
                workers.iter().enumerate().map(|(n, (s, b, l))| candidate(n as u128, *s, *b, *l)).collect();
            match choose(BrowserKind::Chromium, &all, &[]) {
                None => prop_assert!(all.iter().all(|c| c.busy >= c.slots)),
                Some(id) => {
                    let won = all.iter().find(|c| c.worker == id).unwrap();
                    prop_assert!(won.busy < won.slots);
                    for other in all.iter().filter(|c| c.busy < c.slots) {
                        prop_assert!(won.busy * other.slots <= other.busy * won.slots);
                    }
                }
            }
        }
    }
}
