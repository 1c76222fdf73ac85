//! The test kit: a real grid in a sentence, clients to talk to it, and the proof that nothing is left behind.
//!
//! A crate of its own because tests of several packages share it and nothing that ships may depend on it. Everything
//! here works on the real `wharf` binary from the outside: its command line, its port, `/proc`.
//!
//! ```no_run
//! # async fn test() -> anyhow::Result<()> {
//! use wharf_testkit::{BrowserUnderTest, Grid};
//!
//! let grid = Grid::builder().slots(4).min(2).queue(100).browser(BrowserUnderTest::Fake).start().await?;
//! let mut cdp = grid.cdp("/").await?;
//! let version = cdp.call("Browser.getVersion", serde_json::json!({})).await?;
//! cdp.close().await;
//! grid.finish().await
//! # }
//! ```
//!
//! Layout:
//! - [`Grid`], [`GridBuilder`]: start, stop, kill, restart, finish; the leak check
//! - [`Fleet`], [`FleetBuilder`]: coordinators, workers, store, nginx and lines that can be cut, each by itself
//! - [`Http`], [`Reply`], [`EventStream`]: a small JSON client · [`Cdp`]: raw CDP over WebSocket · [`Metrics`]: Prometheus text, parsed
//! - [`eventually`]: waiting with patience instead of sleeping
//! - [`node_script`]: puppeteer and Playwright scripts
//! - [`processes`]: what `/proc` says · [`binaries`]: where the programs under test are
//! - `src/bin/fake-browser`: a browser that costs a megabyte and fails on request · `src/bin/fake-program`: the same for the
//!   driver `command` · [`misbehave`]: how they fail
//!
//! Invariant: a `Grid` that is finished or dropped leaves no process and no file.

pub mod binaries;
mod cdp;
mod events;
mod eventually;
pub mod fleet;
mod grid;
mod http_client;
mod metrics;
pub mod misbehave;
mod node;
pub mod postgres;
pub mod processes;
pub mod redis;

pub use self::{
    binaries::BrowserUnderTest,
    cdp::{Cdp, CdpEnd, CdpError},
    events::{EventStream, SseEvent},
    eventually::{eventually, eventually_within, patience},
    fleet::{Cutter, Fleet, FleetBuilder, FleetStore, Member, StoreServer},
    grid::{Grid, GridBuilder, Stopped},
    http_client::{Http, Reply},
    metrics::Metrics,
    node::{NodeOutput, Script, node_script},
};
