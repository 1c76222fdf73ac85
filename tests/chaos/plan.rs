//! What each client does: made from the seed alone.
//!
//! Its own file, pure, because the same seed must bring the same clients. What they meet differs from run to run (two
//! processes never race the same way twice); what they try does not.

use std::time::Duration;

use wharf_e2e::dice::Dice;

/// One visit of one client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Visit {
    pub task: Task,
    /// Before the next one.
    pub pause: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Task {
    /// A session by the API, attached through the balancer, some calls, released.
    Api { calls: usize, think: Duration },
    /// Connects and gets a browser; some calls; closes.
    Direct { calls: usize, think: Duration },
    /// Asks under an idempotency key and asks again until it is told something final; then uses it.
    Waiter { calls: usize },
    /// Leaves without a word after this long, wherever it is then.
    Vanish { by_api: bool, after: Duration },
    /// Attaches through one coordinator, leaves, attaches through others.
    Wander { through: Vec<usize>, calls: usize },
    /// Works for a while and attaches again whenever it is cut off: measures how soon it is told, or back.
    Stay { span: Duration, beat: Duration },
    /// Takes a lock over an operation, sees that it keeps it, gives it back.
    Lock { span: Duration },
    /// Sets a limit of an operation and takes it away again.
    Limit { max: u64, span: Duration },
}

// === impl Visit ===

impl Visit {
    /// The `number`th visit of a client.
    pub fn plan(seed: u64, client: usize, number: u64, coordinators: usize) -> Self {
        let mut dice = Dice::new(seed).fork(1000 + client as u64).fork(number);
        let calls = 1 + dice.below(5);
        let think = dice.millis(0, 300);
        let task = match dice.below(100) {
            0..=21 => Task::Api { calls, think },
            22..=39 => Task::Direct { calls, think },
            40..=53 => Task::Waiter { calls },
            54..=65 => Task::Vanish {
                by_api: dice.percent(50),
                after: dice.millis(0, 1500),
            },
            66..=77 => Task::Wander {
                through: (0..2 + dice.below(3)).map(|_| dice.below(coordinators)).collect(),
                calls,
            },
            78..=95 => Task::Stay {
                span: dice.millis(3000, 15_000),
                beat: dice.millis(50, 250),
            },
            96..=97 => Task::Lock {
                span: dice.millis(100, 1500),
            },
            _ => Task::Limit {
                max: 1 + dice.throw() % 3,
                span: dice.millis(200, 2000),
            },
        };
        Self {
            task,
            pause: dice.millis(0, 600),
        }
    }
}

// === impl Task ===

impl Task {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Api { .. } => "api",
            Self::Direct { .. } => "direct",
            Self::Waiter { .. } => "waiter",
            Self::Vanish { .. } => "vanish",
            Self::Wander { .. } => "wander",
            Self::Stay { .. } => "stay",
            Self::Lock { .. } => "lock",
            Self::Limit { .. } => "limit",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn same_seed_plans_the_same_visits() {
        let all = |seed| -> Vec<_> { (0..50).map(|number| Visit::plan(seed, 3, number, 3)).collect() };
        assert_eq!(all(5), all(5));
        assert_ne!(all(5), all(6));
    }

    #[test]
    fn every_task_is_planned() {
        let names: BTreeSet<_> = (0..400)
            .map(|number| Visit::plan(1, 0, number, 3).task.name())
            .collect();
        assert_eq!(names.len(), 8, "{names:?}");
    }
}
