//! What holds sessions back although a slot is free: limits and locks (I1, I5).
//!
//! Its own file because both ask the same question of the same two words, pool and operation, and every store engine
//! must answer it alike. The rule: whoever is held back waits and blocks only those who are held back by the same thing.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Operation, PoolName};

/// What a limit counts, within one pool. (What a key may hold is its quota, and a matter of admission.)
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitScope {
    /// All sessions of the pool.
    Pool,
    /// The sessions of one operation.
    Operation(Operation),
}

/// What an exclusive lock keeps out. An empty list means: all of them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cover {
    /// The pools.
    #[serde(default)]
    pub pools: Vec<PoolName>,
    /// The operations.
    #[serde(default)]
    pub operations: Vec<Operation>,
}

/// How far somebody who cannot be placed now holds back those behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Block {
    /// No worker has a slot for this class of browser.
    Class,
    /// The operation is at its limit, or locked.
    Operation,
    /// The whole pool is at its limit, or locked.
    Pool,
}

/// Whether one more session may be placed beside `running` others.
pub const fn has_room(running: u64, limit: Option<u64>) -> bool {
    match limit {
        Some(limit) => running < limit,
        None => true,
    }
}

// === impl Cover ===

impl Cover {
    /// Whether a session of this pool and operation is kept out.
    pub fn covers(&self, pool: &PoolName, operation: &Operation) -> bool {
        self.covers_pool(pool) && (self.operations.is_empty() || self.operations.contains(operation))
    }

    /// Whether anything of this pool is kept out.
    pub fn covers_pool(&self, pool: &PoolName) -> bool {
        self.pools.is_empty() || self.pools.contains(pool)
    }

    /// How far a covered waiter holds back those behind it.
    pub const fn block(&self) -> Block {
        if self.operations.is_empty() {
            Block::Pool
        } else {
            Block::Operation
        }
    }
}

impl fmt::Display for Cover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn list<T: fmt::Display>(f: &mut fmt::Formatter<'_>, names: &[T], all: &str) -> fmt::Result {
            if names.is_empty() {
                return f.write_str(all);
            }
            for (at, name) in names.iter().enumerate() {
                write!(f, "{}`{name}`", if at == 0 { "" } else { ", " })?;
            }
            Ok(())
        }
        list(f, &self.operations, "everything")?;
        f.write_str(" in ")?;
        list(f, &self.pools, "all pools")
    }
}

// === impl LimitScope ===

impl fmt::Display for LimitScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pool => f.write_str("the pool"),
            Self::Operation(operation) => write!(f, "the operation `{operation}`"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cover_without_names_is_everything() {
        let (pool, operation) = (PoolName::default(), Operation::default());
        let other: PoolName = "other".parse().unwrap();
        assert!(Cover::default().covers(&pool, &operation));
        let scrapes = Cover {
            operations: vec!["scrape".parse().unwrap()],
            ..Cover::default()
        };
        assert!(!scrapes.covers(&pool, &operation) && scrapes.covers(&pool, &"scrape".parse().unwrap()));
        let there = Cover {
            pools: vec![other.clone()],
            ..Cover::default()
        };
        assert!(!there.covers(&pool, &operation) && there.covers(&other, &operation));
        assert_eq!((scrapes.block(), there.block()), (Block::Operation, Block::Pool));
        assert_eq!(scrapes.to_string(), "`scrape` in all pools");
    }

    #[test]
    fn limit_of_zero_lets_nobody_in() {
        assert!(!has_room(0, Some(0)) && has_room(4, Some(5)) && !has_room(5, Some(5)) && has_room(9, None));
    }
}
