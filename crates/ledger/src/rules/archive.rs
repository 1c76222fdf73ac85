//! What leaves the ledger: ended sessions that are in the archive now.
//!
//! Its own file because it is no operation of the port. Invariant: whoever came with an idempotency key is still
//! recognised by it for as long as its record would have been kept here.

use wharf_core::SessionId;

use crate::{book::Stub, step::Step};

// === impl Step: archive ===

impl Step<'_> {
    pub(crate) fn archived(&mut self, sessions: &[SessionId]) {
        for session in sessions {
            let entry = self.book.entry(*session);
            let Some(ended_at) = entry
                .filter(|entry| entry.lease.is_none())
                .and_then(|entry| entry.record.ended_at)
            else {
                continue;
            };
            let Some(record) = self.book.remove_session(*session) else {
                continue;
            };
            if let Some(key) = record.idempotency_key {
                let stub = Stub {
                    session: *session,
                    ended_at,
                };
                self.book.put_stub(record.owner, key, stub);
            }
        }
    }
}
