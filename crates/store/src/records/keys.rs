//! API keys, as kept: never the secret, only its hash.
//!
//! Its own file because nothing else here belongs to a person.

use serde::{Deserialize, Serialize};
use wharf_core::{KeyId, Timestamp};

/// What a key may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum KeyRole {
    /// Its own sessions.
    Client,
    /// Everything.
    Admin,
}

/// A new API key. The secret itself is never here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewKey {
    /// Its id.
    pub id: KeyId,
    /// What people call it.
    pub name: String,
    /// SHA-256 of the secret.
    pub hash: [u8; 32],
    /// What it may do.
    pub role: KeyRole,
    /// How many sessions it may hold, waiting ones included.
    pub max_sessions: Option<u64>,
}

/// An API key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRecord {
    /// Its id.
    pub id: KeyId,
    /// What people call it.
    pub name: String,
    /// SHA-256 of the secret.
    pub hash: [u8; 32],
    /// What it may do.
    pub role: KeyRole,
    /// How many sessions it may hold, waiting ones included.
    pub max_sessions: Option<u64>,
    /// How many it holds: those that have not ended, and ended ones that still hold a slot.
    pub held: u64,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last used, to the minute.
    pub used_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
}

/// The detail of sessions that ended because their API key was revoked.
pub const KEY_REVOKED: &str = "the API key was revoked";
