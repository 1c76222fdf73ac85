//! Coordinators and workers apart: the two ports between them, over HTTP.
//!
//! A crate of its own because it is the one place besides the binary that knows both roles: it joins them over a network as
//! `wharf up` joins them in one process, and neither role can tell the difference.
//!
//! Layout:
//! - [`address`]: where a gateway is, and the key it wants.
//! - `client`: JSON calls with a limit; who could not be reached and who refused are different things.
//! - [`gateway`]: on a worker: its link, served. [`link`]: on a coordinator: the same link, called.
//! - [`uplink`]: on a worker: any of several coordinators, told.
#![forbid(unsafe_code)]

pub mod address;
mod client;
pub mod gateway;
pub mod link;
pub mod uplink;

pub use address::GatewayAddress;
pub use gateway::Gateway;
pub use link::FleetLink;
pub use uplink::HttpUplink;
