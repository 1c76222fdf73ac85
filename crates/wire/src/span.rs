//! Spans as clients write them: a number of seconds, or a text such as `"90s"`, `"5m"`, `"1h 30m"`.
//!
//! Its own file because the API, the configuration file and the command line must accept the same spellings.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A span of time on the wire. Written as seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// A text that is no span.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a time span such as `30s`, `1m 30s` or a number of seconds, got `{0}`")]
pub struct ParseSpanError(String);

/// The longest span anybody may ask for: a year. Longer ones are typing errors.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 60 * 60);

// === impl Span ===

impl Span {
    fn from_seconds(seconds: f64) -> Option<Self> {
        Duration::try_from_secs_f64(seconds)
            .ok()
            .filter(|span| *span <= LONGEST)
            .map(Self)
    }
}

impl FromStr for Span {
    type Err = ParseSpanError;

    fn from_str(text: &str) -> Result<Self, ParseSpanError> {
        let refused = || ParseSpanError(text.chars().take(40).collect());
        let trimmed = text.trim();
        if let Ok(seconds) = trimmed.parse::<f64>() {
            return Self::from_seconds(seconds).ok_or_else(refused);
        }
        let span: jiff::SignedDuration = trimmed.parse().map_err(|_| refused())?;
        Duration::try_from(span)
            .ok()
            .filter(|span| *span <= LONGEST)
            .map(Self)
            .ok_or_else(refused)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}s", self.0.as_secs_f64())
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.0.as_secs_f64())
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Span;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time span such as \"30s\" or a number of seconds between 0 and a year")
            }

            fn visit_f64<E: de::Error>(self, seconds: f64) -> Result<Span, E> {
                Span::from_seconds(seconds).ok_or_else(|| E::invalid_value(de::Unexpected::Float(seconds), &self))
            }

            fn visit_u64<E: de::Error>(self, seconds: u64) -> Result<Span, E> {
                self.visit_f64(seconds as f64)
            }

            fn visit_i64<E: de::Error>(self, seconds: i64) -> Result<Span, E> {
                self.visit_f64(seconds as f64)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_in_every_spelling() {
        for (text, seconds) in [
            ("30s", 30.0),
            ("1m 30s", 90.0),
            ("2h", 7200.0),
            ("250ms", 0.25),
            ("45", 45.0),
            ("0", 0.0),
        ] {
            assert_eq!(
                text.parse::<Span>(),
                Ok(Span(Duration::from_secs_f64(seconds))),
                "{text}"
            );
        }
        assert_eq!(
            serde_json::from_str::<Span>("1.5").unwrap(),
            Span(Duration::from_millis(1500))
        );
        assert_eq!(
            serde_json::from_str::<Span>("\"2s\"").unwrap(),
            Span(Duration::from_secs(2))
        );
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "-1", "-5s", "soon", "1e300", "NaN", "inf", "400d"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
        for json in ["-1", "1e300", "true", "[]"] {
            assert!(serde_json::from_str::<Span>(json).is_err(), "{json}");
        }
    }
}
