//! Random runs that live in the archive: few idempotency keys, short lives, and everything asked of sessions that are
//! gone from the ledger. (The suite's own runs seldom come back with the key of a session that has been active, has
//! ended and was archived.)

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use proptest::{prelude::*, test_runner::TestCaseError};
use tokio::sync::broadcast;
use uuid::Uuid;
use wharf_core::{
    BrowserKind, CoordinatorId, Cover, EndReason, Epoch, KeyId, LockToken, PoolName, SessionId, SessionSpec, WorkerId,
};
use wharf_store::{
    Change, LockWish, PlacementFailure, Registration, SessionQuery, Store, StoreError, StoreRules, Submission,
    Submitted,
    conformance::{Harness, ManualClock},
};

use crate::{
    Model,
    engine::{FROM_ARCHIVE, Variant},
};

const RULES: StoreRules = StoreRules {
    liveness_ttl: Duration::from_secs(1_000_000),
    ticket_lease: Duration::from_secs(1_000),
    starting_grace: Duration::from_secs(5),
    lease_grace: Duration::from_secs(1_000),
    history: Duration::from_secs(10),
    max_attempts: 2,
};

#[derive(Debug, Clone)]
enum Move {
    /// Submits; if placed, goes this far: activated, ended, vacated.
    Live {
        key: u8,
        owner: u8,
        data: u8,
        steps: u8,
    },
    End {
        back: u128,
    },
    Vacate {
        back: u128,
    },
    Fail {
        back: u128,
        epoch: u32,
    },
    List {
        after: Option<u128>,
        newest_first: bool,
        limit: u32,
    },
    Lock {
        seconds: u64,
    },
    Sweep,
    Advance {
        seconds: u64,
    },
}

fn one() -> impl Strategy<Value = Move> {
    let back = || 0u128..6;
    prop_oneof![
        8 => (0u8..3, 0u8..2, 0u8..2, prop_oneof![3 => Just(3u8), 2 => 0u8..3])
            .prop_map(|(key, owner, data, steps)| Move::Live { key, owner, data, steps }),
        2 => back().prop_map(|back| Move::End { back }),
        2 => back().prop_map(|back| Move::Vacate { back }),
        2 => (back(), 0u32..3).prop_map(|(back, epoch)| Move::Fail { back, epoch }),
        1 => (prop::option::of(back()), any::<bool>(), 0u32..6)
            .prop_map(|(after, newest_first, limit)| Move::List { after, newest_first, limit }),
        1 => (0u64..6).prop_map(|seconds| Move::Lock { seconds }),
        2 => Just(Move::Sweep),
        3 => (0u64..6).prop_map(|seconds| Move::Advance { seconds }),
    ]
}

fn session(n: u128) -> SessionId {
    SessionId::from_uuid(Uuid::from_u128(n))
}

fn submission(n: u128, key: u8, owner: u8, data: u8) -> Submission {
    Submission {
        session: session(n),
        coordinator: CoordinatorId::from_uuid(Uuid::from_u128(n % 2)),
        spec: SessionSpec {
            data: data.into(),
            ..SessionSpec::default()
        },
        owner: (owner > 0).then(|| KeyId::from_uuid(Uuid::from_u128(1))),
        idempotency_key: (key > 0).then(|| key.to_string()),
        queue_limit: 3,
    }
}

impl Move {
    async fn play(&self, store: &dyn Store, n: u128) -> Result<String, StoreError> {
        let target = |back: &u128| session(n.saturating_sub(*back));
        Ok(match self {
            Self::Live {
                key,
                owner,
                data,
                steps,
            } => {
                let answer = store.submit(submission(n, *key, *owner, *data)).await?;
                if let Submitted::Placed(record) = &answer {
                    let (id, epoch) = (record.id, record.epoch);
                    if *steps > 0 {
                        store.activate(id, epoch).await?;
                    }
                    if *steps > 1 {
                        store.end(id, EndReason::Released, None).await?;
                    }
                    if *steps > 2 {
                        store.vacate(id, epoch).await?;
                    }
                }
                format!("{answer:?}")
            }
            Self::End { back } => format!("{:?}", store.end(target(back), EndReason::Killed, None).await?),
            Self::Vacate { back } => format!("{:?}", store.vacate(target(back), Epoch(1)).await?),
            Self::Fail { back, epoch } => {
                let failure = PlacementFailure {
                    session: target(back),
                    epoch: Epoch(*epoch),
                    cause: "no such binary".to_owned(),
                    is_worker_absent: false,
                };
                format!("{:?}", store.placement_failed(failure).await?)
            }
            Self::List {
                after,
                newest_first,
                limit,
            } => {
                let query = SessionQuery {
                    after: after.as_ref().map(target),
                    newest_first: *newest_first,
                    limit: *limit,
                    ..SessionQuery::default()
                };
                format!("{:?}", store.sessions(&query).await?)
            }
            Self::Lock { seconds } => {
                let wish = LockWish {
                    name: "exclusive".parse().unwrap(),
                    token: LockToken::from_uuid(Uuid::from_u128(n)),
                    holder: String::new(),
                    description: String::new(),
                    cover: Cover::default(),
                    ttl: Duration::from_secs(*seconds),
                    owner: None,
                };
                format!("{:?}", store.acquire_lock(wish).await?)
            }
            Self::Sweep => format!("{:?}", store.sweep().await?),
            Self::Advance { .. } => String::new(),
        })
    }
}

/// All that can be seen after a move.
async fn seen(store: &dyn Store, changes: &mut broadcast::Receiver<Change>, n: u128) -> Result<String, StoreError> {
    let mut news = Vec::new();
    while let Ok(change) = changes.try_recv() {
        news.push(change);
    }
    let mut records = Vec::new();
    for back in 0..4 {
        records.push(store.session(session(n.saturating_sub(back))).await?);
    }
    let (snapshot, events) = (store.snapshot().await?, store.events(0, u32::MAX).await?);
    Ok(format!(
        "{news:?}\n{records:?}\n{snapshot:?}\n{events:?}\n{:?}",
        store.stats().await?
    ))
}

async fn run(moves: &[Move]) -> Result<Result<(), TestCaseError>, StoreError> {
    let clock = Arc::new(ManualClock::new());
    let stores = [
        Variant::Archiving.open(Arc::clone(&clock), RULES).await,
        Model.open(Arc::clone(&clock), RULES).await,
    ];
    let mut ears = stores.each_ref().map(|store| store.changes());
    for store in &stores {
        let registration = Registration {
            worker: WorkerId::from_uuid(Uuid::from_u128(1)),
            pool: PoolName::default(),
            browsers: vec![BrowserKind::Chromium],
            slots: 4,
            address: String::new(),
            is_ready: true,
        };
        store.register(registration).await?;
    }
    for (n, one) in moves.iter().enumerate() {
        if let Move::Advance { seconds } = one {
            clock.advance(Duration::from_secs(*seconds));
        }
        let n = n as u128 + 1;
        let mut texts = Vec::new();
        for (store, ear) in stores.iter().zip(&mut ears) {
            let answer = one.play(&**store, n).await?;
            texts.push(format!("{answer}\n{}", seen(&**store, ear, n).await?));
        }
        if texts[0] != texts[1] {
            let told = format!("move {n} {one:?}:\nledger: {}\n\n model: {}", texts[0], texts[1]);
            return Ok(Err(TestCaseError::fail(told)));
        }
    }
    Ok(Ok(()))
}

#[test]
fn sessions_in_the_archive_are_answered_for_as_if_they_were_here() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let config = ProptestConfig {
        cases: 500,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(config, |(moves in prop::collection::vec(one(), 1..60))| {
        runtime.block_on(run(&moves)).unwrap()?;
    });
    let met = FROM_ARCHIVE.load(Ordering::SeqCst);
    println!("{met} submissions met a session in the archive by their key");
    assert!(met > 100, "the runs have hardly met the archive: {met}");
}
