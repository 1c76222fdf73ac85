//! Chromium, its headless shell, Chrome and their relatives.
//!
//! A folder because finding, flags, launching and the running browser are four different kinds of knowledge. Control
//! goes over a private pipe (fds 3 and 4), clients over a loopback port chosen by the browser, both at once.
//!
//! ```text
//! find.rs     configured path, well-known places, the real binary behind a wrapper script
//! flags.rs    the one table of flags, each with its reason; the command line and environment
//! launch.rs   ChromiumDriver: spawn, readiness gates, check
//! running.rs  ChromiumBrowser: probe, pages, end
//! ```

mod find;
mod flags;
mod launch;
mod running;

pub use flags::{ChromiumConfig, Engine, Sandbox};
pub use launch::ChromiumDriver;
