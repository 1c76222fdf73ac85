//! Points in time as plain numbers: microseconds since the Unix epoch, from the store's clock.
//!
//! Its own file because core may not read a clock (invariant I8: times come from the store's clock only); whoever
//! calls core passes `now`. Spans are always `std::time::Duration`.

use std::{fmt, ops, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// A point in store time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

/// Where a role gets `now` from. The one place that may read the system's clock is its implementation in the binary.
pub trait Clock: Send + Sync + 'static {
    /// The present, in store time.
    fn now(&self) -> Timestamp;
}

// === impl Timestamp ===

impl Timestamp {
    /// From microseconds since the Unix epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch, as stores keep it.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// The span since `earlier`; zero if the clock stepped back.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// This point plus a span, saturating at the end of time.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(
            self.0
                .saturating_add(i64::try_from(span.as_micros()).unwrap_or(i64::MAX)),
        )
    }

    /// This point less a span.
    #[must_use]
    pub fn before(self, span: Duration) -> Self {
        Self(
            self.0
                .saturating_sub(i64::try_from(span.as_micros()).unwrap_or(i64::MAX)),
        )
    }
}

impl ops::Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        self.after(span)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(at) => write!(f, "{at:.6}"),
            Err(_) => write!(f, "{}us", self.0),
        }
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let at: jiff::Timestamp = text.parse().map_err(D::Error::custom)?;
        Ok(Self(at.as_microsecond()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamp_prints_as_rfc3339_and_reads_back() {
        let at = Timestamp::from_micros(1_700_000_000_123_456);
        let json = serde_json::to_string(&at).unwrap();
        assert_eq!(json, "\"2023-11-14T22:13:20.123456Z\"");
        assert_eq!(serde_json::from_str::<Timestamp>(&json).unwrap(), at);
    }

    #[test]
    fn since_a_later_point_is_zero() {
        assert_eq!(
            Timestamp::from_micros(5).since(Timestamp::from_micros(9)),
            Duration::ZERO
        );
    }
}
