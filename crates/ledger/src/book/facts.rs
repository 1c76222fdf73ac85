//! What the indices know of a record: few plain values, taken before and after a change and compared.
//!
//! Its own file because it is the one place that says what a state means to the indices. A change is filed by the
//! difference of two of these, so no rule can forget an index, and one that changed nothing costs nothing.

use wharf_core::{CoordinatorId, SessionState, SessionStatus, Timestamp, WorkerId, WorkerState};
use wharf_store::{StoreRules, WorkerRecord};

use super::{
    Entry,
    pool::{Live, Room},
};

/// A session, as far as indices go. The default is one that is not there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) status: Option<SessionStatus>,
    /// Who renews its ticket, and since when that is good, while it waits.
    pub(crate) ticket: Option<(CoordinatorId, Timestamp)>,
    /// On whom it holds a lease.
    pub(crate) worker: Option<WorkerId>,
    pub(crate) key: Option<String>,
    /// When it ended, once no lease is left.
    pub(crate) rested: Option<Timestamp>,
    /// When time will do something to it, tickets aside.
    pub(crate) due: Option<Timestamp>,
}

/// A worker, as far as indices go. The default is one that is not there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WorkerFacts {
    pub(crate) is_there: bool,
    pub(crate) is_serving: bool,
    pub(crate) is_draining: bool,
    /// Since when it is on its way to be available.
    pub(crate) expected_since: Option<Timestamp>,
    pub(crate) live: Live,
    /// When it was last heard, while it is live.
    pub(crate) heard_at: Option<Timestamp>,
    /// When it was last heard, once it is not.
    pub(crate) silent_since: Option<Timestamp>,
    pub(crate) room: Option<Room>,
}

// === impl Facts ===

impl Facts {
    pub(crate) fn of(entry: &Entry, rules: &StoreRules) -> Self {
        let record = &entry.record;
        let worker = entry.lease.map(|lease| lease.seat.worker);
        Self {
            status: Some(record.state.status()),
            ticket: (record.state == SessionState::Queued).then_some((record.coordinator, entry.ticket_since)),
            worker,
            key: record.idempotency_key.clone(),
            rested: record.ended_at.filter(|_| worker.is_none()),
            due: due_at(entry, rules),
        }
    }

    /// Whether it counts for its owner's quota: it has not ended, or still holds a slot.
    pub(crate) fn is_held(&self) -> bool {
        self.worker.is_some() || !matches!(self.status, None | Some(SessionStatus::Ended))
    }
}

/// When time will end a session, tickets aside.
pub(crate) fn due_at(entry: &Entry, rules: &StoreRules) -> Option<Timestamp> {
    let record = &entry.record;
    match record.state {
        SessionState::Placed(_) | SessionState::Starting(_) => {
            Some(record.times.placed_at.unwrap_or(record.times.queued_at) + rules.starting_grace)
        }
        _ => record.deadline().map(|(at, _)| at),
    }
}

// === impl WorkerFacts ===

impl WorkerFacts {
    pub(crate) fn of(row: &WorkerRecord) -> Self {
        let is_live = row.state.is_live();
        let has_room = row.state == WorkerState::Available && !row.is_circuit_open && row.busy < row.slots;
        Self {
            is_there: true,
            is_serving: row.state != WorkerState::Gone,
            is_draining: row.state == WorkerState::Draining,
            expected_since: match row.state {
                WorkerState::Gone => Some(row.heard_at),
                WorkerState::Starting => Some(row.registered_at),
                WorkerState::Available | WorkerState::Draining | WorkerState::Lost => None,
            },
            live: match is_live {
                true => Live {
                    workers: 1,
                    slots: u64::from(row.slots),
                    warm: u64::from(row.warm),
                    launching: u64::from(row.launching),
                },
                false => Live::default(),
            },
            heard_at: is_live.then_some(row.heard_at),
            silent_since: (!is_live).then_some(row.heard_at),
            room: has_room.then_some(Room {
                busy: row.busy,
                slots: row.slots,
                lifetime: row.lifetime,
                worker: row.id,
            }),
        }
    }
}
