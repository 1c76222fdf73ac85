//! Random operations, and their answers in a form that can be compared.
//!
//! Its own file because it is the vocabulary of the random runs. Operations name sessions and workers by small numbers
//! and placements by their distance from the current one, so that a sequence stays meaningful while it shrinks.

use std::time::Duration;

use proptest::prelude::*;
use wharf_core::{BrowserKind, EndReason, Epoch, SessionId, SessionSpec, SessionStatus, Timeouts};

use super::{
    kit::{coordinator, heartbeat, key as key_id, priority, registration, seconds, session, submission, worker},
    ops_hold::{HoldOp, hold_op, operation_name, pool_name},
};
use crate::{
    Freed, HeartbeatReply, PlacementFailure, Registration, Replaced, SessionQuery, SessionRecord, Snapshot, Store,
    StoreError, Submission, Submitted, Touch,
};

/// How a worker's report differs from what the store believes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Report {
    Exact,
    Nothing,
    FirstMissing,
    WrongEpoch,
    Stranger,
}

/// One random operation.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    Register {
        worker: u128,
        pool: usize,
        kinds: usize,
        slots: u32,
        is_ready: bool,
    },
    Heartbeat {
        worker: u128,
        report: Report,
        is_circuit_open: bool,
        is_ready: bool,
        is_draining: bool,
        warm: u32,
        wants_recycling: bool,
    },
    DrainWorker {
        worker: u128,
    },
    RemoveWorker {
        worker: u128,
    },
    Deregister {
        worker: u128,
    },
    Submit {
        coordinator: u128,
        pool: usize,
        kind: usize,
        priority: i64,
        key: Option<u8>,
        limit: u64,
        hurry: usize,
        operation: usize,
        owner: Option<u128>,
    },
    SubmitAgain {
        back: usize,
        is_other: bool,
    },
    Claim {
        back: usize,
        stale: u32,
    },
    Activate {
        back: usize,
        stale: u32,
    },
    Fail {
        back: usize,
        stale: u32,
        is_worker_absent: bool,
    },
    Touch {
        back: usize,
        idle_for: u64,
        is_attached: bool,
    },
    End {
        back: usize,
        reason: EndReason,
    },
    Vacate {
        back: usize,
        stale: u32,
    },
    Renew {
        coordinator: u128,
    },
    Dispatch,
    Sweep,
    List {
        pool: usize,
        status: usize,
        newest_first: bool,
        after: Option<usize>,
        limit: u32,
        owner: Option<u128>,
    },
    Hold(HoldOp),
    Advance {
        millis: u64,
    },
}

pub(crate) fn op() -> impl Strategy<Value = Op> {
    // Seldom an old placement: mostly a run should get somewhere.
    let stale = || prop_oneof![6 => Just(0u32), 1 => Just(1)];
    let back = || 0usize..8;
    let report = prop_oneof![
        6 => Just(Report::Exact),
        1 => Just(Report::Nothing),
        1 => Just(Report::FirstMissing),
        1 => Just(Report::WrongEpoch),
        1 => Just(Report::Stranger),
    ];
    let reason = prop::sample::select(vec![
        EndReason::Released,
        EndReason::Cancelled,
        EndReason::BrowserCrashed,
    ]);
    // Mostly whole seconds, so that sums of jumps meet the rules' spans exactly: edges are where engines differ.
    let millis = prop_oneof![4 => (0u64..6).prop_map(|n| n * 1_000), 1 => 0u64..6_000, 1 => 6_000u64..30_000];
    prop_oneof![
        3 => (1u128..5, 0usize..2, 0usize..3, 0u32..4, prop::bool::weighted(0.8)).prop_map(
            |(worker, pool, kinds, slots, is_ready)| Op::Register { worker, pool, kinds, slots, is_ready }),
        6 => (1u128..5, report, prop::bool::weighted(0.1), prop::bool::weighted(0.9), prop::bool::weighted(0.05), 0u32..3,
            prop::bool::weighted(0.1))
            .prop_map(|(worker, report, is_circuit_open, is_ready, is_draining, warm, wants_recycling)| Op::Heartbeat {
                worker, report, is_circuit_open, is_ready, is_draining, warm, wants_recycling }),
        1 => (1u128..5).prop_map(|worker| Op::DrainWorker { worker }),
        1 => (1u128..5).prop_map(|worker| Op::RemoveWorker { worker }),
        1 => (1u128..5).prop_map(|worker| Op::Deregister { worker }),
        14 => (1u128..4, 0usize..2, 0usize..2, -1i64..2, prop::option::weighted(0.15, 0u8..3), 0u64..7, 0usize..4,
            0usize..3, prop::option::weighted(0.4, 1u128..4))
            .prop_map(|(coordinator, pool, kind, priority, key, limit, hurry, operation, owner)| Op::Submit {
                coordinator, pool, kind, priority, key, limit, hurry, operation, owner }),
        1 => (back(), any::<bool>()).prop_map(|(back, is_other)| Op::SubmitAgain { back, is_other }),
        5 => (back(), stale()).prop_map(|(back, stale)| Op::Claim { back, stale }),
        6 => (back(), stale()).prop_map(|(back, stale)| Op::Activate { back, stale }),
        4 => (back(), stale(), prop::bool::weighted(0.3)).prop_map(|(back, stale, is_worker_absent)| Op::Fail {
            back, stale, is_worker_absent }),
        3 => (back(), 0u64..8, any::<bool>()).prop_map(|(back, idle_for, is_attached)| Op::Touch {
            back, idle_for, is_attached }),
        6 => (back(), reason).prop_map(|(back, reason)| Op::End { back, reason }),
        6 => (back(), stale()).prop_map(|(back, stale)| Op::Vacate { back, stale }),
        3 => (1u128..4).prop_map(|coordinator| Op::Renew { coordinator }),
        1 => Just(Op::Dispatch),
        4 => Just(Op::Sweep),
        1 => (0usize..3, 0usize..6, any::<bool>(), prop::option::of(back()), 0u32..6,
            prop::option::weighted(0.3, 1u128..4)).prop_map(
            |(pool, status, newest_first, after, limit, owner)| Op::List {
                pool, status, newest_first, after, limit, owner }),
        9 => hold_op().prop_map(Op::Hold),
        6 => millis.prop_map(|millis| Op::Advance { millis }),
    ]
}

/// The session that `back` names: the newest is 0; what was never submitted is a stranger.
fn target(submitted: u128, back: usize) -> SessionId {
    session(submitted.saturating_sub(back as u128))
}

fn epoch(snapshot: &Snapshot, session: SessionId, stale: u32) -> Epoch {
    let found = snapshot.sessions.iter().find(|record| record.id == session);
    Epoch(found.map_or(0, |record| record.epoch.0).saturating_sub(stale))
}

fn spec((pool, operation): (usize, usize), kind: usize, number: i64, hurry: usize) -> SessionSpec {
    let timeouts = [
        Timeouts::default(),
        Timeouts {
            queue: seconds(7),
            connect: Some(seconds(3)),
            idle: Some(seconds(4)),
            max_duration: None,
        },
        Timeouts {
            queue: seconds(30),
            connect: None,
            idle: Some(seconds(6)),
            max_duration: Some(seconds(9)),
        },
        Timeouts {
            queue: Duration::ZERO,
            connect: None,
            idle: None,
            max_duration: None,
        },
    ];
    SessionSpec {
        pool: pool_name(pool),
        operation: operation_name(operation),
        browser: BrowserKind::ALL[kind],
        priority: priority(number),
        timeouts: timeouts[hurry],
        ..SessionSpec::default()
    }
}

impl Op {
    /// The submission this stands for, given how many sessions there were.
    pub(crate) fn submission(&self, submitted: u128, snapshot: &Snapshot) -> Option<Submission> {
        match self {
            Self::Submit {
                coordinator: by,
                pool,
                kind,
                priority,
                key,
                limit,
                hurry,
                operation,
                owner,
            } => Some(Submission {
                session: session(submitted + 1),
                coordinator: coordinator(*by),
                spec: spec((*pool, *operation), *kind, *priority, *hurry),
                owner: owner.map(key_id),
                idempotency_key: key.map(|key| format!("key-{key}")),
                queue_limit: *limit,
            }),
            Self::SubmitAgain { back, is_other } => {
                let id = target(submitted, *back);
                let known = snapshot.sessions.iter().find(|record| record.id == id)?;
                let mut again = Submission {
                    session: id,
                    spec: known.spec.clone(),
                    ..submission(0)
                };
                if *is_other {
                    again.spec.description.push('!');
                }
                Some(again)
            }
            _ => None,
        }
    }

    /// Runs it and answers with everything it said.
    pub(crate) async fn apply(
        &self,
        store: &dyn Store,
        submitted: u128,
        before: &Snapshot,
    ) -> Result<String, StoreError> {
        let at = |back: &usize, stale: &u32| {
            let session = target(submitted, *back);
            (session, epoch(before, session, *stale))
        };
        Ok(match self {
            Self::Register { .. }
            | Self::Heartbeat { .. }
            | Self::Deregister { .. }
            | Self::DrainWorker { .. }
            | Self::RemoveWorker { .. } => self.apply_worker(store, before).await?,
            Self::Submit { .. } | Self::SubmitAgain { .. } => match self.submission(submitted, before) {
                Some(submission) => submitted_text(store.submit(submission).await?),
                None => String::new(),
            },
            Self::Claim { back, stale } => {
                let (session, epoch) = at(back, stale);
                record_text(store.claim(session, epoch).await?)
            }
            Self::Activate { back, stale } => {
                let (session, epoch) = at(back, stale);
                record_text(store.activate(session, epoch).await?)
            }
            Self::Fail {
                back,
                stale,
                is_worker_absent,
            } => {
                let (session, epoch) = at(back, stale);
                let failure = PlacementFailure {
                    session,
                    epoch,
                    cause: "no such binary".to_owned(),
                    is_worker_absent: *is_worker_absent,
                };
                replaced_text(store.placement_failed(failure).await?)
            }
            Self::Vacate { back, stale } => {
                let (session, epoch) = at(back, stale);
                freed_text(&store.vacate(session, epoch).await?)
            }
            _ => self.apply_rest(store, submitted).await?,
        })
    }

    async fn apply_worker(&self, store: &dyn Store, before: &Snapshot) -> Result<String, StoreError> {
        Ok(match self {
            Self::Register {
                worker,
                pool,
                kinds,
                slots,
                is_ready,
            } => {
                let browsers = match kinds {
                    0 => vec![BrowserKind::Chromium],
                    1 => vec![BrowserKind::Firefox],
                    _ => vec![BrowserKind::Firefox, BrowserKind::Chromium],
                };
                let base = registration(*worker, *slots);
                let arrival = Registration {
                    pool: pool_name(*pool),
                    browsers,
                    is_ready: *is_ready,
                    ..base
                };
                freed_text(&store.register(arrival).await?.freed)
            }
            Self::Heartbeat {
                worker: n,
                report,
                is_circuit_open,
                is_ready,
                is_draining,
                warm,
                wants_recycling,
            } => {
                let mut beat = heartbeat(*n, &[]);
                beat.held = held(*n, *report, before);
                beat.is_circuit_open = *is_circuit_open;
                beat.is_ready = *is_ready;
                beat.is_draining = *is_draining;
                beat.warm = *warm;
                beat.launching = 2 - *warm;
                beat.load.memory_used = u64::from(*warm) << 20;
                beat.wants_recycling = *wants_recycling;
                match store.heartbeat(beat).await? {
                    HeartbeatReply::Unknown => "unknown".to_owned(),
                    HeartbeatReply::Known { end, drain, freed } => {
                        format!("end {end:?} drain {drain} {}", freed_text(&freed))
                    }
                }
            }
            Self::DrainWorker { worker: n } => format!("{:?}", store.drain_worker(worker(*n)).await?),
            Self::RemoveWorker { worker: n } => format!("{:?}", store.remove_worker(worker(*n)).await?),
            Self::Deregister { worker: n } => freed_text(&store.deregister(worker(*n)).await?),
            _ => String::new(),
        })
    }

    async fn apply_rest(&self, store: &dyn Store, submitted: u128) -> Result<String, StoreError> {
        Ok(match self {
            Self::Touch {
                back,
                idle_for,
                is_attached,
            } => {
                let session = target(submitted, *back);
                let touch = Touch {
                    session,
                    idle_for: seconds(*idle_for),
                    is_attached: *is_attached,
                };
                store.touch(&[touch, touch]).await?;
                String::new()
            }
            Self::End { back, reason } => {
                let detail = Some("because".to_owned());
                match store.end(target(submitted, *back), *reason, detail).await? {
                    crate::Ended::Now(record) => format!("now {}", record_text(Some(*record))),
                    crate::Ended::Before(record) => format!("before {}", record_text(Some(*record))),
                    crate::Ended::Unknown => "unknown".to_owned(),
                }
            }
            Self::Renew { coordinator: n } => store.renew_tickets(coordinator(*n)).await?.to_string(),
            Self::Dispatch => format!("{:?}", store.dispatch().await?),
            Self::Sweep => freed_text(&store.sweep().await?),
            Self::Hold(hold) => hold.apply(store).await?,
            Self::List {
                pool,
                status,
                newest_first,
                after,
                limit,
                owner,
            } => {
                let query = SessionQuery {
                    pool: (*pool < 2).then(|| pool_name(*pool)),
                    statuses: SessionStatus::ALL.get(*status).copied().into_iter().collect(),
                    after: after.map(|back| target(submitted, back)),
                    newest_first: *newest_first,
                    limit: *limit,
                    owner: owner.map(key_id),
                    ..SessionQuery::default()
                };
                let found = store.sessions(&query).await?;
                found
                    .into_iter()
                    .map(|record| record_text(Some(record)))
                    .collect::<Vec<_>>()
                    .join("\n")
            }
            _ => String::new(),
        })
    }
}

fn held(n: u128, report: Report, before: &Snapshot) -> Vec<(SessionId, Epoch)> {
    let own = before.leases.iter().filter(|(_, seat)| seat.worker == worker(n));
    let mut held: Vec<_> = own.map(|(session, seat)| (*session, seat.epoch)).collect();
    match report {
        Report::Exact => {}
        Report::Nothing => held.clear(),
        Report::FirstMissing => held = held.split_off(held.len().min(1)),
        Report::WrongEpoch => held.iter_mut().for_each(|(_, epoch)| *epoch = epoch.next()),
        Report::Stranger => {
            held.push((session(9_999), Epoch(1)));
            held.extend(
                before
                    .leases
                    .iter()
                    .take(1)
                    .map(|(session, seat)| (*session, seat.epoch)),
            );
        }
    }
    held
}

// === answers ===

/// A record without its number: engines may leave gaps; the order is compared in snapshots.
pub(crate) fn record_text(record: Option<SessionRecord>) -> String {
    format!("{:?}", record.map(|record| SessionRecord { number: 0, ..record }))
}

pub(crate) fn freed_text(freed: &Freed) -> String {
    format!("{freed:?}")
}

fn submitted_text(submitted: Submitted) -> String {
    match submitted {
        Submitted::Placed(record) => format!("placed {}", record_text(Some(*record))),
        Submitted::Queued { record, position } => format!("queued at {position} {}", record_text(Some(*record))),
        Submitted::Known(record) => format!("known {}", record_text(Some(*record))),
        other => format!("{other:?}"),
    }
}

fn replaced_text(replaced: Replaced) -> String {
    match replaced {
        Replaced::Placed(record) => format!("placed {}", record_text(Some(*record))),
        Replaced::Queued(record) => format!("queued {}", record_text(Some(*record))),
        Replaced::Ended(record) => format!("ended {}", record_text(Some(*record))),
        Replaced::Stale => "stale".to_owned(),
    }
}
