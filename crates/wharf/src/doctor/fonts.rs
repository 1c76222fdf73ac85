//! Can pages be written in letters? Which kinds of fonts the host has.
//!
//! Its own file because fonts are the one thing a page needs that no browser package brings. Fontconfig is asked where
//! its tool is installed, as Chromium asks the library; else the files' names in the usual directories must do.

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use super::finding::{Finding, Group};

const GROUP: Group = Group::Fonts;
/// A first run without a cache reads every font.
const PATIENCE: Duration = Duration::from_secs(20);
/// Deeper than any distribution nests them.
const DEPTH: usize = 6;
const DIRECTORIES: &[&str] = &["/usr/share/fonts", "/usr/local/share/fonts"];
const HOME_DIRECTORIES: &[&str] = &[".fonts", ".local/share/fonts"];

/// One face.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Font {
    /// In lower case, or a file's name.
    pub family: String,
    /// Languages it covers, between bars; empty if only its name is known.
    pub langs: String,
}

/// What there is, and who said so.
#[derive(Debug, Clone)]
pub struct Facts {
    pub source: &'static str,
    pub fonts: Vec<Font>,
}

// === impl Facts ===

impl Facts {
    pub fn gather() -> Self {
        match listed() {
            Some(text) => Self {
                source: "fc-list",
                fonts: parse(&text),
            },
            None => Self {
                source: "the font directories",
                fonts: lying_about(),
            },
        }
    }

    fn has(&self, is_it: impl Fn(&Font) -> bool) -> bool {
        self.fonts.iter().any(is_it)
    }
}

// === impl Font ===

impl Font {
    fn is_named(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.family.contains(name))
    }

    fn is_mono(&self) -> bool {
        self.is_named(&["mono", "courier", "consol", "typewriter", "cousine"])
    }

    fn is_serif(&self) -> bool {
        let plain = self.is_named(&["times", "georgia", "roman", "tinos", "garamond", "palatino"]);
        plain || (self.family.contains("serif") && !self.family.contains("sans"))
    }

    fn is_sans(&self) -> bool {
        let known = [
            "sans",
            "arial",
            "helvetica",
            "arimo",
            "roboto",
            "ubuntu",
            "cantarell",
            "verdana",
        ];
        !self.is_mono() && self.is_named(&known)
    }

    fn speaks(&self, lang: &str) -> bool {
        self.langs.split('|').any(|spoken| spoken == lang)
    }

    fn is_cjk(&self) -> bool {
        let by_name = self.is_named(&["cjk", "wqy", "wenquan", "ipafont", "ipag", "nanum", "droidsansfallback"]);
        by_name || (self.speaks("ja") && (self.speaks("zh-cn") || self.speaks("ko")))
    }

    fn is_emoji(&self) -> bool {
        self.is_named(&["emoji"]) || self.speaks("und-zsye")
    }
}

/// `family<tab>languages` a line.
pub fn parse(text: &str) -> Vec<Font> {
    let line = |line: &str| {
        let (family, langs) = line.split_once('\t').unwrap_or((line, ""));
        (!family.is_empty()).then(|| Font {
            family: family.to_lowercase(),
            langs: langs.to_lowercase(),
        })
    };
    text.lines().filter_map(line).collect()
}

/// What fontconfig's tool says; `None` where it is missing, fails or does not come to an end.
fn listed() -> Option<String> {
    let mut child = Command::new("fc-list")
        .arg("--format=%{family}\t%{lang}\n")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut output = child.stdout.take()?;
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        output.read_to_end(&mut text).map(|_| text)
    });
    let limit = Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if Instant::now() < limit => std::thread::sleep(Duration::from_millis(5)),
            _ => break None,
        }
    };
    if status.is_none() {
        let _gone = child.kill();
        let _reaped = child.wait();
    }
    let text = reader.join().ok()?.ok()?;
    status
        .filter(std::process::ExitStatus::success)
        .map(|_| String::from_utf8_lossy(&text).into_owned())
}

fn lying_about() -> Vec<Font> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let own = home
        .iter()
        .flat_map(|home| HOME_DIRECTORIES.iter().map(|dir| home.join(dir)));
    let mut fonts = Vec::new();
    for dir in DIRECTORIES.iter().map(PathBuf::from).chain(own) {
        collect(&dir, DEPTH, &mut fonts);
    }
    fonts
}

fn collect(dir: &Path, depth: usize, fonts: &mut Vec<Font>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let extension = path.extension().and_then(|end| end.to_str()).unwrap_or_default();
        if path.is_dir() && depth > 0 {
            collect(&path, depth - 1, fonts);
        } else if ["ttf", "otf", "ttc", "pfb", "woff2"].contains(&extension.to_lowercase().as_str()) {
            fonts.push(Font {
                family: entry.file_name().to_string_lossy().to_lowercase(),
                langs: String::new(),
            });
        }
    }
}

pub fn judge(facts: &Facts) -> Vec<Finding> {
    let count = facts.fonts.len();
    let source = facts.source;
    if count == 0 {
        let says = format!("no font found by {source}: pages show no text");
        return vec![
            GROUP
                .problem("letters", says)
                .fix("apt-get install fonts-liberation (Debian)"),
        ];
    }
    let kinds = [
        ("sans-serif", facts.has(Font::is_sans)),
        ("serif", facts.has(Font::is_serif)),
        ("monospace", facts.has(Font::is_mono)),
    ];
    let missing: Vec<_> = kinds
        .iter()
        .filter(|(_, is_there)| !is_there)
        .map(|(kind, _)| *kind)
        .collect();
    let letters = if missing.is_empty() {
        GROUP.ok(
            "letters",
            format!("{count} faces by {source}: sans-serif, serif and monospace"),
        )
    } else {
        let says = format!(
            "{count} faces by {source}, none of them {}: pages look otherwise than their authors meant",
            missing.join(" or ")
        );
        GROUP
            .warning("letters", says)
            .fix("apt-get install fonts-liberation (Debian)")
    };
    let optional = |name, is_there, thing: &str, package: &str| {
        if is_there {
            return GROUP.ok(name, format!("there are fonts for {thing}"));
        }
        GROUP
            .note(name, format!("no font for {thing}: pages show boxes instead"))
            .fix(format!("apt-get install {package} (Debian)"))
    };
    vec![
        letters,
        optional(
            "cjk",
            facts.has(Font::is_cjk),
            "Chinese, Japanese and Korean",
            "fonts-noto-cjk",
        ),
        optional("emoji", facts.has(Font::is_emoji), "emoji", "fonts-noto-color-emoji"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Level;

    fn judged(text: &str) -> Vec<Finding> {
        judge(&Facts {
            source: "fc-list",
            fonts: parse(text),
        })
    }

    #[test]
    fn liberation_alone_has_letters_but_no_cjk_and_no_emoji() {
        let findings = judged("Liberation Sans\ten|de\nLiberation Serif\ten\nLiberation Mono\ten\n");
        let levels: Vec<_> = findings.iter().map(|finding| finding.level).collect();
        assert_eq!(levels, [Level::Ok, Level::Note, Level::Note]);
        assert!(findings[1].fix.as_deref().unwrap().contains("fonts-noto-cjk"));
    }

    #[test]
    fn all_kinds_are_recognised() {
        let findings = judged(
            "Arial\ten\nTimes New Roman\ten\nCourier New\ten\nNoto Sans CJK JP\tja|zh-cn|ko\nNoto Color Emoji\tund-zsye\n",
        );
        assert!(
            findings.iter().all(|finding| finding.level == Level::Ok),
            "{findings:?}"
        );
    }

    #[test]
    fn missing_kind_is_a_warning_that_names_it() {
        let findings = judged("DejaVu Sans\ten\nDejaVu Sans Mono\ten\n");
        assert_eq!(findings[0].level, Level::Warning);
        assert!(findings[0].says.contains("none of them serif"), "{}", findings[0].says);
    }

    #[test]
    fn no_font_is_a_problem() {
        let findings = judged("");
        assert_eq!((findings.len(), findings[0].level), (1, Level::Problem));
    }
}
