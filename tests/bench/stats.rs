//! Samples and their quantiles.
//!
//! Its own file because every figure is made of them. Quantiles are nearest-rank: with few samples the p99 is the
//! worst one, which is what a reader expects.

use std::time::Duration;

/// Measured values of one kind.
#[derive(Debug, Clone, Default)]
pub struct Samples(Vec<f64>);

// === impl Samples ===

impl Samples {
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// Adds a time in milliseconds.
    pub fn push_ms(&mut self, time: Duration) {
        self.push(ms(time));
    }

    pub fn extend(&mut self, other: &Self) {
        self.0.extend_from_slice(&other.0);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The smallest value that at least this share of the samples does not exceed; NaN without samples.
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

    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    pub fn p99(&self) -> f64 {
        self.quantile(0.99)
    }
}

pub fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_rank() {
        let samples = Samples((1..=100).rev().map(f64::from).collect());
        assert_eq!(samples.median(), 50.0);
        assert_eq!(samples.p99(), 99.0);
        assert_eq!(samples.quantile(1.0), 100.0);
        assert_eq!(Samples(vec![3.0]).p99(), 3.0);
        assert!(Samples::default().median().is_nan());
    }
}
