//! The cross-field timing rules (DESIGN.md §10): each has a name, and a violated one names the offending pair.

use super::{Problem, Settings};
use crate::up::CLEAN_UP;

/// Every rule that does not hold.
pub fn check(settings: &Settings) -> Vec<Problem> {
    let relay = &settings.relay;
    let heartbeat = settings.heartbeat_interval;
    let rules = [
        (
            heartbeat * 3 <= settings.rules.liveness_ttl,
            format!(
                "heartbeat_interval ({heartbeat:?}) × 3 must not exceed liveness_ttl ({:?}): two lost reports must not lose a worker",
                settings.rules.liveness_ttl
            ),
        ),
        (
            settings.drain_timeout + CLEAN_UP < settings.termination_grace,
            format!(
                "drain_timeout ({:?}) and clean-up ({CLEAN_UP:?}) must end before termination_grace ({:?})",
                settings.drain_timeout, settings.termination_grace
            ),
        ),
        (
            settings.probe_limit < settings.probe_interval,
            format!(
                "probe_limit ({:?}) must be below probe_interval ({:?}): probes must not overlap",
                settings.probe_limit, settings.probe_interval
            ),
        ),
        (
            relay.ping_interval < relay.dead_after,
            format!(
                "ping_interval ({:?}) must be below dead_after ({:?}): a side must have been asked before it is given up",
                relay.ping_interval, relay.dead_after
            ),
        ),
        (
            settings.dial_limit < settings.rules.lease_grace,
            format!(
                "the dial limit ({:?}) must be below the lease grace ({:?})",
                settings.dial_limit, settings.rules.lease_grace
            ),
        ),
        (
            settings.ticket_renewal * 3 <= settings.rules.ticket_lease,
            format!(
                "ticket renewal ({:?}) × 3 must not exceed the ticket lease ({:?})",
                settings.ticket_renewal, settings.rules.ticket_lease
            ),
        ),
    ];
    rules
        .into_iter()
        .filter(|(holds, _)| !holds)
        .map(|(_, text)| Problem(text))
        .collect()
}
