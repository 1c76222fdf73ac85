//! Which fault explains what, and for how long: each question has its own limit, derived from the grid's own times.
//!
//! Its own file, pure, because a limit that is too generous hides faults of the grid, and one that is too narrow blames it
//! for ours. Every limit here is a sum of times that the grid is configured with (`main.rs`, the defaults of
//! `docs/reference/configuration.md`, `deploy/nginx.conf.template`) and one margin for this machine.

use std::time::Duration;

use wharf_core::EndReason;

use crate::{
    options::Means,
    schedule::{Fault, Line, Who},
};

/// Sixteen processes share this machine with their own tests: whatever is due may be this late.
const MARGIN: Duration = Duration::from_secs(2);
/// `heartbeat_interval`.
const HEARTBEAT: Duration = Duration::from_secs(3);
/// How long a worker waits for the answer to a report before it sends the next.
const REPORT_LIMIT: Duration = Duration::from_secs(3);
/// How often a coordinator looks for what time has ended.
const SWEEP: Duration = Duration::from_secs(1);
/// A worker that was cut off, or whose coordinator or store was, is believed again when its next report has arrived: one
/// that is on its way must first be given up. A sweep may still come before that (ttl 10 s, counted from the last report).
const HEARD_AGAIN: Duration = HEARTBEAT
    .saturating_add(REPORT_LIMIT)
    .saturating_add(SWEEP)
    .saturating_add(MARGIN);
/// A browser's socket broke: `is_there` (0.7 s), the grace for a better reason (2 s).
const JUDGED: Duration = Duration::from_millis(2700).saturating_add(MARGIN);
/// `--ping-interval`: by then a coordinator has said something on a connection whose other end is gone.
const PING: Duration = Duration::from_secs(5);
/// `probe_limit`: the last probe of a browser that was held.
const PROBE: Duration = Duration::from_secs(2);
/// A placement whose coordinator is gone, or whose word was lost, has failed after this (`starting_grace`).
const STARTING_GRACE: Duration = Duration::from_secs(53);
/// `fail_timeout` of a coordinator that the balancer found dead: until then it has fewer to ask.
const FAIL_TIMEOUT: Duration = Duration::from_secs(2);
/// `worker_shutdown_timeout`: then a reloaded balancer's old children cut what is still open.
const OLD_CHILDREN: Duration = Duration::from_secs(45);

/// How long ago a fault began and was over, seen from the moment in question; `None` while it is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Age {
    pub begun: Duration,
    pub over: Option<Duration>,
}

// === impl Age ===

impl Age {
    fn is_within(self, limit: Duration) -> bool {
        self.over.is_none_or(|over| over <= limit)
    }
}

/// Whether it may break a client's own connection without a word, or make the balancer speak for itself.
pub fn breaks_front(fault: Fault, age: Age) -> bool {
    match fault {
        Fault::Kill(Who::Coordinator(_), _)
        | Fault::Pause(Who::Coordinator(_), _)
        | Fault::Terminate(Who::Coordinator(_)) => age.is_within(FAIL_TIMEOUT + MARGIN),
        Fault::KillBalancer(_) => age.is_within(MARGIN),
        // At once, what was just being handed over; and at the end, what the old children still had.
        Fault::ReloadBalancer => age.begun <= MARGIN || (OLD_CHILDREN..=OLD_CHILDREN + MARGIN).contains(&age.begun),
        _ => false,
    }
}

/// Whether it may have ended a session of this worker for this reason.
pub fn ends_session(fault: Fault, age: Age, worker: usize, reason: EndReason, means: Means) -> bool {
    // Three placements failed, on up to three workers; or one was never heard of again.
    let is_launch = reason == EndReason::LaunchFailed;
    let is_here = |who: usize| who == worker || is_launch;
    let limit = match fault {
        // Over when it has registered, which ends its past life.
        Fault::Kill(Who::Worker(who), _) | Fault::Terminate(Who::Worker(who)) if is_here(who) => SWEEP + MARGIN,
        Fault::Pause(Who::Worker(who), _) if is_here(who) => HEARD_AGAIN,
        Fault::KillBrowser(who, _) if is_here(who) => JUDGED,
        Fault::PauseBrowser(who, ..) if is_here(who) => PROBE + MARGIN,
        Fault::Cut(line, _) | Fault::Blackhole(line, _) => match line {
            Line::Gateway(who) | Line::Uplink(who) if is_here(who) => line_limit(fault, means),
            // Reports reach nobody who could write them down.
            Line::Store(_) => HEARD_AGAIN,
            _ => return false,
        },
        Fault::RestartStore | Fault::PauseStore(_) => HEARD_AGAIN,
        // One that stands still holds reports back.
        Fault::Pause(Who::Coordinator(_), _) => HEARD_AGAIN,
        Fault::Kill(Who::Coordinator(_), _) | Fault::Terminate(Who::Coordinator(_)) if is_launch => Duration::ZERO,
        _ => return false,
    };
    // Nobody is left who could say that a placement failed: time has to.
    let is_lost_word = is_launch && !matches!(fault, Fault::KillBrowser(..) | Fault::PauseBrowser(..));
    age.is_within(limit) || (is_lost_word && age.is_within(STARTING_GRACE + SWEEP + MARGIN))
}

/// How long after it is whole again a line may have ended a session.
fn line_limit(fault: Fault, means: Means) -> Duration {
    match (means, fault) {
        // A proxy resets what it cut or swallowed, at the latest when it heals.
        (Means::Proxies, Fault::Cut(Line::Gateway(_), _) | Fault::Blackhole(Line::Gateway(_), _)) => JUDGED,
        (Means::Proxies, _) => HEARD_AGAIN,
        // One end was reset; the other learns it when it says something.
        (Means::Namespaces, Fault::Cut(..)) => (PING + JUDGED).max(HEARD_AGAIN),
        // TCP repeats itself at times that double: silence may last as long again as it was made to last.
        (Means::Namespaces, Fault::Blackhole(_, span)) => (span + JUDGED).max(HEARD_AGAIN),
        (Means::Namespaces, _) => HEARD_AGAIN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Duration = Duration::from_secs(12);

    fn over_for(seconds: u64) -> Age {
        Age {
            begun: SPAN + Duration::from_secs(seconds),
            over: Some(Duration::from_secs(seconds)),
        }
    }

    fn ends(fault: Fault, seconds: u64, reason: EndReason, means: Means) -> bool {
        ends_session(fault, over_for(seconds), 1, reason, means)
    }

    #[test]
    fn fault_explains_while_it_lasts_and_no_longer_than_its_own_limit() {
        let lost = EndReason::WorkerLost;
        let kill = Fault::Kill(Who::Worker(1), SPAN);
        let open = Age {
            begun: SPAN,
            over: None,
        };
        assert!(ends_session(kill, open, 1, lost, Means::Proxies));
        assert!(!ends_session(kill, open, 2, lost, Means::Proxies), "another worker's");
        assert!(ends(kill, 2, lost, Means::Proxies) && !ends(kill, 4, lost, Means::Proxies));
        let crash = Fault::KillBrowser(1, 0);
        assert!(ends(crash, 4, EndReason::BrowserCrashed, Means::Proxies));
        assert!(!ends(crash, 6, EndReason::BrowserCrashed, Means::Proxies));
        let store = Fault::PauseStore(SPAN);
        assert!(ends(store, 8, lost, Means::Proxies) && !ends(store, 10, lost, Means::Proxies));
        assert!(!ends(Fault::ReloadBalancer, 0, lost, Means::Proxies));
        assert!(!ends(Fault::Kill(Who::Coordinator(0), SPAN), 0, lost, Means::Proxies));
    }

    #[test]
    fn real_silence_lasts_up_to_twice_as_long() {
        let hole = Fault::Blackhole(Line::Gateway(1), SPAN);
        let hung = EndReason::BrowserHung;
        assert!(!ends(hole, 6, hung, Means::Proxies), "a proxy resets when it heals");
        assert!(ends(hole, 16, hung, Means::Namespaces) && !ends(hole, 18, hung, Means::Namespaces));
        let cut = Fault::Cut(Line::Gateway(1), SPAN);
        assert!(ends(cut, 9, hung, Means::Namespaces) && !ends(cut, 11, hung, Means::Namespaces));
    }

    #[test]
    fn placement_that_nobody_spoke_of_again_fails_after_its_grace() {
        let kill = Fault::Kill(Who::Coordinator(0), SPAN);
        assert!(ends(kill, 55, EndReason::LaunchFailed, Means::Proxies));
        assert!(!ends(kill, 57, EndReason::LaunchFailed, Means::Proxies));
        assert!(!ends(
            Fault::KillBrowser(0, 0),
            20,
            EndReason::LaunchFailed,
            Means::Proxies
        ));
    }

    #[test]
    fn connection_breaks_when_its_process_does_or_the_old_children_go() {
        let kill = Fault::Kill(Who::Coordinator(0), SPAN);
        assert!(breaks_front(kill, over_for(3)) && !breaks_front(kill, over_for(5)));
        let reload = |seconds| {
            let age = Duration::from_secs(seconds);
            breaks_front(
                Fault::ReloadBalancer,
                Age {
                    begun: age,
                    over: Some(age),
                },
            )
        };
        assert!(reload(1) && !reload(20) && reload(46) && !reload(60));
        assert!(!breaks_front(Fault::Kill(Who::Worker(0), SPAN), over_for(0)));
    }
}
