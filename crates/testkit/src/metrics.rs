//! Prometheus text, parsed as far as tests need it.
//!
//! Its own file because asking for a number by name and some of its labels is the only thing tests do with metrics.
//!
//! Invariant: a series that is absent is `None`, never zero.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

/// One scrape.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    series: Vec<Series>,
}

#[derive(Debug, Clone, PartialEq)]
struct Series {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

// === impl Metrics ===

impl Metrics {
    /// Parses the text exposition format, and OpenMetrics as far as they agree.
    ///
    /// # Errors
    /// When a line is neither a comment nor a sample.
    pub fn parse(text: &str) -> Result<Self> {
        let lines = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        let series = lines.map(|line| sample(line).with_context(|| format!("not a metric: {line:?}")));
        Ok(Self {
            series: series.collect::<Result<_>>()?,
        })
    }

    /// The value of `name` or `name{label="value",…}`: the sum of all series that carry at least these labels.
    #[must_use]
    pub fn get(&self, query: &str) -> Option<f64> {
        let (name, wanted) = selector(query)?;
        let fits = |series: &&Series| {
            series.name == name && wanted.iter().all(|(key, value)| series.labels.get(key) == Some(value))
        };
        self.series
            .iter()
            .filter(fits)
            .map(|series| series.value)
            .reduce(|sum, value| sum + value)
    }

    /// The names, for messages and for checks of the reference page.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.series.iter().map(|series| series.name.as_str())
    }
}

fn sample(line: &str) -> Option<Series> {
    let end = line
        .rfind('}')
        .map_or_else(|| line.find(char::is_whitespace), |at| Some(at + 1))?;
    let (name, labels) = selector(&line[..end])?;
    let value = line[end..].split_whitespace().next()?.parse().ok()?;
    Some(Series {
        name: name.to_owned(),
        labels,
        value,
    })
}

/// `name` or `name{a="b",c="d"}`; escapes in values are `\\`, `\"` and `\n`.
fn selector(text: &str) -> Option<(&str, BTreeMap<String, String>)> {
    let Some((name, rest)) = text.split_once('{') else {
        return Some((text.trim(), BTreeMap::new()));
    };
    let mut labels = BTreeMap::new();
    let mut rest = rest.trim();
    while !rest.starts_with('}') {
        let (key, after) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => value.push(match chars.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, other) => value.push(other),
            }
        };
        labels.insert(key.trim().to_owned(), value);
        rest = after[end + 1..].trim_start().trim_start_matches(',').trim_start();
    }
    Some((name.trim(), labels))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP wharf_browsers Browsers.\n# TYPE wharf_browsers gauge\n\
        wharf_browsers{state=\"warm\",pool=\"a, {b}\"} 2\nwharf_browsers{state=\"leased\",pool=\"x\\\"y\"} 3 1700\n\
        wharf_sessions_active 5\nwharf_wait_seconds_bucket{le=\"+Inf\"} 1e3\n# EOF\n";

    #[test]
    fn metrics_get_sums_series_that_carry_the_labels() {
        let metrics = Metrics::parse(TEXT).unwrap();
        assert_eq!(metrics.get("wharf_sessions_active"), Some(5.0));
        assert_eq!(metrics.get("wharf_browsers"), Some(5.0));
        assert_eq!(metrics.get("wharf_browsers{state=\"warm\"}"), Some(2.0));
        assert_eq!(metrics.get("wharf_browsers{pool=\"x\\\"y\"}"), Some(3.0));
        assert_eq!(metrics.get("wharf_wait_seconds_bucket{le=\"+Inf\"}"), Some(1000.0));
        assert_eq!(metrics.get("wharf_browsers{state=\"closing\"}"), None);
        assert_eq!(metrics.get("absent"), None);
    }

    #[test]
    fn metrics_broken_line_is_refused() {
        assert!(Metrics::parse("wharf_browsers{state=\"warm} 2").is_err());
    }
}
