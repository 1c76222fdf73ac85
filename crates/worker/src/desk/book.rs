//! The desk's book: browsers by id, leases, and who waits for a browser. Data and look-ups; no effects.
//!
//! Invariant: a lease is in exactly one of `waiting` and `leases`; a browser has at most one lease.

use std::collections::{HashMap, VecDeque};

use tokio::sync::oneshot;
use wharf_core::{
    BrowserId, BrowserState, Epoch, SessionId,
    warm::WarmView,
    worker::{BrowserEvent, browser_step},
};
use wharf_driver::LaunchOptions;

use super::Kept;
use crate::handle::{LeaseError, LeaseRequest, Leased};

/// One placement of one session.
pub(crate) type Lease = (SessionId, Epoch);

/// What a browser was launched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The warm pool.
    Pool,
    /// One session that asked for options of its own.
    Session(Lease),
}

pub(crate) type Reply = oneshot::Sender<Result<Leased, LeaseError>>;

/// A session that holds a slot and waits for its browser.
pub(crate) struct Waiting {
    pub request: LeaseRequest,
    pub reply: Reply,
}

#[derive(Default)]
pub(crate) struct Book {
    browsers: HashMap<BrowserId, Kept>,
    /// How many browsers are in each counted state; kept, because it is asked after every event.
    counts: [usize; BrowserState::COUNTED.len()],
    /// Warm browsers, the longest warm (and best settled) first.
    pub warm: VecDeque<BrowserId>,
    pub leases: HashMap<Lease, BrowserId>,
    pub waiting: VecDeque<Waiting>,
}

// === impl Waiting ===

impl Waiting {
    pub fn lease(&self) -> Lease {
        (self.request.session, self.request.epoch)
    }

    /// Whether a warm browser serves it.
    pub fn is_plain(&self) -> bool {
        self.request.options == LaunchOptions::default()
    }
}

// === impl Book ===

impl Book {
    pub fn insert(&mut self, id: BrowserId, kept: Kept) {
        self.recount(Some(kept.state), None);
        self.browsers.insert(id, kept);
    }

    pub fn remove(&mut self, id: BrowserId) -> Option<Kept> {
        let kept = self.browsers.remove(&id)?;
        self.recount(None, Some(kept.state));
        Some(kept)
    }

    pub fn get(&self, id: BrowserId) -> Option<&Kept> {
        self.browsers.get(&id)
    }

    pub fn get_mut(&mut self, id: BrowserId) -> Option<&mut Kept> {
        self.browsers.get_mut(&id)
    }

    pub fn iter(&self) -> impl Iterator<Item = (BrowserId, &Kept)> {
        self.browsers.iter().map(|(id, kept)| (*id, kept))
    }

    pub fn is_empty(&self) -> bool {
        self.browsers.is_empty()
    }

    pub fn count(&self, state: BrowserState) -> usize {
        BrowserState::COUNTED
            .iter()
            .position(|counted| *counted == state)
            .map_or(0, |at| self.counts[at])
    }

    fn recount(&mut self, to: Option<BrowserState>, from: Option<BrowserState>) {
        for (at, state) in BrowserState::COUNTED.into_iter().enumerate() {
            self.counts[at] += usize::from(to == Some(state));
            self.counts[at] -= usize::from(from == Some(state));
        }
    }

    pub fn view(&self) -> WarmView {
        let special = self.waiting.iter().filter(|waiting| !waiting.is_plain()).count();
        let bound = if special == 0 { 0 } else { self.bound().count() };
        WarmView {
            warm: self.warm.len(),
            launching: self.count(BrowserState::Launching) - bound,
            bound,
            leased: self.count(BrowserState::Leased),
            closing: self.count(BrowserState::Closing),
            waiting: self.waiting.len() - special,
            special: special.saturating_sub(bound),
            ..WarmView::default()
        }
    }

    /// Launches for sessions with options of their own that still wait.
    fn bound(&self) -> impl Iterator<Item = Lease> + '_ {
        self.browsers
            .values()
            .filter_map(|kept| match (kept.state, kept.purpose) {
                (BrowserState::Launching, Purpose::Session(lease)) => Some(lease),
                _ => None,
            })
    }

    /// Moves a browser; `false` if the event does not apply to its state.
    pub fn step(&mut self, id: BrowserId, event: BrowserEvent) -> bool {
        let Some(kept) = self.browsers.get_mut(&id) else {
            return false;
        };
        let Some(next) = browser_step(kept.state, event) else {
            return false;
        };
        let before = std::mem::replace(&mut kept.state, next);
        if before == BrowserState::Warm {
            self.warm.retain(|warm| *warm != id);
        }
        if next == BrowserState::Warm {
            self.warm.push_back(id);
        }
        self.recount(Some(next), Some(before));
        true
    }

    /// Notes that a browser serves a lease.
    pub fn bind(&mut self, id: BrowserId, lease: Lease) {
        if let Some(kept) = self.browsers.get_mut(&id) {
            kept.lease = Some(lease);
            self.leases.insert(lease, id);
        }
    }

    /// Notes that a browser serves nobody any more.
    pub fn unbind(&mut self, id: BrowserId) {
        if let Some(lease) = self.browsers.get_mut(&id).and_then(|kept| kept.lease.take()) {
            self.leases.remove(&lease);
        }
    }

    /// Takes the first waiter that a warm browser serves.
    pub fn next_plain(&mut self) -> Option<Waiting> {
        let at = self.waiting.iter().position(Waiting::is_plain)?;
        self.waiting.remove(at)
    }

    /// Takes the waiter with this lease.
    pub fn take_waiting(&mut self, lease: Lease) -> Option<Waiting> {
        let at = self.waiting.iter().position(|waiting| waiting.lease() == lease)?;
        self.waiting.remove(at)
    }

    /// Takes the waiters whose coordinator has given up without saying so.
    pub fn take_abandoned(&mut self) -> VecDeque<Waiting> {
        let (gone, left) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|w| w.reply.is_closed());
        self.waiting = left;
        gone
    }

    /// The first waiter with options of its own for which nothing is being launched.
    pub fn next_special(&self) -> Option<&Waiting> {
        self.waiting
            .iter()
            .find(|waiting| !waiting.is_plain() && !self.bound().any(|lease| lease == waiting.lease()))
    }

    /// The launch that was started for this lease.
    pub fn launch_for(&self, lease: Lease) -> Option<BrowserId> {
        self.iter()
            .find(|(_, kept)| kept.purpose == Purpose::Session(lease))
            .map(|(id, _)| id)
    }

    /// The lease a browser serves.
    pub fn lease_of(&self, id: BrowserId) -> Option<Lease> {
        self.browsers.get(&id)?.lease
    }

    /// Every lease this worker holds a slot for.
    pub fn held(&self) -> Vec<Lease> {
        self.leases
            .keys()
            .copied()
            .chain(self.waiting.iter().map(Waiting::lease))
            .collect()
    }
}
