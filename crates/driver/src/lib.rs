//! Drivers: how one kind of browser is found, launched, probed, spoken to and killed.
//!
//! Its own crate so that a worker knows two traits, [`Driver`] and [`Browser`], and never a browser's command line.
//! The invariant both keep: a launch that fails or is abandoned leaves neither a process nor a file, and an end of the
//! browser is told once per asker, with a cause.

#![deny(missing_docs)]

mod browser;
mod cdp;
mod chromium;
mod command;
mod options;
mod process;
mod stderr;
mod trial;

pub use browser::{
    Browser, BrowserVersion, CallFailed, Driver, DriverProblem, DriverReport, Endpoint, Exit, LaunchError, LaunchGate,
    LaunchSpec, PageTarget, ProbeFailed, Program, Urgency,
};
pub use cdp::ControlError;
pub use chromium::{ChromiumConfig, ChromiumDriver, Engine, Sandbox};
pub use command::{CommandConfig, CommandDriver};
pub use options::{AllowList, LaunchOptions, OptionRefused, WindowSize};
pub use wharf_core::BrowserKind;
