//! The runner of random sequences: engine and model get the same operations at the same times and must agree.
//!
//! Its own file because it is what an engine's test calls. After every operation: equal answers, equal news in equal
//! order, equal snapshots, counts and places; no violated invariant; order and endings as an outsider expects.

use std::sync::Arc;

use proptest::{
    prelude::*,
    test_runner::{Config, TestCaseError, TestRunner},
};
use tokio::sync::broadcast;

use super::{
    Harness, ManualClock,
    kit::seconds,
    ops::{Op, op},
    ops_hold::seen,
    watch::Watch,
};
use crate::{Change, EventPage, SessionRecord, Snapshot, Store, StoreError, StoreRules, invariants};

/// What proptest runs when nobody says otherwise.
const USUAL_CASES: u32 = 256;

/// Operations in one sequence, at most.
const LONGEST: usize = 80;

/// Short spans, so that random jumps of time reach all of them.
const RULES: StoreRules = StoreRules {
    liveness_ttl: seconds(10),
    ticket_lease: seconds(5),
    starting_grace: seconds(8),
    lease_grace: seconds(4),
    history: seconds(40),
    max_attempts: 2,
};

/// An engine with its own ear for news.
struct Party {
    store: Arc<dyn Store>,
    changes: broadcast::Receiver<Change>,
    /// The newest event seen.
    last_event: u64,
}

/// Runs random sequences against an engine, and against the model where one is given. Panics with the smallest sequence
/// that fails.
pub fn check(engine: &dyn Harness, model: Option<&dyn Harness>, cases: u32) {
    let usual = Config::default();
    let config = Config {
        // `PROPTEST_CASES` says otherwise.
        cases: if usual.cases == USUAL_CASES { cases } else { usual.cases },
        failure_persistence: None,
        max_shrink_iters: 4_000,
        ..usual
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime needs nothing a test host lacks");
    let outcome = TestRunner::new(config).run(&prop::collection::vec(op(), 1..LONGEST), |ops| {
        runtime.block_on(sequence(engine, model, &ops))
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

async fn sequence(engine: &dyn Harness, model: Option<&dyn Harness>, ops: &[Op]) -> Result<(), TestCaseError> {
    let clock = Arc::new(ManualClock::new());
    let forgets_ids = engine.forgets_ids();
    let engine = Party::open(engine, &clock).await;
    let model = match model {
        Some(model) => Some(Party::open(model, &clock).await),
        None => None,
    };
    let outcome = compare(engine, model, (&clock, forgets_ids), ops).await;
    outcome.map_err(|error| TestCaseError::fail(error.to_string()))?
}

/// The outer result is the store failing, the inner one the store being wrong.
async fn compare(
    mut engine: Party,
    mut model: Option<Party>,
    (clock, forgets_ids): (&ManualClock, bool),
    ops: &[Op],
) -> Result<Result<(), TestCaseError>, StoreError> {
    let mut watch = Watch::default();
    let mut submitted = 0u128;
    let mut before = Snapshot::default();
    for (index, op) in ops.iter().enumerate() {
        if let Op::Advance { millis } = op {
            clock.advance(std::time::Duration::from_millis(*millis));
        }
        if let Some(submission) = op.submission(submitted, &before) {
            let ended = |record: &&SessionRecord| record.id == submission.session && record.state.is_ended();
            if forgets_ids && before.sessions.iter().find(ended).is_some() {
                continue;
            }
            watch.submitted(submission.session);
        }
        let said = engine.look(op, submitted, &before).await?;
        if let Some(model) = &mut model {
            let expected = model.look(op, submitted, &before).await?;
            if said.text != expected.text {
                let (said, expected) = (&said.text, &expected.text);
                let told = format!("step {index} {op:?}:\n  engine: {said}\n   model: {expected}");
                return Ok(Err(TestCaseError::fail(told)));
            }
        }
        let mut wrong = invariants::violations(&said.snapshot);
        wrong.extend(watch.step(&said.snapshot, &said.news));
        if !wrong.is_empty() {
            return Ok(Err(TestCaseError::fail(format!("step {index} {op:?}: {wrong:#?}"))));
        }
        submitted += u128::from(matches!(op, Op::Submit { .. }));
        before = said.snapshot;
    }
    engine.store.close().await?;
    Ok(Ok(()))
}

/// Everything an operation answered and left behind.
struct Said {
    text: String,
    news: Vec<Change>,
    snapshot: Snapshot,
}

// === impl Party ===

impl Party {
    async fn open(harness: &dyn Harness, clock: &Arc<ManualClock>) -> Self {
        let store = harness.open(Arc::clone(clock), RULES).await;
        Self {
            changes: store.changes(),
            store,
            last_event: 0,
        }
    }

    async fn look(&mut self, op: &Op, submitted: u128, before: &Snapshot) -> Result<Said, StoreError> {
        let answer = op.apply(&*self.store, submitted, before).await?;
        let mut news = Vec::new();
        while let Ok(change) = self.changes.try_recv() {
            news.push(match change {
                // Whose step it was is a matter of the listener, not of the contract's order.
                Change::EndedElsewhere(ended) => Change::Ended(ended),
                other => other,
            });
        }
        let snapshot = self.store.snapshot().await?;
        let mut places = Vec::new();
        for record in snapshot.sessions.iter().rev().take(4) {
            places.push(self.store.position(record.id).await?);
        }
        let stats = self.store.stats().await?;
        let seen = seen(&*self.store).await?;
        let happened = self.store.events(self.last_event, u32::MAX).await?;
        let wrong = contiguous(self.last_event, &happened);
        self.last_event = happened.newest;
        let shown = comparable(&snapshot);
        let text = format!(
            "{answer}\n  news: {news:?}\n  {stats:?}\n  places: {places:?}\n  {seen}\n  {:?}{wrong}\n  {shown:?}",
            happened.events
        );
        Ok(Said { text, news, snapshot })
    }
}

/// Events are numbered without gaps, whatever the engine; what is wrong, if anything.
fn contiguous(after: u64, page: &EventPage) -> &'static str {
    let numbers = page.events.iter().map(|event| event.number);
    match numbers.eq(after + 1..=page.newest) {
        true => "",
        false => " THE NUMBERS OF EVENTS HAVE GAPS",
    }
}

/// A snapshot whose numbers are ranks: engines may leave gaps, but the order is the contract.
fn comparable(snapshot: &Snapshot) -> Snapshot {
    let mut numbers: Vec<_> = snapshot.sessions.iter().map(|record| record.number).collect();
    numbers.sort_unstable();
    let rank = |number| numbers.partition_point(|other| *other < number) as u64;
    let sessions = snapshot.sessions.iter();
    let sessions = sessions
        .map(|record| SessionRecord {
            number: rank(record.number),
            ..record.clone()
        })
        .collect();
    Snapshot {
        sessions,
        ..snapshot.clone()
    }
}
