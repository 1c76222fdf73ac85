//! The chart for the docs: how much of each target's allowance is used.
//!
//! Its own file and drawn by hand: bars, one line at the target, words. Colours follow the reader's light or dark
//! setting; the font is the reader's own.

use std::fmt::Write as _;

use crate::{
    figure::Target,
    report::{Report, describe, number},
};

const WIDTH: f64 = 900.0;
const LABELS: f64 = 400.0;
const ROW: f64 = 26.0;
const TOP: f64 = 64.0;
/// Bars longer than this many targets are cut.
const LONGEST: f64 = 1.6;

const STYLE: &str = "\
svg{color-scheme:light dark;font:13px system-ui,sans-serif;background:#fff}\
text{fill:#1f2328}.dim{fill:#656d76}.met{fill:#2da44e}.short{fill:#d4760a}.rail{fill:#eaeef2}.line{stroke:#1f2328}\
@media(prefers-color-scheme:dark){svg{background:#0d1117}text{fill:#e6edf3}.dim{fill:#8d96a0}.met{fill:#3fb950}\
.short{fill:#f0883e}.rail{fill:#21262d}.line{stroke:#e6edf3}}";

/// The whole picture.
pub fn draw(report: &Report) -> String {
    let bars: Vec<_> = report
        .figures
        .iter()
        .flat_map(|figure| figure.targets.iter().map(move |target| (figure, target)))
        .collect();
    let height = TOP + ROW * bars.len() as f64 + 34.0;
    let scale = (WIDTH - LABELS - 110.0) / LONGEST;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\" aria-label=\"Wharf's benchmarks against their targets\">\
         <style>{STYLE}</style>\n"
    );
    text(
        &mut svg,
        16.0,
        26.0,
        "",
        "Share of each target's allowance that is used; shorter is better",
    );
    let machine = &report.machine;
    let under = format!(
        "{} cores, {}, Linux {}, {} run",
        machine.cores, machine.cpu, machine.kernel, report.mode
    );
    text(&mut svg, 16.0, 46.0, "dim", &under);
    for (at, (figure, target)) in bars.iter().enumerate() {
        let y = TOP + ROW * at as f64;
        let label = format!("({}) {}", figure.bench, figure.name);
        text(&mut svg, 16.0, y + 17.0, "", &shorten(&label));
        bar(&mut svg, y, scale, target, figure.unit);
    }
    let x = LABELS + scale;
    let bottom = TOP + ROW * bars.len() as f64 + 4.0;
    let _ = writeln!(
        svg,
        "<line class=\"line\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{bottom:.1}\" stroke-dasharray=\"4 3\"/>",
        TOP - 4.0
    );
    text(&mut svg, x - 18.0, bottom + 18.0, "dim", "target");
    svg.push_str("</svg>\n");
    svg
}

fn bar(svg: &mut String, y: f64, scale: f64, target: &Target, unit: &str) {
    let used = target.used();
    // Nothing of nothing allowed, such as no errors, is met with an empty bar.
    let length = used.unwrap_or(if target.met { 0.0 } else { LONGEST }).min(LONGEST) * scale;
    let class = if target.met { "met" } else { "short" };
    let full = LONGEST * scale;
    let _ = writeln!(
        svg,
        "<rect class=\"rail\" x=\"{LABELS}\" y=\"{:.1}\" width=\"{full:.1}\" height=\"16\" rx=\"3\"/>\
         <rect class=\"{class}\" x=\"{LABELS}\" y=\"{:.1}\" width=\"{:.1}\" height=\"16\" rx=\"3\"/>",
        y + 5.0,
        y + 5.0,
        length.max(2.0)
    );
    let unit = if target.of == crate::figure::Of::Ratio {
        ""
    } else {
        unit
    };
    let measured = target.measured.map_or_else(|| "–".to_owned(), number);
    let words = format!("{measured} {unit}");
    text(svg, LABELS + full + 8.0, y + 17.0, "", words.trim());
    text(svg, LABELS + 8.0, y + 17.0, "", &describe(target));
}

fn text(svg: &mut String, x: f64, y: f64, class: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(svg, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{words}</text>");
}

fn shorten(label: &str) -> String {
    const LONGEST_LABEL: usize = 58;
    if label.chars().count() <= LONGEST_LABEL {
        return label.to_owned();
    }
    label.chars().take(LONGEST_LABEL - 1).chain(['…']).collect()
}
