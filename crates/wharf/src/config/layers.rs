//! Reading flags, environment and file into raw values, each with its origin.
//!
//! Its own file because precedence is one rule: flag > environment > file > default. An unknown key is refused with the
//! nearest known one; nothing is silently ignored.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use super::{KEYS, Key, Problem};

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The command line.
    Flag,
    /// The environment.
    Variable,
    /// The file, with the line.
    File(PathBuf, usize),
    /// Nobody said anything.
    Default,
}

/// A value as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raw {
    /// The texts; one unless the key is a list.
    pub texts: Vec<String>,
    /// Where they came from.
    pub origin: Origin,
}

/// What was found where.
#[derive(Debug, Default)]
pub struct Sources {
    /// From the command line, by key name.
    pub flags: BTreeMap<&'static str, Vec<String>>,
    /// The environment's variables that begin with `WHARF_`.
    pub variables: Vec<(String, String)>,
    /// The file and its text.
    pub file: Option<(PathBuf, String)>,
}

// === impl Origin ===

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("flag"),
            Self::Variable => f.write_str("environment"),
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

// === impl Raw ===

impl Raw {
    /// The text of a key that is not a list.
    pub fn text(&self) -> &str {
        self.texts.first().map_or("", String::as_str)
    }
}

// === impl Sources ===

impl Sources {
    /// Merges the layers. Every key is in the result, whatever problems there are.
    pub fn merge(&self, problems: &mut Vec<Problem>) -> BTreeMap<&'static str, Raw> {
        let file = self.read_file(problems);
        let variables = self.read_variables(problems);
        KEYS.iter()
            .map(|key| {
                let default = if key.default.is_empty() {
                    Vec::new()
                } else {
                    vec![key.default.to_owned()]
                };
                let raw = self
                    .flags
                    .get(key.name)
                    .map(|texts| Raw {
                        texts: texts.clone(),
                        origin: Origin::Flag,
                    })
                    .or_else(|| variables.get(key.name).cloned())
                    .or_else(|| file.get(key.name).cloned())
                    .unwrap_or(Raw {
                        texts: default,
                        origin: Origin::Default,
                    });
                (key.name, raw)
            })
            .collect()
    }

    fn read_variables(&self, problems: &mut Vec<Problem>) -> BTreeMap<&'static str, Raw> {
        let mut found = BTreeMap::new();
        for (variable, value) in &self.variables {
            let Some(name) = variable.strip_prefix("WHARF_").map(str::to_ascii_lowercase) else {
                continue;
            };
            match Key::find(&name) {
                Some(key) => {
                    let texts = if key.is_list {
                        value
                            .split(',')
                            .map(|part| part.trim().to_owned())
                            .filter(|part| !part.is_empty())
                            .collect()
                    } else {
                        vec![value.clone()]
                    };
                    found.insert(
                        key.name,
                        Raw {
                            texts,
                            origin: Origin::Variable,
                        },
                    );
                }
                // Of the commands that call a grid, not of the grid.
                None if ["config", "url", "token"].contains(&name.as_str()) => {}
                None => problems.push(unknown("environment variable", variable, &name, |near| {
                    format!("WHARF_{}", near.to_ascii_uppercase())
                })),
            }
        }
        found
    }

    fn read_file(&self, problems: &mut Vec<Problem>) -> BTreeMap<&'static str, Raw> {
        let mut found = BTreeMap::new();
        let Some((path, text)) = &self.file else { return found };
        let table: toml::Table = match text.parse() {
            Ok(table) => table,
            Err(error) => {
                problems.push(Problem(format!("{}: {error}", path.display())));
                return found;
            }
        };
        for (name, value) in &table {
            let line = line_of(text, name);
            let place = format!("{}:{line}: key", path.display());
            let Some(key) = Key::find(name) else {
                problems.push(unknown(&place, name, name, str::to_owned));
                continue;
            };
            match texts(value) {
                Some(texts) if key.is_list || (texts.len() == 1 && !value.is_array()) => {
                    found.insert(
                        key.name,
                        Raw {
                            texts,
                            origin: Origin::File(path.clone(), line),
                        },
                    );
                }
                _ => problems.push(Problem(format!(
                    "{place} `{name}`: expected {}, got {value}",
                    key.value
                ))),
            }
        }
        found
    }
}

fn unknown(place: &str, written: &str, name: &str, spell: impl Fn(&str) -> String) -> Problem {
    let hint = Key::nearest(name)
        .map(|near| format!("; did you mean `{}`?", spell(near)))
        .unwrap_or_default();
    Problem(format!("{place} `{written}` is not known{hint}"))
}

/// A scalar or an array of scalars, as texts.
fn texts(value: &toml::Value) -> Option<Vec<String>> {
    match value {
        toml::Value::String(text) => Some(vec![text.clone()]),
        toml::Value::Integer(number) => Some(vec![number.to_string()]),
        toml::Value::Float(number) => Some(vec![number.to_string()]),
        toml::Value::Boolean(is) => Some(vec![is.to_string()]),
        toml::Value::Array(values) => {
            let mut all = Vec::new();
            for value in values {
                all.extend(texts(value).filter(|texts| texts.len() == 1)?);
            }
            Some(all)
        }
        toml::Value::Datetime(_) | toml::Value::Table(_) => None,
    }
}

/// The line a key stands on; the table parser does not keep it.
fn line_of(text: &str, name: &str) -> usize {
    let is_it = |line: &str| {
        let key = line.trim_start().split(['=', ' ', '.', ']']).next().unwrap_or("");
        key.trim_matches(['"', '\'', '[']) == name
    };
    text.lines().position(is_it).map_or(1, |at| at + 1)
}
