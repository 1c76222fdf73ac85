//! End to end: the real `wharf` binary, real browsers, real client libraries, and the leak check after every test.
//!
//! - `readme`: the examples of the README, as they are printed there
//! - `sessions_api`, `openapi`: `/v1/sessions`, `/sessions`, the document that describes them
//! - `clients`, `cdp`, `attach`: puppeteer and Playwright; discovery; who attaches, who leaves, what ends
//! - `queue`, `cancellation`: order, limits, and clients that leave at every step
//! - `faults`, `restart`, `shutdown`: what breaks, and what is told and left then
//! - `fleet_*`: coordinators, workers, nginx and a shared store as processes of their own, and what happens when one of
//!   them is killed, cut off, drained, restarted or has another clock
//! - `hostile`, `bodies`, `frames`: broken requests, broken frames, clients that stall
//! - `pool`: warm browsers, scaling, metrics
//! - `command`, `command_churn`: programs of the driver `command`, and a thousand sessions for each way they fail
//! - `access`: keys: who may call what, and who sees what
//! - `limits`, `locks`: what holds work back, alone and under hundreds of clients
//! - `events`, `events_command`, `workers`: what happens, told as a stream; who offers slots, draining and forgetting them
//! - `chaos`: three quarters of a minute of `cargo xtask chaos` on each engine
//! - `cli`: the commands that call a grid
//! - `doctor`: what `wharf doctor` finds on healthy and sick hosts, and that it leaves nothing
//! - `conformance`, `schema`: the tester of `conformance/` and schemathesis, on running grids (`python`: how they are run)
//!
//! A test that starts a real browser says so in its name (see `.config/nextest.toml`).

mod access;
mod attach;
mod bodies;
mod cancellation;
mod cdp;
mod chaos;
mod cli;
mod clients;
mod command;
mod command_churn;
mod conformance;
mod doctor;
mod events;
mod events_command;
mod faults;
mod fleet_clients;
mod fleet_clocks;
mod fleet_coordinators;
mod fleet_drain;
mod fleet_recycling;
mod fleet_registration;
mod fleet_sessions;
mod fleet_store;
mod fleet_support;
mod fleet_workers;
mod frames;
mod hostile;
mod limits;
mod locks;
mod openapi;
mod pool;
mod python;
mod queue;
mod readme;
mod restart;
mod schema;
mod sessions_api;
mod shutdown;
mod support;
mod workers;
