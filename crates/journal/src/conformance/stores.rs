//! The suite of the store's port, over a real journal: every scenario, random sequences against the model by one and by
//! three coordinators, and races.
//!
//! Its own file because it judges the store and not the journal: an engine that keeps pages in order passes it, and one that
//! does not will be found out here in the words of the port.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use uuid::Uuid;
use wharf_core::CoordinatorId;
use wharf_store::{
    Store, StoreRules,
    conformance::{Harness, ManualClock, lockstep, race},
};
use wharf_store_memory::MemoryStore;

use super::Places;
use crate::{JournalStore, ReplicaConfig, Upkeep, port::Writer};

/// Everything is put away at once, so that it is seen to happen.
const EAGER: Upkeep = Upkeep {
    archive_every: Duration::ZERO,
    archive_others: Duration::ZERO,
    prune_every: Duration::ZERO,
    checkpoint_pages: 7,
    pages_kept: 3,
};

/// Stores on empty journals of these places.
pub struct Stores<'a> {
    places: &'a dyn Places,
    /// Tasks of stores live here where their opener does not stay.
    runtime: Option<&'static tokio::runtime::Runtime>,
}

struct Model;

// === impl Stores ===

impl<'a> Stores<'a> {
    /// Stores whose tasks live where they are opened.
    pub const fn new(places: &'a dyn Places) -> Self {
        Self { places, runtime: None }
    }

    /// Every scenario of the port, one after the other.
    pub async fn scenarios(&self) {
        wharf_store::conformance_tests!(@all run *self);
    }

    /// Random sequences against the model. Blocks; not to be called from a runtime.
    pub fn agree_with_the_model(&self, cases: u32) {
        lockstep::check(self, Some(&Model), cases);
    }

    /// Many threads against locks and limits. Blocks; not to be called from a runtime.
    pub fn survive_races(&self, turns: u64) {
        static RUNTIME: OnceLock<tokio::runtime::Runtime> = OnceLock::new();
        let runtime = RUNTIME.get_or_init(|| tokio::runtime::Runtime::new().expect("a runtime needs nothing special"));
        let lasting = Stores {
            places: self.places,
            runtime: Some(runtime),
        };
        race::locks(&lasting, turns);
        race::limits(&lasting, turns);
    }
}

#[async_trait]
impl Harness for Stores<'_> {
    async fn open(&self, clock: Arc<ManualClock>, rules: StoreRules) -> Arc<dyn Store> {
        static OPENED: AtomicU64 = AtomicU64::new(1);
        let n = u128::from(OPENED.fetch_add(1, Ordering::Relaxed));
        let config = ReplicaConfig {
            writer: Writer(Uuid::from_u128(n << 64 | u128::from(std::process::id()))),
            coordinator: CoordinatorId::from_uuid(Uuid::from_u128(1)),
            rules,
            upkeep: EAGER,
            clock: Some(clock),
        };
        let place = self.places.empty().await;
        let opening = async move {
            let journal = place.open().await;
            JournalStore::open(journal, config)
                .await
                .expect("a journal that nothing hinders")
        };
        match self.runtime {
            None => Arc::new(opening.await),
            Some(runtime) => Arc::new(runtime.spawn(opening).await.expect("opening does not panic")),
        }
    }

    fn forgets_ids(&self) -> bool {
        true
    }
}

#[async_trait]
impl Harness for Model {
    async fn open(&self, clock: Arc<ManualClock>, rules: StoreRules) -> Arc<dyn Store> {
        Arc::new(MemoryStore::new(clock, rules))
    }
}
