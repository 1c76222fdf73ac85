//! Wharf's meaning, without I/O: no async runtime, no clock, no randomness of its own. Time is an argument.
//!
//! Layout:
//! - [`ids`]: identifiers and names.
//! - [`time`]: points in store time, the `Clock` port.
//! - [`spec`]: what a session asks for.
//! - [`session`]: the life of a session; deadlines.
//! - [`worker`]: states of workers and browsers.
//! - [`queue`]: admission, order, estimates.
//! - [`hold`]: limits and locks, which hold sessions back although a slot is free.
//! - [`placement`]: choosing a worker.
//! - [`warm`]: how many browsers to launch and keep.
//! - [`scale`]: how many workers a pool should have, and which go first.
//! - [`breaker`]: back-off and circuit breaker.
//! - [`key`]: API keys as clients show them.
//! - [`phase`]: from start to stop.
//! - [`reason`]: why sessions end, and how clients are told.
//! - [`error`]: the errors the world sees.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod breaker;
pub mod error;
pub mod hold;
pub mod ids;
pub mod key;
pub mod phase;
pub mod placement;
pub mod queue;
pub mod reason;
pub mod scale;
pub mod session;
pub mod spec;
pub mod time;
pub mod warm;
pub mod worker;

pub use error::{ErrorCode, ErrorSource, Retry};
pub use hold::{Block, Cover, LimitScope};
pub use ids::*;
pub use key::KeyToken;
pub use phase::Phase;
pub use reason::EndReason;
pub use session::{Epoch, Seat, SessionState, SessionStatus};
pub use spec::*;
pub use time::{Clock, Timestamp};
pub use worker::{BrowserState, WorkerState};
