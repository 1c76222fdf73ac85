//! A replica of our own on a fleet's shared store: sees what the coordinators see, without asking them.
//!
//! Its own file because it is the one place here that knows engines. It opens the store under the very rules that
//! coordinators have by default, so that its coming changes nothing, and the observer never sweeps nor dispatches.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use uuid::Uuid;
use wharf_core::CoordinatorId;
use wharf_journal::{Journal, JournalStore, ReplicaConfig, Upkeep, Writer};
use wharf_store::StoreRules;
use wharf_store_postgres::PostgresJournal;
use wharf_store_redis::RedisJournal;

/// As `wharf coordinator` has them when no flag changes them.
#[must_use]
pub fn default_rules() -> StoreRules {
    StoreRules {
        // Three launches of six seconds, a program's answer, and their pauses.
        starting_grace: Duration::from_secs(3 * 6 + 5 + 30),
        ..StoreRules::default()
    }
}

/// The journal at a URL: `postgres://…`, `redis://…` or `redis+cluster://…`.
///
/// # Errors
/// When it cannot be reached.
pub async fn journal(url: &str) -> Result<Arc<dyn Journal>> {
    Ok(match url.starts_with("redis") {
        true => Arc::new(RedisJournal::connect(url, wharf_store_redis::Options::default()).await?),
        false => Arc::new(PostgresJournal::connect(url, wharf_store_postgres::Options::default()).await?),
    })
}

/// The store at a URL.
///
/// # Errors
/// When it cannot be reached or read.
pub async fn open(url: &str, rules: StoreRules) -> Result<JournalStore> {
    let config = ReplicaConfig {
        writer: Writer(Uuid::now_v7()),
        coordinator: CoordinatorId::from_uuid(Uuid::now_v7()),
        rules,
        upkeep: Upkeep::default(),
        clock: None,
    };
    Ok(JournalStore::open(journal(url).await?, config).await?)
}
