//! A journal in memory that fails on purpose, for tests of the replica: lost answers, lost tails, outages.
//!
//! Its own file because it is also the plainest reading of the port's contract.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::Notify;
use wharf_core::{SessionId, Timestamp};

use crate::port::{ArchiveQuery, ArchiveRow, Checkpoint, Draft, Journal, JournalError, Page, Position, Tail};

/// The journal. Cheap to clone: all clones are one journal.
#[derive(Clone, Default)]
pub struct MemoryJournal {
    kept: Arc<Mutex<Kept>>,
    grown: Arc<Notify>,
}

#[derive(Default)]
struct Kept {
    pages: BTreeMap<u64, Page>,
    last: Option<Page>,
    checkpoint: Option<Checkpoint>,
    archive: BTreeMap<SessionId, ArchiveRow>,
    trimmed: Option<Page>,
    faults: Faults,
    calls: u64,
}

/// What goes wrong, counted in calls of `append` and `read`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// Every so many appends are kept, and their answer lost.
    pub lose_answer_every: u64,
    /// Every so many calls fail before anything was done.
    pub fail_every: u64,
    /// Nothing answers.
    pub is_down: bool,
}

// === impl MemoryJournal ===

impl MemoryJournal {
    /// From now on this goes wrong.
    pub fn set_faults(&self, faults: Faults) {
        self.kept.lock().faults = faults;
    }

    /// A fail-over to a server that had not heard of the last pages.
    pub fn lose_tail(&self, pages: usize) {
        let mut kept = self.kept.lock();
        for _ in 0..pages {
            kept.pages.pop_last();
        }
        kept.last = kept.pages.last_key_value().map(|(_, page)| page.clone());
        drop(kept);
        self.grown.notify_waiters();
    }

    /// How many pages there are.
    pub fn pages(&self) -> Vec<Page> {
        self.kept.lock().pages.values().cloned().collect()
    }
}

// === impl Kept ===

impl Kept {
    fn call(&mut self) -> Result<(), JournalError> {
        self.calls += 1;
        let is_failing = self.faults.fail_every > 0 && self.calls.is_multiple_of(self.faults.fail_every);
        match self.faults.is_down || is_failing {
            true => Err(JournalError::Unavailable("out of order on purpose".to_owned())),
            false => Ok(()),
        }
    }

    fn tail(&self, after: Position, limit: usize) -> Result<Tail, JournalError> {
        let is_there = |page: &Page| Some((page.writer, page.number)) == after.mark;
        let own = self
            .pages
            .get(&after.seq)
            .or(self.trimmed.as_ref().filter(|page| page.seq == after.seq));
        let is_known = match after.seq {
            0 => self.trimmed.is_none(),
            _ => own.is_some_and(is_there),
        };
        if !is_known {
            return Err(JournalError::Rewound(after.seq));
        }
        let mut later = self.pages.range(after.seq + 1..).map(|(_, page)| page.clone());
        let pages: Vec<_> = later.by_ref().take(limit).collect();
        Ok(Tail {
            is_partial: later.next().is_some(),
            now: self.last.as_ref().map_or(Timestamp::default(), |page| page.at),
            pages,
        })
    }
}

#[async_trait]
impl Journal for MemoryJournal {
    async fn append(&self, after: Position, draft: &Draft) -> Result<Tail, JournalError> {
        // An await point, as a real one has.
        tokio::task::yield_now().await;
        let mut kept = self.kept.lock();
        kept.call()?;
        let mine = |page: &&Page| page.writer == draft.writer && page.number == draft.number;
        if kept.pages.values().rev().find(mine).is_none() {
            kept.tail(after, 0)?;
            let last = kept.last.as_ref();
            let page = Page {
                seq: last.map_or(0, |page| page.seq) + 1,
                at: match (draft.at, last) {
                    (Some(at), last) => last.map_or(at, |last| last.at.max(at)),
                    // Its own clock ticks once a page.
                    (None, Some(last)) => last.at + Duration::from_micros(1),
                    (None, None) => Timestamp::from_micros(1),
                },
                writer: draft.writer,
                number: draft.number,
                body: draft.body.clone(),
            };
            kept.last = Some(page.clone());
            kept.pages.insert(page.seq, page);
        }
        let is_lost = kept.faults.lose_answer_every > 0 && kept.calls.is_multiple_of(kept.faults.lose_answer_every);
        let tail = kept.tail(after, usize::MAX);
        drop(kept);
        self.grown.notify_waiters();
        match is_lost {
            true => Err(JournalError::Unavailable("the answer was lost on purpose".to_owned())),
            false => tail,
        }
    }

    async fn read(&self, after: Position, limit: u32) -> Result<Tail, JournalError> {
        tokio::task::yield_now().await;
        let mut kept = self.kept.lock();
        kept.call()?;
        kept.tail(after, limit as usize)
    }

    async fn wait(&self, after: u64) {
        let grown = self.grown.notified();
        if self.kept.lock().last.as_ref().is_some_and(|page| page.seq > after) {
            return;
        }
        let _ = tokio::time::timeout(Duration::from_secs(1), grown).await;
    }

    async fn checkpoint(&self) -> Result<Option<Checkpoint>, JournalError> {
        Ok(self.kept.lock().checkpoint.clone())
    }

    async fn keep(&self, checkpoint: &Checkpoint, trim_to: u64) -> Result<(), JournalError> {
        let mut kept = self.kept.lock();
        let is_newer = kept
            .checkpoint
            .as_ref()
            .is_none_or(|old| old.position.seq < checkpoint.position.seq);
        if is_newer {
            kept.checkpoint = Some(checkpoint.clone());
        }
        let limit = kept
            .checkpoint
            .as_ref()
            .map_or(0, |kept| kept.position.seq)
            .min(trim_to);
        while let Some(first) = kept.pages.first_entry().filter(|first| *first.key() <= limit) {
            let page = first.remove();
            kept.trimmed = Some(page);
        }
        Ok(())
    }

    async fn archive(&self, rows: &[ArchiveRow]) -> Result<(), JournalError> {
        let mut kept = self.kept.lock();
        for row in rows {
            kept.archive.entry(row.session).or_insert_with(|| row.clone());
        }
        Ok(())
    }

    async fn archived(&self, session: SessionId) -> Result<Option<String>, JournalError> {
        Ok(self.kept.lock().archive.get(&session).map(|row| row.record.clone()))
    }

    async fn archived_list(&self, query: &ArchiveQuery) -> Result<Vec<String>, JournalError> {
        let kept = self.kept.lock();
        let matching = |row: &&ArchiveRow| {
            query.pool.as_ref().is_none_or(|pool| row.pool == *pool)
                && query
                    .operation
                    .as_ref()
                    .is_none_or(|operation| row.operation == *operation)
                && query.owner.is_none_or(|owner| row.owner == Some(owner))
                && query.reason.is_none_or(|reason| row.reason == reason)
                && query.after.is_none_or(|after| match query.newest_first {
                    true => row.session < after,
                    false => row.session > after,
                })
        };
        let text = |row: &ArchiveRow| row.record.clone();
        let limit = query.limit as usize;
        let rows = kept.archive.values();
        Ok(match query.newest_first {
            true => rows.rev().filter(matching).take(limit).map(text).collect(),
            false => rows.filter(matching).take(limit).map(text).collect(),
        })
    }

    async fn prune_archive(&self, ended_by: Timestamp) -> Result<u64, JournalError> {
        let mut kept = self.kept.lock();
        let before = kept.archive.len();
        kept.archive.retain(|_, row| row.ended_at > ended_by);
        Ok((before - kept.archive.len()) as u64)
    }

    async fn describe(&self) -> Result<String, JournalError> {
        Ok("a journal in this process's memory, for tests".to_owned())
    }

    async fn close(&self) {}
}
