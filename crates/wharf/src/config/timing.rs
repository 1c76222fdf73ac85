//! The cross-field timing rules (DESIGN.md §10): each has a name, and a violated one names the offending pair.

use super::{Problem, Role, Settings};
use crate::serving::CLEAN_UP;

/// Every rule that does not hold.
pub fn check(settings: &Settings, role: Role) -> Vec<Problem> {
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
        (
            role != Role::Worker || settings.rules.liveness_ttl <= settings.fence_after,
            format!(
                "liveness_ttl ({:?}) must not exceed fence_after ({:?}): a worker must not end sessions that the grid still \
                 believes in",
                settings.rules.liveness_ttl, settings.fence_after
            ),
        ),
        (
            settings.rules.lease_grace >= heartbeat * 2,
            format!(
                "heartbeat_interval ({heartbeat:?}) × 2 must not exceed the lease grace ({:?}): a new lease must be in a \
                 report before it is missed",
                settings.rules.lease_grace
            ),
        ),
        (
            settings.probe_limit * settings.probe_misses + settings.probe_interval <= settings.termination_grace,
            format!(
                "probe_misses ({}) of probe_limit ({:?}) and one probe_interval ({:?}) must fit into termination_grace ({:?}): \
                 a hung browser must be noticed before the supervisor's patience ends",
                settings.probe_misses, settings.probe_limit, settings.probe_interval, settings.termination_grace
            ),
        ),
        (
            settings.rules.history >= settings.timeouts.queue,
            format!(
                "history ({:?}) must not be shorter than queue_timeout ({:?}): a record must outlive its client's wait",
                settings.rules.history, settings.timeouts.queue
            ),
        ),
    ];
    rules
        .into_iter()
        .filter(|(holds, _)| !holds)
        .map(|(_, text)| Problem(text))
        .collect()
}
