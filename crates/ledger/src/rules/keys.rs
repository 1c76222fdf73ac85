//! API keys: made, revoked, counted.
//!
//! Its own file because a key outlives its sessions. Invariant: a revoked key has no live session and no lock, and never
//! gets one again.

use std::time::Duration;

use wharf_core::{EndReason, KeyId};
use wharf_store::{Freed, KEY_REVOKED, KeyRecord, LockChange, NewKey};

use crate::step::Step;

/// How fine the time of last use is.
const USE_KNOWN_TO: Duration = Duration::from_secs(60);

// === impl Step: keys ===

impl Step<'_> {
    pub(crate) fn create_key(&mut self, key: NewKey) -> Option<KeyRecord> {
        let id = key.id;
        let created_at = self.book.now();
        self.book.keys.entry(id).or_insert_with(|| KeyRecord {
            id,
            name: key.name,
            hash: key.hash,
            role: key.role,
            max_sessions: key.max_sessions,
            held: 0,
            created_at,
            used_at: None,
            revoked_at: None,
        });
        self.book.key(id)
    }

    pub(crate) fn revoke_key(&mut self, key: KeyId) -> Option<(KeyRecord, Freed)> {
        let now = self.book.now();
        let row = self.book.keys.get_mut(&key)?;
        row.revoked_at = row.revoked_at.or(Some(now));
        let own: Vec<_> = self
            .book
            .index()
            .held
            .get(&key)
            .into_iter()
            .flatten()
            .copied()
            .collect();
        let ended = own
            .into_iter()
            .filter_map(|session| self.finish(session, EndReason::Policy, Some(KEY_REVOKED.to_owned())))
            .collect();
        let locks = self.book.locks().values();
        let own: Vec<_> = locks.filter(|lock| lock.owner == Some(key)).cloned().collect();
        for lock in own {
            self.book.remove_lock(&lock.name);
            let change = match lock.until > now {
                true => LockChange::Released,
                false => LockChange::Expired,
            };
            self.note_lock(&lock, change);
        }
        let placed = self.dispatch(None);
        Some((self.book.key(key)?, Freed { ended, placed }))
    }

    pub(crate) fn set_quota(&mut self, key: KeyId, max_sessions: Option<u64>) -> Option<KeyRecord> {
        self.book.keys.get_mut(&key)?.max_sessions = max_sessions;
        self.book.key(key)
    }

    pub(crate) fn key_used(&mut self, key: KeyId) {
        let now = self.book.now();
        let Some(row) = self.book.keys.get_mut(&key) else {
            return;
        };
        if row.used_at.is_none_or(|used_at| used_at + USE_KNOWN_TO <= now) {
            row.used_at = Some(now);
        }
    }
}
