//! The ledger seen from outside, beyond what the suite of the port says: its promises to whoever replicates it, and what
//! its operations cost.
#![expect(clippy::unwrap_used, reason = "a helper that fails is a failed test")]

mod choice;
mod cost;
mod kit;
mod promises;
