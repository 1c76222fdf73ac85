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
    ("admissions/s, empty", |step| step.empty.churned.rate()),
    ("admissions/s, full", |step| step.full.churned.rate()),
    ("admissions/s, full, had everybody else been silent", |step| {
        step.full.alone()
    }),
    ("admission p50 ms, full", |step| step.full.churned.admission.median()),
    ("admission p99 ms, full", |step| {
        step.full.churned.admission.quantile(0.99)
    }),
    ("hand-over p50 ms", |step| step.hand_over.median()),
    ("hand-over p99 ms", |step| step.hand_over.quantile(0.99)),
    ("hand-overs/s in a burst", |step| step.burst),
    ("coordinator PSS MB, empty", |step| step.memory.empty / 1000.0),
    ("coordinator PSS MB, full", |step| step.memory.full / 1000.0),
    ("coordinator kB per live session", |step| {
        (step.memory.full - step.memory.empty) / step.sessions as f64
    }),
    ("coordinator kB per waiting request, of all its fleet's", |step| {
        (step.memory.waiting - step.memory.full) / step.memory.waiters as f64
    }),
    ("store queries per session, empty", |step| {
        step.empty.per_session(step.empty.cost.queries)
    }),
    ("store queries per session, full", |step| {
        step.full.per_session(step.full.cost.queries)
    }),
    ("coordinators' CPU ms per session, empty", |step| {
        1000.0 * step.empty.per_session(step.empty.cost.coordinators)
    }),
    ("coordinators' CPU ms per session, full", |step| {
        1000.0 * step.full.per_session(step.full.cost.coordinators)
    }),
    ("store CPU ms per session, full", |step| {
        1000.0 * step.full.per_session(step.full.cost.store)
    }),
    ("clients' and workers' CPU ms per session, full", |step| {
        1000.0 * step.full.per_session(step.full.cost.generator)
    }),
    ("machine's CPU, full: coordinators %", |step| {
        step.full.cost.share(step.full.cost.coordinators)
    }),
    ("machine's CPU, full: store %", |step| {
        step.full.cost.share(step.full.cost.store)
    }),
    ("machine's CPU, full: clients and simulated workers %", |step| {
        step.full.cost.share(step.full.cost.generator)
    }),
    ("machine's CPU, full: everybody else %", |step| {
        step.full.cost.share(step.full.cost.others())
    }),
    ("machine's CPU, full: idle %", |step| {
        step.full.cost.share(step.full.cost.idle())
    }),
    ("at rest, full: coordinators' CPU %", |step| {
        100.0 * step.idle.coordinators / step.idle_seconds
    }),
    ("at rest, full: store queries/s", |step| {
        step.idle.queries / step.idle_seconds
    }),
    ("requests that failed", |step| {
        (step.empty.churned.errors + step.full.churned.errors) as f64
    }),
];

/// All steps of one engine side by side.
pub fn fleet(steps: &[Step]) -> String {
    let Some(first) = steps.first() else {
        return String::new();
    };
    let mut text = format!(
        "\n{}: three coordinators, simulated workers\n\n| |",
        first.engine.name()
    );
    for step in steps {
        let _ = write!(text, " {} workers, {} |", step.workers, step.engine.durability());
    }
    // Growth is the fleet's only where the disk is the same.
    let mut same = steps.iter().filter(|step| step.engine == first.engine);
    let last = same.next_back().unwrap_or(first);
    let _ = writeln!(text, " {} / {} workers |", last.workers, first.workers);
    text.push_str(&format!("|---|{}---:|\n", "---:|".repeat(steps.len())));
    for (name, figure) in ROWS {
        let cells: Vec<_> = steps.iter().map(|step| number(figure(step))).collect();
        let growth = growth(figure(first), figure(last));
        let _ = writeln!(text, "| {name} | {} | {growth} |", cells.join(" | "));
    }
    text
}

/// Nothing grows out of nothing, or next to it.
fn growth(first: f64, last: f64) -> String {
    if first.abs() < 1e-6 {
        return String::new();
    }
    number(last / first)
}

pub fn raw(all: &[Raw]) -> String {
    let Some(first) = all.first() else {
        return String::new();
    };
    let mut text = format!(
        "\n{}: replicas in one process, no coordinators\n\n",
        first.engine.name()
    );
    text.push_str("| durability | replicas | sessions/s | admission p50 ms | p99 ms | operations a page |\n");
    text.push_str("|---|---:|---:|---:|---:|---:|\n");
    for raw in all {
        let (p50, p99) = (raw.admission.median(), raw.admission.quantile(0.99));
        let cells = [raw.replicas as f64, raw.rate, p50, p99, raw.batch].map(number);
        let _ = writeln!(text, "| {} | {} |", raw.engine.durability(), cells.join(" | "));
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
    use wharf_e2e::samples::Samples;

    use super::*;
    use crate::{
        engine::Engine,
        gauge::Look,
        load::Churned,
        options::{Disk, Store},
        step::{Load, Memory},
    };

    #[test]
    fn numbers_keep_three_digits() {
        let all = [0.0125, 1.234, 12.34, 1234.5, 4.0, f64::NAN].map(number);
        assert_eq!(all, ["0.013", "1.23", "12.3", "1234", "4", "-"]);
    }

    fn step(disk: Disk, workers: usize, burst: f64) -> Step {
        let load = || Load {
            churned: Churned::default(),
            cost: Look::default(),
        };
        Step {
            engine: Engine {
                store: Store::Redis,
                disk,
            },
            workers,
            sessions: 100 * workers,
            empty: load(),
            full: load(),
            idle: Look::default(),
            idle_seconds: 1.0,
            memory: Memory {
                empty: 1.0,
                full: 1.0,
                waiting: 1.0,
                waiters: 1,
            },
            hand_over: Samples::default(),
            burst,
            waiting: 0,
        }
    }

    #[test]
    fn columns_name_their_durability_and_growth_leaves_the_other_disk_out() {
        let steps = [
            step(Disk::Ignored, 12, 800.0),
            step(Disk::Ignored, 50, 400.0),
            step(Disk::Awaited, 50, 10.0),
        ];
        let text = fleet(&steps);
        assert!(text.contains("| 12 workers, appendfsync everysec |"), "{text}");
        assert!(
            text.contains("| 50 workers, appendfsync always | 50 / 12 workers |"),
            "{text}"
        );
        assert!(
            text.contains("| hand-overs/s in a burst | 800 | 400 | 10 | 0.500 |"),
            "{text}"
        );
        assert!(text.contains("| requests waiting | 0 | 0 | 0 |  |"), "{text}");
    }
}
