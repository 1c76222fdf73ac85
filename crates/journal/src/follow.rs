//! Reading what others wrote: before every read, all the time, and from the beginning when the journal says so.
//!
//! Its own file because it is the only reader of the journal. Invariant: a read that began after a page became durable
//! sees that page (callers of [`Inner::catch_up`] share a round trip only if it began after they called).

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use wharf_core::Timestamp;
use wharf_ledger::Ledger;
use wharf_store::{Change, StoreError};

use crate::{
    port::{JournalError, Page, Position},
    replica::{Halt, Replica},
    store::Inner,
};

/// Pages read at once.
const STRIDE: u32 = 512;
/// A lost wake-up is covered by this.
const POLL: Duration = Duration::from_secs(1);
/// Between attempts while the journal cannot be reached.
const PAUSE: Duration = Duration::from_millis(250);

/// Follows the journal until the store is closed.
pub(crate) async fn run(inner: Arc<Inner>) {
    let mut is_down = false;
    loop {
        let seq = inner.replica.lock().position.seq;
        // A timeout and not only the engine's own: an engine may hang with its server.
        let _ = tokio::time::timeout(POLL, inner.journal.wait(seq)).await;
        match inner.catch_up().await {
            Ok(_) if is_down => {
                tracing::info!("the store answers again");
                is_down = false;
            }
            Ok(_) => {}
            Err(StoreError::Corrupt(error)) => {
                tracing::error!(error, "this coordinator cannot follow the store any more");
                return;
            }
            Err(StoreError::Unavailable(error)) => {
                if !is_down {
                    tracing::warn!(error, "the store does not answer; running sessions go on");
                    is_down = true;
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

// === impl Inner: following ===

impl Inner {
    /// Where the replica stands, or why it stands still.
    pub(crate) fn position(&self) -> Result<Position, StoreError> {
        let replica = self.replica.lock();
        match &replica.stuck {
            Some(error) => Err(error.clone()),
            None => Ok(replica.position),
        }
    }

    /// Applies pages and tells whoever waits for them.
    pub(crate) fn absorb(&self, pages: Vec<Page>) -> Result<(), StoreError> {
        if pages.is_empty() {
            return Ok(());
        }
        let mut replica = self.replica.lock();
        let (outcome, halted) = replica.apply(self.config.writer, pages);
        // Under the lock, so that news leave in the order of the steps that made them.
        for change in outcome.news {
            // Nobody listening is not an error.
            self.changes.send(change).ok();
        }
        drop(replica);
        for (asker, answer) in outcome.answers {
            // A caller that has left needs no answer.
            let _ = asker.send(Ok(answer));
        }
        match halted {
            Ok(()) => Ok(()),
            Err(Halt::Gap) => Err(StoreError::Unavailable("a page of the journal was missing".to_owned())),
            Err(Halt::Stuck(error)) => Err(error),
        }
    }

    /// Applies everything that was durable when this was called; the journal's time.
    ///
    /// Whoever waited while a round trip failed shares its failure: asking again one after the other, each for as long as
    /// the engine is patient, would make a line that an outage never lets through.
    pub(crate) async fn catch_up(&self) -> Result<Timestamp, StoreError> {
        let called = self.catching.begun.load(Ordering::SeqCst);
        let failed = self.catching.failed.load(Ordering::SeqCst);
        let mut gate = self.catching.gate.lock().await;
        if let Some((begun, now)) = gate.good
            && begun > called
        {
            return Ok(self.replica.lock().at_least(now));
        }
        if let Some(error) = &gate.failure
            && self.catching.failed.load(Ordering::SeqCst) > failed
        {
            return Err(error.clone());
        }
        let begun = self.catching.begun.fetch_add(1, Ordering::SeqCst) + 1;
        match self.read_all().await {
            Ok(now) => {
                gate.good = Some((begun, now));
                Ok(self.replica.lock().at_least(now))
            }
            Err(error) => {
                gate.failure = Some(error.clone());
                self.catching.failed.fetch_add(1, Ordering::SeqCst);
                Err(error)
            }
        }
    }

    async fn read_all(&self) -> Result<Timestamp, StoreError> {
        loop {
            let position = self.position()?;
            self.traffic.reads.fetch_add(1, Ordering::Relaxed);
            match self.journal.read(position, STRIDE).await {
                Ok(tail) => {
                    let (now, is_partial) = (tail.now, tail.is_partial);
                    self.absorb(tail.pages)?;
                    if !is_partial {
                        return Ok(self.config.clock.as_ref().map_or(now, |clock| clock.now()));
                    }
                }
                Err(JournalError::Rewound(_)) => self.rebuild(position).await?,
                Err(error) => return Err(store_error(error)),
            }
        }
    }

    /// Begins again from the checkpoint, unless somebody else has done so since the replica stood at `from`.
    pub(crate) async fn rebuild(&self, from: Position) -> Result<(), StoreError> {
        let _one_at_a_time = self.rebuilding.lock().await;
        if self.position()? != from {
            return Ok(());
        }
        tracing::warn!(page = from.seq, "beginning again from the store's checkpoint");
        let mut fresh = self.load().await?;
        // Our own pages that are on the journal are answered by applying them, here as elsewhere.
        fresh.pending = std::mem::take(&mut self.replica.lock().pending);
        let outcome = loop {
            let tail = match self.journal.read(fresh.position, STRIDE).await {
                Ok(tail) => tail,
                Err(error) => {
                    self.replica.lock().pending.extend(fresh.pending);
                    return Err(store_error(error));
                }
            };
            let (is_partial, (outcome, halted)) = (tail.is_partial, fresh.apply(self.config.writer, tail.pages));
            if let Err(Halt::Stuck(error)) = halted {
                self.replica.lock().stuck = Some(error.clone());
                return Err(error);
            }
            for (asker, answer) in outcome.answers {
                let _ = asker.send(Ok(answer));
            }
            if !is_partial {
                break outcome.news;
            }
        };
        // What happened meanwhile is not told one by one.
        drop(outcome);
        let mut replica = self.replica.lock();
        fresh.pending.extend(std::mem::take(&mut replica.pending));
        fresh.ledger.succeed(&replica.ledger);
        *replica = fresh;
        self.changes.send(Change::Missed).ok();
        let newest = replica.ledger.events(u64::MAX, 0).newest;
        self.changes.send(Change::Noted(newest)).ok();
        Ok(())
    }

    /// The ledger as the newest checkpoint has it.
    pub(crate) async fn load(&self) -> Result<Replica, StoreError> {
        self.traffic.reads.fetch_add(1, Ordering::Relaxed);
        Ok(match self.journal.checkpoint().await.map_err(store_error)? {
            None => Replica::new(Ledger::new(self.config.rules), Position { seq: 0, mark: None }),
            Some(checkpoint) => {
                let ledger = Ledger::from_image(&checkpoint.image)
                    .map_err(|error| StoreError::Corrupt(format!("the checkpoint of the journal: {error}")))?;
                Replica::new(ledger, checkpoint.position)
            }
        })
    }
}

pub(crate) fn store_error(error: JournalError) -> StoreError {
    match error {
        JournalError::Corrupt(error) => StoreError::Corrupt(error),
        other => StoreError::Unavailable(other.to_string()),
    }
}
