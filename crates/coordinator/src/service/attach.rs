//! Attaching a client's socket to a session's browser, and what its leaving means.
//!
//! Its own file because the rule "who leaves, what ends" is one: a session made by connecting ends with its
//! connection; a session made by the API lives on until its idle timeout unless its client asked otherwise.

use std::sync::Arc;

use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::oneshot,
};
use wharf_core::{EndReason, ErrorCode, SessionId, SessionState};
use wharf_relay::{RelayEnd, Side, Which, relay};

use super::{Service, live::LiveSession, watched::Watched};
use crate::{BrowserIo, Caller, DialTarget, LinkError, Refusal};

/// What the last client's leaving means for the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnLeave {
    /// The session ends with this connection.
    End,
    /// As the session was made: it stays if it is kept alive.
    AsMade,
}

/// A client's place at a session: the browser's socket is open, the client's is about to be. Dropping it counts the
/// client out again.
pub struct Attachment {
    service: Service,
    live: Arc<LiveSession>,
    browser: Option<Side<Box<dyn BrowserIo>>>,
    on_leave: OnLeave,
    /// How the relay ended; none if the client left at the very hand-over.
    pub(super) end: Option<RelayEnd>,
}

// === impl Service ===

impl Service {
    /// Opens the browser's side for a client that is about to attach.
    pub async fn attach(
        &self,
        caller: Caller,
        session: SessionId,
        target: DialTarget,
        on_leave: OnLeave,
    ) -> Result<Attachment, Refusal> {
        let live = self.live(session).await?;
        if caller.sees_only().is_some_and(|own| live.owner != Some(own)) {
            return Err(Refusal::unknown(session));
        }
        self.check_is_driven(live.browser, Some(session))?;
        let seat = live.seat.ok_or_else(|| Refusal::unknown(session))?;
        let dial = self.inner().link.dial(session, seat, target);
        let dialled = tokio::time::timeout(self.config().dial_limit, dial).await;
        let browser = match dialled {
            Ok(Ok(browser)) => browser,
            Ok(Err(LinkError::NoSuchTarget(id))) => {
                let message = format!("the session {session} has no page `{id}`");
                return Err(Refusal::new(ErrorCode::TargetNotFound, message).about(session));
            }
            Ok(Err(error @ LinkError::Unreachable(_))) => {
                return Err(Refusal::new(ErrorCode::WorkerUnreachable, error.to_string()).about(session));
            }
            Ok(Err(error)) => return Err(self.unreachable(session, &error.to_string()).await),
            Err(_) => return Err(self.unreachable(session, "it did not answer in time").await),
        };
        if live.enter() {
            // The connect timeout must not fire between now and the next batch.
            let service = self.clone();
            self.inner().tasks.spawn(async move {
                if let Err(refusal) = service.touch(session).await {
                    tracing::warn!(%session, message = refusal.message, "could not note the first attach");
                }
            });
        }
        self.inner().metrics.relays.inc();
        Ok(Attachment {
            service: self.clone(),
            live,
            browser: Some(browser),
            on_leave,
            end: None,
        })
    }

    async fn live(&self, session: SessionId) -> Result<Arc<LiveSession>, Refusal> {
        if let Some(live) = self.inner().live.get(session) {
            return Ok(live);
        }
        let record = self.session(session).await?;
        match record.state {
            SessionState::Active(_) => Ok(self.inner().live.add(&record)),
            SessionState::Ended(reason) => Err(Refusal::ended(session, reason, record.detail.as_deref())),
            _ => {
                let message = format!(
                    "the session {session} is {}, not active",
                    record.state.status().as_str()
                );
                Err(Refusal::new(ErrorCode::SessionNotActive, message).about(session))
            }
        }
    }

    /// Ends a session with what its socket says, unless somebody who knows better speaks first.
    fn end_unless_told(&self, live: Arc<LiveSession>, reason: EndReason) {
        let service = self.clone();
        self.inner().tasks.spawn(async move {
            let grace = service.config().relay.reason_grace;
            if tokio::time::timeout(grace, live.ending()).await.is_err() {
                let reason = service.who_is_gone(&live, reason).await;
                service.end_later(live.id, reason);
            }
        });
    }

    /// Asks, the moment a browser's socket breaks, whether its worker is there; one that is not takes its sessions with it.
    fn ask_when_broken(&self, live: &Arc<LiveSession>, broke: oneshot::Receiver<()>) {
        let Some(seat) = live.seat.filter(|_| self.config().worker_token.is_some()) else {
            // The worker is this process.
            return;
        };
        let (service, session) = (self.clone(), live.id);
        self.inner().tasks.spawn(async move {
            if broke.await.is_ok() && !service.inner().link.is_there(seat.worker).await {
                tracing::warn!(%session, worker = %seat.worker, "its worker does not answer");
                service.end_later(session, EndReason::WorkerLost);
            }
        });
    }

    /// A socket that broke says that the browser is gone; whether its whole worker is, the worker's silence says.
    async fn who_is_gone(&self, live: &LiveSession, reason: EndReason) -> EndReason {
        match live.seat {
            Some(seat) if !self.inner().link.is_there(seat.worker).await => EndReason::WorkerLost,
            _ => reason,
        }
    }

    /// A browser that cannot be dialled is usually one that has just ended: then the true reason is the answer.
    async fn unreachable(&self, session: SessionId, cause: &str) -> Refusal {
        match self.session(session).await {
            Ok(record) => match record.reason() {
                Some(reason) => Refusal::ended(session, reason, record.detail.as_deref()),
                None => {
                    let message = format!("the browser of {session} cannot be reached: {cause}");
                    Refusal::new(ErrorCode::BrowserUnreachable, message).about(session)
                }
            },
            Err(refusal) => refusal,
        }
    }
}

// === impl Attachment ===

impl Attachment {
    /// Relays until either side ends.
    pub async fn relay<C: AsyncRead + AsyncWrite + Unpin>(mut self, client: Side<C>) {
        let Some(browser) = self.browser.take() else { return };
        let (io, broke) = Watched::new(browser.io);
        let browser = Side {
            io,
            leftover: browser.leftover,
        };
        self.service.ask_when_broken(&self.live, broke);
        let (config, activity) = (self.service.config().relay, self.live.activity.clone());
        let end = relay(client, browser, config, activity, self.live.ending()).await;
        tracing::debug!(session = %self.live.id, ?end, "client detached");
        self.end = Some(end);
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.service.inner().metrics.relays.dec();
        let was_last = self.live.leave();
        self.service.count_bytes(&self.live);
        let ends_with_it = match self.on_leave {
            OnLeave::End => true,
            OnLeave::AsMade => was_last && !self.live.keep_alive,
        };
        let reason = match self.live.is_sent_away() {
            // Nobody else knows a session that was made by connecting.
            true => Some(EndReason::ClientDisconnected).filter(|_| self.on_leave == OnLeave::End),
            false => meaning(self.end.as_ref()).filter(|_| ends_with_it),
        };
        let Some(reason) = reason else {
            return;
        };
        match self.end {
            // The relay waits for the supervisor's word, but not when its client leaves meanwhile, as puppeteer does after
            // `Browser.close`: a socket that broke says only that the browser is gone, not why.
            Some(RelayEnd::BrowserGone | RelayEnd::BrowserSilent) => {
                self.service.end_unless_told(Arc::clone(&self.live), reason);
            }
            _ => self.service.end_later(self.live.id, reason),
        }
    }
}

/// What the end of the relay that a session lived by means for the session; `None` if it has ended already.
fn meaning(end: Option<&RelayEnd>) -> Option<EndReason> {
    match end {
        None | Some(RelayEnd::ClientGone | RelayEnd::ClientSilent) => Some(EndReason::ClientDisconnected),
        Some(RelayEnd::ProtocolError {
            side: Which::Client, ..
        }) => Some(EndReason::ClientDisconnected),
        Some(RelayEnd::ProtocolError {
            side: Which::Browser, ..
        }) => Some(EndReason::BrowserCrashed),
        Some(RelayEnd::ClientClosed { .. } | RelayEnd::BrowserClosed { .. }) => Some(EndReason::Released),
        // The relay has waited for the supervisor's word; without it, this is what the socket says.
        Some(RelayEnd::BrowserGone) => Some(EndReason::BrowserCrashed),
        Some(RelayEnd::BrowserSilent) => Some(EndReason::BrowserHung),
        Some(RelayEnd::Ended(_)) => None,
    }
}
