//! The port towards what keeps the journal: PostgreSQL, CockroachDB, Redis.
//!
//! Its own file because it is all that an engine must do, and none of it knows what a session is: append a page exactly
//! once, read pages in order, keep one checkpoint, keep an archive of records by id. Every rule of the grid is in the
//! ledger, once.
//!
//! The contract:
//! - Pages are numbered from 1 without gaps, in the order in which they became durable. A reader that has seen page `n`
//!   will never see another page `n`, unless the journal lost its tail (a fail-over to a server that had not heard of
//!   it); [`JournalError::Rewound`] says so.
//! - The time of a page is the journal's own clock, read when the page is appended; it never steps back. With
//!   [`Draft::at`] (tests) it is that time instead, still never before the last page's.
//! - Appending is idempotent by (writer, number): a second attempt after a lost answer is answered with the page that the
//!   first one made. Never guessed: an engine whose commit is uncertain looks, or tries again under the same number.
//! - Anything may fail with `Unavailable` at any time; then nothing is known to have happened, and the caller tries again.

use async_trait::async_trait;
use uuid::Uuid;
use wharf_core::{EndReason, KeyId, Operation, PoolName, SessionId, Timestamp};

/// Why the journal could not answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum JournalError {
    /// It cannot be reached, or is busy electing: try again.
    #[error("{0}")]
    Unavailable(String),
    /// The pages after our position are no longer kept, or our position is not on this journal: begin again from the
    /// checkpoint.
    #[error("the journal no longer has what follows page {0}")]
    Rewound(u64),
    /// What it holds makes no sense; an operator must look.
    #[error("{0}")]
    Corrupt(String),
}

/// Who writes: one process, one life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Writer(pub Uuid);

/// A page to be appended.
#[derive(Debug, Clone)]
pub struct Draft {
    /// Who writes it.
    pub writer: Writer,
    /// The writer's own count of its pages, from 1, without gaps.
    pub number: u64,
    /// Its text: JSON, for people who look.
    pub body: String,
    /// In tests: the time of it.
    pub at: Option<Timestamp>,
}

/// A page of the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Its place, from 1.
    pub seq: u64,
    /// When it was appended, by the journal's clock.
    pub at: Timestamp,
    /// Who wrote it.
    pub writer: Writer,
    /// Which of the writer's pages it is.
    pub number: u64,
    /// Its text.
    pub body: String,
}

/// Where a reader is: the last page it has applied. The mark tells whether the journal still has that very page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The page's place; 0 before the first.
    pub seq: u64,
    /// The page's writer and number; `None` at 0.
    pub mark: Option<(Writer, u64)>,
}

/// What follows a position.
#[derive(Debug, Clone, Default)]
pub struct Tail {
    /// The pages, in order, without gaps, beginning right after the position.
    pub pages: Vec<Page>,
    /// Whether there are more than were asked for.
    pub is_partial: bool,
    /// The journal's clock, when it was asked; never before its last page.
    pub now: Timestamp,
}

/// The whole ledger after a page, so that a reader need not begin at page 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// After which page.
    pub position: Position,
    /// When that page was appended.
    pub at: Timestamp,
    /// The ledger's image: JSON.
    pub image: String,
}

/// A session's record on its way to the archive. The columns are what lists are filtered by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveRow {
    /// Its id; rows are ordered by it.
    pub session: SessionId,
    /// Its pool.
    pub pool: PoolName,
    /// Its operation.
    pub operation: Operation,
    /// Its owner.
    pub owner: Option<KeyId>,
    /// Why it ended.
    pub reason: EndReason,
    /// When it ended.
    pub ended_at: Timestamp,
    /// The whole record: JSON.
    pub record: String,
}

/// Which archived records to read. Ids order as their text does.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ArchiveQuery {
    /// Only this pool.
    pub pool: Option<PoolName>,
    /// Only this operation.
    pub operation: Option<Operation>,
    /// Only this owner's.
    pub owner: Option<KeyId>,
    /// Only those ended with this reason.
    pub reason: Option<EndReason>,
    /// Only what comes after this one in the order asked for.
    pub after: Option<SessionId>,
    /// Newest first.
    pub newest_first: bool,
    /// At most this many.
    pub limit: u32,
}

/// What keeps the journal.
#[async_trait]
pub trait Journal: Send + Sync + 'static {
    /// Appends a page, exactly once, and answers with it, preceded by all pages after `after` that the writer has not
    /// seen: the last page of the tail is the writer's own. (A second attempt may find pages behind its own, too; those
    /// may be left out.) Fails with `Rewound` if `after` is no longer on the journal; then nothing was appended.
    async fn append(&self, after: Position, draft: &Draft) -> Result<Tail, JournalError>;

    /// The pages after a position, at most `limit`.
    async fn read(&self, after: Position, limit: u32) -> Result<Tail, JournalError>;

    /// Returns when there may be pages after this one, or sooner. Only a wake-up: the caller also polls. An engine that
    /// cannot tell returns after a while. Dropping the future leaves nothing behind.
    async fn wait(&self, after: u64);

    /// The newest checkpoint.
    async fn checkpoint(&self) -> Result<Option<Checkpoint>, JournalError>;

    /// Keeps a checkpoint, if it is newer than the one there is, and removes the pages up to `trim_to` (never beyond the
    /// checkpoint kept).
    async fn keep(&self, checkpoint: &Checkpoint, trim_to: u64) -> Result<(), JournalError>;

    /// Adds records to the archive; those that are there already are left as they are.
    async fn archive(&self, rows: &[ArchiveRow]) -> Result<(), JournalError>;

    /// One archived record's JSON.
    async fn archived(&self, session: SessionId) -> Result<Option<String>, JournalError>;

    /// Archived records' JSON, in order of id.
    async fn archived_list(&self, query: &ArchiveQuery) -> Result<Vec<String>, JournalError>;

    /// Removes archived records that ended at or before this time, some thousands at a time at most; how many went.
    async fn prune_archive(&self, ended_by: Timestamp) -> Result<u64, JournalError>;

    /// What an operator should know about where this journal lives: engine, version, what its durability means. Said
    /// once at start.
    async fn describe(&self) -> Result<String, JournalError>;

    /// Lets go of connections.
    async fn close(&self);
}
