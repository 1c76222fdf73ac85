//! One end of the relay, and the pump that moves bytes from one end to the other.
//!
//! Apart from `relay.rs` because it knows frames but no sessions: it reads, scans, passes on, answers pings, and
//! reports why an end stopped; what that means is decided there.
//!
//! Invariant: an end is read only while the other takes what it says, so what a slow reader costs is bounded by one
//! read. Every return leaves a waker registered for whatever it waits for.

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;
use wharf_wire::frame::{CloseFrame, HeaderScanner, Opcode, ProtocolError, Sender};

use crate::Side;
use crate::output::{Data, Output};

/// The browser speaks in bulk (screenshots, heap snapshots): 64 KiB halves the cost of the usual 8 KiB.
pub(crate) const BROWSER_READ: usize = 64 * 1024;
/// The client speaks in commands.
pub(crate) const CLIENT_READ: usize = 16 * 1024;
/// Reads in one go before other tasks of the thread get their turn, for streams that do not keep tokio's budget.
const READS_PER_TURN: usize = 64;

thread_local! {
    /// Bytes stay here only from a read to the write right after it, so all sessions of a thread share one buffer
    /// and an idle session holds none. Taken out while in use: whoever would find it missing makes another.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Peer<S> {
    pub(crate) io: S,
    leftover: Bytes,
    scanner: HeaderScanner,
    pub(crate) input: Input,
    pub(crate) output: Output,
}

/// How far the reading half is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    Open,
    /// It broke the protocol: read on without a look, so that it can receive our close frame instead of a reset.
    Ignored,
    /// Its close frame came, the last thing it may say.
    Closed,
    Eof,
}

/// Why nothing more comes from an end.
#[derive(Debug)]
pub(crate) enum Stop {
    Closed(Option<CloseFrame>),
    Gone,
    Broken(ProtocolError),
}

/// What a pump needs to know besides its two ends.
pub(crate) struct Turn<'a, 'cx> {
    pub(crate) cx: &'a mut Context<'cx>,
    pub(crate) now: Instant,
    /// Bytes per read.
    pub(crate) read: usize,
    /// Data bytes passed on.
    pub(crate) passed: u64,
}

// === impl Peer ===

impl<S: AsyncRead + AsyncWrite + Unpin> Peer<S> {
    /// `sender` is the role the peer plays; we play the other one.
    pub(crate) fn new(side: Side<S>, sender: Sender, now: Instant) -> Peer<S> {
        let ours = match sender {
            Sender::Client => Sender::Server,
            Sender::Server => Sender::Client,
        };
        Peer {
            io: side.io,
            leftover: side.leftover,
            scanner: HeaderScanner::new(sender),
            input: Input::Open,
            output: Output::new(ours, now),
        }
    }

    /// Writes what can be written now.
    pub(crate) fn drain(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<()> {
        self.output.poll_drain(&mut self.io, cx, now)
    }

    pub(crate) fn flush(&mut self, cx: &mut Context<'_>) {
        self.output.poll_flush(&mut self.io, cx);
    }

    /// Sends a close frame if that takes no waiting, and nothing afterwards in any case.
    pub(crate) fn close_now(&mut self, close: Option<&CloseFrame>, cx: &mut Context<'_>, now: Instant) {
        self.output.close(close);
        if self.drain(cx, now).is_ready() {
            self.flush(cx);
        }
        self.output.abandon();
    }

    pub(crate) fn shutdown(&mut self, cx: &mut Context<'_>) {
        // Best effort: whoever calls this drops the stream soon, which is the stronger form.
        let _ = Pin::new(&mut self.io).poll_shutdown(cx);
    }

    /// The next bytes: what the upgrade left over, then what the stream has. `None` is its end, however it came.
    fn poll_next<'b>(&mut self, cx: &mut Context<'_>, scratch: &'b mut [u8]) -> Poll<Option<&'b [u8]>> {
        if !self.leftover.is_empty() {
            let len = self.leftover.len().min(scratch.len());
            self.leftover.copy_to_slice(&mut scratch[..len]);
            if self.leftover.is_empty() {
                self.leftover = Bytes::new();
            }
            return Poll::Ready(Some(&scratch[..len]));
        }
        let mut buf = ReadBuf::new(scratch);
        let read = std::task::ready!(Pin::new(&mut self.io).poll_read(cx, &mut buf));
        let len = if read.is_ok() { buf.filled().len() } else { 0 };
        Poll::Ready((len > 0).then_some(&scratch[..len]))
    }

    /// Takes in a close frame, a ping or a pong.
    fn on_control(&mut self, control: &wharf_wire::frame::Control) -> Option<Stop> {
        match control.opcode() {
            Opcode::Ping => self.output.pong(control),
            Opcode::Close => {
                return Some(match CloseFrame::parse(control.payload()) {
                    Ok(close) => {
                        self.input = Input::Closed;
                        Stop::Closed(close)
                    }
                    Err(error) => self.on_violation(error),
                });
            }
            // That bytes arrived was noted; a pong has nothing more to say.
            _ => {}
        }
        None
    }

    fn on_violation(&mut self, error: ProtocolError) -> Stop {
        self.input = Input::Ignored;
        Stop::Broken(error)
    }
}

// === pump ===

/// Moves bytes from one end to the other until one of them has to wait, or the first stops for good.
pub(crate) fn pump<A, B>(from: &mut Peer<A>, to: &mut Peer<B>, turn: &mut Turn<'_, '_>) -> Option<Stop>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let was_blocked = to.output.is_blocked();
    if to.drain(turn.cx, turn.now).is_pending() && to.output.is_blocked() {
        return None;
    }
    if was_blocked {
        // It was not listened to meanwhile.
        from.output.heard_at = turn.now;
    }
    let mut scratch = SCRATCH.take();
    scratch.resize(BROWSER_READ, 0);
    let stop = pump_with(from, to, turn, &mut scratch);
    SCRATCH.set(scratch);
    stop
}

fn pump_with<A, B>(from: &mut Peer<A>, to: &mut Peer<B>, turn: &mut Turn<'_, '_>, scratch: &mut [u8]) -> Option<Stop>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    for _ in 0..READS_PER_TURN {
        if matches!(from.input, Input::Closed | Input::Eof) {
            return None;
        }
        match from.poll_next(turn.cx, &mut scratch[..turn.read]) {
            Poll::Pending => return None,
            Poll::Ready(None) => {
                from.input = Input::Eof;
                return Some(Stop::Gone);
            }
            Poll::Ready(Some(_)) if from.input == Input::Ignored => continue,
            Poll::Ready(Some(bytes)) => {
                from.output.heard_at = turn.now;
                if let Some(stop) = forward(from, to, turn, bytes) {
                    return Some(stop);
                }
            }
        }
        if to.drain(turn.cx, turn.now).is_pending() && to.output.is_blocked() {
            return None;
        }
    }
    turn.cx.waker().wake_by_ref();
    None
}

/// Passes on the data frames of one read and takes in the control frames among them.
fn forward<A, B>(from: &mut Peer<A>, to: &mut Peer<B>, turn: &mut Turn<'_, '_>, mut rest: &[u8]) -> Option<Stop>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    while !rest.is_empty() {
        // Back-to-back frames may never let a read end between two of them: look for the gap inside the read.
        let gap = from.scanner.remaining();
        let cut = if to.output.wants_gap() && gap > 0 {
            rest.len().min(usize::try_from(gap).unwrap_or(usize::MAX))
        } else {
            rest.len()
        };
        let step = match from.scanner.scan(&rest[..cut]) {
            Ok(step) => step,
            Err(error) => return Some(from.on_violation(error)),
        };
        if step.data > 0 {
            if !to.output.is_deaf() {
                turn.passed += (step.held.len() + step.data) as u64;
            }
            let mid_frame = from.scanner.remaining() > 0;
            let data = Data {
                held: &step.held,
                bytes: &rest[..step.data],
                mid_frame,
                now: turn.now,
            };
            to.output.push(&mut to.io, turn.cx, data);
            if to.output.wants_gap() {
                to.output.fill_gap(turn.now);
            }
        }
        if let Some(stop) = step.control.and_then(|control| from.on_control(&control)) {
            return Some(stop);
        }
        rest = &rest[step.consumed..];
    }
    None
}
