//! The pool as operators see and steer it: what runs and waits, limits, forced release, clearing the queue.
//!
//! Its own file because these are one person's questions ("why is my run queued, who holds the slot, how do I free it")
//! and none is on a session's own path. Everything is read from the store; nothing is kept here.

use std::time::Duration;

use wharf_core::{EndReason, KeyId, LimitScope, PoolName, SessionId, SessionStatus};
use wharf_store::{LockView, PoolReport, QueueFilter, SessionQuery, SessionRecord};

use super::Service;
use crate::Refusal;

/// Sessions looked at in one call; more are another call's.
const PAGE: u32 = 1000;

/// A pool with its holders and locks.
pub struct PoolView {
    /// The counts.
    pub report: PoolReport,
    /// Sessions with a slot, longest first.
    pub holders: Vec<SessionRecord>,
    /// Locks that cover something of it.
    pub locks: Vec<LockView>,
}

// === impl Service ===

impl Service {
    /// A pool, with the sessions that `only` may see.
    pub async fn pool(&self, pool: &PoolName, only: Option<KeyId>) -> Result<PoolView, Refusal> {
        let store = &self.inner().store;
        let report = store.pool(pool).await?;
        let query = SessionQuery {
            pool: Some(pool.clone()),
            statuses: vec![SessionStatus::Placed, SessionStatus::Starting, SessionStatus::Active],
            owner: only,
            limit: PAGE,
            ..SessionQuery::default()
        };
        let mut holders = store.sessions(&query).await?;
        holders.sort_by_key(|record| (record.times.placed_at, record.id));
        let mut locks = store.locks().await?;
        locks.retain(|view| view.lock.cover.covers_pool(pool));
        Ok(PoolView { report, holders, locks })
    }

    /// Sets or lifts a limit; those whom it held back are served in the same step.
    pub async fn set_limit(&self, pool: &PoolName, scope: LimitScope, max: Option<u64>) -> Result<(), Refusal> {
        let freed = self.inner().store.set_limit(pool, scope.clone(), max).await?;
        tracing::info!(%pool, %scope, ?max, served = freed.placed.len(), "limit set");
        Ok(())
    }

    /// Ends, as `killed`, every session that is active for longer than `max_age`; and what time has ended anyway.
    pub async fn release_stale(&self, pool: Option<&PoolName>, max_age: Duration) -> Result<Vec<SessionId>, Refusal> {
        let store = &self.inner().store;
        let swept = store.sweep().await?;
        let mut ended: Vec<_> = swept.ended.iter().map(|ended| ended.session).collect();
        let mut query = SessionQuery {
            pool: pool.cloned(),
            statuses: vec![SessionStatus::Active],
            limit: PAGE,
            ..SessionQuery::default()
        };
        loop {
            let now = store.now().await?;
            let page = store.sessions(&query).await?;
            query.after = page.last().map(|record| record.id);
            let is_last = page.len() < PAGE as usize;
            for record in page
                .iter()
                .filter(|record| record.ran(now).is_some_and(|ran| ran >= max_age))
            {
                let detail = format!("released by force: active for longer than {max_age:?}");
                self.end(record.id, EndReason::Killed, Some(detail)).await?;
                ended.push(record.id);
            }
            if is_last {
                tracing::info!(ended = ended.len(), ?max_age, "stale sessions released");
                return Ok(ended);
            }
        }
    }

    /// The first waiters of a pool, in the order of service.
    pub async fn waiting(&self, pool: &PoolName, limit: u32) -> Result<Vec<SessionRecord>, Refusal> {
        Ok(self.inner().store.queue(pool, limit).await?)
    }

    /// Sends waiters away.
    pub async fn clear_queue(&self, filter: QueueFilter) -> Result<Vec<SessionId>, Refusal> {
        let detail = "the queue was cleared";
        let freed = self
            .inner()
            .store
            .clear_queue(filter, EndReason::Killed, detail)
            .await?;
        tracing::info!(ended = freed.ended.len(), "queue cleared");
        Ok(freed.ended.iter().map(|ended| ended.session).collect())
    }
}
