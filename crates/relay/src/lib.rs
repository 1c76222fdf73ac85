//! The relay: moves WebSocket bytes between a client and a browser over any two streams.
//!
//! A crate of its own because coordinator and worker both relay, and because it must stay small enough to be read in
//! one sitting: it holds the only code that touches every byte of every session.
//!
//! Invariant: data frames leave exactly as they came, in order; frames of our own go only between them; nothing
//! follows our close frame. See `README.md` for the picture.

mod activity;
pub mod handshake;
mod output;
mod peer;
mod relay;

pub use activity::Activity;
pub use relay::{RelayConfig, RelayEnd, relay};
pub use wharf_wire::frame::{CloseFrame, ProtocolError};

use bytes::Bytes;

/// One end of a relay: a stream past its upgrade, and what was read from it beyond the upgrade's header.
#[derive(Debug)]
pub struct Side<S> {
    /// The stream.
    pub io: S,
    /// Bytes that arrived with the header and belong to the first frames.
    pub leftover: Bytes,
}

/// Which of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Which {
    /// The one that asked for a browser.
    Client,
    /// The browser, or the worker in front of it.
    Browser,
}

// === impl Side ===

impl<S> Side<S> {
    /// A stream of which nothing was read yet.
    pub fn new(io: S) -> Side<S> {
        Side {
            io,
            leftover: Bytes::new(),
        }
    }
}
