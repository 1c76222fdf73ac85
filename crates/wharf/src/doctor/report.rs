//! The report: groups with marks for people, one object for programs.
//!
//! Its own file because how a finding looks is nobody else's business. The invariant: without a terminal there are no
//! escape codes, and what comes from outside (paths, names, a browser's last words) cannot bring its own.

use std::io::IsTerminal as _;

use super::finding::{Finding, Level};

/// How to print for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    pub colour: bool,
    pub unicode: bool,
}

/// How many of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Summary {
    pub checks: usize,
    pub ok: usize,
    pub notes: usize,
    pub warnings: usize,
    pub problems: usize,
}

// === impl Style ===

impl Style {
    /// What standard output can show.
    pub fn of_stdout() -> Self {
        let variable = |name: &str| std::env::var(name).ok();
        Self::tell(std::io::stdout().is_terminal(), variable)
    }

    fn tell(is_terminal: bool, variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name| variable(name).filter(|value| !value.is_empty());
        // The first that is set decides, see locale(7).
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set);
        let locale = locale.unwrap_or_default().to_lowercase();
        Self {
            colour: is_terminal && set("NO_COLOR").is_none() && variable("TERM").is_none_or(|term| term != "dumb"),
            unicode: locale.contains("utf-8") || locale.contains("utf8"),
        }
    }

    fn mark(self, level: Level) -> String {
        let (unicode, ascii, colour) = match level {
            Level::Ok => ("✓", "+", "32"),
            Level::Note => ("·", "-", "36"),
            Level::Warning => ("!", "!", "33"),
            Level::Problem => ("✗", "x", "31"),
        };
        let mark = if self.unicode { unicode } else { ascii };
        self.paint(mark, colour)
    }

    fn paint(self, text: &str, code: &str) -> String {
        if self.colour {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

// === impl Summary ===

impl Summary {
    pub fn of(findings: &[Finding]) -> Self {
        let count = |level| findings.iter().filter(|finding| finding.level == level).count();
        Self {
            checks: findings.len(),
            ok: count(Level::Ok),
            notes: count(Level::Note),
            warnings: count(Level::Warning),
            problems: count(Level::Problem),
        }
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            checks,
            ok,
            notes,
            warnings,
            problems,
        } = self;
        write!(
            f,
            "{checks} checks: {ok} ok, {notes} notes, {warnings} warnings, {problems} problems"
        )
    }
}

/// For people.
pub fn for_people(findings: &[Finding], style: Style) -> String {
    let width = findings.iter().map(|finding| finding.name.len()).max().unwrap_or(0);
    let indent = " ".repeat(width + 6);
    let mut text = String::new();
    let mut group = None;
    for finding in findings {
        if group != Some(finding.group) {
            text.push_str(&style.paint(finding.group.title(), "1"));
            text.push('\n');
            group = Some(finding.group);
        }
        let says = shown(&finding.says, &indent, style);
        text.push_str(&format!(
            "  {} {:<width$}  {says}\n",
            style.mark(finding.level),
            finding.name
        ));
        if let Some(fix) = &finding.fix {
            text.push_str(&format!("{indent}fix: {}\n", shown(fix, &indent, style)));
        }
    }
    text.push_str(&format!("\n{}\n", Summary::of(findings)));
    text
}

/// For programs.
pub fn for_programs(findings: &[Finding]) -> String {
    #[derive(serde::Serialize)]
    struct Report<'a> {
        findings: &'a [Finding],
        summary: Summary,
    }
    let summary = Summary::of(findings);
    let text = serde_json::to_string(&Report { findings, summary }).expect("plain data without maps is JSON");
    format!("{text}\n")
}

/// Further lines stand under the first; control characters are not shown, nor others where the locale has none.
fn shown(text: &str, indent: &str, style: Style) -> String {
    let lines = text.lines().map(|line| {
        let plain = |letter: char| match letter {
            letter if letter.is_control() => '?',
            letter if !style.unicode && !letter.is_ascii() => '?',
            letter => letter,
        };
        line.trim_end().chars().map(plain).collect::<String>()
    });
    lines.collect::<Vec<_>>().join(&format!("\n{indent}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Group;

    fn findings() -> Vec<Finding> {
        vec![
            Group::Browser.ok("found", "a browser"),
            Group::Browser
                .problem("launch", "it said:\n\x1b[31mno\u{e9}")
                .fix("mend it"),
            Group::Ports.note("listen", "port 0"),
            Group::Kernel.warning("pidfd", "old").fix("new"),
        ]
    }

    #[test]
    fn people_see_groups_marks_and_fixes_aligned() {
        let style = Style {
            colour: false,
            unicode: true,
        };
        let expected = "browser\n  ✓ found   a browser\n  ✗ launch  it said:\n            ?[31mnoé\n            fix: mend it\n\
                        ports\n  · listen  port 0\nkernel\n  ! pidfd   old\n            fix: new\n\n\
                        4 checks: 1 ok, 1 notes, 1 warnings, 1 problems\n";
        assert_eq!(for_people(&findings(), style), expected);
    }

    #[test]
    fn plain_style_is_ascii_without_escape_codes() {
        let style = Style {
            colour: false,
            unicode: false,
        };
        let text = for_people(&findings(), style);
        assert!(text.is_ascii() && !text.contains('\x1b'), "{text}");
        assert!(text.contains("  + found") && text.contains("  x launch"));
        let colour = Style { colour: true, ..style };
        assert!(for_people(&findings(), colour).contains("\x1b[31mx\x1b[0m launch"));
    }

    #[test]
    fn style_follows_terminal_no_color_and_locale() {
        let with = |pairs: &'static [(&str, &str)]| {
            move |name: &str| {
                pairs
                    .iter()
                    .find(|(key, _)| *key == name)
                    .map(|(_, value)| (*value).to_owned())
            }
        };
        let utf8 = Style::tell(true, with(&[("LANG", "de_DE.UTF-8")]));
        assert!(utf8.colour && utf8.unicode);
        assert!(!Style::tell(true, with(&[("NO_COLOR", "1")])).colour);
        assert!(!Style::tell(true, with(&[("TERM", "dumb")])).colour);
        assert!(!Style::tell(false, with(&[])).colour);
        assert!(!Style::tell(true, with(&[("LC_ALL", "C"), ("LANG", "C.UTF-8")])).unicode);
    }

    #[test]
    fn programs_see_findings_and_summary() {
        let value: serde_json::Value = serde_json::from_str(&for_programs(&findings())).unwrap();
        assert_eq!(value["findings"][1]["level"], "problem");
        assert_eq!(value["findings"][1]["fix"], "mend it");
        assert_eq!(
            value["summary"],
            serde_json::json!({"checks": 4, "ok": 1, "notes": 1, "warnings": 1, "problems": 1})
        );
    }
}
