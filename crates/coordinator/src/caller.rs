//! Who is calling, and what they may see.
//!
//! Its own file because the rule "a key sees its own sessions only, unless it is an admin's" is one, and every use case
//! asks it here.

use wharf_core::KeyId;
use wharf_store::{KeyRole, SessionRecord};

/// Who is calling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// The grid is open: on loopback, before the first key was made.
    Anyone,
    /// The owner of a key.
    Key {
        /// Which.
        id: KeyId,
        /// What it may do.
        role: KeyRole,
    },
}

// === impl Caller ===

impl Caller {
    /// Whose sessions are made.
    pub const fn owner(self) -> Option<KeyId> {
        match self {
            Self::Anyone => None,
            Self::Key { id, .. } => Some(id),
        }
    }

    /// Whose sessions are seen; `None` means all.
    pub const fn sees_only(self) -> Option<KeyId> {
        match self {
            Self::Key {
                id,
                role: KeyRole::Client,
            } => Some(id),
            _ => None,
        }
    }

    /// Whether this session may be seen.
    pub fn sees(self, record: &SessionRecord) -> bool {
        self.sees_only().is_none_or(|own| record.owner == Some(own))
    }
}
