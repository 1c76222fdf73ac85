//! Chance from a seed: the same seed, the same throws, on every machine and in every version.
//!
//! Its own file, and not a library's generator, because a seed in an old report must still mean the same run after an
//! update of dependencies. SplitMix64 (Steele, Lea, Flood 2014): eight lines, good enough to choose faults by.
//!
//! Invariant: a fork depends on the seed and its label alone, not on what was thrown before it.

use std::time::Duration;

/// A sequence of throws.
#[derive(Debug, Clone)]
pub struct Dice {
    seed: u64,
    state: u64,
}

// === impl Dice ===

impl Dice {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, state: seed }
    }

    /// Dice of their own for one purpose.
    #[must_use]
    pub fn fork(&self, label: u64) -> Self {
        Self::new(mix(self.seed ^ mix(label.wrapping_add(0x9E37_79B9_7F4A_7C15))))
    }

    pub fn throw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.state)
    }

    /// One of `0..sides`; 0 if there are none.
    pub fn below(&mut self, sides: usize) -> usize {
        let sides = sides.max(1) as u64;
        usize::try_from(self.throw() % sides).unwrap_or(0)
    }

    /// A time from this to that, in milliseconds.
    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.throw() % (to - from + 1))
    }

    /// True in so many cases of a hundred.
    pub fn percent(&mut self, share: u64) -> bool {
        self.throw() % 100 < share
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_says_it_all() {
        // The reference values of SplitMix64 for seed 1234567: a changed generator would make old seeds lie.
        let mut dice = Dice::new(1_234_567);
        assert_eq!(
            [dice.throw(), dice.throw(), dice.throw()],
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn fork_does_not_depend_on_what_was_thrown() {
        let (mut used, fresh) = (Dice::new(7), Dice::new(7));
        used.throw();
        assert_eq!(used.fork(3).throw(), fresh.fork(3).throw());
        assert_ne!(fresh.fork(3).throw(), fresh.fork(4).throw());
        let mut items: Vec<_> = (0..20).collect();
        Dice::new(1).shuffle(&mut items);
        assert_ne!(items, (0..20).collect::<Vec<_>>());
    }
}
