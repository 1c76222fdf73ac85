//! What settings must be to each other and to the role, times apart.
//!
//! Its own file because each value here is fine by itself; like the timing rules, a problem names every key it is about.

use wharf_coordinator::KeyRule;
use wharf_core::BrowserKind;

use super::{
    Problem, Role,
    settings::{Settings, StoreUrl},
};

/// Every rule that does not hold. `has_token`: one was given, readable or not; what it lacks has then been said.
pub(super) fn check(settings: &Settings, role: Role, has_token: bool) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut rule = |holds: bool, text: String| {
        if !holds {
            problems.push(Problem(text));
        }
    };
    fleet(settings, role, has_token, &mut rule);
    rule(settings.max >= 1, "max must be at least 1".to_owned());
    let (min, max) = (settings.min, settings.max);
    rule(
        min <= max + settings.spare,
        format!("min ({min}) must not exceed max + spare ({max} + {})", settings.spare),
    );
    rule(settings.probe_misses >= 1, "probe_misses must be at least 1".to_owned());
    rule(
        settings.listen.ip().is_loopback() || settings.keys != KeyRule::Never,
        format!(
            "listen ({}) is not a loopback address and require_key is never: anybody could drive your browsers; \
             leave require_key at auto, or listen on 127.0.0.1 or [::1]",
            settings.listen
        ),
    );
    let is_command = settings.driver == BrowserKind::Command;
    rule(
        !is_command || settings.command.is_some() || role == Role::Coordinator,
        "driver is command, but command is not set: name the program, e.g. --command ./steel-browser".to_owned(),
    );
    rule(
        is_command || (settings.command.is_none() && settings.command_args.is_empty()),
        format!(
            "command and command_args are set, but driver is {}: add --driver command, or remove them",
            settings.driver
        ),
    );
    for (name, span) in [
        ("launch_timeout", settings.launch_timeout),
        ("forward_timeout", settings.forward_timeout),
        ("probe_interval", settings.probe_interval),
        ("probe_limit", settings.probe_limit),
        ("tick", settings.tick),
        ("ping_interval", settings.relay.ping_interval),
        ("header_timeout", settings.header_timeout),
        ("body_timeout", settings.body_timeout),
        ("heartbeat_interval", settings.heartbeat_interval),
    ] {
        rule(!span.is_zero(), format!("{name} must be longer than 0"));
    }
    problems
}

/// What the roles of a fleet need, and a grid in one process does not.
fn fleet(settings: &Settings, role: Role, has_token: bool, rule: &mut impl FnMut(bool, String)) {
    let is_shared = matches!(settings.store, StoreUrl::Postgres(_) | StoreUrl::Redis(_));
    match role {
        Role::Up => rule(
            !is_shared,
            format!(
                "store ({}) is shared by a fleet, and `wharf up` is a grid in one process: run `wharf coordinator --store …` \
                 and `wharf worker` instead",
                settings.store
            ),
        ),
        Role::Coordinator => rule(
            has_token,
            "worker_token is not set: workers must show one; make it with `openssl rand -hex 32` and give it to both \
             roles as WHARF_WORKER_TOKEN"
                .to_owned(),
        ),
        Role::Worker => {
            rule(
                has_token,
                "worker_token is not set: it is the secret that the coordinators have as WHARF_WORKER_TOKEN".to_owned(),
            );
            rule(
                !settings.coordinators.is_empty(),
                "coordinator is not set: name one, e.g. --coordinator http://10.0.0.2:8080".to_owned(),
            );
        }
    }
}
