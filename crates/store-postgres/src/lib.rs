//! The journal of a fleet on PostgreSQL and CockroachDB.
//!
//! A crate of its own because nothing else may depend on sqlx. It knows pages, one checkpoint and an archive, and nothing
//! of sessions: the contract is [`wharf_journal::Journal`].
//!
//! Layout:
//! - [`PostgresJournal`], [`Options`], [`ConnectError`]: the surface; `address`: which URLs there are, without passwords
//! - `lane`, `call`, `failure`: connections; one call with its retries and its deadline; what an error means
//! - `sql`, `migrate`: every statement; the tables
//! - `append`, `follow`, `wake`: the journal proper · `keep`, `archive`, `describe`: what is beside it
//!
//! Every write is a single statement that commits itself, so that an append costs one round trip and no transaction is
//! ever left open. The statements keep to what PostgreSQL and CockroachDB share (no advisory locks, no procedures, int8
//! throughout, every conflict retried); `LISTEN`/`NOTIFY` is used on PostgreSQL only, and only to wake readers sooner.
//! The tests run against real PostgreSQL, with its default isolation and with serializable. They have **not** been run
//! against CockroachDB, which could not be installed where this was written.
#![forbid(unsafe_code)]

mod address;
mod append;
mod archive;
mod call;
mod describe;
mod failure;
mod follow;
mod keep;
mod lane;
mod migrate;
mod open;
mod options;
mod sql;
mod wake;

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};
use wharf_core::{SessionId, Timestamp};
use wharf_journal::{ArchiveQuery, ArchiveRow, Checkpoint, Draft, Journal, JournalError, Position, Tail};

use self::{address::Address, describe::Engine, lane::Lane, sql::Statements, wake::Wakes};
pub use self::{open::ConnectError, options::Options};

/// A journal in a PostgreSQL or CockroachDB database. Cheap to share; reconnects by itself.
pub struct PostgresJournal {
    address: Address,
    engine: Engine,
    sql: Arc<Statements>,
    /// Appends have a connection of their own: they follow one another anyway, and never wait behind a long read.
    appends: Lane,
    /// Everything else.
    reads: Arc<Lane>,
    wakes: Wakes,
    budget: Duration,
    tasks: TaskTracker,
    stop: CancellationToken,
    /// Without `close` the listener ends with the last owner.
    _stop_on_drop: DropGuard,
}

// === impl PostgresJournal ===

impl PostgresJournal {
    /// Connects, makes or upgrades the tables, and begins to listen.
    ///
    /// # Errors
    /// When the URL or an option is wrong, the server cannot be reached within the connect time-out or refuses us, or the
    /// tables cannot be made. The message says what to do; it never holds the password.
    pub async fn connect(url: &str, options: Options) -> Result<Self, ConnectError> {
        open::open(url, options).await
    }

    /// Whether readers are woken by the server; otherwise they ask it in short intervals.
    #[must_use]
    pub fn is_listening(&self) -> bool {
        self.wakes.is_listening()
    }
}

impl fmt::Debug for PostgresJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresJournal")
            .field("address", &self.address.to_string())
            .field("engine", &self.engine)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Journal for PostgresJournal {
    async fn append(&self, after: Position, draft: &Draft) -> Result<Tail, JournalError> {
        let answer = self.append_page(after, draft).await;
        self.wakes.forget_if_rewound(&answer);
        answer
    }

    async fn read(&self, after: Position, limit: u32) -> Result<Tail, JournalError> {
        let answer = self.read_pages(after, limit).await;
        self.wakes.forget_if_rewound(&answer);
        answer
    }

    async fn wait(&self, after: u64) {
        self.wakes.wait(after, &self.reads, &self.sql).await;
    }

    async fn checkpoint(&self) -> Result<Option<Checkpoint>, JournalError> {
        self.newest_checkpoint().await
    }

    async fn keep(&self, checkpoint: &Checkpoint, trim_to: u64) -> Result<(), JournalError> {
        self.keep_checkpoint(checkpoint, trim_to).await
    }

    async fn archive(&self, rows: &[ArchiveRow]) -> Result<(), JournalError> {
        self.add_to_archive(rows).await
    }

    async fn archived(&self, session: SessionId) -> Result<Option<String>, JournalError> {
        self.archived_record(session).await
    }

    async fn archived_list(&self, query: &ArchiveQuery) -> Result<Vec<String>, JournalError> {
        self.archived_records(query).await
    }

    async fn prune_archive(&self, ended_by: Timestamp) -> Result<u64, JournalError> {
        self.prune_records(ended_by).await
    }

    async fn describe(&self) -> Result<String, JournalError> {
        self.description().await
    }

    async fn close(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.appends.close().await;
        self.reads.close().await;
    }
}
