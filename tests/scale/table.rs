//! The figures as tables, and how each grows from step to step.
//!
//! Its own file because it is what people read. Costs are for each session; they must not grow with the fleet.

use std::fmt::Write as _;

use crate::{raw::Raw, step::Step};

/// One line of the table: its name, and the figure of a step.
type Row = (&'static str, fn(&Step) -> f64);

const ROWS: &[Row] = &[
    ("sessions live at the end", |step| step.sessions as f64),
    ("requests waiting", |step| step.waiting as f64),
    ("admissions/s, empty", |step| step.empty.rate()),
    ("admissions/s, full", |step| step.full.rate()),
    ("admission p50 ms, full", |step| step.full.admission.median()),
    ("admission p99 ms, full", |step| step.full.admission.quantile(0.99)),
    ("hand-over p50 ms", |step| step.hand_over.median()),
    ("hand-over p99 ms", |step| step.hand_over.quantile(0.99)),
    ("hand-overs/s in a burst", |step| step.burst),
    ("coordinator PSS MB, empty", |step| step.pss_empty / 1000.0),
    ("coordinator PSS MB, full", |step| step.pss_full / 1000.0),
    ("coordinator kB per live session", |step| {
        (step.pss_full - step.pss_empty) / step.sessions as f64
    }),
    ("store queries per session, empty", |step| {
        step.empty_cost.queries / step.empty.sessions.max(1) as f64
    }),
    ("store queries per session, full", |step| {
        step.full_cost.queries / step.full.sessions.max(1) as f64
    }),
    ("coordinators' CPU ms per session, empty", |step| {
        1000.0 * step.empty_cost.coordinators / step.empty.sessions.max(1) as f64
    }),
    ("coordinators' CPU ms per session, full", |step| {
        1000.0 * step.full_cost.coordinators / step.full.sessions.max(1) as f64
    }),
    ("store CPU ms per session, full", |step| {
        1000.0 * step.full_cost.store / step.full.sessions.max(1) as f64
    }),
    ("at rest, full: coordinators' CPU %", |step| {
        100.0 * step.idle_cost.coordinators / step.idle_seconds
    }),
    ("at rest, full: store queries/s", |step| {
        step.idle_cost.queries / step.idle_seconds
    }),
    ("requests that failed", |step| {
        (step.empty.errors + step.full.errors) as f64
    }),
];

pub fn fleet(store: &str, steps: &[Step]) -> String {
    let mut text = format!("\n{store}: three coordinators, simulated workers\n\n| |");
    for step in steps {
        let _ = write!(text, " {} workers |", step.workers);
    }
    let _ = writeln!(text, " last / first |");
    text.push_str(&format!("|---|{}---:|\n", "---:|".repeat(steps.len())));
    for (name, figure) in ROWS {
        let figures: Vec<_> = steps.iter().map(figure).collect();
        let cells: Vec<_> = figures.iter().map(|value| number(*value)).collect();
        let growth = match (figures.first(), figures.last()) {
            (Some(first), Some(last)) if *first != 0.0 && steps.len() > 1 => number(last / first),
            _ => String::new(),
        };
        let _ = writeln!(text, "| {name} | {} | {growth} |", cells.join(" | "));
    }
    text
}

pub fn raw(store: &str, all: &[Raw]) -> String {
    let mut text = format!("\n{store}: replicas in one process, no coordinators\n\n");
    text.push_str(
        "| replicas | sessions/s | admission p50 ms | p99 ms | operations a page |\n|---:|---:|---:|---:|---:|\n",
    );
    for raw in all {
        let (p50, p99) = (raw.admission.median(), raw.admission.quantile(0.99));
        let cells = [raw.replicas as f64, raw.rate, p50, p99, raw.batch].map(number);
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    text
}

/// Three significant digits, without an exponent.
fn number(value: f64) -> String {
    match value.abs() {
        _ if !value.is_finite() => "-".to_owned(),
        size if size >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        let all = [0.0125, 1.234, 12.34, 1234.5, 4.0, f64::NAN].map(number);
        assert_eq!(all, ["0.013", "1.23", "12.3", "1234", "4", "-"]);
    }
}
