//! The rules of the store as a pure state machine: an operation and a time go in, an answer and news come out.
//!
//! Layout:
//! - this file: [`Ledger`]. [`op`]: operations and answers. `apply`: from one to the other.
//! - `rules`: the operations themselves, sentence by sentence those of the reference engine (`wharf-store-memory`).
//! - `step`: one operation under way, and the moves that rules are made of.
//! - `book`: the records, and the indices that spare the rules from searching.
//! - `look`: reading. `image`: the whole as text, and back. `text`: reading any text of ours.
//!
//! Every coordinator of a fleet applies the same journal of operations to a ledger of its own, and all must come to the
//! same state and the same answers. So there is no clock here, no chance, no order that is not a key's order, and no
//! fraction. And since every coordinator does the work of the whole fleet, the cost of an operation must not grow with
//! the number of sessions, waiters or workers: whatever an operation needs is looked up.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod apply;
mod book;
mod image;
mod look;
pub mod op;
mod rules;
mod step;
mod text;

use std::time::Duration;

use wharf_core::{CoordinatorId, Timestamp};
use wharf_store::{Change, SessionRecord, SetBack, StoreRules};

pub use op::{Answer, Op};
pub use text::read_text;

use crate::{book::Book, step::Step};

/// The state that a journal of operations leads to.
#[derive(Debug)]
pub struct Ledger {
    book: Book,
    /// What became of events that a predecessor told; not part of the image: it is this process' own experience.
    set_back: SetBack,
}

/// What an operation answered and announced.
#[derive(Debug, Clone, PartialEq)]
pub struct Applied {
    /// For whoever asked for it.
    pub answer: Answer,
    /// For everybody: placements and ends in order, then up to which number there are events.
    pub news: Vec<Change>,
}

/// A text that is no image of a ledger, or a ledger that cannot be written as one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("could not make sense of the image of a ledger: {0}")]
pub struct BadImage(String);

// === impl Ledger ===

impl Ledger {
    /// An empty one.
    pub fn new(rules: StoreRules) -> Self {
        Self {
            book: Book::new(rules),
            set_back: SetBack::default(),
        }
    }

    /// Applies one operation at this time; time never steps back (an earlier `at` counts as the latest seen).
    pub fn apply(&mut self, at: Timestamp, op: Op) -> Applied {
        self.book.advance_to(at);
        let mut step = Step::new(&mut self.book);
        let answer = step.apply(op);
        Applied {
            answer,
            news: step.finish_step(),
        }
    }

    /// The whole state as JSON. Two ledgers in the same state have equal images.
    pub fn image(&self) -> Result<String, BadImage> {
        self.book.image()
    }

    /// A ledger in the state that an image tells of.
    pub fn from_image(image: &str) -> Result<Self, BadImage> {
        Book::from_image(image).map(|book| Self {
            book,
            set_back: SetBack::default(),
        })
    }

    /// The rules in force.
    pub fn rules(&self) -> StoreRules {
        *self.book.rules()
    }

    /// The latest time seen.
    pub fn now(&self) -> Timestamp {
        self.book.now()
    }

    /// Whether a `Sweep` at this time would change anything. May say yes too often, never no wrongly.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.book.is_due(now)
    }

    /// How many tickets a coordinator has (renewing none needs no operation).
    pub fn tickets(&self, coordinator: CoordinatorId) -> u64 {
        let own = self.book.index().tickets.get(&coordinator);
        own.map_or(0, |own| own.len() as u64)
    }

    /// Ended sessions without a lease that ended at least `age` before `now`, of this coordinator if one is given; the
    /// oldest first, at most `limit`.
    pub fn archivable(
        &self,
        now: Timestamp,
        age: Duration,
        of: Option<CoordinatorId>,
        limit: usize,
    ) -> Vec<&SessionRecord> {
        let index = self.book.index();
        let rested = match of {
            Some(coordinator) => index.rested_of.get(&coordinator),
            None => Some(&index.rested),
        };
        let old = rested
            .into_iter()
            .flatten()
            .take_while(|(ended_at, _)| *ended_at + age <= now);
        let records = old.filter_map(|(_, session)| self.book.record(*session));
        records.take(limit).collect()
    }

    /// Makes all indices anew and compares. For tests, and for an operator who finds that replicas disagree.
    pub fn audit(&self) -> Result<(), String> {
        self.book.audit()
    }

    /// How many heads of lines, workers and due times were looked at so far: what the cost of operations is measured by,
    /// without a clock.
    pub fn looks(&self) -> u64 {
        self.book.looks
    }
}
