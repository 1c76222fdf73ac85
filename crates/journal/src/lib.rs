//! The store of a fleet: every coordinator keeps a replica of the ledger, and all of them append to and apply one shared
//! journal.
//!
//! A page of the journal is a batch of operations of one coordinator, as it was asked for them, not as it decided. It has
//! a place and a time from the journal; whoever applies all pages in order has the same ledger and the same answers. So
//! every rule of the grid exists once, in `wharf-ledger`, and an engine (PostgreSQL, Redis) only keeps pages in order.
//! [ADR 0010](../../../docs/adr/0010-one-journal-many-replicas.md) has the reasons.
//!
//! Layout:
//! - [`port`]: what an engine must do.
//! - `replica`: the ledger and its position; applying pages; who waits for which answer.
//! - `lane`: one page in flight: collects operations, appends, tries again under the same number.
//! - `follow`: reading what others wrote: catching up before a read, the tail, and beginning again from the checkpoint.
//! - `store`: the [`Store`](wharf_store::Store) over all that. `upkeep`: archive, pruning, checkpoints.
//! - `memory`, `conformance` (feature): a journal for tests that fails on purpose, and the suite for engines.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[cfg(feature = "conformance")]
pub mod conformance;
mod follow;
mod lane;
#[cfg(feature = "conformance")]
pub mod memory;
pub mod port;
mod replica;
mod store;
mod upkeep;

pub use port::*;
pub use store::{JournalStore, ReplicaConfig, Traffic, Upkeep};
