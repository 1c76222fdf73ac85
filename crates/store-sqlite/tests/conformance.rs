//! The embedded engine passes the suite, in memory and on a file, and agrees with the reference model on random runs.
#![expect(clippy::unwrap_used, reason = "a helper that fails is a failed test")]

use std::sync::{Arc, Mutex};

use tempfile::TempDir;
use wharf_store::{
    Store, StoreRules,
    conformance::{Harness, ManualClock, lockstep, race},
};
use wharf_store_memory::MemoryStore;
use wharf_store_sqlite::{Durability, SqliteStore};

struct Model;

struct InMemory;

/// Each store in a folder of its own; the folders go with the harness.
#[derive(Default)]
struct OnFile {
    folders: Mutex<Vec<TempDir>>,
}

#[async_trait::async_trait]
impl Harness for Model {
    async fn open(&self, clock: Arc<ManualClock>, rules: StoreRules) -> Arc<dyn Store> {
        Arc::new(MemoryStore::new(clock, rules))
    }
}

#[async_trait::async_trait]
impl Harness for InMemory {
    async fn open(&self, clock: Arc<ManualClock>, rules: StoreRules) -> Arc<dyn Store> {
        Arc::new(SqliteStore::in_memory(clock, rules).unwrap())
    }
}

#[async_trait::async_trait]
impl Harness for OnFile {
    async fn open(&self, clock: Arc<ManualClock>, rules: StoreRules) -> Arc<dyn Store> {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&folder.path().join("wharf.db"), Durability::Normal, clock, rules).unwrap();
        self.folders.lock().unwrap().push(folder);
        Arc::new(store)
    }
}

mod in_memory {
    wharf_store::conformance_tests!(super::InMemory);
}

mod on_file {
    wharf_store::conformance_tests!(super::OnFile::default());
}

#[test]
fn random_sequences_agree_with_the_model() {
    lockstep::check(&InMemory, Some(&Model), 512);
}

#[test]
fn random_sequences_on_a_file_agree_with_the_model() {
    lockstep::check(&OnFile::default(), Some(&Model), 32);
}

#[test]
fn locks_raced_against_placement_keep_the_invariants() {
    race::locks(&InMemory, 3_000);
}

#[test]
fn limits_raced_against_placement_keep_the_invariants() {
    race::limits(&InMemory, 3_000);
}

#[test]
fn locks_raced_on_a_file_keep_the_invariants() {
    race::locks(&OnFile::default(), 300);
}
