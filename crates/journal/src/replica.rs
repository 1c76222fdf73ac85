//! The ledger here and the page it stands after.
//!
//! Its own file because this is where a page becomes state. Invariants: pages are applied in order, each once; an answer
//! is the one that applying the caller's own page gave, whichever task applied it; a page that cannot be read stops this
//! replica for good instead of letting it drift away from the others.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use wharf_core::Timestamp;
use wharf_ledger::{Answer, Ledger, Op, read_text};
use wharf_store::{Change, StoreError};

use crate::port::{Page, Position, Writer};

/// The version of what pages say. A replica applies no page of a later one: it could not mean the same by it.
pub(crate) const VERSION: u32 = 1;

/// Whoever asked for an operation.
pub(crate) type Asker = oneshot::Sender<Result<Answer, StoreError>>;

/// What a page's body says.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Body {
    /// The version of the words.
    pub v: u32,
    /// The operations, in order.
    pub ops: Vec<Op>,
    /// The writer has kept a checkpoint after this page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<u64>,
}

/// The replica.
pub(crate) struct Replica {
    pub ledger: Ledger,
    pub position: Position,
    /// The newest checkpoint that anybody has spoken of.
    pub kept: u64,
    /// Our pages that are not applied yet, by number: who waits for the answers.
    pub pending: HashMap<u64, Vec<Asker>>,
    /// Why it stands still for ever.
    pub stuck: Option<StoreError>,
}

/// What applying pages brought.
#[derive(Default)]
pub(crate) struct Outcome {
    pub news: Vec<Change>,
    pub answers: Vec<(Asker, Answer)>,
}

/// Why pages could not be applied.
pub(crate) enum Halt {
    /// One is missing before the next: begin again.
    Gap,
    /// One cannot be understood.
    Stuck(StoreError),
}

// === impl Replica ===

impl Replica {
    pub(crate) fn new(ledger: Ledger, position: Position) -> Self {
        Self {
            ledger,
            kept: position.seq,
            position,
            pending: HashMap::new(),
            stuck: None,
        }
    }

    /// Applies what has not been applied yet.
    pub(crate) fn apply(&mut self, own: Writer, pages: Vec<Page>) -> (Outcome, Result<(), Halt>) {
        let mut outcome = Outcome::default();
        for page in pages {
            if page.seq <= self.position.seq {
                continue;
            }
            if page.seq != self.position.seq + 1 {
                return (outcome, Err(Halt::Gap));
            }
            if let Err(error) = self.apply_page(own, page, &mut outcome) {
                self.stuck = Some(error.clone());
                return (outcome, Err(Halt::Stuck(error)));
            }
        }
        (outcome, Ok(()))
    }

    fn apply_page(&mut self, own: Writer, page: Page, outcome: &mut Outcome) -> Result<(), StoreError> {
        let body = read(&page)?;
        let is_own = page.writer == own;
        let askers = match is_own {
            true => self.pending.remove(&page.number).unwrap_or_default(),
            false => Vec::new(),
        };
        let mut askers = askers.into_iter();
        for op in body.ops {
            let applied = self.ledger.apply(page.at, op);
            outcome.news.extend(applied.news.into_iter().map(|change| match change {
                Change::Ended(ended) if !is_own => Change::EndedElsewhere(ended),
                other => other,
            }));
            outcome
                .answers
                .extend(askers.next().map(|asker| (asker, applied.answer)));
        }
        self.kept = self.kept.max(body.kept.unwrap_or(0));
        self.position = Position {
            seq: page.seq,
            mark: Some((page.writer, page.number)),
        };
        Ok(())
    }

    /// The latest time seen; the journal's clock is never behind it.
    pub(crate) fn at_least(&self, now: Timestamp) -> Timestamp {
        now.max(self.ledger.now())
    }
}

fn read(page: &Page) -> Result<Body, StoreError> {
    #[derive(Deserialize)]
    struct Spoken {
        v: u32,
    }
    let corrupt = |error: serde_json::Error| StoreError::Corrupt(format!("page {} of the journal: {error}", page.seq));
    match read_text::<Body>(&page.body) {
        Ok(body) if body.v <= VERSION => Ok(body),
        // Words that are not known may be those of a later version.
        other => {
            let spoken: Spoken = read_text(&page.body).map_err(corrupt)?;
            if spoken.v <= VERSION {
                return other.map_err(corrupt);
            }
            Err(StoreError::Corrupt(format!(
                "page {} of the journal was written by a newer Wharf (version {} of the journal, this one knows \
                 {VERSION}): upgrade this coordinator",
                page.seq, spoken.v
            )))
        }
    }
}
