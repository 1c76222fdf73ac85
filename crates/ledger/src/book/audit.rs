//! The indices made anew from the records and compared with those that were kept.
//!
//! Its own file because it shares nothing with the rules: it is how tests know that no change was filed wrongly, and
//! what an operator may ask when replicas disagree.

use std::collections::BTreeSet;

use super::{Book, Entry, facts::due_at};

// === impl Book ===

impl Book {
    /// What is wrong with the indices, by name.
    pub(crate) fn audit(&self) -> Result<(), String> {
        let fresh = self.anew();
        let (kept, made) = (self.index(), fresh.index());
        let each = [
            ("pools", kept.pools == made.pools),
            ("leased", kept.leased == made.leased),
            ("held", kept.held == made.held),
            ("keys", kept.keys == made.keys),
            ("tickets", kept.tickets == made.tickets),
            ("rested", kept.rested == made.rested),
            ("rested_of", kept.rested_of == made.rested_of),
            ("heard", kept.heard == made.heard),
            ("silent", kept.silent == made.silent),
            ("locks", kept.locks == made.locks),
            ("stubs", kept.stubs == made.stubs),
            ("busy", self.workers == fresh.workers),
            ("waited", kept.waited.is_empty()),
            ("renewed", self.renewed.keys().all(|one| kept.tickets.contains_key(one))),
        ];
        let mut wrong: Vec<_> = each
            .iter()
            .filter(|(_, is_right)| !is_right)
            .map(|(name, _)| *name)
            .collect();
        if !self.is_due_filed() {
            wrong.push("due");
        }
        match wrong.is_empty() {
            true => Ok(()),
            false => Err(format!("the indices {} do not match the records", wrong.join(", "))),
        }
    }

    /// The same records, filed one by one.
    fn anew(&self) -> Self {
        let mut fresh = Self::new(self.rules);
        fresh.now = self.now;
        for row in self.workers.values() {
            let mut row = row.clone();
            row.busy = 0;
            fresh.put_worker(row);
        }
        for entry in self.sessions.values() {
            fresh.add_session(entry.record.clone(), entry.lease, entry.ticket_since);
        }
        self.locks.values().for_each(|lock| fresh.put_lock(lock.clone()));
        for (owner, stubs) in &self.stubs {
            for (key, stub) in stubs {
                fresh.put_stub(*owner, key.clone(), *stub);
            }
        }
        fresh
    }

    /// Everything that time will do is filed once, at its time or before, where its entry says.
    fn is_due_filed(&self) -> bool {
        let filed = |entry: &Entry| entry.filed_due.map(|at| (at, entry.record.id));
        let expected: BTreeSet<_> = self.sessions.values().filter_map(filed).collect();
        let is_early = |entry: &Entry| match (due_at(entry, &self.rules), entry.filed_due) {
            (Some(due), Some(filed)) => filed <= due,
            (due, filed) => due.is_none() && filed.is_none(),
        };
        expected == self.index.due && self.sessions.values().all(is_early)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use uuid::Uuid;
    use wharf_core::{
        BrowserKind, CoordinatorId, Epoch, KeyId, PoolName, Seat, SessionId, SessionSpec, SessionState, Timestamp,
        WorkerId, WorkerState, session::Clockwork,
    };
    use wharf_store::{Load, SessionRecord, StoreRules, WorkerRecord};

    use super::*;
    use crate::book::{Lease, Stub};

    fn at(seconds: u64) -> Timestamp {
        Timestamp::default() + Duration::from_secs(seconds)
    }

    fn row(n: u128, state: WorkerState) -> WorkerRecord {
        WorkerRecord {
            id: WorkerId::from_uuid(Uuid::from_u128(n)),
            pool: PoolName::default(),
            browsers: vec![BrowserKind::Chromium, BrowserKind::Chromium],
            slots: 3,
            busy: 0,
            lifetime: 0,
            state,
            is_circuit_open: false,
            warm: 1,
            launching: 1,
            load: Load::default(),
            address: String::new(),
            registered_at: at(1),
            heard_at: at(1),
        }
    }

    fn record(n: u128, state: SessionState) -> SessionRecord {
        SessionRecord {
            id: SessionId::from_uuid(Uuid::from_u128(n)),
            spec: SessionSpec::default(),
            state,
            epoch: Epoch(1),
            number: u64::try_from(n).unwrap(),
            times: Clockwork {
                queued_at: at(1),
                placed_at: None,
                started_at: None,
                attached_at: None,
                active_at: None,
            },
            ended_at: state.is_ended().then(|| at(2)),
            detail: None,
            excluded: Vec::new(),
            coordinator: CoordinatorId::from_uuid(Uuid::from_u128(1)),
            worker: None,
            owner: Some(KeyId::from_uuid(Uuid::from_u128(1))),
            idempotency_key: Some(n.to_string()),
        }
    }

    /// Something of every kind.
    fn full() -> Book {
        let mut book = Book::new(StoreRules::default());
        book.put_worker(row(1, WorkerState::Available));
        book.put_worker(row(2, WorkerState::Lost));
        let seat = Seat {
            worker: WorkerId::from_uuid(Uuid::from_u128(1)),
            epoch: Epoch(1),
        };
        book.add_session(record(1, SessionState::Queued), None, at(1));
        let lease = Lease { seat, since: at(1) };
        book.add_session(record(2, SessionState::Active(seat)), Some(lease), at(1));
        book.add_session(
            record(3, SessionState::Ended(wharf_core::EndReason::Killed)),
            None,
            at(1),
        );
        let session = SessionId::from_uuid(Uuid::from_u128(9));
        let ended_at = at(1);
        book.put_stub(None, "k".to_owned(), Stub { session, ended_at });
        book.take_waited();
        book
    }

    #[test]
    fn audit_names_what_was_filed_wrongly() {
        full().audit().unwrap();
        /// The name of an index, and what ruins it.
        type Damage = (&'static str, fn(&mut Book));
        let spoil: [Damage; 12] = [
            ("pools", |book| book.index.pools.clear()),
            ("leased", |book| book.index.leased.clear()),
            ("held", |book| book.index.held.clear()),
            ("keys", |book| book.index.keys.clear()),
            ("tickets", |book| book.index.tickets.clear()),
            ("rested", |book| book.index.rested.clear()),
            ("rested_of", |book| book.index.rested_of.clear()),
            ("heard", |book| book.index.heard.clear()),
            ("silent", |book| book.index.silent.clear()),
            ("stubs", |book| book.index.stubs.clear()),
            ("busy", |book| book.workers.values_mut().for_each(|row| row.busy += 1)),
            ("due", |book| {
                book.index.due.pop_last();
            }),
        ];
        for (name, spoil) in spoil {
            let mut book = full();
            spoil(&mut book);
            let wrong = book.audit().unwrap_err();
            assert!(wrong.contains(name), "{name}: {wrong}");
        }
    }
}
