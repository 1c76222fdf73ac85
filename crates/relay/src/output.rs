//! The writing half of one end: what the stream would not take yet, and the frames of our own that wait for a gap.
//!
//! Apart from `peer.rs` because everything that may be written passes here, so three promises can be read in one file.
//!
//! Invariant: a frame of our own starts only between data frames; nothing follows our close frame; what is kept never
//! exceeds one read plus one pong, one ping and one close frame, and nothing is kept once the stream took it.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;
use tokio::time::Instant;
use wharf_wire::frame::{self, CloseFrame, Control, Sender};

/// See the module.
#[derive(Debug)]
pub(crate) struct Output {
    /// Which role we play on this stream: a client masks what it sends.
    role: Sender,
    /// Bytes the stream would not take, from `sent` on. Empty means unallocated.
    pending: Vec<u8>,
    sent: usize,
    /// The accepted bytes end inside a data frame.
    mid_frame: bool,
    /// The encoded answer to the latest ping; older ones need none (RFC 6455 §5.5.3).
    pong: Vec<u8>,
    /// Since when a ping of ours waits to be sent.
    ping_due: Option<Instant>,
    close: Closing,
    /// A write failed; what is still to be read may tell why.
    broken: bool,
    /// Data is thrown away, because the session is over; see [`Output::mute`].
    muted: bool,
    unflushed: bool,
    /// While the stream refuses bytes: when it last took one, or first refused.
    stalled_at: Option<Instant>,
    /// When something happened here that only a living peer can cause, or that starts its time to answer anew.
    pub(crate) heard_at: Instant,
}

#[derive(Debug)]
enum Closing {
    No,
    /// Waits for the current data frame to end; encoded.
    Due(Vec<u8>),
    /// Our close frame is in `pending` or on the wire, or none will ever be sent: no byte may follow.
    Done,
}

// === impl Output ===

impl Output {
    pub(crate) fn new(role: Sender, now: Instant) -> Output {
        Output {
            role,
            pending: Vec::new(),
            sent: 0,
            mid_frame: false,
            pong: Vec::new(),
            ping_due: None,
            close: Closing::No,
            broken: false,
            muted: false,
            unflushed: false,
            stalled_at: None,
            heard_at: now,
        }
    }

    /// Has a frame of our own to put into the next gap between data frames.
    pub(crate) fn wants_gap(&self) -> bool {
        !self.is_closed() && (self.ping_due.is_some() || !self.pong.is_empty() || matches!(self.close, Closing::Due(_)))
    }

    /// A call of [`Output::poll_drain`] would write a frame of our own.
    pub(crate) fn has_work(&self) -> bool {
        self.wants_gap() && !self.mid_frame && self.pending.is_empty() && !self.broken
    }

    pub(crate) fn is_mid_frame(&self) -> bool {
        self.mid_frame
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// The stream refuses bytes that must go out first; the other end is not read meanwhile.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.pending.is_empty() && !self.muted
    }

    /// Data is thrown away.
    pub(crate) fn is_deaf(&self) -> bool {
        self.muted || self.is_closed()
    }

    /// Nothing will be written any more but what is kept: our close frame is out, or the stream is broken.
    pub(crate) fn is_closed(&self) -> bool {
        self.broken || matches!(self.close, Closing::Done)
    }

    /// Our close frame, or the decision to send none, and all before it has left.
    pub(crate) fn is_finished(&self) -> bool {
        self.is_closed() && self.pending.is_empty() && !self.unflushed
    }

    pub(crate) fn stalled_at(&self) -> Option<Instant> {
        self.stalled_at
    }

    /// A ping of ours could not be sent yet, so the peer's silence says nothing.
    pub(crate) fn is_ping_waiting(&self) -> bool {
        self.ping_due.is_some()
    }

    pub(crate) fn ping(&mut self, now: Instant) {
        self.ping_due.get_or_insert(now);
    }

    pub(crate) fn pong(&mut self, ping: &Control) {
        self.pong.clear();
        frame::encode_pong(ping.payload(), self.mask(), &mut self.pong);
    }

    /// Sends a close frame in the next gap, unless one was decided on before.
    pub(crate) fn close(&mut self, close: Option<&CloseFrame>) {
        if matches!(self.close, Closing::No) {
            let mut encoded = Vec::new();
            frame::encode_close(close, self.mask(), &mut encoded);
            self.close = Closing::Due(encoded);
        }
    }

    /// Takes no more data, but sends what it has: a later [`Output::close`] still works between frames.
    pub(crate) fn mute(&mut self) {
        self.muted = true;
    }

    /// Sends nothing more, not even what the stream has not taken yet.
    pub(crate) fn abandon(&mut self) {
        self.close = Closing::Done;
        self.pending = Vec::new();
        self.sent = 0;
        self.stalled_at = None;
        self.unflushed = false;
    }

    /// A browser's mask key guards against proxies that take payloads for HTTP; drawn anew for each frame
    /// (RFC 6455 §5.3).
    fn mask(&self) -> Option<[u8; 4]> {
        (self.role == Sender::Client).then(rand::random)
    }

    /// Passes data on: to the stream what it takes at once, the rest is kept.
    pub(crate) fn push<S: AsyncWrite + Unpin>(&mut self, io: &mut S, cx: &mut Context<'_>, data: Data<'_>) {
        if self.is_deaf() {
            return;
        }
        let Data {
            held,
            bytes,
            mid_frame,
            now,
        } = data;
        self.mid_frame = mid_frame;
        // A header cut by the network joins its payload: two writes would be two packets.
        if !held.is_empty() {
            self.keep(held);
            self.keep(bytes);
            return;
        }
        if !self.pending.is_empty() && self.write_kept(io, cx, now).is_pending() {
            self.keep(bytes);
            return;
        }
        let mut rest = bytes;
        while !rest.is_empty() && !self.broken {
            match Pin::new(&mut *io).poll_write(cx, rest) {
                Poll::Ready(Ok(taken)) if taken > 0 => {
                    self.unflushed = true;
                    rest = &rest[taken..];
                }
                Poll::Ready(_) => self.break_off(),
                Poll::Pending => {
                    self.stalled_at.get_or_insert(now);
                    self.keep(rest);
                    return;
                }
            }
        }
    }

    /// Puts our own frames into the gap the data is at, if it is at one.
    pub(crate) fn fill_gap(&mut self, now: Instant) {
        if self.mid_frame || self.is_closed() {
            return;
        }
        if !self.pong.is_empty() {
            let pong = std::mem::take(&mut self.pong);
            self.keep(&pong);
        }
        if let Some(due) = self.ping_due.take() {
            let mut ping = Vec::new();
            frame::encode_ping(&[], self.mask(), &mut ping);
            self.keep(&ping);
            // Asked late, so its time to answer ends that much later; an ask in time changes nothing.
            self.heard_at = (self.heard_at + now.saturating_duration_since(due)).min(now);
        }
        if let Closing::Due(close) = &mut self.close {
            let close = std::mem::take(close);
            self.keep(&close);
            self.close = Closing::Done;
        }
    }

    /// Writes what is kept and what fits the gap after it; ready when nothing is left to write.
    pub(crate) fn poll_drain<S: AsyncWrite + Unpin>(
        &mut self,
        io: &mut S,
        cx: &mut Context<'_>,
        now: Instant,
    ) -> Poll<()> {
        ready!(self.write_kept(io, cx, now));
        if self.has_work() {
            self.fill_gap(now);
            ready!(self.write_kept(io, cx, now));
        }
        Poll::Ready(())
    }

    /// Makes buffering streams (TLS) send; sockets have nothing to do here.
    pub(crate) fn poll_flush<S: AsyncWrite + Unpin>(&mut self, io: &mut S, cx: &mut Context<'_>) {
        if !self.unflushed || self.broken {
            return;
        }
        match Pin::new(io).poll_flush(cx) {
            Poll::Ready(Ok(())) => self.unflushed = false,
            Poll::Ready(Err(_)) => self.break_off(),
            Poll::Pending => {}
        }
    }

    fn write_kept<S: AsyncWrite + Unpin>(&mut self, io: &mut S, cx: &mut Context<'_>, now: Instant) -> Poll<()> {
        while self.sent < self.pending.len() {
            match Pin::new(&mut *io).poll_write(cx, &self.pending[self.sent..]) {
                Poll::Ready(Ok(taken)) if taken > 0 => {
                    self.sent += taken;
                    self.unflushed = true;
                    // Room where there was none: the peer took bytes off the network, so it lives.
                    if let Some(since) = &mut self.stalled_at {
                        *since = now;
                        self.heard_at = now;
                    }
                }
                Poll::Ready(_) => self.break_off(),
                Poll::Pending => {
                    self.stalled_at.get_or_insert(now);
                    return Poll::Pending;
                }
            }
        }
        // An idle session keeps no buffer.
        self.pending = Vec::new();
        self.sent = 0;
        self.stalled_at = None;
        Poll::Ready(())
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.pending.reserve_exact(bytes.len());
        self.pending.extend_from_slice(bytes);
    }

    fn break_off(&mut self) {
        self.abandon();
        self.broken = true;
    }

    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        self.pending.len()
    }

    #[cfg(test)]
    pub(crate) fn kept_capacity(&self) -> usize {
        self.pending.capacity() + self.pong.capacity()
    }
}

/// Data bytes on their way through, see [`Output::push`].
pub(crate) struct Data<'a> {
    /// The front of a header that came with an earlier read.
    pub(crate) held: &'a [u8],
    pub(crate) bytes: &'a [u8],
    /// They end inside a frame.
    pub(crate) mid_frame: bool,
    pub(crate) now: Instant,
}
