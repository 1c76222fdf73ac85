//! What the long-running programs of this package share: seeded chance, samples, what the kernel says of a process, and a
//! look into a fleet's shared store.
//!
//! A library because `chaos` and `scale` are programs of their own. Nothing here knows a test.

pub mod dice;
pub mod machine;
pub mod observer;
pub mod samples;
