//! A thread with a connection of its own, and group commit: what waits is done in one transaction.
//!
//! Its own file because the promise "answered means committed, and never a hang" is kept here alone: jobs run inside a
//! transaction, and every caller is answered only after the commit. If a job of a batch fails or panics, the batch is
//! rolled back and each job is run again in a transaction of its own, so that the failing one is undone alone. (A
//! savepoint around each job would do the same at the price of copying every page it touches, twice the cost of the job.)
//! A thread that is gone drops its inbox, which wakes every waiting caller.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    thread,
};

use rusqlite::Connection;
use tokio::sync::{broadcast, mpsc, oneshot};
use wharf_core::{Clock, Timestamp};
use wharf_store::{Change, StoreError, StoreRules};

use crate::{events::Noted, open::FileLock, rows::Fault, step::Step};

/// Callers beyond this wait for a place in the inbox: the bound that keeps overload visible.
const INBOX: usize = 1024;
/// Work done in one transaction, so that the first of a batch does not wait for an endless one.
const BATCH: usize = 256;

enum Order {
    Job(Box<dyn Job>),
    Close(oneshot::Sender<()>),
}

/// One caller's operation.
trait Job: Send {
    /// Does it, and says whether it could be done. May be called again after a rollback.
    fn run(&mut self, desk: &mut Desk) -> bool;

    /// Answers the caller, given what became of the transaction.
    fn tell(self: Box<Self>, commit: Result<(), StoreError>);
}

struct Call<T, W> {
    work: W,
    outcome: Option<Result<T, StoreError>>,
    caller: oneshot::Sender<Result<T, StoreError>>,
}

/// Whether a lane may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Write,
    Read,
}

/// Why a transaction was not kept.
#[derive(Debug, thiserror::Error)]
enum Undone {
    #[error("an operation failed")]
    ByJob,
    #[error(transparent)]
    ByStore(rusqlite::Error),
}

/// The store's time: the clock, never stepping back.
pub(crate) struct StoreClock {
    clock: Arc<dyn Clock>,
    latest: AtomicI64,
}

/// A caller's end of a lane.
pub(crate) struct Lane {
    inbox: mpsc::Sender<Order>,
}

/// What the thread works with.
pub(crate) struct Desk {
    pub(crate) conn: Connection,
    pub(crate) access: Access,
    pub(crate) rules: StoreRules,
    pub(crate) clock: Arc<StoreClock>,
    pub(crate) changes: broadcast::Sender<Change>,
    pub(crate) last_number: u64,
    /// Held as long as the connection is open.
    pub(crate) lock: Option<FileLock>,
    pub(crate) news: Vec<Change>,
}

// === impl StoreClock ===

impl StoreClock {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            latest: AtomicI64::new(i64::MIN),
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        let read = self.clock.now().as_micros();
        // Relaxed: only this one number is shared, and fetch_max alone keeps it from falling.
        Timestamp::from_micros(self.latest.fetch_max(read, Ordering::Relaxed).max(read))
    }
}

// === impl Lane ===

impl Lane {
    /// Starts the thread.
    pub(crate) fn start(name: &str, desk: Desk) -> io::Result<Self> {
        let (inbox, orders) = mpsc::channel(INBOX);
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || desk.work(orders))?;
        Ok(Self { inbox })
    }

    /// Does one operation and answers after the commit. It is done even if the caller stops waiting.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        work: impl Fn(&mut Step<'_>) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (caller, told) = oneshot::channel();
        let job = Box::new(Call {
            work,
            outcome: None,
            caller,
        });
        self.inbox.send(Order::Job(job)).await.map_err(|_| closed())?;
        told.await.map_err(|_| closed())?
    }

    /// Lets the thread finish what it has and let go of its files. Idempotent.
    pub(crate) async fn close(&self) {
        let (tell, told) = oneshot::channel();
        if self.inbox.send(Order::Close(tell)).await.is_ok() {
            // An error means that the thread ended before it could answer: it has let go either way.
            told.await.ok();
        }
    }
}

fn closed() -> StoreError {
    StoreError::Unavailable("the store is closed".to_owned())
}

// === impl Access ===

impl Access {
    const fn begin(self) -> &'static str {
        match self {
            // Deferred, a transaction that reads before it writes could find itself unable to go on.
            Self::Write => "BEGIN IMMEDIATE",
            Self::Read => "BEGIN",
        }
    }
}

// === impl Undone ===

impl From<Undone> for StoreError {
    fn from(undone: Undone) -> Self {
        Self::Unavailable(undone.to_string())
    }
}

// === impl Call ===

impl<T, W> Job for Call<T, W>
where
    T: Send,
    W: Fn(&mut Step<'_>) -> Result<T, Fault> + Send,
{
    fn run(&mut self, desk: &mut Desk) -> bool {
        let outcome = desk.attempt(&self.work);
        let is_done = outcome.is_ok();
        self.outcome = Some(outcome);
        is_done
    }

    fn tell(self: Box<Self>, commit: Result<(), StoreError>) {
        let told = match (self.outcome, commit) {
            // What went wrong inside says more than the rollback that followed.
            (Some(Err(error)), _) | (_, Err(error)) => Err(error),
            (Some(Ok(answer)), Ok(())) => Ok(answer),
            (None, Ok(())) => Err(closed()),
        };
        // A caller that left is not an error.
        self.caller.send(told).ok();
    }
}

// === impl Desk ===

impl Desk {
    fn work(mut self, mut orders: mpsc::Receiver<Order>) {
        let mut batch = Vec::with_capacity(BATCH);
        let closing = loop {
            let closing = match orders.blocking_recv() {
                None => break None,
                Some(first) => collect(first, &mut orders, &mut batch),
            };
            self.serve(&mut batch);
            if closing.is_some() {
                break closing;
            }
        };
        self.let_go();
        if let Some(tell) = closing {
            // A caller that no longer listens is not an error.
            tell.send(()).ok();
        }
    }

    /// One batch, one transaction; one transaction each if one of them fails.
    fn serve(&mut self, batch: &mut Vec<Box<dyn Job>>) {
        match self.transact(batch) {
            Err(Undone::ByJob) if batch.len() > 1 => {
                for mut job in batch.drain(..) {
                    let alone = self.transact(std::slice::from_mut(&mut job));
                    job.tell(alone.map_err(StoreError::from));
                }
            }
            // A store that cannot begin or commit would only make each of them wait in turn.
            together => {
                let told = together.map_err(StoreError::from);
                batch.drain(..).for_each(|job| job.tell(told.clone()));
            }
        }
    }

    /// Runs jobs in one transaction, which is kept only if all of them could be done.
    fn transact(&mut self, jobs: &mut [Box<dyn Job>]) -> Result<(), Undone> {
        if jobs.is_empty() {
            return Ok(());
        }
        self.news.clear();
        let outcome = self.run(self.access.begin()).map_err(Undone::ByStore).and_then(|()| {
            let is_done = jobs.iter_mut().all(|job| job.run(self));
            if is_done {
                self.run("COMMIT").map_err(Undone::ByStore)
            } else {
                Err(Undone::ByJob)
            }
        });
        if let Err(undone) = &outcome {
            tracing::warn!(error = %undone, jobs = jobs.len(), "a transaction of the store was rolled back");
            self.news.clear();
            // SQLite has rolled back by itself after some I/O errors.
            if !self.conn.is_autocommit() {
                self.run("ROLLBACK").ok();
            }
        }
        for change in self.news.drain(..) {
            // Nobody listening is not an error.
            self.changes.send(change).ok();
        }
        outcome
    }

    fn attempt<T>(&mut self, work: impl Fn(&mut Step<'_>) -> Result<T, Fault>) -> Result<T, StoreError> {
        let mut step = Step {
            conn: &self.conn,
            rules: &self.rules,
            now: self.clock.now(),
            news: &mut self.news,
            noted: Noted::default(),
            last_number: &mut self.last_number,
        };
        let whole = || {
            let answer = work(&mut step)?;
            step.log()?;
            Ok(answer)
        };
        let outcome = catch_unwind(AssertUnwindSafe(whole)).unwrap_or(Err(Fault::Panicked));
        outcome.map_err(|fault| {
            tracing::error!(error = %fault, "a store operation failed and is undone");
            fault.into()
        })
    }

    fn run(&self, sql: &str) -> rusqlite::Result<()> {
        self.conn.prepare_cached(sql)?.execute([]).map(drop)
    }

    /// The log goes into the file, so that what is left is one file that can be copied.
    fn let_go(self) {
        if self.access == Access::Write
            && let Err(error) = self.conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        {
            tracing::warn!(%error, "the store's log could not be written back; it will be at the next start");
        }
        self.conn.flush_prepared_statement_cache();
        if let Err((_, error)) = self.conn.close() {
            tracing::warn!(%error, "the store's file could not be closed properly");
        }
        drop(self.lock);
    }
}

/// Fills the batch with what already waits; stops at an order to close and returns whom to tell.
fn collect(
    first: Order,
    orders: &mut mpsc::Receiver<Order>,
    batch: &mut Vec<Box<dyn Job>>,
) -> Option<oneshot::Sender<()>> {
    let mut next = Some(first);
    while let Some(order) = next {
        match order {
            Order::Job(job) => batch.push(job),
            Order::Close(tell) => return Some(tell),
        }
        next = if batch.len() < BATCH {
            orders.try_recv().ok()
        } else {
            None
        };
    }
    None
}
