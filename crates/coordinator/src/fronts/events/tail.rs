//! The newest events, read from the store once for all streams of this coordinator.
//!
//! Its own file because it is what makes a thousand streams cost the store as much as one: a single reader follows the
//! log while anybody listens, keeps the last of it, and wakes the streams. A stream that is further behind reads the store
//! itself, at its own pace. Woken by the store's changes, and by a poll every second for a lost one.
//!
//! Invariant: what is kept has no holes, and ends with the number that is announced.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::watch, time::sleep};
use wharf_store::{EventPage, SetBack, StoreError};

use super::choice::Told;
use crate::Service;

/// Events kept here: some seconds of a busy grid, about a megabyte.
const KEPT: usize = 2000;
/// Events read at once.
const PAGE: u32 = 500;
/// A lost wake-up costs no more than this.
const POLL: Duration = Duration::from_secs(1);
/// Under load the reader reads this often and not for every event.
const PAUSE: Duration = Duration::from_millis(5);

/// See the file's words.
pub(super) struct Tail {
    kept: Mutex<VecDeque<Arc<Told>>>,
    head: watch::Sender<u64>,
    /// Changed before the number that is announced, so that whoever sees the one sees the other.
    set_back: Mutex<SetBack>,
    is_followed: Mutex<bool>,
}

// === impl Tail ===

impl Tail {
    pub(super) fn new() -> Self {
        Self {
            kept: Mutex::default(),
            head: watch::Sender::new(0),
            set_back: Mutex::default(),
            is_followed: Mutex::new(false),
        }
    }

    /// The number of the newest event, from now on. The reader runs while anybody holds one of these.
    pub(super) fn follow(self: &Arc<Self>, service: &Service) -> watch::Receiver<u64> {
        // Subscribed before the lock: a reader that is about to leave sees it, or has left and is started anew.
        let head = self.head.subscribe();
        let mut is_followed = self.is_followed.lock();
        if !*is_followed {
            *is_followed = true;
            let (tail, of) = (self.clone(), service.clone());
            service.inner().tasks.spawn(async move { tail.run(&of).await });
        }
        head
    }

    /// What is kept after this number, at most `limit`; `None` if the store must be asked.
    pub(super) fn recent(&self, after: u64, limit: usize) -> Option<Vec<Arc<Told>>> {
        let kept = self.kept.lock();
        let first = kept.front()?.number;
        let skip = (after + 1).checked_sub(first)?;
        let skip = usize::try_from(skip).ok().filter(|skip| *skip < kept.len())?;
        Some(kept.iter().skip(skip).take(limit).cloned().collect())
    }

    /// Whether some of what was told has been taken back, as far as is known here.
    pub(super) fn set_back(&self) -> SetBack {
        *self.set_back.lock()
    }

    async fn run(&self, service: &Service) {
        let inner = service.inner();
        let mut news = inner.events.subscribe();
        self.begin(service).await;
        loop {
            tokio::select! {
                () = inner.stop.cancelled() => break,
                _ = news.changed() => {}
                () = sleep(POLL) => {}
            }
            if self.is_left() {
                return;
            }
            if let Err(error) = self.read(service).await {
                tracing::debug!(%error, "could not read events; trying again");
            }
            sleep(PAUSE).await;
        }
        *self.is_followed.lock() = false;
    }

    /// Nobody listens any more: the reader ends, and forgets what it would have to catch up with.
    fn is_left(&self) -> bool {
        let mut is_followed = self.is_followed.lock();
        if self.head.receiver_count() > 0 {
            return false;
        }
        *is_followed = false;
        self.kept.lock().clear();
        true
    }

    /// Starts at the newest event: what is older is read from the store by whoever wants it.
    async fn begin(&self, service: &Service) {
        self.kept.lock().clear();
        match service.inner().store.events(0, 1).await {
            Ok(page) => {
                *self.set_back.lock() = page.set_back;
                self.head
                    .send_if_modified(|head| std::mem::replace(head, page.newest) != page.newest)
            }
            // The first read corrects it: it finds a hole, and forgets.
            Err(_) => false,
        };
    }

    /// Reads to the end of the log.
    async fn read(&self, service: &Service) -> Result<(), StoreError> {
        loop {
            let head = *self.head.borrow();
            let page = service.inner().store.events(head, PAGE).await?;
            let newest = page.newest;
            if self.take(page) >= newest {
                return Ok(());
            }
        }
    }

    /// Takes a page that was read after the announced number; answers with the number that is announced now.
    pub(super) fn take(&self, page: EventPage) -> u64 {
        let mut kept = self.kept.lock();
        let head = *self.head.borrow();
        if std::mem::replace(&mut *self.set_back.lock(), page.set_back) != page.set_back {
            // Whatever is kept, or was read after a number of the old log, may be of what did not happen.
            kept.clear();
            drop(kept);
            self.head.send_replace(page.newest);
            return page.newest;
        }
        let first = page.events.first().map(|event| event.number);
        // A log that went back, or events that are gone already: streams find out by themselves what that means for them.
        if page.newest < head || (page.newest > head && first != Some(head + 1)) {
            kept.clear();
        }
        if page.newest > head {
            kept.extend(page.events.into_iter().map(Told::new).map(Arc::new));
        }
        let excess = kept.len().saturating_sub(KEPT);
        kept.drain(..excess);
        let now = match kept.back() {
            Some(last) if page.newest >= head => last.number,
            _ => page.newest,
        };
        drop(kept);
        self.head.send_if_modified(|head| std::mem::replace(head, now) != now);
        now
    }
}

#[cfg(test)]
mod tests {
    use wharf_core::{PoolName, Timestamp};
    use wharf_store::{Event, Happening};

    use super::*;

    fn page(numbers: std::ops::RangeInclusive<u64>, oldest: u64, newest: u64) -> EventPage {
        let events = numbers.map(|number| Event {
            number,
            at: Timestamp::from_micros(0),
            what: Happening::Queue {
                pool: PoolName::default(),
                waiting: number,
            },
        });
        EventPage {
            events: events.collect(),
            oldest,
            newest,
            set_back: SetBack::default(),
        }
    }

    fn numbers(tail: &Tail, after: u64, limit: usize) -> Option<Vec<u64>> {
        let recent = tail.recent(after, limit)?;
        Some(recent.iter().map(|told| told.number).collect())
    }

    #[test]
    fn what_is_kept_has_no_holes_and_ends_with_what_is_announced() {
        let tail = Tail::new();
        let head = tail.head.subscribe();
        assert_eq!(tail.take(page(1..=3, 1, 5)), 3);
        assert_eq!(tail.take(page(4..=5, 1, 5)), 5);
        assert_eq!(*head.borrow(), 5);
        assert_eq!(numbers(&tail, 0, 2), Some(vec![1, 2]));
        assert_eq!(numbers(&tail, 3, 9), Some(vec![4, 5]));
        assert_eq!(numbers(&tail, 5, 9), None, "nothing after the last");
        // A hole: what was before it is forgotten, so that nobody is told across it.
        assert_eq!(tail.take(page(9..=10, 9, 10)), 10);
        assert_eq!(numbers(&tail, 5, 9), None);
        assert_eq!(numbers(&tail, 8, 9), Some(vec![9, 10]));
        // The log went back.
        let back = EventPage {
            oldest: 1,
            newest: 2,
            ..EventPage::default()
        };
        assert_eq!(tail.take(back), 2);
        assert_eq!((*head.borrow(), numbers(&tail, 8, 9)), (2, None));
        assert_eq!(tail.take(page(3..=3, 1, 3)), 3);
        assert_eq!(numbers(&tail, 2, 9), Some(vec![3]));
    }

    #[test]
    fn nothing_of_a_log_that_was_set_back_is_kept() {
        let tail = Tail::new();
        tail.take(page(1..=5, 1, 5));
        let set_back = SetBack { times: 1, to: 3 };
        let later = EventPage {
            set_back,
            ..page(6..=8, 1, 8)
        };
        assert_eq!(
            tail.take(later),
            8,
            "others have its numbers: streams look for themselves"
        );
        assert_eq!((tail.set_back(), numbers(&tail, 3, 9)), (set_back, None));
        let next = EventPage {
            set_back,
            ..page(9..=9, 1, 9)
        };
        assert_eq!(tail.take(next), 9);
        assert_eq!(numbers(&tail, 8, 9), Some(vec![9]));
    }

    #[test]
    fn memory_is_bounded() {
        let tail = Tail::new();
        for start in (1..=10_000).step_by(500) {
            tail.take(page(start..=start + 499, 1, 10_000));
        }
        assert_eq!(tail.kept.lock().len(), KEPT);
        assert_eq!(numbers(&tail, 9_999, 5), Some(vec![10_000]));
        assert_eq!(numbers(&tail, 7_000, 5), None);
    }
}
