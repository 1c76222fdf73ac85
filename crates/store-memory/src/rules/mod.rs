//! The operations of the port, each one step on the book: the part other engines must agree with, sentence by sentence.
//!
//! Layout: `workers`, `sessions` (one session's path), `queue` (tickets, clearing, time), `holds` (limits and locks),
//! `keys`.

mod holds;
mod keys;
mod queue;
mod sessions;
mod workers;
