//! Breaking a tree on purpose: the signals behind fault injection.
//!
//! Its own file because it is the one place that hurts a healthy tree. The invariant: only trees that are ours and alive
//! now are signalled, each process through a pidfd opened while it was the one that was judged.

use rustix::process::{Signal, pidfd_send_signal};

use crate::{escape::Held, live_roots, tree_processes};

/// What to do to a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disturbance {
    /// Its main process dies, as in a crash.
    Kill,
    /// All of it stops, as in a hang.
    Stop,
    /// All of it goes on.
    Continue,
}

/// Disturbs the tree with this main process; `false` if it is not a live one of ours.
pub fn disturb(root: u32, disturbance: Disturbance) -> bool {
    if !live_roots().contains(&root) {
        return false;
    }
    let signal = match disturbance {
        Disturbance::Kill => Signal::KILL,
        Disturbance::Stop => Signal::STOP,
        Disturbance::Continue => Signal::CONT,
    };
    tree_processes(root)
        .into_iter()
        .filter(|process| disturbance != Disturbance::Kill || process.pid == root)
        .filter_map(Held::pin)
        // One that is gone meanwhile needs no signal.
        .filter(|held| pidfd_send_signal(&held.pidfd, signal).is_ok())
        .count()
        > 0
}
