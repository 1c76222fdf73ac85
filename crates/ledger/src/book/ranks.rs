//! How many of a growing set of numbers are smaller than one of them, without walking over them.
//!
//! Its own file because a place in the queue is asked for by every newcomer that waits and by everybody who looks, and
//! a tree of the standard library cannot count what lies before a key. The numbers are counted by their leading bytes:
//! what is smaller than a number is, level by level, what its older siblings have.

use std::collections::BTreeMap;

/// Bits of one level, and how many levels there are below the top one.
const BITS: u32 = 8;
const LEVELS: usize = 4;

/// A set of numbers that knows ranks. Adding one twice or removing what is not there is the caller's error.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ranks {
    len: u64,
    /// How many numbers begin so: by all their bits, by all but the last eight, and so on.
    levels: [BTreeMap<u64, u64>; LEVELS + 1],
}

// === impl Ranks ===

impl Ranks {
    pub(crate) fn add(&mut self, number: u64) {
        self.len += 1;
        for (level, counts) in self.levels.iter_mut().enumerate() {
            *counts.entry(prefix(number, level)).or_default() += 1;
        }
    }

    pub(crate) fn remove(&mut self, number: u64) {
        self.len -= 1;
        for (level, counts) in self.levels.iter_mut().enumerate() {
            let at = prefix(number, level);
            if let Some(count) = counts.get_mut(&at) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(&at);
                }
            }
        }
    }

    pub(crate) const fn len(&self) -> u64 {
        self.len
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many are smaller.
    pub(crate) fn below(&self, number: u64) -> u64 {
        let each = self.levels.iter().enumerate().map(|(level, counts)| {
            let own = prefix(number, level);
            // At the top there are no parents; nobody has that many arrivals.
            let eldest = if level == LEVELS { 0 } else { own >> BITS << BITS };
            counts.range(eldest..own).map(|(_, count)| count).sum::<u64>()
        });
        each.sum()
    }
}

const fn prefix(number: u64, level: usize) -> u64 {
    number >> (BITS * level as u32)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranks_are_those_of_a_sorted_list(
            changes in prop::collection::vec(prop_oneof![0u64..600, any::<u64>(), 65_000u64..66_000], 0..60),
            asked in prop_oneof![0u64..600, any::<u64>()],
        ) {
            let mut ranks = Ranks::default();
            let mut plain = BTreeSet::new();
            for number in changes {
                if plain.insert(number) {
                    ranks.add(number);
                } else {
                    plain.remove(&number);
                    ranks.remove(number);
                }
                for one in plain.iter().chain([&asked]) {
                    prop_assert_eq!(ranks.below(*one), plain.range(..one).count() as u64);
                }
                prop_assert_eq!(ranks.len(), plain.len() as u64);
            }
            plain.into_iter().for_each(|number| ranks.remove(number));
            prop_assert_eq!(ranks, Ranks::default());
        }
    }
}
