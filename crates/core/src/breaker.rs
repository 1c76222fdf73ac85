//! Restart back-off and the circuit breaker of a worker (DESIGN.md §4).
//!
//! Its own file because both count the same thing: failures in a row. A crashed or failed browser is replaced after
//! 1 s, doubling to 30 s while launches keep failing; then the circuit opens: no placements, one trial launch per
//! interval, until one succeeds.

use std::time::Duration;

use crate::Timestamp;

/// Launch failures in a row, and what follows from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Breaker {
    failures: u32,
    next_launch_at: Timestamp,
}

// === impl Breaker ===

impl Breaker {
    /// The first pause.
    const FIRST: Duration = Duration::from_secs(1);
    /// The longest pause.
    const LONGEST: Duration = Duration::from_secs(30);
    /// Failures in a row that open the circuit.
    const LIMIT: u32 = 3;

    /// A launch failed, or a browser crashed before anybody used it.
    pub fn failed(&mut self, now: Timestamp) {
        self.failures = self.failures.saturating_add(1);
        self.next_launch_at = now + self.pause();
    }

    /// A browser in use crashed: replaced after the first pause, but no verdict on launching.
    pub fn crashed(&mut self, now: Timestamp) {
        self.next_launch_at = self.next_launch_at.max(now + Self::FIRST);
    }

    /// A launch succeeded.
    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// No placements while open.
    pub const fn is_open(&self) -> bool {
        self.failures >= Self::LIMIT
    }

    /// Failures in a row.
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// When the next refill (or, with the circuit open, the trial) may start.
    pub const fn next_launch_at(&self) -> Timestamp {
        self.next_launch_at
    }

    /// Whether somebody's launch may start now: a waiting session does not wait out the pause after a single crash,
    /// but it does while launches fail.
    pub fn allows_urgent(&self, now: Timestamp) -> bool {
        self.failures == 0 || now >= self.next_launch_at
    }

    /// Whether a refill may start now.
    pub fn allows_refill(&self, now: Timestamp) -> bool {
        now >= self.next_launch_at
    }

    /// How many launches may be in flight: one trial while they fail.
    pub const fn lanes(&self, usual: usize) -> usize {
        if self.failures > 0 { 1 } else { usual }
    }

    fn pause(&self) -> Duration {
        let doublings = self.failures.saturating_sub(1).min(5);
        (Self::FIRST * (1 << doublings)).min(Self::LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_doubles_to_thirty_seconds_and_success_forgets() {
        let mut breaker = Breaker::default();
        let at = Timestamp::from_micros(0);
        let mut pauses = Vec::new();
        for _ in 0..7 {
            breaker.failed(at);
            pauses.push(breaker.next_launch_at().since(at).as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        assert!(breaker.is_open());
        breaker.succeeded();
        assert!(!breaker.is_open() && breaker.allows_refill(at));
    }

    #[test]
    fn a_crash_delays_the_refill_but_not_a_waiting_session() {
        let mut breaker = Breaker::default();
        let at = Timestamp::from_micros(0);
        breaker.crashed(at);
        assert!(breaker.allows_urgent(at) && !breaker.allows_refill(at));
        assert!(breaker.allows_refill(at + Duration::from_secs(1)));
        breaker.failed(at);
        assert!(!breaker.allows_urgent(at));
    }
}
