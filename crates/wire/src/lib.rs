//! What travels: REST bodies, spans, WebSocket frame headers. No transport, no async runtime.
//!
//! Layout:
//! - [`events`]: what `/v1/events` tells.
//! - [`frame`]: WebSocket frame headers, scanned at any split of the byte stream.
//! - [`pool`]: the bodies for operators: pool, queue, locks, keys.
//! - [`rest`]: the bodies of the sessions API.
//! - [`span`]: time spans as people write them.
//! - [`workers`]: the bodies of `/v1/workers`.
#![forbid(unsafe_code)]

pub mod events;
pub mod frame;
pub mod internal;
pub mod pool;
pub mod rest;
pub mod span;
pub mod workers;
