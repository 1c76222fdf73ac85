//! The relay's life: open, perhaps waiting for the reason of the browser's end, closing, done.
//!
//! One hand-written state machine with one timer instead of tasks, channels and a `select!`: a message costs one
//! wake-up, an idle session a few hundred bytes, and the order of things at the end is written down in one place.
//!
//! Invariant: the first cause decides the result; the client learns the reason before its socket closes whenever a
//! frame boundary is reached in time; whatever the peers do, the relay ends within the graces of its configuration.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, Sleep, sleep_until};
use wharf_wire::frame::{CloseFrame, ProtocolError, Sender, is_sendable};

use crate::peer::{BROWSER_READ, CLIENT_READ, Input, Peer, Stop, Turn, pump};
use crate::{Activity, Side, Which};

/// The times a relay keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayConfig {
    /// Between our pings, to both ends. Proxies and NATs commonly forget a connection after 30 to 60 s.
    pub ping_interval: Duration,
    /// An end that sends nothing, or takes nothing, for this long is dead: three pings.
    pub dead_after: Duration,
    /// For a frame in progress to end, our close frame to leave and the client to answer it, all together.
    pub close_grace: Duration,
    /// For `ending` to tell why the browser's end went away. The supervisor learns of an exit within milliseconds.
    pub reason_grace: Duration,
}

/// Why a relay ended: its first cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RelayEnd {
    /// The client sent a close frame.
    ClientClosed {
        /// Its code, if it had one.
        code: Option<u16>,
        /// Its reason; empty if it had none.
        reason: String,
    },
    /// The client's connection ended without a close frame.
    ClientGone,
    /// The client sent nothing, or took nothing, for too long.
    ClientSilent,
    /// The browser sent a close frame and `ending` told nothing better.
    BrowserClosed {
        /// Its code, if it had one.
        code: Option<u16>,
        /// Its reason; empty if it had none.
        reason: String,
    },
    /// The browser's connection ended without a close frame and `ending` told nothing better.
    BrowserGone,
    /// The browser sent nothing, or took nothing, for too long and `ending` told nothing better.
    BrowserSilent,
    /// `ending` fired, on its own or to explain why the browser went away.
    Ended(CloseFrame),
    /// An end broke the WebSocket protocol.
    ProtocolError {
        /// Which one.
        side: Which,
        /// The rule.
        error: ProtocolError,
    },
}

/// Passes data frames between a client and a browser, unchanged, until one of them or `ending` ends it; then closes
/// both ends, the client's with the best reason there is.
///
/// `ending` is how the rest of the world ends a relay: it yields the close frame the client shall see.
///
/// Cancel safety: dropping the future drops, and so closes, both streams; the client then sees no close frame.
pub async fn relay<C, B>(
    client: Side<C>,
    browser: Side<B>,
    config: RelayConfig,
    activity: Arc<Activity>,
    ending: impl Future<Output = CloseFrame>,
) -> RelayEnd
where
    C: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let mut relay = Relay::new(client, browser, config, activity);
    let mut ending = pin!(ending);
    let mut timer = pin!(sleep_until(relay.next_ping));
    poll_fn(|cx| relay.poll(cx, ending.as_mut(), timer.as_mut())).await
}

struct Relay<C, B> {
    client: Peer<C>,
    browser: Peer<B>,
    config: RelayConfig,
    activity: Arc<Activity>,
    phase: Phase,
    next_ping: Instant,
}

enum Phase {
    Open,
    /// The browser's end is gone; `close` is what the client gets unless `ending` knows better.
    Reason {
        end: RelayEnd,
        close: CloseFrame,
        until: Instant,
    },
    /// The client has been, or will be, sent a close frame.
    Closing {
        end: RelayEnd,
        until: Instant,
    },
}

// === impl RelayConfig ===

impl Default for RelayConfig {
    fn default() -> RelayConfig {
        RelayConfig {
            ping_interval: Duration::from_secs(20),
            dead_after: Duration::from_secs(60),
            close_grace: Duration::from_secs(2),
            reason_grace: Duration::from_secs(2),
        }
    }
}

// === impl Relay ===

impl<C, B> Relay<C, B>
where
    C: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    fn new(client: Side<C>, browser: Side<B>, config: RelayConfig, activity: Arc<Activity>) -> Relay<C, B> {
        let now = Instant::now();
        Relay {
            client: Peer::new(client, Sender::Client, now),
            browser: Peer::new(browser, Sender::Server, now),
            config,
            activity,
            phase: Phase::Open,
            next_ping: now + config.ping_interval,
        }
    }

    fn poll<E>(&mut self, cx: &mut Context<'_>, mut ending: Pin<&mut E>, mut timer: Pin<&mut Sleep>) -> Poll<RelayEnd>
    where
        E: Future<Output = CloseFrame>,
    {
        loop {
            let now = Instant::now();
            // Bytes before clocks: what waits in the socket after a stall of our own still counts as heard.
            self.move_bytes(cx, now);
            // `ending` is never polled after it fired: that makes the phase `Closing`.
            if !matches!(self.phase, Phase::Closing { .. })
                && let Poll::Ready(close) = ending.as_mut().poll(cx)
            {
                self.start_closing(RelayEnd::Ended(close.clone()), Some(&close), now);
                continue;
            }
            if self.on_time(now) {
                continue;
            }
            if let Some(end) = self.finish(cx, now) {
                return Poll::Ready(end);
            }
            // Deadlines only move away while bytes flow, so the timer is touched when it fires or one comes nearer.
            let deadline = self.deadline();
            if timer.is_elapsed() || deadline < timer.deadline() {
                timer.as_mut().reset(deadline);
            }
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Moves what can be moved in both directions, until both have to wait.
    fn move_bytes(&mut self, cx: &mut Context<'_>, now: Instant) {
        loop {
            let client_stop = self.client_to_browser(cx, now);
            // A direction that stopped left no waker, and what follows from its stop may give the other one work.
            let mut again = client_stop.is_some();
            if let Some(stop) = client_stop {
                self.on_client_stop(stop, now);
            }
            let browser_stop = self.browser_to_client(cx, now);
            again |= browser_stop.is_some();
            if let Some(stop) = browser_stop {
                self.on_browser_stop(stop, cx, now);
            }
            again |= self.check_broken(cx, now);
            // An answer to the second direction's ping belongs to the first one's stream.
            if !again && !self.client.output.has_work() && !self.browser.output.has_work() {
                break;
            }
        }
        self.client.flush(cx);
        self.browser.flush(cx);
    }

    fn client_to_browser(&mut self, cx: &mut Context<'_>, now: Instant) -> Option<Stop> {
        let mut turn = Turn {
            cx,
            now,
            read: CLIENT_READ,
            passed: 0,
        };
        let stop = pump(&mut self.client, &mut self.browser, &mut turn);
        if turn.passed > 0 {
            self.activity.passed_to_browser(turn.passed, now);
        }
        stop
    }

    fn browser_to_client(&mut self, cx: &mut Context<'_>, now: Instant) -> Option<Stop> {
        if self.client.output.is_closed() {
            // Nobody is left to hear it; only our close frame may have to leave yet.
            let _ = self.client.drain(cx, now);
            return None;
        }
        let mut turn = Turn {
            cx,
            now,
            read: BROWSER_READ,
            passed: 0,
        };
        let stop = pump(&mut self.browser, &mut self.client, &mut turn);
        if turn.passed > 0 {
            self.activity.passed_to_client(turn.passed);
        }
        stop
    }

    /// A failed write says that an end is gone, but its last words may still be waiting to be read.
    /// Says whether it found one.
    fn check_broken(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        if self.client.output.is_broken() && self.client.input == Input::Open {
            let stop = self.client_to_browser(cx, now).unwrap_or(Stop::Gone);
            if matches!(stop, Stop::Gone) {
                self.client.input = Input::Eof;
            }
            self.on_client_stop(stop, now);
            return true;
        }
        let heard_out = !self.client.output.is_blocked();
        if self.browser.output.is_broken() && self.browser.input == Input::Open && heard_out {
            self.browser.input = Input::Eof;
            self.on_browser_stop(Stop::Gone, cx, now);
            return true;
        }
        false
    }

    fn on_client_stop(&mut self, stop: Stop, now: Instant) {
        match stop {
            Stop::Closed(close) => {
                // The answer carries what it answers (RFC 6455 §5.5.1).
                self.start_closing(client_closed(close.as_ref()), close.as_ref(), now);
            }
            Stop::Gone => {
                self.client.output.abandon();
                self.start_closing(RelayEnd::ClientGone, None, now);
            }
            Stop::Broken(error) => {
                let close = CloseFrame::new(error.close_code(), error.to_string());
                self.start_closing(
                    RelayEnd::ProtocolError {
                        side: Which::Client,
                        error,
                    },
                    Some(&close),
                    now,
                );
            }
        }
    }

    fn on_browser_stop(&mut self, stop: Stop, cx: &mut Context<'_>, now: Instant) {
        match stop {
            Stop::Closed(close) => {
                self.browser.close_now(close.as_ref(), cx, now);
                let (code, reason) = split(close.as_ref());
                let shown = close
                    .filter(|close| is_sendable(close.code))
                    .unwrap_or_else(connection_lost);
                self.await_reason(RelayEnd::BrowserClosed { code, reason }, shown, now);
            }
            Stop::Gone => {
                self.browser.output.abandon();
                self.await_reason(RelayEnd::BrowserGone, connection_lost(), now);
            }
            Stop::Broken(error) => {
                let close = CloseFrame::new(error.close_code(), error.to_string());
                self.browser.close_now(Some(&close), cx, now);
                let shown = CloseFrame::new(
                    1011,
                    format!("browser_crashed: it broke the WebSocket protocol: {error}"),
                );
                self.start_closing(
                    RelayEnd::ProtocolError {
                        side: Which::Browser,
                        error,
                    },
                    Some(&shown),
                    now,
                );
            }
        }
    }

    fn await_reason(&mut self, end: RelayEnd, close: CloseFrame, now: Instant) {
        if matches!(self.phase, Phase::Open) {
            let until = now + self.config.reason_grace;
            self.phase = Phase::Reason { end, close, until };
        }
    }

    /// Decides how the relay ends, unless that was decided before, and lets the client know in the next gap.
    fn start_closing(&mut self, end: RelayEnd, close: Option<&CloseFrame>, now: Instant) {
        let until = now + self.config.close_grace;
        self.phase = match std::mem::replace(&mut self.phase, Phase::Open) {
            Phase::Open => Phase::Closing { end, until },
            // What `ending` says is why the browser went; what the client does now came second.
            Phase::Reason { .. } if matches!(end, RelayEnd::Ended(_)) => Phase::Closing { end, until },
            Phase::Reason { end, .. } => Phase::Closing { end, until },
            closing @ Phase::Closing { .. } => closing,
        };
        self.browser.output.mute();
        self.client.output.close(close);
    }

    /// Acts on the deadlines that have passed; says whether there was one.
    fn on_time(&mut self, now: Instant) -> bool {
        match &self.phase {
            Phase::Open => self.on_time_open(now),
            Phase::Reason { end, close, until } if *until <= now => {
                let (end, close) = (end.clone(), close.clone());
                self.start_closing(end, Some(&close), now);
                true
            }
            Phase::Reason { .. } | Phase::Closing { .. } => false,
        }
    }

    fn on_time_open(&mut self, now: Instant) -> bool {
        let dead_after = self.config.dead_after;
        if death(&self.client, &self.browser, dead_after).is_some_and(|at| at <= now) {
            let close = CloseFrame::new(1001, "no sign of life from the client");
            self.start_closing(RelayEnd::ClientSilent, Some(&close), now);
            // It gets the frame if it takes it at once, and no time to answer.
            if let Phase::Closing { until, .. } = &mut self.phase {
                *until = now;
            }
            return true;
        }
        if death(&self.browser, &self.client, dead_after).is_some_and(|at| at <= now) {
            self.browser.output.abandon();
            self.browser.input = Input::Eof;
            self.await_reason(RelayEnd::BrowserSilent, connection_lost(), now);
            return true;
        }
        if self.next_ping <= now {
            self.next_ping = now + self.config.ping_interval;
            self.client.output.ping(now);
            self.browser.output.ping(now);
            return true;
        }
        false
    }

    fn deadline(&self) -> Instant {
        match &self.phase {
            Phase::Open => {
                let dead_after = self.config.dead_after;
                let deaths = [
                    death(&self.client, &self.browser, dead_after),
                    death(&self.browser, &self.client, dead_after),
                ];
                deaths.into_iter().flatten().fold(self.next_ping, Instant::min)
            }
            Phase::Reason { until, .. } | Phase::Closing { until, .. } => *until,
        }
    }

    /// The result, once the client has been told, or cannot be, or its time is up; the streams are then shut down.
    fn finish(&mut self, cx: &mut Context<'_>, now: Instant) -> Option<RelayEnd> {
        // A data frame that will never be whole leaves no gap for a close frame, so there is no reason to wait for.
        let cut_short = self.browser.input != Input::Open && self.client.output.is_mid_frame();
        let done = cut_short || self.is_client_done(cx);
        let end = match &self.phase {
            Phase::Open => return None,
            Phase::Reason { .. } if !cut_short => return None,
            Phase::Closing { until, .. } if *until > now && !done => return None,
            Phase::Reason { end, .. } | Phase::Closing { end, .. } => end.clone(),
        };
        let farewell = farewell(&end);
        self.browser.close_now(farewell.as_ref(), cx, now);
        self.browser.shutdown(cx);
        self.client.shutdown(cx);
        Some(end)
    }

    fn is_client_done(&mut self, cx: &mut Context<'_>) -> bool {
        let left = self.client.output.is_finished();
        match self.client.input {
            Input::Eof => true,
            Input::Closed => left,
            Input::Open => self.client.output.is_broken(),
            Input::Ignored => {
                // Its answer would not be understood, so the end of our half has to tell it that we are done.
                if left {
                    self.client.shutdown(cx);
                }
                self.client.output.is_broken()
            }
        }
    }
}

/// When `peer` is to be given up: it takes no bytes, or sends none although it is listened to and was asked to.
fn death<P, O>(peer: &Peer<P>, other: &Peer<O>, dead_after: Duration) -> Option<Instant> {
    let stalled = peer.output.stalled_at();
    let listened_to = !other.output.is_blocked() && !peer.output.is_ping_waiting();
    let silent = listened_to.then_some(peer.output.heard_at);
    Some(stalled.into_iter().chain(silent).min()? + dead_after)
}

fn split(close: Option<&CloseFrame>) -> (Option<u16>, String) {
    close.map_or((None, String::new()), |close| (Some(close.code), close.reason.clone()))
}

fn client_closed(close: Option<&CloseFrame>) -> RelayEnd {
    let (code, reason) = split(close);
    RelayEnd::ClientClosed { code, reason }
}

fn connection_lost() -> CloseFrame {
    CloseFrame::new(
        1011,
        "browser_unreachable: the connection to the browser was lost; attach again if the session lives on",
    )
}

/// What the browser's end is told; a worker in between may make use of it.
fn farewell(end: &RelayEnd) -> Option<CloseFrame> {
    match end {
        RelayEnd::ClientClosed { code, reason } => code.map(|code| CloseFrame::new(code, reason.clone())),
        RelayEnd::Ended(close) => Some(close.clone()),
        _ => Some(CloseFrame::new(1001, "client gone")),
    }
}

#[cfg(test)]
mod tests;
