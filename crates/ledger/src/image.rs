//! The ledger as text and back: what a coordinator that joins or returns begins with.
//!
//! Its own file because it is a format that later versions must read: fields are only ever added, with a default. Only
//! records are written, in the order of their keys, so that equal states have equal images; indices are made anew.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use wharf_core::{CoordinatorId, KeyId, Seat, SessionId, SessionState, Timestamp};
use wharf_store::{Event, KeyRecord, LimitRecord, LockRecord, SessionRecord, StoreRules, WorkerRecord};

use crate::{
    BadImage,
    book::{Book, Lease, Stub},
    text::read_text,
};

/// What this version writes.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Image<'a> {
    version: u32,
    rules: StoreRules,
    now: Timestamp,
    last_number: u64,
    last_event: u64,
    sessions: Vec<SessionImage<'a>>,
    workers: Vec<WorkerRecord>,
    limits: Vec<LimitRecord>,
    locks: Vec<LockImage>,
    keys: Vec<KeyRecord>,
    renewed: Vec<(CoordinatorId, Timestamp)>,
    stubs: Vec<StubImage>,
    events: Vec<Cow<'a, Event>>,
}

#[derive(Serialize, Deserialize)]
struct SessionImage<'a> {
    record: Cow<'a, SessionRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lease: Option<(Seat, Timestamp)>,
    /// While it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ticket_since: Option<Timestamp>,
}

/// A lock's end may lie beyond what a timestamp can be written as, if its time to live is long enough: it is written in
/// microseconds.
#[derive(Serialize, Deserialize)]
struct LockImage {
    /// Its `until` is that of its taking.
    lock: LockRecord,
    until_micros: i64,
}

#[derive(Serialize, Deserialize)]
struct StubImage {
    owner: Option<KeyId>,
    key: String,
    session: SessionId,
    ended_at: Timestamp,
}

// === impl Book ===

impl Book {
    pub(crate) fn image(&self) -> Result<String, BadImage> {
        let sessions = self.sessions().values().map(|entry| SessionImage {
            record: Cow::Borrowed(&entry.record),
            lease: entry.lease.map(|lease| (lease.seat, lease.since)),
            ticket_since: (entry.record.state == SessionState::Queued).then_some(entry.ticket_since),
        });
        let locks = self.locks().values().map(|lock| LockImage {
            until_micros: lock.until.as_micros(),
            lock: LockRecord {
                until: lock.taken_at,
                ..lock.clone()
            },
        });
        let stubs = self.stubs().iter().flat_map(|(owner, stubs)| {
            stubs.iter().map(|(key, stub)| StubImage {
                owner: *owner,
                key: key.clone(),
                session: stub.session,
                ended_at: stub.ended_at,
            })
        });
        let image = Image {
            version: VERSION,
            rules: *self.rules(),
            now: self.now(),
            last_number: self.last_number,
            last_event: self.last_event,
            sessions: sessions.collect(),
            workers: self.workers().values().cloned().collect(),
            limits: self.limits().cloned().collect(),
            locks: locks.collect(),
            keys: self.keys.values().cloned().collect(),
            renewed: self
                .renewed()
                .iter()
                .map(|(coordinator, at)| (*coordinator, *at))
                .collect(),
            stubs: stubs.collect(),
            events: self.events.iter().map(Cow::Borrowed).collect(),
        };
        serde_json::to_string(&image).map_err(|error| BadImage(error.to_string()))
    }

    pub(crate) fn from_image(text: &str) -> Result<Self, BadImage> {
        let image: Image<'_> = read_text(text).map_err(|error| BadImage(error.to_string()))?;
        if image.version != VERSION {
            return Err(BadImage(format!(
                "it is of version {}, this program reads {VERSION}",
                image.version
            )));
        }
        let mut book = Self::new(image.rules);
        book.advance_to(image.now);
        book.last_number = image.last_number;
        book.last_event = image.last_event;
        book.keys = image.keys.into_iter().map(|key| (key.id, key)).collect();
        book.events = image.events.into_iter().map(Cow::into_owned).collect();
        let numbers = book.events.iter().map(|event| event.number);
        if !numbers.eq((book.last_event + 1).saturating_sub(book.events.len() as u64)..=book.last_event) {
            return Err(BadImage("the numbers of its events have gaps".to_owned()));
        }
        for mut row in image.workers {
            row.busy = 0;
            book.put_worker(row);
        }
        image.limits.into_iter().for_each(|limit| book.put_limit(limit));
        for LockImage { mut lock, until_micros } in image.locks {
            lock.until = Timestamp::from_micros(until_micros);
            book.put_lock(lock);
        }
        for one in image.sessions {
            book.read_session(one)?;
        }
        for (coordinator, at) in image.renewed {
            book.set_renewed(coordinator, at);
        }
        for stub in image.stubs {
            let (session, ended_at) = (stub.session, stub.ended_at);
            book.put_stub(stub.owner, stub.key, Stub { session, ended_at });
        }
        book.settle();
        Ok(book)
    }

    fn read_session(&mut self, one: SessionImage<'_>) -> Result<(), BadImage> {
        let SessionImage {
            record,
            lease,
            ticket_since,
        } = one;
        if let Some((seat, _)) = lease.filter(|(seat, _)| self.worker(seat.worker).is_none()) {
            let (session, worker) = (record.id, seat.worker);
            return Err(BadImage(format!(
                "{session} holds a lease on {worker}, which is not there"
            )));
        }
        let ticket_since = ticket_since.unwrap_or(record.times.queued_at);
        let lease = lease.map(|(seat, since)| Lease { seat, since });
        self.add_session(record.into_owned(), lease, ticket_since);
        Ok(())
    }
}
