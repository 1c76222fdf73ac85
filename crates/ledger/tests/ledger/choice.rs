//! The worker that the ledger looks up is the one that `wharf_core::placement::choose` finds among all of them, with
//! many workers of all shapes, whatever is silent, broken or excluded.

use std::time::Duration;

use proptest::prelude::*;
use wharf_core::{
    BrowserKind, Epoch, SessionId, SessionState,
    placement::{Candidate, choose},
};
use wharf_ledger::{Answer, Op};
use wharf_store::{Heartbeat, PlacementFailure, Replaced, StoreRules, Submitted};

use crate::kit::{Fleet, heartbeat, session, worker};

#[derive(Debug, Clone)]
enum Move {
    Register {
        worker: u128,
        kinds: usize,
        slots: u32,
    },
    Beat {
        worker: u128,
        is_circuit_open: bool,
        is_draining: bool,
    },
    Submit {
        is_fox: bool,
    },
    Fail {
        which: prop::sample::Index,
    },
    Vacate {
        which: prop::sample::Index,
    },
    Advance {
        seconds: u64,
    },
}

fn one() -> impl Strategy<Value = Move> {
    let which = any::<prop::sample::Index>;
    let workers = || 1u128..16;
    prop_oneof![
        3 => (workers(), 0usize..3, 0u32..6)
            .prop_map(|(worker, kinds, slots)| Move::Register { worker, kinds, slots }),
        3 => (workers(), prop::bool::weighted(0.2), prop::bool::weighted(0.05)).prop_map(
            |(worker, is_circuit_open, is_draining)| Move::Beat { worker, is_circuit_open, is_draining }),
        10 => any::<bool>().prop_map(|is_fox| Move::Submit { is_fox }),
        4 => which().prop_map(|which| Move::Fail { which }),
        3 => which().prop_map(|which| Move::Vacate { which }),
        1 => (0u64..6).prop_map(|seconds| Move::Advance { seconds }),
    ]
}

/// Everybody, as choosing sees them.
fn candidates(fleet: &Fleet) -> Vec<Candidate> {
    let ttl = fleet.ledger.rules().liveness_ttl;
    let rows = fleet.ledger.workers(None).into_iter();
    rows.map(|row| Candidate {
        worker: row.id,
        state: row.state,
        is_fresh: row.heard_at + ttl > fleet.now,
        is_circuit_open: row.is_circuit_open,
        browsers: row.browsers,
        slots: row.slots,
        busy: row.busy,
        lifetime: row.lifetime,
    })
    .collect()
}

fn play(fleet: &mut Fleet, seated: &mut Vec<SessionId>, n: u128, one: &Move) -> Result<(), TestCaseError> {
    match one {
        Move::Register { worker, kinds, slots } => {
            let by_number = [
                vec![BrowserKind::Chromium],
                vec![BrowserKind::Firefox, BrowserKind::Firefox],
                vec![BrowserKind::Firefox, BrowserKind::Chromium],
            ];
            fleet.register(*worker, &by_number[*kinds], *slots);
        }
        Move::Beat {
            worker: n,
            is_circuit_open,
            is_draining,
        } => {
            let leases = fleet.ledger.snapshot(fleet.now).leases;
            let own = leases.into_iter().filter(|(_, seat)| seat.worker == worker(*n));
            fleet.apply(Op::Heartbeat {
                heartbeat: Heartbeat {
                    held: own.map(|(session, seat)| (session, seat.epoch)).collect(),
                    is_circuit_open: *is_circuit_open,
                    is_draining: *is_draining,
                    ..heartbeat(*n, &[])
                },
            });
        }
        Move::Submit { is_fox } => {
            let class = [BrowserKind::Chromium, BrowserKind::Firefox][usize::from(*is_fox)];
            let expected = choose(class, &candidates(fleet), &[]);
            let found = match fleet.submit(n, class, "session") {
                Answer::Submitted(Submitted::Placed(record)) => record.worker,
                _ => None,
            };
            prop_assert_eq!(found, expected);
            seated.extend(found.map(|_| session(n)));
        }
        Move::Fail { which } if !seated.is_empty() => return fail(fleet, *which.get(seated)),
        Move::Vacate { which } if !seated.is_empty() => {
            let session = seated.swap_remove(which.index(seated.len()));
            let epoch = fleet.ledger.session(session).map_or(Epoch(0), |record| record.epoch);
            fleet.apply(Op::Vacate { session, epoch });
        }
        Move::Advance { seconds } => fleet.advance(*seconds),
        Move::Fail { .. } | Move::Vacate { .. } => {}
    }
    Ok(())
}

/// A placement fails: the slot is free again, the worker is the last resort.
fn fail(fleet: &mut Fleet, session: SessionId) -> Result<(), TestCaseError> {
    let Some(record) = fleet.ledger.session(session).cloned() else {
        return Ok(());
    };
    let (SessionState::Placed(seat) | SessionState::Starting(seat)) = record.state else {
        return Ok(());
    };
    let mut all = candidates(fleet);
    let own = all.iter_mut().find(|candidate| candidate.worker == seat.worker);
    own.unwrap().busy -= 1;
    let mut excluded = record.excluded;
    excluded.push(seat.worker);
    let expected = choose(record.spec.browser, &all, &excluded);
    let failure = PlacementFailure {
        session,
        epoch: seat.epoch,
        cause: String::new(),
        is_worker_absent: false,
    };
    let Answer::Replaced(replaced) = fleet.apply(Op::PlacementFailed { failure }) else {
        panic!("a failed placement is replaced");
    };
    match replaced {
        Replaced::Placed(record) => prop_assert_eq!(record.worker, expected),
        other => prop_assert!(matches!(other, Replaced::Queued(_)) && expected.is_none()),
    }
    Ok(())
}

proptest! {
    #[test]
    fn worker_looked_up_is_the_one_that_is_chosen(moves in prop::collection::vec(one(), 1..120)) {
        let mut fleet = Fleet::with_rules(StoreRules {
            max_attempts: 100,
            ticket_lease: Duration::from_secs(100_000),
            ..StoreRules::default()
        });
        let mut seated = Vec::new();
        for (n, one) in moves.iter().enumerate() {
            play(&mut fleet, &mut seated, n as u128 + 1, one)?;
            // Nobody waits when the next one comes, so that what it gets is the first choice.
            fleet.apply(Op::ClearQueue {
                filter: Default::default(),
                reason: wharf_core::EndReason::Killed,
                detail: String::new(),
            });
        }
        fleet.ledger.audit().unwrap();
    }
}
