//! Opening the store that a URL names.
//!
//! Its own file because it is the one place that knows every engine.

use std::sync::Arc;

use uuid::Uuid;
use wharf_core::CoordinatorId;
use wharf_journal::{Journal, JournalStore, ReplicaConfig, Upkeep, Writer};
use wharf_store::Store;
use wharf_store_memory::MemoryStore;
use wharf_store_postgres::PostgresJournal;
use wharf_store_redis::RedisJournal;
use wharf_store_sqlite::{Durability, SqliteStore};

use crate::{
    clock::SystemClock,
    config::{Settings, StoreUrl},
    places::Places,
};

/// What becomes of sessions that were live when the store was last closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Past {
    /// Their browsers died with this process: they end.
    IsOver,
    /// Their browsers are elsewhere and may live.
    MayLive,
}

pub async fn open(
    settings: &Settings,
    places: &Places,
    coordinator: CoordinatorId,
    past: Past,
) -> anyhow::Result<Arc<dyn Store>> {
    let clock = Arc::new(SystemClock);
    let path = match &settings.store {
        StoreUrl::Memory => return Ok(Arc::new(MemoryStore::new(clock, settings.rules))),
        StoreUrl::Postgres(url) => {
            let journal = PostgresJournal::connect(url, wharf_store_postgres::Options::default()).await?;
            return shared(settings, Arc::new(journal), coordinator).await;
        }
        StoreUrl::Redis(url) => {
            let journal = RedisJournal::connect(url, wharf_store_redis::Options::default()).await?;
            return shared(settings, Arc::new(journal), coordinator).await;
        }
        StoreUrl::Sqlite(Some(path)) => path.clone(),
        StoreUrl::Sqlite(None) => places.data_dir.join("wharf.db"),
    };
    let store = SqliteStore::open(&path, Durability::default(), clock, settings.rules)?;
    if past == Past::IsOver {
        let freed = store.recover("wharf was restarted").await?;
        if !freed.ended.is_empty() {
            tracing::warn!(
                sessions = freed.ended.len(),
                "ended sessions that could not survive the restart"
            );
        }
    }
    Ok(Arc::new(store))
}

async fn shared(
    settings: &Settings,
    journal: Arc<dyn Journal>,
    coordinator: CoordinatorId,
) -> anyhow::Result<Arc<dyn Store>> {
    // What it means for the user that the store is this one, said once.
    tracing::info!(store = %settings.store, "{}", journal.describe().await?);
    let config = ReplicaConfig {
        writer: Writer(Uuid::now_v7()),
        coordinator,
        rules: settings.rules,
        upkeep: Upkeep::default(),
        clock: None,
    };
    Ok(Arc::new(JournalStore::open(journal, config).await?))
}
