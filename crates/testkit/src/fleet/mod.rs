//! A real fleet in a sentence: coordinators, workers, their shared store, a balancer, and lines that can be cut.
//!
//! Its own directory because a fleet is several processes whose order of death is the test: each can be killed, held,
//! drained and started again by itself. The end is one for all ([`Fleet::finish`]).
//!
//! Layout: `builder` (wishes), `handle` ([`Fleet`]), `member` (one process), `store` (the server behind), `balancer`
//! (nginx), `cutter` (lines that are proxies), `hosts` (workers in namespaces), `leaks` (the end and its proof), `ports`.
//!
//! Invariant: a fleet that is finished or dropped leaves no process and no file.

mod balancer;
mod builder;
mod cutter;
mod handle;
pub mod hosts;
mod leaks;
mod member;
mod ports;
mod store;

pub use self::{
    builder::{FleetBuilder, FleetStore},
    cutter::Cutter,
    handle::Fleet,
    hosts::Line,
    member::Member,
    store::StoreServer,
};
