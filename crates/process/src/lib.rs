//! Process trees: spawned, watched, killed and reaped as one thing, with everything they wrote.
//!
//! Its own crate because it is the only one with `unsafe` and the only one that knows the kernel's rules about
//! sessions, groups, parent-death signals and zombies. The invariants it keeps:
//!
//! - a [`Tree`] that nobody holds any more is dead: dropping it kills it, in the background, files included;
//! - [`Tree::kill`] returns when *no* process of the tree is left, not even a zombie;
//! - it never signals or reaps a process that it did not start (or that does not carry its marker);
//! - a `SIGKILL` of Wharf ends the browsers too: parent-death signal first, then the [`guard`].

mod cgroup;
mod disturb;
mod escape;
pub mod guard;
mod keeper;
mod listener;
mod marker;
mod run_dir;
mod scan;
mod spawn;
pub mod system;
mod tree;

pub use cgroup::Cgroups;
pub use disturb::{Disturbance, disturb};
pub use listener::Listener;
pub use marker::{BROWSER_ENV, Marker, RUN_DIR_ENV, SweepReport, kill_orphans, orphans, sweep_leftovers};
pub use run_dir::{RunDir, RunDirError, SessionDir};
pub use scan::{ProcessInfo, ProcessState, process, tree_processes};
pub use spawn::{FdMapping, Output, Priority, SpawnError, SpawnRequest, Spawned, Spawner};
pub use tree::{ExitStatus, Exited, OutOfMemory, Tree, live_roots};
