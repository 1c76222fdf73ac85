//! The operations of the port, each one step on the book: sentence by sentence what the reference engine
//! (`wharf-store-memory`) says, but looked up where that one searches.
//!
//! Layout: `workers`, `sessions` (one session's path), `queue` (tickets, clearing, time), `dispatch`, `holds` (limits
//! and locks), `keys`, `archive`.

mod archive;
mod dispatch;
mod holds;
mod keys;
mod queue;
mod sessions;
mod workers;
