//! The sessions that are active here: their activity, their attached clients, and how these learn of the end.
//!
//! Its own file because it is the only state a coordinator keeps, and it is a cache: the store has the truth, and a
//! session that is not here is looked up and added when a client attaches (any coordinator serves any session).

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::RwLock;
use tokio::{sync::watch, time::Instant};
use wharf_core::{BrowserKind, EndReason, KeyId, Seat, SessionId};
use wharf_relay::{Activity, CloseFrame};
use wharf_store::{SessionRecord, Touch};

/// RFC 6455 §7.4.1.
const GOING_AWAY: u16 = 1001;

pub(crate) struct LiveSession {
    pub id: SessionId,
    pub keep_alive: bool,
    pub browser: BrowserKind,
    pub owner: Option<KeyId>,
    /// Where its browser is; none for a record that has no slot, which nobody can attach to.
    pub seat: Option<Seat>,
    pub activity: Arc<Activity>,
    since: Instant,
    ended: watch::Sender<Option<Ending>>,
    attached: AtomicUsize,
    was_attached: AtomicBool,
    told_mark: AtomicU64,
    counted: [AtomicU64; 2],
}

/// What attached clients are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The session is over.
    Ended(EndReason),
    /// Only this coordinator goes; the session lives on.
    SentAway,
}

#[derive(Default)]
pub(crate) struct Live(RwLock<HashMap<SessionId, Arc<LiveSession>>>);

// === impl Live ===

impl Live {
    pub fn add(&self, record: &SessionRecord) -> Arc<LiveSession> {
        self.0
            .write()
            .entry(record.id)
            .or_insert_with(|| Arc::new(LiveSession::new(record)))
            .clone()
    }

    pub fn get(&self, session: SessionId) -> Option<Arc<LiveSession>> {
        self.0.read().get(&session).cloned()
    }

    /// Removes a session and tells its clients why it ended.
    pub fn end(&self, session: SessionId, reason: EndReason) -> Option<Arc<LiveSession>> {
        let live = self.0.write().remove(&session)?;
        live.ended.send_replace(Some(Ending::Ended(reason)));
        Some(live)
    }

    /// Removes a session that never became active.
    pub fn forget(&self, session: SessionId) {
        self.0.write().remove(&session);
    }

    pub fn len(&self) -> usize {
        self.0.read().len()
    }

    pub fn ids(&self) -> Vec<SessionId> {
        self.0.read().keys().copied().collect()
    }

    pub fn all(&self) -> Vec<Arc<LiveSession>> {
        self.0.read().values().cloned().collect()
    }
}

// === impl LiveSession ===

impl LiveSession {
    fn new(record: &SessionRecord) -> Self {
        Self {
            id: record.id,
            keep_alive: record.spec.keep_alive,
            browser: record.spec.browser,
            owner: record.owner,
            seat: record.state.seat(),
            activity: Arc::new(Activity::new()),
            since: Instant::now(),
            ended: watch::channel(None).0,
            attached: AtomicUsize::new(0),
            was_attached: AtomicBool::new(false),
            told_mark: AtomicU64::new(0),
            counted: Default::default(),
        }
    }

    pub fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// Counts a client in. `true` for the first one ever.
    pub fn enter(&self) -> bool {
        self.attached.fetch_add(1, Ordering::AcqRel);
        !self.was_attached.swap(true, Ordering::AcqRel)
    }

    /// Counts a client out. `true` for the last one attached.
    pub fn leave(&self) -> bool {
        self.attached.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Resolves with the close frame when the session has ended.
    pub fn ending(&self) -> impl Future<Output = CloseFrame> + Send + use<> {
        let mut ended = self.ended.subscribe();
        async move {
            let ending = match ended.wait_for(Option::is_some).await {
                Ok(ending) => (*ending).unwrap_or(Ending::Ended(EndReason::Internal)),
                // The session was forgotten without an end: a bug, and the client must not hang for it.
                Err(_) => Ending::Ended(EndReason::Internal),
            };
            match ending {
                Ending::Ended(reason) => close_frame(reason),
                Ending::SentAway => CloseFrame {
                    code: GOING_AWAY,
                    reason: "coordinator_drained: this coordinator is going; the session lives on, attach again"
                        .to_owned(),
                },
            }
        }
    }

    /// Sends its clients away, if it has not ended.
    pub fn send_away(&self) {
        self.ended.send_if_modified(|ending| {
            let is_news = ending.is_none();
            if is_news {
                *ending = Some(Ending::SentAway);
            }
            is_news
        });
    }

    /// Whether its clients were sent away, the session living on.
    pub fn is_sent_away(&self) -> bool {
        *self.ended.borrow() == Some(Ending::SentAway)
    }

    /// How many clients are attached here.
    pub fn attached(&self) -> usize {
        self.attached.load(Ordering::Acquire)
    }

    /// What the store does not know yet.
    pub fn touch(&self) -> Option<Touch> {
        let mark = self.activity.client_mark();
        (self.told_mark.swap(mark, Ordering::AcqRel) != mark).then(|| Touch {
            session: self.id,
            idle_for: self.activity.idle(),
            is_attached: true,
        })
    }

    /// Bytes relayed since the last call: to the browser, to the client.
    pub fn take_bytes(&self) -> (u64, u64) {
        let take = |counted: &AtomicU64, total: u64| total.saturating_sub(counted.swap(total, Ordering::AcqRel));
        (
            take(&self.counted[0], self.activity.to_browser()),
            take(&self.counted[1], self.activity.to_client()),
        )
    }
}

pub(crate) fn close_frame(reason: EndReason) -> CloseFrame {
    let advice = reason.close();
    CloseFrame {
        code: advice.code,
        reason: format!("{reason}: {}", advice.sentence),
    }
}
