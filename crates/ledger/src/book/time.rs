//! What time does: who is due, whose ticket has lapsed, and whether a sweep is worth an operation.
//!
//! Its own file because being due is asked far more often than anything is: every coordinator asks, many times a
//! second, and must not walk over the sessions to learn that nothing has happened.

use std::collections::{BTreeMap, BTreeSet};

use wharf_core::{CoordinatorId, SessionId, Timestamp};

use super::{
    Book, Entry,
    facts::due_at,
    index::{ByTime, refile},
};

/// Early entries that [`Book::is_due`] looks behind before it says yes to be on the safe side.
const LOOKED_BEHIND: usize = 64;

// === impl Book: time ===

impl Book {
    /// The sessions whose time may have come, by id: those whose own limits passed, and those whose tickets lapsed.
    pub(crate) fn take_due(&mut self) -> BTreeSet<SessionId> {
        let mut found = BTreeSet::new();
        let filed: Vec<_> = self
            .index
            .due
            .iter()
            .take_while(|(at, _)| *at <= self.now)
            .copied()
            .collect();
        for (filed_at, id) in filed {
            self.looks += 1;
            let Some(entry) = self.sessions.get_mut(&id) else {
                continue;
            };
            let due = due_at(entry, &self.rules);
            if due.is_some_and(|at| at <= self.now) {
                found.insert(id);
            } else {
                refile(&mut self.index.due, id, Some(filed_at), due);
                entry.filed_due = due;
            }
        }
        for (coordinator, tickets) in &self.index.tickets {
            if self.has_renewed(*coordinator, self.now) {
                continue;
            }
            let lapsed = tickets
                .iter()
                .take_while(|(since, _)| *since + self.rules.ticket_lease <= self.now);
            found.extend(lapsed.map(|(_, id)| *id));
        }
        found
    }

    /// Until when a waiter's ticket is good.
    pub(crate) fn ticket_until(&self, entry: &Entry) -> Timestamp {
        let renewed = self.renewed.get(&entry.record.coordinator).copied();
        renewed.map_or(entry.ticket_since, |at| at.max(entry.ticket_since)) + self.rules.ticket_lease
    }

    /// Whether all tickets of a coordinator are good at this time because it has renewed them.
    fn has_renewed(&self, coordinator: CoordinatorId, now: Timestamp) -> bool {
        let renewed = self.renewed.get(&coordinator);
        renewed.is_some_and(|at| *at + self.rules.ticket_lease > now)
    }

    /// Renews the tickets of a coordinator, and says how many those are.
    pub(crate) fn renew_tickets(&mut self, coordinator: CoordinatorId) -> u64 {
        let Some(own) = self.index.tickets.get(&coordinator) else {
            return 0;
        };
        self.renewed.insert(coordinator, self.now);
        own.len() as u64
    }

    pub(crate) const fn renewed(&self) -> &BTreeMap<CoordinatorId, Timestamp> {
        &self.renewed
    }

    pub(crate) fn set_renewed(&mut self, coordinator: CoordinatorId, at: Timestamp) {
        self.renewed.insert(coordinator, at);
    }

    /// Whether a sweep at this time would change anything; yes to be on the safe side.
    pub(crate) fn is_due(&self, now: Timestamp) -> bool {
        let now = now.max(self.now);
        let index = &self.index;
        let kept_from = now.before(self.rules.history);
        let is_old = |first: Option<Timestamp>| first.is_some_and(|at| at <= kept_from);
        let is_silent = index
            .heard
            .first()
            .is_some_and(|(at, _)| *at + self.rules.liveness_ttl <= now);
        let has_lapsed = |(coordinator, tickets): (&CoordinatorId, &ByTime<SessionId>)| {
            let first = tickets.first();
            first.is_some_and(|(since, _)| *since + self.rules.ticket_lease <= now)
                && !self.has_renewed(*coordinator, now)
        };
        !index.unserved.is_empty()
            || is_silent
            || index.locks.first().is_some_and(|(at, _)| *at <= now)
            || is_old(index.rested.first().map(|(at, _)| *at))
            || is_old(index.silent.first().map(|(at, _)| *at))
            || is_old(index.stubs.first().map(|(at, _)| *at))
            || index.tickets.iter().any(has_lapsed)
            || self.has_passed(now)
    }

    /// Whether a session's own limit has passed. Entries that are early are looked behind, but not for ever.
    fn has_passed(&self, now: Timestamp) -> bool {
        let mut filed = self.index.due.iter().take_while(|(at, _)| *at <= now);
        let is_early = |id: &SessionId| {
            let due = self.sessions.get(id).and_then(|entry| due_at(entry, &self.rules));
            due.is_none_or(|at| at > now)
        };
        filed.by_ref().take(LOOKED_BEHIND).any(|(_, id)| !is_early(id)) || filed.next().is_some()
    }
}
