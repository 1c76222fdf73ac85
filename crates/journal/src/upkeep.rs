//! Putting things away: ended sessions into the archive, old records out of it, checkpoints, old pages.
//!
//! Its own file because none of it changes what anybody is answered. Every coordinator does it, at its own pace; doing it
//! twice costs a little and harms nothing. Invariant: a record leaves the ledger only after it is durable in the archive.

use std::{sync::atomic::Ordering, time::Duration};

use rand::RngExt;
use tokio::time::Instant;
use wharf_core::{EndReason, Timestamp};
use wharf_ledger::Op;
use wharf_store::{SessionRecord, StoreError};

use crate::{
    follow::store_error,
    port::{ArchiveRow, Checkpoint},
    store::{Inner, JournalStore},
};

/// Records put away at once.
const ARCHIVED_AT_ONCE: usize = 500;

/// When each thing was last done.
#[derive(Default)]
pub(crate) struct Beats {
    archived: Option<Instant>,
    pruned: Option<Instant>,
    /// A checkpoint of ours that no page has announced yet.
    unannounced: Option<u64>,
}

// === impl Inner: upkeep ===

impl Inner {
    /// The checkpoint to be announced by the next page.
    pub(crate) fn announce_kept(&self) -> Option<u64> {
        self.beats.lock().unannounced.take()
    }
}

// === impl JournalStore: upkeep ===

impl JournalStore {
    pub(crate) async fn keep_house(&self, now: Timestamp) -> Result<(), StoreError> {
        let upkeep = self.inner.config.upkeep;
        if is_due(&mut self.inner.beats.lock().archived, upkeep.archive_every) {
            self.archive(now).await?;
        }
        if is_due(&mut self.inner.beats.lock().pruned, upkeep.prune_every) {
            self.inner.traffic.archive.fetch_add(1, Ordering::Relaxed);
            let history = self.look(wharf_ledger::Ledger::rules).history;
            let pruned = self.inner.journal.prune_archive(now.before(history)).await;
            pruned.map_err(store_error)?;
        }
        self.checkpoint(now).await
    }

    /// Our own sessions soon, those of others when they seem to have nobody to do it.
    async fn archive(&self, now: Timestamp) -> Result<(), StoreError> {
        let config = &self.inner.config;
        loop {
            let rows: Vec<ArchiveRow> = self.look(|ledger| {
                let own = ledger.archivable(now, Duration::ZERO, Some(config.coordinator), ARCHIVED_AT_ONCE);
                let records = match own.is_empty() {
                    false => own,
                    true => ledger.archivable(now, config.upkeep.archive_others, None, ARCHIVED_AT_ONCE),
                };
                records.into_iter().map(row).collect::<Result<_, _>>()
            })?;
            if rows.is_empty() {
                return Ok(());
            }
            self.inner.traffic.archive.fetch_add(1, Ordering::Relaxed);
            self.inner.journal.archive(&rows).await.map_err(store_error)?;
            let sessions: Vec<_> = rows.iter().map(|row| row.session).collect();
            let is_last = sessions.len() < ARCHIVED_AT_ONCE;
            self.order(Op::Archived { sessions }).await?;
            if is_last {
                return Ok(());
            }
        }
    }

    async fn checkpoint(&self, now: Timestamp) -> Result<(), StoreError> {
        let upkeep = self.inner.config.upkeep;
        // Spread, so that coordinators seldom write the same checkpoint at once.
        let due = upkeep.checkpoint_pages + rand::rng().random_range(0..=upkeep.checkpoint_pages / 4);
        let checkpoint = {
            let replica = self.inner.replica.lock();
            if replica.position.seq < replica.kept + due.max(1) {
                return Ok(());
            }
            let image = replica.ledger.image();
            Checkpoint {
                position: replica.position,
                at: replica.ledger.now(),
                image: image.map_err(|error| StoreError::Corrupt(error.to_string()))?,
            }
        };
        let seq = checkpoint.position.seq;
        let started = Instant::now();
        let kept = self
            .inner
            .journal
            .keep(&checkpoint, seq.saturating_sub(upkeep.pages_kept));
        kept.await.map_err(store_error)?;
        tracing::debug!(page = seq, bytes = checkpoint.image.len(), took = ?started.elapsed(), %now, "checkpoint kept");
        self.inner.replica.lock().kept = seq;
        self.inner.beats.lock().unannounced = Some(seq);
        Ok(())
    }
}

fn is_due(last: &mut Option<Instant>, every: Duration) -> bool {
    let is_due = last.is_none_or(|last| last.elapsed() >= every);
    if is_due {
        *last = Some(Instant::now());
    }
    is_due
}

fn row(record: &SessionRecord) -> Result<ArchiveRow, StoreError> {
    let text = serde_json::to_string(record);
    Ok(ArchiveRow {
        session: record.id,
        pool: record.spec.pool.clone(),
        operation: record.spec.operation.clone(),
        owner: record.owner,
        reason: record.reason().unwrap_or(EndReason::Internal),
        ended_at: record.ended_at.unwrap_or_default(),
        record: text.map_err(|error| StoreError::Corrupt(format!("a record that cannot be written: {error}")))?,
    })
}
