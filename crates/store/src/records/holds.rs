//! What holds sessions back: limits and locks.
//!
//! Its own file because operators set them, and no session does.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use wharf_core::{Cover, KeyId, LimitScope, LockName, LockToken, PoolName, Timestamp};

use super::Freed;

/// A limit in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitRecord {
    /// Where.
    pub pool: PoolName,
    /// Of what.
    pub scope: LimitScope,
    /// How many sessions may hold a slot at once.
    pub max: u64,
    /// When it was set; what was placed before may be more.
    pub set_at: Timestamp,
}

/// A wish for a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockWish {
    /// Which.
    pub name: LockName,
    /// Chosen by the coordinator, so that a lost answer can be asked for again.
    pub token: LockToken,
    /// Who wants it, for people.
    pub holder: String,
    /// What for.
    pub description: String,
    /// What it keeps out.
    pub cover: Cover,
    /// How long it holds without renewal.
    pub ttl: Duration,
    /// The API key it comes with.
    pub owner: Option<KeyId>,
}

/// A lock that is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockRecord {
    /// Which.
    pub name: LockName,
    /// Whoever shows this may renew and release it. Never shown to others.
    pub token: LockToken,
    /// Who holds it.
    pub holder: String,
    /// What for.
    pub description: String,
    /// What it keeps out.
    pub cover: Cover,
    /// Since when.
    pub taken_at: Timestamp,
    /// Until when, unless it is renewed.
    pub until: Timestamp,
    /// The API key it was taken with.
    pub owner: Option<KeyId>,
}

/// A lock and what it waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockView {
    /// The lock.
    pub lock: LockRecord,
    /// Leases that it covers and that were there before it.
    pub running: u64,
}

/// The answer to a wish for a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Locking {
    /// It is yours.
    Taken(LockView),
    /// Somebody holds it.
    Held(LockRecord),
}

/// The answer to a renewal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Renewal {
    /// It holds longer.
    Renewed(LockView),
    /// It is not yours: somebody else's, or nobody's.
    NotYours(Option<LockRecord>),
}

/// The answer to a release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unlocking {
    /// It is free, and this became possible.
    Released(Freed),
    /// It is not yours: somebody else's, or nobody's.
    NotYours(Option<LockRecord>),
}
