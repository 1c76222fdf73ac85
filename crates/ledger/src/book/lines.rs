//! Those who wait in one pool: in lines by class of browser and operation, and all of them in order.
//!
//! Its own file because this is what makes dispatch cheap: whatever holds a waiter back (no slot for its class, a limit
//! or a lock on its operation) holds back a whole line behind it, so only the heads of lines need to be looked at, and
//! ten thousand behind a full class cost what ten do. Invariant: `heads` has the first of every line and nobody else.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use wharf_core::{BrowserKind, Operation, Priority, SessionId, queue::Waiter};
use wharf_store::SessionRecord;

use super::ranks::Ranks;

/// The order of service: [`Waiter::key`].
pub(crate) type Place = (Reverse<Priority>, u64);

/// The waiters of a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Lines {
    all: BTreeMap<Place, SessionId>,
    classes: BTreeMap<BrowserKind, Class>,
}

/// The waiters of a pool for one class of browser.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Class {
    lines: BTreeMap<Operation, BTreeMap<Place, SessionId>>,
    heads: BTreeMap<Place, Operation>,
    /// The numbers of arrival by priority, for places.
    ranks: BTreeMap<Reverse<Priority>, Ranks>,
}

// === impl Lines ===

impl Lines {
    pub(crate) fn len(&self) -> u64 {
        self.all.len() as u64
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Everybody, in the order of service.
    pub(crate) fn all(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.all.values().copied()
    }

    pub(crate) fn join(&mut self, record: &SessionRecord) {
        let place = place(record);
        self.all.insert(place, record.id);
        self.classes.entry(record.spec.browser).or_default().join(place, record);
    }

    pub(crate) fn leave(&mut self, record: &SessionRecord) {
        let place = place(record);
        self.all.remove(&place);
        if let Some(class) = self.classes.get_mut(&record.spec.browser) {
            class.leave(place, record);
            if class.lines.is_empty() {
                self.classes.remove(&record.spec.browser);
            }
        }
    }

    /// The place among those of its class, 1 being next. The record must be that of a waiter.
    pub(crate) fn place_of(&self, record: &SessionRecord) -> Option<u64> {
        let place = place(record);
        let class = self.classes.get(&record.spec.browser)?;
        let before: u64 = class.ranks.range(..place.0).map(|(_, ranks)| ranks.len()).sum();
        let beside = class.ranks.get(&place.0)?.below(place.1);
        Some(before + beside + 1)
    }

    /// The first of those who are neither of a blocked class nor held back by their operation, and how many heads were
    /// looked at to find it.
    pub(crate) fn next(
        &self,
        blocked: &BTreeSet<BrowserKind>,
        held_back: &BTreeSet<Operation>,
    ) -> (Option<Waiter>, u64) {
        let mut looked = 0;
        let mut first: Option<(Place, BrowserKind, &Operation)> = None;
        for (kind, class) in self.classes.iter().filter(|(kind, _)| !blocked.contains(kind)) {
            let mut heads = class.heads.iter().inspect(|_| looked += 1);
            let head = heads.find(|(_, operation)| !held_back.contains(operation));
            if let Some((place, operation)) = head.filter(|(place, _)| first.is_none_or(|(best, ..)| **place < best)) {
                first = Some((*place, *kind, operation));
            }
        }
        let waiter = first.and_then(|(place, class, operation)| {
            let (Reverse(priority), number) = place;
            Some(Waiter {
                session: *self.all.get(&place)?,
                class,
                operation: operation.clone(),
                priority,
                number,
            })
        });
        (waiter, looked)
    }
}

fn place(record: &SessionRecord) -> Place {
    (Reverse(record.spec.priority), record.number)
}

// === impl Class ===

impl Class {
    fn join(&mut self, place: Place, record: &SessionRecord) {
        let operation = &record.spec.operation;
        let line = match self.lines.get_mut(operation) {
            Some(line) => line,
            None => self.lines.entry(operation.clone()).or_default(),
        };
        let head = line.first_key_value().map(|(head, _)| *head);
        line.insert(place, record.id);
        if head.is_none_or(|head| place < head) {
            if let Some(head) = head {
                self.heads.remove(&head);
            }
            self.heads.insert(place, operation.clone());
        }
        self.ranks.entry(place.0).or_default().add(place.1);
    }

    fn leave(&mut self, place: Place, record: &SessionRecord) {
        let operation = &record.spec.operation;
        let Some(line) = self.lines.get_mut(operation) else {
            return;
        };
        if line.remove(&place).is_none() {
            return;
        }
        if let Some(name) = self.heads.remove(&place)
            && let Some((next, _)) = line.first_key_value()
        {
            self.heads.insert(*next, name);
        }
        if line.is_empty() {
            self.lines.remove(operation);
        }
        if let Some(ranks) = self.ranks.get_mut(&place.0) {
            ranks.remove(place.1);
            if ranks.is_empty() {
                self.ranks.remove(&place.0);
            }
        }
    }
}
