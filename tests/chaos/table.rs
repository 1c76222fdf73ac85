//! What comes out: one table for people, the same for a test that reads it.
//!
//! Its own file because it is the interface: the last line says how to repeat the run.

use std::{collections::BTreeMap, fmt::Write as _};

use wharf_core::EndReason;

use crate::{
    book::{Pages, SORTS},
    options::{Means, Options},
    rest::Account,
    schedule::KINDS,
};

/// Reasons that the client or a time-out of its own brought about; all others are losses.
fn is_loss(reason: &str) -> bool {
    let kept = [
        EndReason::Released,
        EndReason::ClientDisconnected,
        EndReason::IdleTimeout,
        EndReason::ConnectTimeout,
        EndReason::QueueTimeout,
        EndReason::Cancelled,
    ];
    !kept.iter().any(|kept| kept.as_str() == reason)
}

pub fn table(options: &Options, means: Means, pages: &Pages, account: Option<&Account>) -> String {
    let mut text = String::new();
    let mut row = |name: &str, value: String| {
        let _ = writeln!(text, "| {name} | {value} |");
    };
    row("what", "count".to_owned());
    row("---", "---:".to_owned());
    row("lines", means.name().to_owned());
    let real = options.browsers.real_workers(options.workers);
    row("workers with the fake browser", (options.workers - real).to_string());
    row("workers with the real headless shell", real.to_string());
    for kind in KINDS {
        row(
            &format!("fault: {kind}"),
            pages.faults.get(kind).unwrap_or(&0).to_string(),
        );
    }
    row("faults in all", pages.faults.values().sum::<u64>().to_string());
    row("visits of clients", pages.visits.values().sum::<u64>().to_string());
    let mut causes: BTreeMap<&str, u64> = BTreeMap::new();
    for ((_, cause), count) in &pages.visits {
        *causes.entry(cause).or_default() += count;
    }
    for (cause, count) in causes {
        row(&format!("visit ended: {cause}"), count.to_string());
    }
    if let Some(account) = account {
        row("sessions run", account.sessions.to_string());
        for (reason, count) in account.ends.iter().filter(|(reason, _)| !is_loss(reason)) {
            row(&format!("session ended: {reason}"), count.to_string());
        }
        for (reason, count) in account.ends.iter().filter(|(reason, _)| is_loss(reason)) {
            row(&format!("session lost: {reason}"), count.to_string());
        }
    }
    row("looks into the store", pages.snapshots.to_string());
    row("events followed", pages.events.to_string());
    row(
        "events told anew after a fail-over lost some",
        pages.rewound.to_string(),
    );
    for (what, samples) in &pages.notices {
        let figure = format!("{:.0} / {:.0} ({})", samples.median(), samples.worst(), samples.len());
        row(&format!("{what}, median / worst ms (n)"), figure);
    }
    for (sort, name) in SORTS {
        let count = pages.findings.iter().filter(|(found, _)| *found == sort).count();
        row(&format!("must be 0: {name}"), count.to_string());
    }
    text.push_str("\nwhose visits ended otherwise than well:\n");
    for ((task, cause), count) in pages.visits.iter().filter(|((_, cause), _)| cause != "done") {
        let _ = writeln!(text, "  {task}: {cause}: {count}");
    }
    let _ = write!(
        text,
        "\nseed {}: repeat with `cargo xtask chaos {}`\n",
        options.seed, options.line
    );
    text
}
