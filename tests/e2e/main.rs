//! End to end: the real `wharf` binary, real browsers, real client libraries, and the leak check after every test.
//!
//! - `readme`: the examples of the README, as they are printed there
//! - `sessions_api`, `openapi`: `/v1/sessions`, `/sessions`, the document that describes them
//! - `clients`, `cdp`, `attach`: puppeteer and Playwright; discovery; who attaches, who leaves, what ends
//! - `queue`, `cancellation`: order, limits, and clients that leave at every step
//! - `faults`, `restart`, `shutdown`: what breaks, and what is told and left then
//! - `hostile`, `frames`: broken requests, broken frames, clients that stall
//! - `pool`: warm browsers, scaling, metrics
//!
//! A test that starts a real browser says so in its name (see `.config/nextest.toml`).

mod attach;
mod cancellation;
mod cdp;
mod clients;
mod faults;
mod frames;
mod hostile;
mod openapi;
mod pool;
mod queue;
mod readme;
mod restart;
mod sessions_api;
mod shutdown;
mod support;
