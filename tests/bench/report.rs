//! What comes out: the Markdown table and the JSON file.
//!
//! Its own file because people and programs read the same figures, each in their own form.

use std::{fmt::Write as _, fs, path::Path};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::{
    figure::{Bound, Figure, Measured, Of, Target},
    machine::Machine,
};

#[derive(Debug, Serialize)]
pub struct Report {
    pub machine: Machine,
    pub mode: &'static str,
    pub seconds: u64,
    /// As [`Machine::load_average`], at the start.
    pub load_before: String,
    pub figures: Vec<Figure>,
}

// === impl Report ===

impl Report {
    pub fn json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    pub fn markdown(&self) -> String {
        let machine = &self.machine;
        let mut text = format!(
            "{} cores ({}), {} GiB, Linux {}; {}; load {} before, {} after; {} run, {} s\n\n",
            machine.cores,
            machine.cpu,
            machine.memory_gib,
            machine.kernel,
            machine.browsers.join(", "),
            self.load_before,
            machine.load_average,
            self.mode,
            self.seconds
        );
        text.push_str(
            "| | figure | unit | wharf p50 / p99 | direct p50 / p99 | ratio | n | target | verdict | note |\n",
        );
        text.push_str("|---|---|---|---:|---:|---:|---:|---|---|---|\n");
        for figure in &self.figures {
            let _ = writeln!(text, "{}", row(figure));
        }
        let targets = || self.figures.iter().flat_map(|figure| &figure.targets);
        let met = targets().filter(|target| target.met).count();
        let _ = writeln!(text, "\n{met} of {} targets met", targets().count());
        text
    }
}

fn row(figure: &Figure) -> String {
    let targets: Vec<_> = figure.targets.iter().map(describe).collect();
    let verdicts: Vec<_> = figure.targets.iter().map(verdict).collect();
    format!(
        "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
        figure.bench,
        figure.name,
        figure.unit,
        figure.wharf.as_ref().map(cell).unwrap_or_default(),
        figure.direct.as_ref().map(cell).unwrap_or_default(),
        figure.ratio.map(number).unwrap_or_default(),
        figure
            .wharf
            .as_ref()
            .map(|measured| measured.n.to_string())
            .unwrap_or_default(),
        targets.join(", "),
        verdicts.join(", "),
        figure.note.replace('|', "/"),
    )
}

fn cell(measured: &Measured) -> String {
    let value = number(measured.value);
    measured
        .p99
        .map_or_else(|| value.clone(), |p99| format!("{value} / {}", number(p99)))
}

fn verdict(target: &Target) -> String {
    match (target.met, target.measured) {
        (true, _) => "met".to_owned(),
        (false, Some(measured)) if target.of == Of::Added => format!("**short** ({})", number(measured)),
        (false, _) => "**short**".to_owned(),
    }
}

pub fn describe(target: &Target) -> String {
    let sign = match target.bound {
        Bound::AtMost => "≤",
        Bound::AtLeast => "≥",
    };
    let what = match target.of {
        Of::Value => "",
        Of::Ratio => "ratio ",
        Of::Added => "added ",
    };
    format!("{what}{sign} {}", number(target.limit))
}

/// Three significant digits, without an exponent.
pub fn number(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        "–".to_owned()
    } else if value.fract() == 0.0 || size >= 100.0 {
        format!("{value:.0}")
    } else if size >= 10.0 {
        format!("{value:.1}")
    } else if size >= 1.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.3}")
    }
}

/// Writes a file, and the directories above it.
pub fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, text).with_context(|| format!("could not write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        let all = [0.0125, 1.234, 12.34, 1234.5, 4.0].map(number);
        assert_eq!(all, ["0.013", "1.23", "12.3", "1234", "4"]);
    }

    #[test]
    fn rows_name_target_and_verdict() {
        let figure = Figure::new('c', "round trip", "ms")
            .value(0.8)
            .direct_value(0.6)
            .at_most(Of::Added, 0.12);
        let row = row(&figure);
        assert!(row.contains("added ≤ 0.120") && row.contains("short"), "{row}");
    }
}
