//! The ledger passes the suite that every engine must pass, and agrees with the reference model in random runs: as it
//! is, read back from its image after every operation, with an archive, in two copies fed with JSON, and with its
//! indices made anew after every operation.
#![expect(clippy::unwrap_used, reason = "a helper that fails is a failed test")]

mod archive;
mod engine;

use std::sync::Arc;

use engine::Variant;
use wharf_store::{
    Store, StoreRules,
    conformance::{Harness, ManualClock, lockstep, race},
};
use wharf_store_memory::MemoryStore;

struct Model;

#[async_trait::async_trait]
impl Harness for Model {
    async fn open(&self, clock: Arc<ManualClock>, rules: StoreRules) -> Arc<dyn Store> {
        Arc::new(MemoryStore::new(clock, rules))
    }
}

mod plain {
    wharf_store::conformance_tests!(super::Variant::Plain);
}

mod archiving {
    wharf_store::conformance_tests!(super::Variant::Archiving);
}

#[test]
fn random_sequences_agree_with_the_model() {
    lockstep::check(&Variant::Plain, Some(&Model), 1_500);
}

#[test]
fn random_sequences_agree_with_the_model_when_every_state_is_an_image() {
    lockstep::check(&Variant::Imaged, Some(&Model), 400);
}

#[test]
fn random_sequences_agree_with_the_model_beside_an_archive() {
    lockstep::check(&Variant::Archiving, Some(&Model), 1_500);
}

#[test]
fn two_ledgers_fed_with_the_same_text_stay_the_same() {
    lockstep::check(&Variant::Twins, Some(&Model), 400);
}

#[test]
fn indices_are_what_the_records_say_after_every_operation() {
    lockstep::check(&Variant::Audited, Some(&Model), 600);
}

#[test]
fn locks_raced_against_placement_keep_the_invariants() {
    race::locks(&Variant::Plain, 5_000);
}

#[test]
fn limits_raced_against_placement_keep_the_invariants() {
    race::limits(&Variant::Plain, 5_000);
}
