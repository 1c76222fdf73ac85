//! WebSocket frame headers (RFC 6455 §5): an incremental scanner, and encoders for the control frames we inject.
//!
//! The relay passes data frames on unchanged, so all it needs from the protocol is where frames begin and end, which
//! control frames came by, and whether the sender keeps to the rules. A WebSocket library would unmask, assemble and
//! re-frame whole messages for that; this file reads 2 to 14 bytes per frame and never looks at a data payload.
//!
//! Invariant: what comes out does not depend on how the stream was cut into slices, and an impossible header is an
//! error at its first impossible byte. A scanner that guesses its way past one counts noise as frames for ever.

use std::fmt;

/// Longest payload of a control frame (RFC 6455 §5.5).
pub const MAX_CONTROL_PAYLOAD: usize = 125;
/// Longest close reason: a control payload less the two bytes of the code.
pub const MAX_CLOSE_REASON: usize = MAX_CONTROL_PAYLOAD - 2;
/// Longest header: two bytes, a 64-bit length and a mask.
pub const MAX_HEADER: usize = 14;

/// What a frame is (RFC 6455 §5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Opcode {
    /// A further fragment of the message begun by a text or binary frame.
    Continuation,
    /// A text message, or its first fragment.
    Text,
    /// A binary message, or its first fragment.
    Binary,
    /// The last frame a peer sends.
    Close,
    /// Asks the peer for a pong.
    Ping,
    /// Answers a ping.
    Pong,
}

/// Who wrote the frames: a client masks every one of them, a server none (RFC 6455 §5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sender {
    /// Opened the connection; its frames are masked.
    Client,
    /// Accepted the connection; its frames are not masked.
    Server,
}

/// One frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// This frame ends its message.
    pub fin: bool,
    /// What the frame is.
    pub opcode: Opcode,
    /// The key the payload is masked with.
    pub mask: Option<[u8; 4]>,
    /// Payload bytes that follow the header.
    pub len: u64,
}

/// A rule of RFC 6455 that the peer broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ProtocolError {
    /// RSV1-3 belong to extensions, and we negotiate none.
    #[error("reserved bits set without an extension")]
    ReservedBits,
    /// Opcodes 3-7 and 11-15 have no meaning.
    #[error("unknown opcode {0}")]
    UnknownOpcode(u8),
    /// A control frame must be whole.
    #[error("fragmented control frame")]
    FragmentedControl,
    /// A control frame holds at most 125 bytes.
    #[error("control frame longer than 125 bytes")]
    ControlTooLong,
    /// A length must use the shortest of its three forms.
    #[error("payload length not in its shortest form")]
    LengthNotMinimal,
    /// The most significant bit of a 64-bit length must be zero.
    #[error("payload length beyond 63 bits")]
    LengthTooLarge,
    /// A client must mask.
    #[error("unmasked frame from a client")]
    Unmasked,
    /// A server must not mask.
    #[error("masked frame from a server")]
    Masked,
    /// There is no message to continue.
    #[error("continuation frame without a message to continue")]
    UnexpectedContinuation,
    /// The previous message has not ended.
    #[error("new message inside a fragmented one")]
    UnfinishedMessage,
    /// A close payload is empty or begins with a two-byte code.
    #[error("close frame with half a code")]
    CloseTooShort,
    /// The code may not appear on the wire (RFC 6455 §7.4).
    #[error("close code {0} is not allowed on the wire")]
    CloseCode(u16),
    /// A close reason is text.
    #[error("close reason is not utf-8")]
    CloseReasonNotUtf8,
}

/// A complete control frame, its payload unmasked.
#[derive(Clone, Copy)]
pub struct Control {
    opcode: Opcode,
    len: u8,
    payload: [u8; MAX_CONTROL_PAYLOAD],
}

/// Why a connection ends, as told in a close frame.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CloseFrame {
    /// The close code; one that must not travel is sent as 1011.
    pub code: u16,
    /// Text for a person; cut to [`MAX_CLOSE_REASON`] bytes when sent.
    pub reason: String,
}

/// The bytes of a data header that arrived in earlier slices; at most [`MAX_HEADER`].
#[derive(Clone, Copy, Default)]
pub struct Held {
    bytes: [u8; MAX_HEADER],
    len: u8,
}

/// What one call of [`HeaderScanner::scan`] found: some data bytes, then at most one control frame.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// Data bytes to pass on first: the part of a header that came in earlier slices.
    pub held: Held,
    /// This many bytes at the front of the slice are data frames, to be passed on unchanged.
    pub data: usize,
    /// A control frame that ended after those bytes; it is not to be passed on.
    pub control: Option<Control>,
    /// Bytes of the slice that are done with; call again with the rest. At least one if the slice has any.
    pub consumed: usize,
}

/// Reads frame headers from a byte stream that may be cut anywhere.
///
/// A header is handed out only once it is whole and valid, so the bytes passed on always end either between frames
/// or inside a payload, never inside a header.
#[derive(Clone)]
pub struct HeaderScanner {
    sender: Sender,
    state: State,
    /// A text or binary message has begun and not ended.
    in_message: bool,
    failed: Option<ProtocolError>,
    /// The bytes of an unfinished header, or of an unfinished control payload: never both.
    partial: [u8; MAX_CONTROL_PAYLOAD],
}

#[derive(Clone, Copy)]
enum State {
    /// Between frames, with this many bytes of the next header in `partial`.
    Header { have: u8 },
    /// Inside a data payload.
    Data { remaining: u64 },
    /// Inside a control payload, with `have` bytes of it in `partial`.
    Control {
        opcode: Opcode,
        mask: Option<[u8; 4]>,
        len: u8,
        have: u8,
    },
}

// === impl Opcode ===

impl Opcode {
    /// Close, ping and pong: short, never fragmented, allowed between the fragments of a message.
    pub fn is_control(self) -> bool {
        matches!(self, Opcode::Close | Opcode::Ping | Opcode::Pong)
    }

    fn from_bits(bits: u8) -> Result<Opcode, ProtocolError> {
        match bits {
            0x0 => Ok(Opcode::Continuation),
            0x1 => Ok(Opcode::Text),
            0x2 => Ok(Opcode::Binary),
            0x8 => Ok(Opcode::Close),
            0x9 => Ok(Opcode::Ping),
            0xa => Ok(Opcode::Pong),
            other => Err(ProtocolError::UnknownOpcode(other)),
        }
    }

    fn bits(self) -> u8 {
        match self {
            Opcode::Continuation => 0x0,
            Opcode::Text => 0x1,
            Opcode::Binary => 0x2,
            Opcode::Close => 0x8,
            Opcode::Ping => 0x9,
            Opcode::Pong => 0xa,
        }
    }
}

// === impl FrameHeader ===

impl FrameHeader {
    /// Reads a header from the front of `bytes`: the header and its own length, or `None` while more bytes are needed.
    /// Rules that span frames (fragmentation) are the scanner's.
    pub fn parse(bytes: &[u8], sender: Sender) -> Result<Option<(FrameHeader, usize)>, ProtocolError> {
        let Some(&first) = bytes.first() else { return Ok(None) };
        let (fin, opcode) = parse_first(first)?;
        let Some(&second) = bytes.get(1) else { return Ok(None) };
        match (sender, second & 0x80 != 0) {
            (Sender::Client, false) => return Err(ProtocolError::Unmasked),
            (Sender::Server, true) => return Err(ProtocolError::Masked),
            _ => {}
        }
        let short = second & 0x7f;
        if opcode.is_control() && usize::from(short) > MAX_CONTROL_PAYLOAD {
            return Err(ProtocolError::ControlTooLong);
        }
        let Some((len, at)) = parse_len(short, &bytes[2..])? else {
            return Ok(None);
        };
        let after_len = 2 + at;
        if sender == Sender::Server {
            return Ok(Some((
                FrameHeader {
                    fin,
                    opcode,
                    mask: None,
                    len,
                },
                after_len,
            )));
        }
        let Some(&key) = bytes[after_len..].first_chunk::<4>() else {
            return Ok(None);
        };
        Ok(Some((
            FrameHeader {
                fin,
                opcode,
                mask: Some(key),
                len,
            },
            after_len + 4,
        )))
    }

    /// Appends the header in its one legal form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.fin) << 7 | self.opcode.bits());
        let masked = u8::from(self.mask.is_some()) << 7;
        match (u8::try_from(self.len), u16::try_from(self.len)) {
            (Ok(len), _) if len <= 125 => out.push(masked | len),
            (_, Ok(len)) => {
                out.push(masked | 126);
                out.extend_from_slice(&len.to_be_bytes());
            }
            _ => {
                out.push(masked | 127);
                out.extend_from_slice(&self.len.to_be_bytes());
            }
        }
        if let Some(key) = self.mask {
            out.extend_from_slice(&key);
        }
    }
}

fn parse_first(first: u8) -> Result<(bool, Opcode), ProtocolError> {
    if first & 0x70 != 0 {
        return Err(ProtocolError::ReservedBits);
    }
    let fin = first & 0x80 != 0;
    let opcode = Opcode::from_bits(first & 0x0f)?;
    if opcode.is_control() && !fin {
        return Err(ProtocolError::FragmentedControl);
    }
    Ok((fin, opcode))
}

/// The payload length and how many extension bytes it took.
fn parse_len(short: u8, rest: &[u8]) -> Result<Option<(u64, usize)>, ProtocolError> {
    match short {
        126 => {
            let Some(&bytes) = rest.first_chunk::<2>() else {
                return Ok(None);
            };
            let len = u16::from_be_bytes(bytes);
            if len <= 125 {
                return Err(ProtocolError::LengthNotMinimal);
            }
            Ok(Some((u64::from(len), 2)))
        }
        127 => {
            // The top bit is judged as soon as its byte is here.
            if rest.first().is_some_and(|&top| top & 0x80 != 0) {
                return Err(ProtocolError::LengthTooLarge);
            }
            let Some(&bytes) = rest.first_chunk::<8>() else {
                return Ok(None);
            };
            let len = u64::from_be_bytes(bytes);
            if len <= u64::from(u16::MAX) {
                return Err(ProtocolError::LengthNotMinimal);
            }
            Ok(Some((len, 8)))
        }
        len => Ok(Some((u64::from(len), 0))),
    }
}

// === impl ProtocolError ===

impl ProtocolError {
    /// The close code that answers it: 1007 for text that is none, else 1002.
    pub fn close_code(self) -> u16 {
        match self {
            ProtocolError::CloseReasonNotUtf8 => 1007,
            _ => 1002,
        }
    }
}

// === impl Control ===

impl Control {
    /// Close, ping or pong.
    pub fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// The payload, unmasked.
    pub fn payload(&self) -> &[u8] {
        &self.payload[..usize::from(self.len)]
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control")
            .field("opcode", &self.opcode)
            .field("payload", &self.payload())
            .finish()
    }
}

impl PartialEq for Control {
    fn eq(&self, other: &Self) -> bool {
        self.opcode == other.opcode && self.payload() == other.payload()
    }
}

impl Eq for Control {}

// === impl CloseFrame ===

impl CloseFrame {
    /// A close frame; code and reason are made fit for the wire when it is encoded.
    pub fn new(code: u16, reason: impl Into<String>) -> CloseFrame {
        CloseFrame {
            code,
            reason: reason.into(),
        }
    }

    /// Reads a close payload; an empty one carries no code.
    pub fn parse(payload: &[u8]) -> Result<Option<CloseFrame>, ProtocolError> {
        if payload.is_empty() {
            return Ok(None);
        }
        let Some((&code, reason)) = payload.split_first_chunk::<2>() else {
            return Err(ProtocolError::CloseTooShort);
        };
        let code = u16::from_be_bytes(code);
        if !is_sendable(code) {
            return Err(ProtocolError::CloseCode(code));
        }
        let reason = std::str::from_utf8(reason).map_err(|_| ProtocolError::CloseReasonNotUtf8)?;
        Ok(Some(CloseFrame::new(code, reason)))
    }
}

/// Whether a close code may travel. 1004, 1005, 1006 and 1015 are names for what happened without a close frame, the
/// rest of the gaps are unassigned (RFC 6455 §7.4.2, IANA registry).
pub fn is_sendable(code: u16) -> bool {
    matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999)
}

/// The longest front part of `reason` that fits a close frame and does not cut a character.
pub fn cut_reason(reason: &str) -> &str {
    &reason[..reason.floor_char_boundary(MAX_CLOSE_REASON)]
}

// === impl Held ===

impl std::ops::Deref for Held {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

// === impl HeaderScanner ===

impl HeaderScanner {
    /// A scanner for the bytes right after the upgrade response, not one earlier.
    pub fn new(sender: Sender) -> HeaderScanner {
        HeaderScanner {
            sender,
            state: State::Header { have: 0 },
            in_message: false,
            failed: None,
            partial: [0; MAX_CONTROL_PAYLOAD],
        }
    }

    /// How many bytes of the current data frame have yet to come: 0 means that the bytes passed on so far end between
    /// frames, the only place where a frame of our own may go.
    pub fn remaining(&self) -> u64 {
        match self.state {
            State::Data { remaining } => remaining,
            State::Header { .. } | State::Control { .. } => 0,
        }
    }

    /// Looks at the next slice of the stream. Valid frames before a bad header are handed out first; the error comes
    /// with the next call, and with every call after it.
    pub fn scan(&mut self, bytes: &[u8]) -> Result<Step, ProtocolError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let mut step = Step::default();
        let mut at = 0;
        loop {
            let rest = &bytes[at..];
            match self.state {
                State::Data { remaining } => {
                    // Fits usize: it is no more than the slice's length.
                    let take = remaining.min(rest.len() as u64) as usize;
                    at += take;
                    step.data = at;
                    self.state = data_state(remaining - take as u64);
                    if take == rest.len() {
                        break;
                    }
                }
                State::Header { .. } if rest.is_empty() => break,
                State::Header { have } => match self.parse_header(have, rest) {
                    Err(_) if step.data > 0 => break,
                    Err(error) => {
                        self.failed = Some(error);
                        return Err(error);
                    }
                    Ok(None) => {
                        at = bytes.len();
                        break;
                    }
                    Ok(Some((header, used))) => {
                        at += used;
                        if self.enter(header) {
                            // Only the first header of a slice can have begun in an earlier one.
                            if have > 0 {
                                step.held = Held::from_front(&self.partial, have);
                            }
                            step.data = at;
                        }
                    }
                },
                State::Control { .. } => {
                    let (taken, control) = self.take_control(rest);
                    at += taken;
                    step.control = control;
                    break;
                }
            }
        }
        step.consumed = at;
        Ok(step)
    }

    /// Reads the header that `have` held bytes and `rest` begin with; an unfinished one is held.
    fn parse_header(&mut self, have: u8, rest: &[u8]) -> Result<Option<(FrameHeader, usize)>, ProtocolError> {
        let held = usize::from(have);
        if held == 0 {
            self.check_order(rest[0])?;
            let parsed = FrameHeader::parse(rest, self.sender)?;
            if parsed.is_none() {
                self.partial[..rest.len()].copy_from_slice(rest);
                self.state = State::Header { have: rest.len() as u8 };
            }
            return Ok(parsed);
        }
        let take = rest.len().min(MAX_HEADER - held);
        self.partial[held..held + take].copy_from_slice(&rest[..take]);
        let parsed = FrameHeader::parse(&self.partial[..held + take], self.sender)?;
        if parsed.is_none() {
            self.state = State::Header {
                have: have + take as u8,
            };
        }
        Ok(parsed.map(|(header, len)| (header, len - held)))
    }

    /// The rules between frames, which the first byte alone can break.
    fn check_order(&self, first: u8) -> Result<(), ProtocolError> {
        let (_, opcode) = parse_first(first)?;
        match opcode {
            Opcode::Continuation if !self.in_message => Err(ProtocolError::UnexpectedContinuation),
            Opcode::Text | Opcode::Binary if self.in_message => Err(ProtocolError::UnfinishedMessage),
            _ => Ok(()),
        }
    }

    /// Goes on to the frame's payload; says whether it is a data frame.
    fn enter(&mut self, header: FrameHeader) -> bool {
        let FrameHeader { fin, opcode, mask, len } = header;
        if opcode.is_control() {
            // At most 125, see `FrameHeader::parse`.
            self.state = State::Control {
                opcode,
                mask,
                len: len as u8,
                have: 0,
            };
            return false;
        }
        self.in_message = !fin;
        self.state = data_state(len);
        true
    }

    /// Collects what `rest` has of a control payload: how much that was, and the frame if it is whole now.
    fn take_control(&mut self, rest: &[u8]) -> (usize, Option<Control>) {
        let State::Control {
            opcode,
            mask,
            len,
            have,
        } = self.state
        else {
            return (0, None);
        };
        let have = usize::from(have);
        let taken = (usize::from(len) - have).min(rest.len());
        self.partial[have..have + taken].copy_from_slice(&rest[..taken]);
        // At most 125, so it fits.
        let have = (have + taken) as u8;
        if have < len {
            self.state = State::Control {
                opcode,
                mask,
                len,
                have,
            };
            return (taken, None);
        }
        self.state = State::Header { have: 0 };
        let mut control = Control {
            opcode,
            len,
            payload: self.partial,
        };
        if let Some(key) = mask {
            apply_mask(&mut control.payload[..usize::from(len)], key);
        }
        (taken, Some(control))
    }
}

impl fmt::Debug for HeaderScanner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeaderScanner")
            .field("sender", &self.sender)
            .field("remaining", &self.remaining())
            .finish()
    }
}

impl Held {
    fn from_front(partial: &[u8; MAX_CONTROL_PAYLOAD], len: u8) -> Held {
        let mut bytes = [0; MAX_HEADER];
        bytes[..usize::from(len)].copy_from_slice(&partial[..usize::from(len)]);
        Held { bytes, len }
    }
}

fn data_state(remaining: u64) -> State {
    if remaining == 0 {
        State::Header { have: 0 }
    } else {
        State::Data { remaining }
    }
}

// === encoders ===

/// Appends a ping. `mask` is needed towards a server and forbidden towards a client; a payload beyond 125 bytes is cut.
pub fn encode_ping(payload: &[u8], mask: Option<[u8; 4]>, out: &mut Vec<u8>) {
    encode_control(Opcode::Ping, payload, mask, out);
}

/// Appends a pong; it answers the ping that carried the same payload.
pub fn encode_pong(payload: &[u8], mask: Option<[u8; 4]>, out: &mut Vec<u8>) {
    encode_control(Opcode::Pong, payload, mask, out);
}

/// Appends a close frame: a code that must not travel becomes 1011, a long reason is cut between characters.
/// `None` is the empty close frame that answers an empty one.
pub fn encode_close(frame: Option<&CloseFrame>, mask: Option<[u8; 4]>, out: &mut Vec<u8>) {
    let mut payload = Vec::new();
    if let Some(frame) = frame {
        let code = if is_sendable(frame.code) { frame.code } else { 1011 };
        payload.extend_from_slice(&code.to_be_bytes());
        payload.extend_from_slice(cut_reason(&frame.reason).as_bytes());
    }
    encode_control(Opcode::Close, &payload, mask, out);
}

fn encode_control(opcode: Opcode, payload: &[u8], mask: Option<[u8; 4]>, out: &mut Vec<u8>) {
    let payload = &payload[..payload.len().min(MAX_CONTROL_PAYLOAD)];
    FrameHeader {
        fin: true,
        opcode,
        mask,
        len: payload.len() as u64,
    }
    .encode(out);
    let from = out.len();
    out.extend_from_slice(payload);
    if let Some(key) = mask {
        apply_mask(&mut out[from..], key);
    }
}

/// Masks, or unmasks: it is the same operation (RFC 6455 §5.3).
pub fn apply_mask(payload: &mut [u8], key: [u8; 4]) {
    for (byte, key) in payload.iter_mut().zip(key.iter().cycle()) {
        *byte ^= key;
    }
}

#[cfg(test)]
mod tests;
