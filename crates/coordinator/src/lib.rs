//! The coordinator role: the stateless front door. Admission, queue, session service, relay.
//!
//! Layout:
//! - [`caller`]: who is calling, and what they may see.
//! - [`config`]: what it is told at start.
//! - [`link`]: the port towards workers (in-process for `wharf up`, HTTP to a gateway for a fleet).
//! - [`service`]: the use cases: open a session, attach to it, end it; the loops behind them.
//! - [`fronts`]: the protocols clients speak: REST, CDP and its discovery, operations.
//! - [`refusal`]: why a request was refused, with everything its answer needs.
//! - [`metrics`]: its numbers.
//! - [`server`]: the accept loop: first-byte deadline, connection cap, drain.
#![forbid(unsafe_code)]

pub mod caller;
pub mod config;
pub mod fronts;
pub mod link;
pub mod metrics;
pub mod refusal;
pub mod server;
pub mod service;

pub use caller::Caller;
pub use config::{CoordinatorConfig, KeyRule, WorkerToken};
pub use link::{BrowserIo, DialTarget, Driven, Fault, LeaseWish, LinkError, PageInfo, WorkerLink};
pub use metrics::CoordinatorMetrics;
pub use refusal::Refusal;
pub use service::Service;
