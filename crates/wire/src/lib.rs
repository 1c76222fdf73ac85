//! What travels: REST bodies, spans, WebSocket frame headers. No transport, no async runtime.
//!
//! Layout:
//! - [`frame`]: WebSocket frame headers, scanned at any split of the byte stream.
//! - [`pool`]: the bodies for operators: pool, queue, locks, keys.
//! - [`rest`]: the bodies of the sessions API.
//! - [`span`]: time spans as people write them.
#![forbid(unsafe_code)]

pub mod frame;
pub mod pool;
pub mod rest;
pub mod span;
