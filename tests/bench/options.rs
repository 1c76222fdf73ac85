//! The command line of the benchmark.
//!
//! Its own file so that the help text and what is parsed stand side by side. By hand: five flags need no library.

use std::path::PathBuf;

pub const HELP: &str = "\
wharf-bench: what the grid costs, against talking to the same browser directly

  --quick       about a minute: few samples, for seeing that everything works
  --only a,c    only these: a first reply, b cycle, c round trip, d large messages, e churn,
                f footprint, g waiters, h faults, i overload, j hops
  --json PATH   write the figures as JSON
  --svg PATH    write the chart
  --table       print the table (the default; alone it changes nothing)
  --no-table    print no table
";

const ALL: &str = "abcdefghij";

#[derive(Debug, Clone)]
pub struct Options {
    pub quick: bool,
    pub only: Vec<char>,
    pub json: Option<PathBuf>,
    pub svg: Option<PathBuf>,
    pub table: bool,
    pub help: bool,
}

// === impl Options ===

impl Options {
    pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            quick: false,
            only: Vec::new(),
            json: None,
            svg: None,
            table: true,
            help: false,
        };
        while let Some(word) = words.next() {
            let (flag, inline) = match word.split_once('=') {
                Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
                None => (word, None),
            };
            let mut value = || {
                inline
                    .clone()
                    .or_else(|| words.next())
                    .ok_or_else(|| format!("{flag} needs a value"))
            };
            match flag.as_str() {
                "--quick" => options.quick = true,
                "--only" => options.only = letters(&value()?)?,
                "--json" => options.json = Some(value()?.into()),
                "--svg" => options.svg = Some(value()?.into()),
                "--table" => options.table = true,
                "--no-table" => options.table = false,
                "--help" | "-h" => options.help = true,
                _ => return Err(format!("unknown argument {flag}")),
            }
        }
        Ok(options)
    }

    /// Which benchmarks to run, in order.
    pub fn wanted(&self) -> Vec<char> {
        ALL.chars()
            .filter(|bench| self.only.is_empty() || self.only.contains(bench))
            .collect()
    }

    pub fn mode(&self) -> &'static str {
        if self.quick { "quick" } else { "full" }
    }
}

fn letters(list: &str) -> Result<Vec<char>, String> {
    let parts = list.split(',').map(str::trim).filter(|part| !part.is_empty());
    let letter = |part: &str| match part.chars().next() {
        Some(letter) if part.len() == 1 && ALL.contains(letter) => Ok(letter),
        _ => Err(format!("--only: expected letters of {ALL}, got {part}")),
    };
    parts.map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn only_keeps_the_order_of_the_list_of_benchmarks() {
        assert_eq!(parse("--quick --only c,a").unwrap().wanted(), ['a', 'c']);
        assert_eq!(parse("").unwrap().wanted().len(), 10);
    }

    #[test]
    fn mistakes_are_named() {
        assert!(parse("--only z").unwrap_err().contains('z'));
        assert!(parse("--json").unwrap_err().contains("value"));
        assert!(parse("--jsn x").unwrap_err().contains("--jsn"));
    }
}
