//! `wharf doctor`: looks at this host with the settings of `wharf up` and says what is in the way and how to mend it.
//!
//! A folder because each group of checks is a different kind of knowledge. In each, thin readers gather facts and a pure
//! `judge` turns them into findings, so that hosts nobody has at hand (Docker's 64 MB, cgroup v1) are plain unit tests.
//! The invariant: a doctor leaves nothing behind and touches no running grid (for an instant it holds a free lock and
//! port, and it asks the kernel to count memory in our own cgroup, as `up` would). Its trial browser lives in a directory
//! of its own below `run_dir`, ends before the report is printed, and directories that were made for it are removed.
//!
//! ```text
//! finding.rs      Finding, Group, Level; what the settings need
//! host.rs         thin readers that several groups share: /proc numbers, mounts, room, who holds a file
//! run.rs          the order of checks, progress, interruption, exit code
//! trial.rs        the driver's own check, in a directory of its own
//! report.rs       for people (marks, colour) and for programs (JSON)
//! browser.rs sandbox.rs shared_memory.rs directories.rs fonts.rs limits.rs cgroups.rs memory.rs ports.rs kernel.rs
//! ```

mod browser;
mod cgroups;
mod directories;
mod finding;
mod fonts;
mod host;
mod kernel;
mod limits;
mod memory;
mod ports;
mod report;
mod run;
mod sandbox;
mod shared_memory;
mod trial;

pub use run::run;
