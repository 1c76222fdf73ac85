//! The reference engine passes the suite it is the reference for: every scenario, and random runs under the invariants.

use std::sync::Arc;

use wharf_store::{
    Store, StoreRules,
    conformance::{Harness, ManualClock, lockstep, race},
};
use wharf_store_memory::MemoryStore;

struct Memory;

#[async_trait::async_trait]
impl Harness for Memory {
    async fn open(&self, clock: Arc<ManualClock>, rules: StoreRules) -> Arc<dyn Store> {
        Arc::new(MemoryStore::new(clock, rules))
    }
}

wharf_store::conformance_tests!(Memory);

#[test]
fn random_sequences_keep_the_invariants() {
    lockstep::check(&Memory, None, 256);
}

#[test]
fn locks_raced_against_placement_keep_the_invariants() {
    race::locks(&Memory, 10_000);
}

#[test]
fn limits_raced_against_placement_keep_the_invariants() {
    race::limits(&Memory, 10_000);
}
