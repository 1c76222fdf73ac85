//! One stream of events: what comes next, how fast its client takes it, and how it ends.
//!
//! Its own file because here is the promise: nothing is lost silently, nothing is told twice, and a client that does not
//! read costs one chunk of memory and, after a while, nothing. The pump asks for room first and reads then, so the next
//! page leaves the store only when the client has taken the last one. How far it is (`cursor`) moves only together with
//! what is told, or over what is not to be told.

use std::{
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use prometheus_client::metrics::gauge::Gauge;
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc, watch},
    time::{Instant, timeout, timeout_at},
};
use tokio_util::sync::{CancellationToken, DropGuard};
use wharf_core::{ErrorCode, Phase};
use wharf_store::{SetBack, StoreError};
use wharf_wire::events::{NoteKind, StreamNote, block};

use super::{
    choice::{Choice, Told},
    tail::Tail,
};
use crate::{Caller, Service, server::Cut};

/// Events of one chunk, at most: some 60 kB.
const PAGE: u32 = 200;
/// Proxies drop what is silent for a minute, some for half of one.
const ALIVE: Duration = Duration::from_secs(15);
/// So many events that were not told are worth a word, so that resuming does not read them again.
const SKIPPED: u64 = 1000;
/// A number that is not there yet may be on its way to the copy of the log that is read here.
const BEYOND: Duration = Duration::from_secs(2);
/// How often it is looked for, or a store that does not answer is asked again.
const LOOK: Duration = Duration::from_millis(250);
/// For the last word to be taken; then the connection is cut.
const LAST_WORD: Duration = Duration::from_secs(1);

/// What runs a stream.
pub(super) struct Pump {
    pub service: Service,
    pub caller: Caller,
    pub choice: Choice,
    pub tail: Arc<Tail>,
    pub head: watch::Receiver<u64>,
    /// The last number that needs no more telling.
    pub cursor: u64,
    /// What it knows of a log that was set back.
    pub set_back: SetBack,
    /// How long a client may take nothing.
    pub slow: Duration,
    /// Ends the connection of a client that takes nothing.
    pub cut: Option<Cut>,
    pub _open: Open,
}

/// One open stream, counted.
pub(super) struct Open {
    pub gauge: Gauge,
    pub _permit: OwnedSemaphorePermit,
}

/// The body of the answer: what the pump made, and its last word.
pub(super) struct Chunks {
    made: mpsc::Receiver<Bytes>,
    last: Arc<OnceLock<Bytes>>,
    is_over: bool,
    _taken: DropGuard,
}

/// Why a stream is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The client left.
    Left,
    /// The client took nothing for too long.
    Slow,
    /// This coordinator is stopping.
    Draining,
    /// The key was revoked, or the grid asks for one now.
    Unauthorized,
}

/// Where the telling stands.
struct Progress {
    /// The number that the client knows.
    told: u64,
    /// Since when the log seems to end before the cursor.
    beyond_since: Option<Instant>,
    /// When the caller's right was last looked at.
    checked_at: Instant,
    is_opened: bool,
}

// === impl Pump ===

impl Pump {
    /// Starts the stream; the answer's body.
    pub(super) fn start(self) -> Chunks {
        let (make, made) = mpsc::channel(1);
        let (last, taken) = (Arc::new(OnceLock::new()), CancellationToken::new());
        let chunks = Chunks {
            made,
            last: last.clone(),
            is_over: false,
            _taken: taken.clone().drop_guard(),
        };
        let tasks = self.service.inner().tasks.clone();
        tasks.spawn(self.run(make, last, taken));
        chunks
    }

    async fn run(mut self, make: mpsc::Sender<Bytes>, last: Arc<OnceLock<Bytes>>, taken: CancellationToken) {
        let end = self.pump(&make).await;
        if let Some(note) = end.note(self.slow) {
            // Set here only, so it is never refused.
            let _ = last.set(self.say(&note));
        }
        drop(make);
        if end == End::Slow {
            self.service.inner().metrics.event_streams_slow.inc();
            tracing::info!(after = self.cursor, limit = ?self.slow, "closed a stream of events whose client took nothing");
        }
        if timeout(LAST_WORD, taken.cancelled()).await.is_err()
            && let Some(Cut(cut)) = &self.cut
        {
            cut.cancel();
        }
    }

    async fn pump(&mut self, make: &mpsc::Sender<Bytes>) -> End {
        let mut progress = Progress {
            told: self.cursor,
            beyond_since: None,
            checked_at: Instant::now(),
            is_opened: false,
        };
        let service = self.service.clone();
        let stopping = stopping(&service);
        tokio::pin!(stopping);
        loop {
            let room = tokio::select! {
                room = timeout(self.slow, make.reserve()) => match room {
                    Ok(Ok(room)) => room,
                    Ok(Err(_)) => return End::Left,
                    Err(_) => return End::Slow,
                },
                () = &mut stopping => return End::Draining,
            };
            let next = tokio::select! {
                // Dropped at an await, it has told nothing and moved the cursor over nothing that is to be told.
                next = self.next(&mut progress) => next,
                () = make.closed() => return End::Left,
                () = &mut stopping => return End::Draining,
            };
            match next {
                Ok(chunk) => room.send(chunk),
                Err(end) => return end,
            }
        }
    }

    /// The next thing to say: events, or that we are alive.
    async fn next(&mut self, progress: &mut Progress) -> Result<Bytes, End> {
        if !progress.is_opened {
            progress.is_opened = true;
            // From here on the client knows where it is, and how soon to come back.
            return Ok(Bytes::from(format!(
                "retry: 1000\n: following\nid: {}\n\n",
                self.cursor
            )));
        }
        let silent_until = Instant::now() + ALIVE;
        loop {
            if progress.checked_at.elapsed() >= ALIVE {
                self.may_still_see().await?;
                progress.checked_at = Instant::now();
            }
            let look_at = match self.read(progress).await {
                Ok(Some(chunk)) => return Ok(chunk),
                Ok(None) if progress.beyond_since.is_none() => silent_until,
                Ok(None) => Instant::now() + LOOK,
                Err(error) => {
                    tracing::debug!(%error, "could not read events; trying again");
                    Instant::now() + LOOK
                }
            };
            if Instant::now() >= silent_until {
                return Ok(self.alive(progress));
            }
            let wait = timeout_at(look_at.min(silent_until), self.head.changed());
            if let Ok(Err(_)) = wait.await {
                // The tail is gone with its service.
                return Err(End::Draining);
            }
        }
    }

    /// What is to be told after the cursor, which moves behind it; `None` if there is nothing now.
    async fn read(&mut self, progress: &mut Progress) -> Result<Option<Bytes>, StoreError> {
        loop {
            let head = *self.head.borrow_and_update();
            if let Some(chunk) = self.go_back(self.tail.set_back(), progress) {
                return Ok(Some(chunk));
            }
            if self.cursor > head {
                return self.beyond(progress).await;
            }
            progress.beyond_since = None;
            if self.cursor == head {
                return Ok(None);
            }
            let events = match self.tail.recent(self.cursor, PAGE as usize) {
                Some(events) => events,
                None => {
                    let page = self.service.inner().store.events(self.cursor, PAGE).await?;
                    if let Some(chunk) = self.go_back(page.set_back, progress) {
                        return Ok(Some(chunk));
                    }
                    if page.oldest > self.cursor + 1 {
                        let note = StreamNote::missed(self.cursor + 1, page.oldest - 1);
                        self.cursor = page.oldest - 1;
                        progress.told = self.cursor;
                        return Ok(Some(self.say(&note)));
                    }
                    if page.events.is_empty() {
                        return Ok(None);
                    }
                    page.events.into_iter().map(Told::new).map(Arc::new).collect()
                }
            };
            if let Some(chunk) = self.tell(&events, progress) {
                return Ok(Some(chunk));
            }
        }
    }

    /// Other events have the numbers of some that were told: says so, and goes on with them.
    fn go_back(&mut self, now: SetBack, progress: &mut Progress) -> Option<Bytes> {
        // Page and tail may know of it one after the other.
        if now.times <= self.set_back.times {
            return None;
        }
        self.set_back = now;
        if self.cursor <= now.to {
            return None;
        }
        let reason = format!(
            "the store lost the end of its log: what was told after {} may not have happened; going on from there",
            now.to
        );
        self.cursor = now.to;
        progress.told = now.to;
        Some(self.say(&StreamNote::because(NoteKind::Gap, reason)))
    }

    fn tell(&mut self, events: &[Arc<Told>], progress: &mut Progress) -> Option<Bytes> {
        let (mut text, mut count) = (String::new(), 0);
        for event in events {
            self.cursor = event.number;
            if self.choice.tells(&event.what) {
                text.push_str(&event.text);
                progress.told = event.number;
                count += 1;
            }
        }
        self.service.inner().metrics.events_sent.inc_by(count);
        if count > 0 {
            return Some(Bytes::from(text));
        }
        (self.cursor - progress.told >= SKIPPED).then(|| self.alive(progress))
    }

    /// The client is further than the log: the log here is behind for a moment, or is another one.
    async fn beyond(&mut self, progress: &mut Progress) -> Result<Option<Bytes>, StoreError> {
        let since = *progress.beyond_since.get_or_insert_with(Instant::now);
        if since.elapsed() < BEYOND {
            return Ok(None);
        }
        let newest = self.service.inner().store.events(0, 1).await?.newest;
        progress.beyond_since = None;
        if newest >= self.cursor {
            return Ok(None);
        }
        let reason = format!(
            "{} lies beyond the newest event, {newest}: the store is another one, or was set back; going on from there",
            self.cursor
        );
        self.cursor = newest;
        progress.told = newest;
        Ok(Some(self.say(&StreamNote::because(NoteKind::Gap, reason))))
    }

    /// A key may be revoked while its stream is open, and an open grid may be closed by its first key.
    async fn may_still_see(&self) -> Result<(), End> {
        match self.caller {
            Caller::Anyone => match self.service.identify(None).await {
                Err(refusal) if refusal.code == ErrorCode::Unauthorized => Err(End::Unauthorized),
                _ => Ok(()),
            },
            Caller::Key { id, .. } => match self.service.inner().store.key(id).await {
                Ok(key) if key.as_ref().is_none_or(|key| key.revoked_at.is_some()) => Err(End::Unauthorized),
                // A store that does not answer tells no events either.
                _ => Ok(()),
            },
        }
    }

    /// A comment for proxies, and how far we are, for a client that comes back.
    fn alive(&self, progress: &mut Progress) -> Bytes {
        if progress.told == self.cursor {
            return Bytes::from_static(b": alive\n\n");
        }
        progress.told = self.cursor;
        Bytes::from(format!(": alive\nid: {}\n\n", self.cursor))
    }

    fn say(&self, note: &StreamNote) -> Bytes {
        let data = serde_json::to_string(note).unwrap_or_default();
        Bytes::from(block(self.cursor, note.kind.as_str(), &data))
    }
}

/// Until this coordinator drains or stops.
async fn stopping(service: &Service) {
    let inner = service.inner();
    let mut phase = inner.phase.clone();
    tokio::select! {
        // An error means that whoever publishes the phase is gone.
        _ = phase.wait_for(|phase| *phase >= Phase::Draining) => {}
        () = inner.stop.cancelled() => {}
    }
}

// === impl End ===

impl End {
    fn note(self, slow: Duration) -> Option<StreamNote> {
        match self {
            Self::Left => None,
            Self::Slow => Some(StreamNote::because(
                NoteKind::Slow,
                format!("nothing was taken for {slow:?}; come back with Last-Event-ID"),
            )),
            Self::Draining => Some(StreamNote::because(NoteKind::End, "draining")),
            Self::Unauthorized => Some(StreamNote::because(NoteKind::End, "unauthorized")),
        }
    }
}

// === impl Open ===

impl Drop for Open {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}

// === impl Chunks ===

impl http_body::Body for Chunks {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let chunk = match ready!(self.made.poll_recv(cx)) {
            Some(chunk) => Some(chunk),
            None => {
                self.is_over = true;
                self.last.get().cloned()
            }
        };
        Poll::Ready(chunk.map(|chunk| Ok(http_body::Frame::data(chunk))))
    }
}
