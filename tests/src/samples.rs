//! Measured values and their quantiles, nearest-rank: with few samples the p99 is the worst one.
//!
//! Its own file because every table is made of them.

use std::time::Duration;

/// Measured values of one kind.
#[derive(Debug, Clone, Default)]
pub struct Samples(Vec<f64>);

// === impl Samples ===

impl Samples {
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// A time, in milliseconds.
    pub fn push_time(&mut self, time: Duration) {
        self.push(time.as_secs_f64() * 1000.0);
    }

    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The smallest value that at least this share of the samples does not exceed; NaN without samples.
    #[must_use]
    pub fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rank within the samples"
        )]
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
    }

    #[must_use]
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    #[must_use]
    pub fn worst(&self) -> f64 {
        self.quantile(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_rank() {
        let samples = Samples((1..=100).rev().map(f64::from).collect());
        assert_eq!(
            (samples.median(), samples.quantile(0.99), samples.worst()),
            (50.0, 99.0, 100.0)
        );
        assert!(Samples::default().median().is_nan());
    }
}
