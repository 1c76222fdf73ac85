//! The grid under test: the real `wharf` binary with directories of its own.
//!
//! - `builder`: what it is started with, as a sentence
//! - `running`: the process: launch, ready file, signals, log
//! - `handle`: what a test does with it
//! - `leaks`: the proof that nothing is left

mod builder;
mod handle;
mod leaks;
mod running;

pub use self::{builder::GridBuilder, handle::Grid, running::Stopped};
