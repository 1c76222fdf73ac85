//! The queue: who is next, what place a waiter has, how long it may take (DESIGN.md §3, I1-I3).
//!
//! Its own file because order is the promise users notice first. The rule: within (pool, class) the highest priority
//! first, then the order of arrival; a head that no worker can serve blocks only its own class, and one that a limit or
//! a lock holds back only those whom the same one holds back.

use std::{collections::BTreeSet, time::Duration};

use crate::{Block, BrowserKind, Operation, Priority, SessionId};

/// A waiting session as dispatch sees it. Ordered as it is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiter {
    /// Who waits.
    pub session: SessionId,
    /// For what.
    pub class: BrowserKind,
    /// What for.
    pub operation: Operation,
    /// Higher first.
    pub priority: Priority,
    /// The order of arrival, given out by the store; kept when a placement fails.
    pub number: u64,
}

/// Whether a newcomer that could not be placed may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It gets a ticket.
    Queue,
    /// The queue is at its limit.
    Full {
        /// How many wait.
        waiting: u64,
        /// The limit.
        limit: u64,
    },
}

/// Admission to the queue of a pool: `waiting` does not count the newcomer.
pub const fn admit(waiting: u64, limit: u64) -> Admission {
    if waiting < limit {
        Admission::Queue
    } else {
        Admission::Full { waiting, limit }
    }
}

/// The waiters of one pool to be placed, in order, given a function that reserves a slot, or says how far those behind
/// are held back, too. A class or operation that could not be served is not asked again in this round: its later waiters
/// may not overtake.
pub fn dispatch<P>(
    waiters: impl IntoIterator<Item = Waiter>,
    mut reserve: impl FnMut(&Waiter) -> Result<P, Block>,
) -> Vec<(Waiter, P)> {
    let mut blocked = BTreeSet::new();
    let mut held_back = BTreeSet::new();
    let mut placed = Vec::new();
    for waiter in waiters {
        if blocked.len() == BrowserKind::ALL.len() {
            break;
        }
        if blocked.contains(&waiter.class) || held_back.contains(&waiter.operation) {
            continue;
        }
        match reserve(&waiter) {
            Ok(place) => placed.push((waiter, place)),
            Err(Block::Class) => {
                blocked.insert(waiter.class);
            }
            Err(Block::Operation) => {
                held_back.insert(waiter.operation);
            }
            Err(Block::Pool) => break,
        }
    }
    placed
}

/// How long the waiter at `position` (1 is next) will probably wait, from how long sessions hold a slot.
pub fn estimate_wait(position: u64, slots: u64, mean_hold: Duration) -> Duration {
    if slots == 0 {
        return mean_hold.saturating_mul(u32::try_from(position).unwrap_or(u32::MAX));
    }
    // With all slots busy and independent, one frees every mean_hold / slots on average.
    let seconds = mean_hold.as_secs_f64() * position as f64 / slots as f64;
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// What to tell a refused client: at least a second, at most a minute, in whole seconds.
pub fn retry_after(estimate: Duration) -> Duration {
    Duration::from_secs(estimate.as_secs_f64().ceil().clamp(1.0, 60.0) as u64)
}

impl Waiter {
    /// The sort key: serve ascending.
    pub fn key(&self) -> (std::cmp::Reverse<Priority>, u64) {
        (std::cmp::Reverse(self.priority), self.number)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    fn waiter(number: u64, class: BrowserKind, priority: i64) -> Waiter {
        Waiter {
            session: SessionId::from_uuid(Uuid::from_u128(u128::from(number))),
            class,
            operation: Operation::default(),
            priority: Priority::try_from(priority).unwrap(),
            number,
        }
    }

    proptest! {
        #[test]
        fn served_in_order_within_class_and_nobody_waits_for_another_class(
            raw in prop::collection::vec((prop::bool::ANY, -2i64..3), 0..30),
            mut free in (0usize..6, 0usize..6),
        ) {
            let mut waiters: Vec<_> = raw
                .into_iter()
                .enumerate()
                .map(|(n, (fox, p))| {
                    waiter(n as u64, if fox { BrowserKind::Firefox } else { BrowserKind::Chromium }, p)
                })
                .collect();
            waiters.sort_by_key(Waiter::key);
            let had = free;
            let placed = dispatch(waiters.clone(), |w| {
                let left = if w.class == BrowserKind::Firefox { &mut free.1 } else { &mut free.0 };
                left.checked_sub(1).map(|less| *left = less).ok_or(Block::Class)
            });
            for (class, slots) in [(BrowserKind::Chromium, had.0), (BrowserKind::Firefox, had.1)] {
                let expected: Vec<_> = waiters.iter().filter(|w| w.class == class).take(slots).collect();
                let got: Vec<_> = placed.iter().map(|(w, ())| w).filter(|w| w.class == class).collect();
                prop_assert_eq!(got, expected);
            }
        }
    }

    proptest! {
        #[test]
        fn held_back_operations_are_passed_by_and_nobody_else_is(
            raw in prop::collection::vec((0usize..3, -2i64..3), 0..30),
            mut room in prop::array::uniform3(0u64..6),
            mut slots in 0u64..12,
        ) {
            let operations = ["a", "b", "c"].map(|name| name.parse::<Operation>().unwrap());
            let mut waiters: Vec<_> = raw
                .into_iter()
                .enumerate()
                .map(|(n, (operation, p))| Waiter {
                    operation: operations[operation].clone(),
                    ..waiter(n as u64, BrowserKind::Chromium, p)
                })
                .collect();
            waiters.sort_by_key(Waiter::key);
            let (had_room, had_slots) = (room, slots);
            let placed = dispatch(waiters.clone(), |w| {
                let at = operations.iter().position(|operation| *operation == w.operation).unwrap();
                if slots == 0 { return Err(Block::Class); }
                if room[at] == 0 { return Err(Block::Operation); }
                room[at] -= 1;
                slots -= 1;
                Ok(())
            });
            // The plain rule: in order, everybody whose operation has room, while there are slots.
            let mut left = had_room;
            let expected: Vec<_> = waiters
                .iter()
                .filter(|w| {
                    let at = operations.iter().position(|operation| *operation == w.operation).unwrap();
                    left[at] > 0 && { left[at] -= 1; true }
                })
                .take(usize::try_from(had_slots).unwrap())
                .collect();
            let got: Vec<_> = placed.iter().map(|(w, ())| w).collect();
            prop_assert_eq!(got, expected);
        }
    }

    #[test]
    fn queue_admits_up_to_its_limit() {
        assert_eq!(admit(0, 0), Admission::Full { waiting: 0, limit: 0 });
        assert_eq!(admit(9, 10), Admission::Queue);
        assert_eq!(admit(10, 10), Admission::Full { waiting: 10, limit: 10 });
    }

    #[test]
    fn estimate_grows_with_position_and_shrinks_with_slots() {
        let hold = Duration::from_secs(10);
        assert_eq!(estimate_wait(1, 10, hold), Duration::from_secs(1));
        assert_eq!(estimate_wait(20, 10, hold), Duration::from_secs(20));
        assert_eq!(retry_after(Duration::ZERO), Duration::from_secs(1));
        assert_eq!(retry_after(Duration::from_secs(4000)), Duration::from_secs(60));
    }
}
