//! The scanner against hand-written streams, every split of them, random streams, and tungstenite as the oracle.

use std::io::{self, Cursor, Read, Write};

use proptest::prelude::*;
use tokio_tungstenite::tungstenite::{self, protocol::Role};

use super::*;

const KEY: [u8; 4] = [0xa1, 0x5c, 0x00, 0xff];

/// All that a scanner made of a stream.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    data: Vec<u8>,
    /// Each control frame with the count of data bytes before it.
    controls: Vec<(usize, Control)>,
    remaining: u64,
    error: Option<ProtocolError>,
}

fn run<'a>(sender: Sender, slices: impl IntoIterator<Item = &'a [u8]>) -> Outcome {
    let mut scanner = HeaderScanner::new(sender);
    let mut outcome = Outcome::default();
    for mut rest in slices {
        while !rest.is_empty() {
            match scanner.scan(rest) {
                Ok(step) => {
                    assert!(step.consumed > 0 && step.data <= step.consumed && step.consumed <= rest.len());
                    outcome.data.extend_from_slice(&step.held);
                    outcome.data.extend_from_slice(&rest[..step.data]);
                    outcome
                        .controls
                        .extend(step.control.map(|control| (outcome.data.len(), control)));
                    rest = &rest[step.consumed..];
                }
                Err(error) => {
                    assert_eq!(scanner.scan(rest).unwrap_err(), error, "an error stays");
                    outcome.error = Some(error);
                    return outcome;
                }
            }
        }
    }
    outcome.remaining = scanner.remaining();
    outcome
}

fn frame(fin: bool, opcode: Opcode, payload: &[u8], sender: Sender) -> Vec<u8> {
    let mask = (sender == Sender::Client).then_some(KEY);
    let mut out = Vec::new();
    FrameHeader {
        fin,
        opcode,
        mask,
        len: payload.len() as u64,
    }
    .encode(&mut out);
    let from = out.len();
    out.extend_from_slice(payload);
    if let Some(key) = mask {
        apply_mask(&mut out[from..], key);
    }
    out
}

fn cut_at<'a>(bytes: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    cuts.sort_unstable();
    let mut from = 0;
    let mut slices = Vec::new();
    for cut in cuts {
        slices.push(&bytes[from..cut]);
        from = cut;
    }
    slices.push(&bytes[from..]);
    slices
}

fn both() -> [Sender; 2] {
    [Sender::Client, Sender::Server]
}

#[test]
fn scan_mixed_stream_every_split_gives_one_result() {
    for sender in both() {
        let data = [
            frame(true, Opcode::Text, b"hello", sender),
            frame(false, Opcode::Binary, b"", sender),
            frame(true, Opcode::Continuation, &[7; 126], sender),
            frame(true, Opcode::Binary, b"end", sender),
        ];
        let stream = [
            &data[0][..],
            &frame(true, Opcode::Ping, b"are you there", sender),
            &data[1],
            &frame(true, Opcode::Pong, b"", sender),
            &data[2],
            &data[3],
            &frame(true, Opcode::Close, b"\x03\xe8bye", sender),
        ]
        .concat();
        let whole = run(sender, [&stream[..]]);
        assert_eq!(whole.data, data.concat());
        assert_eq!(whole.error, None);
        let seen: Vec<_> = whole.controls.iter().map(|(_, c)| (c.opcode(), c.payload())).collect();
        let expected: [(Opcode, &[u8]); 3] = [
            (Opcode::Ping, b"are you there"),
            (Opcode::Pong, b""),
            (Opcode::Close, b"\x03\xe8bye"),
        ];
        assert_eq!(seen, expected);
        for first in 0..=stream.len() {
            assert_eq!(run(sender, cut_at(&stream, &[first])), whole);
            for second in first..=stream.len() {
                assert_eq!(run(sender, cut_at(&stream, &[first, second])), whole);
            }
        }
        assert_eq!(run(sender, stream.chunks(1)), whole);
    }
}

#[test]
fn scan_bad_header_names_the_rule_at_its_first_bad_byte() {
    use ProtocolError::*;
    let cases: &[(Sender, &[u8], ProtocolError)] = &[
        (Sender::Server, &[0xc1], ReservedBits),
        (Sender::Server, &[0xa1], ReservedBits),
        (Sender::Server, &[0x91], ReservedBits),
        (Sender::Server, &[0x83], UnknownOpcode(3)),
        (Sender::Server, &[0x8b], UnknownOpcode(11)),
        (Sender::Server, &[0x09], FragmentedControl),
        (Sender::Server, &[0x89, 126], ControlTooLong),
        (Sender::Server, &[0x88, 127], ControlTooLong),
        (Sender::Server, &[0x82, 126, 0, 125], LengthNotMinimal),
        (
            Sender::Server,
            &[0x82, 127, 0, 0, 0, 0, 0, 0, 0xff, 0xff],
            LengthNotMinimal,
        ),
        (Sender::Server, &[0x82, 127, 0x80], LengthTooLarge),
        (Sender::Client, &[0x82, 0x05], Unmasked),
        (Sender::Server, &[0x82, 0x85], Masked),
        (Sender::Server, &[0x80], UnexpectedContinuation),
        (Sender::Server, &[0x01, 0, 0x82], UnfinishedMessage),
        (Sender::Server, &[0x02, 0, 0x80, 0, 0x00], UnexpectedContinuation),
    ];
    for (sender, bytes, error) in cases {
        assert_eq!(run(*sender, [*bytes]).error, Some(*error), "{bytes:02x?}");
        assert_eq!(
            run(*sender, bytes.chunks(1)).error,
            Some(*error),
            "{bytes:02x?} byte by byte"
        );
        assert_eq!(
            run(*sender, [&bytes[..bytes.len() - 1]]).error,
            None,
            "{bytes:02x?} too early"
        );
    }
}

#[test]
fn scan_length_edges_round_trip() {
    for len in [0, 1, 125, 126, 127, 65_535, 65_536, 70_000, u64::MAX >> 1] {
        let header = FrameHeader {
            fin: true,
            opcode: Opcode::Binary,
            mask: Some(KEY),
            len,
        };
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        assert_eq!(
            FrameHeader::parse(&bytes, Sender::Client),
            Ok(Some((header, bytes.len())))
        );
        let outcome = run(Sender::Client, bytes.chunks(3));
        assert_eq!((outcome.data, outcome.remaining), (bytes, len));
    }
}

#[test]
fn scan_unfinished_header_is_not_passed_on() {
    let mut scanner = HeaderScanner::new(Sender::Server);
    let step = scanner.scan(&[0x82, 126, 1]).unwrap();
    assert_eq!(
        (step.held.len(), step.data, step.consumed, scanner.remaining()),
        (0, 0, 3, 0)
    );
    let step = scanner.scan(&[0, 9]).unwrap();
    assert_eq!(
        (&*step.held, step.data, step.consumed, scanner.remaining()),
        (&[0x82, 126, 1][..], 2, 2, 255)
    );
}

#[test]
fn close_payload_is_judged() {
    assert_eq!(CloseFrame::parse(b""), Ok(None));
    assert_eq!(CloseFrame::parse(b"\x03"), Err(ProtocolError::CloseTooShort));
    assert_eq!(CloseFrame::parse(b"\x03\xe8ok"), Ok(Some(CloseFrame::new(1000, "ok"))));
    assert_eq!(
        CloseFrame::parse(b"\x03\xe8\xff"),
        Err(ProtocolError::CloseReasonNotUtf8)
    );
    for code in [0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000] {
        assert_eq!(
            CloseFrame::parse(&u16::to_be_bytes(code)),
            Err(ProtocolError::CloseCode(code))
        );
    }
}

#[test]
fn encode_close_never_puts_a_forbidden_code_on_the_wire() {
    for code in [1004, 1005, 1006, 1015, 0, 65_535] {
        let mut out = Vec::new();
        encode_close(Some(&CloseFrame::new(code, "x")), None, &mut out);
        assert_eq!(out, b"\x88\x03\x03\xf3x");
    }
    let mut out = Vec::new();
    encode_close(None, Some(KEY), &mut out);
    assert_eq!(out, [&[0x88, 0x80], &KEY[..]].concat());
}

/// A stream that tungstenite reads and whose answers go nowhere.
struct Tape<'a>(&'a [u8]);

impl Read for Tape<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl Write for Tape<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What tungstenite reads from a stream: data messages, then pings and pongs in their order.
fn oracle(bytes: &[u8], sender: Sender) -> (Vec<tungstenite::Message>, Vec<tungstenite::Message>) {
    let role = if sender == Sender::Client {
        Role::Server
    } else {
        Role::Client
    };
    let mut socket = tungstenite::WebSocket::from_raw_socket(Tape(bytes), role, None);
    let (mut data, mut control) = (Vec::new(), Vec::new());
    while let Ok(message) = socket.read() {
        let kind = if message.is_ping() || message.is_pong() {
            &mut control
        } else {
            &mut data
        };
        kind.push(message);
    }
    (data, control)
}

fn arb_message(sender: Sender) -> impl Strategy<Value = Vec<u8>> {
    let size = prop_oneof![8 => 0usize..200, 1 => 65_530usize..65_545, 1 => 0usize..70_000];
    let fragments = proptest::collection::vec((size, proptest::option::of(control_payload())), 1..4);
    (any::<u8>(), fragments).prop_map(move |(fill, fragments)| {
        let last = fragments.len() - 1;
        let mut out = Vec::new();
        for (i, (size, control)) in fragments.into_iter().enumerate() {
            let opcode = if i == 0 { Opcode::Binary } else { Opcode::Continuation };
            out.extend(frame(i == last, opcode, &vec![fill; size], sender));
            if let Some((opcode, payload)) = control {
                out.extend(frame(true, opcode, &payload, sender));
            }
        }
        out
    })
}

fn arb_messages(sender: Sender) -> impl Strategy<Value = (Sender, Vec<Vec<u8>>)> {
    (Just(sender), proptest::collection::vec(arb_message(sender), 0..6))
}

fn control_payload() -> impl Strategy<Value = (Opcode, Vec<u8>)> {
    (
        prop_oneof![Just(Opcode::Ping), Just(Opcode::Pong)],
        proptest::collection::vec(any::<u8>(), 0..=125),
    )
}

fn arb_sender() -> impl Strategy<Value = Sender> {
    prop_oneof![Just(Sender::Client), Just(Sender::Server)]
}

/// Bytes that are often nearly a header, so that garbage gets past the first two.
fn arb_garbage() -> impl Strategy<Value = Vec<u8>> {
    let first = prop_oneof![
        Just(0x81u8),
        Just(0x02),
        Just(0x80),
        Just(0x89),
        Just(0x88),
        any::<u8>()
    ];
    let second = prop_oneof![
        Just(0x80u8),
        Just(0x00),
        Just(0x7e),
        Just(0xfe),
        Just(0x7f),
        Just(0xff),
        any::<u8>()
    ];
    let piece = (
        first,
        second,
        proptest::collection::vec(prop_oneof![3 => Just(0u8), 1 => any::<u8>()], 0..12),
    );
    proptest::collection::vec(piece, 0..8).prop_map(|pieces| {
        pieces
            .into_iter()
            .flat_map(|(a, b, rest)| [vec![a, b], rest].concat())
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn scan_random_stream_agrees_with_tungstenite_however_it_is_cut(
        (sender, messages) in arb_sender().prop_flat_map(arb_messages),
        cuts in proptest::collection::vec(any::<usize>(), 0..12),
    ) {
        let stream = messages.concat();
        let whole = run(sender, [&stream[..]]);
        prop_assert_eq!(whole.error, None);
        prop_assert_eq!(whole.remaining, 0);
        prop_assert!(run(sender, cut_at(&stream, &cuts)) == whole);

        let (messages, controls) = oracle(&stream, sender);
        let (passed_on, none) = oracle(&whole.data, sender);
        prop_assert!(passed_on == messages && none.is_empty());
        let seen: Vec<tungstenite::Message> = whole.controls.iter().map(|(_, control)| {
            let payload = control.payload().to_vec().into();
            if control.opcode() == Opcode::Ping {
                tungstenite::Message::Ping(payload)
            } else {
                tungstenite::Message::Pong(payload)
            }
        }).collect();
        prop_assert!(seen == controls);
    }

    #[test]
    fn scan_garbage_never_panics_and_is_split_independent(
        sender in arb_sender(),
        bytes in arb_garbage(),
        cuts in proptest::collection::vec(any::<usize>(), 0..12),
    ) {
        let whole = run(sender, [&bytes[..]]);
        prop_assert_eq!(&run(sender, cut_at(&bytes, &cuts)), &whole);
        prop_assert_eq!(&run(sender, bytes.chunks(1)), &whole);
    }

    #[test]
    fn parse_header_agrees_with_tungstenite(sender in arb_sender(), bytes in arb_garbage()) {
        // We refuse more (non-minimal lengths, wrong masking); what we accept, both read alike.
        if let Ok(Some((header, used))) = FrameHeader::parse(&bytes, sender) {
            let mut cursor = Cursor::new(&bytes[..]);
            let (theirs, len) = tungstenite::protocol::frame::FrameHeader::parse(&mut cursor).unwrap().unwrap();
            prop_assert_eq!((theirs.is_final, u8::from(theirs.opcode)), (header.fin, header.opcode.bits()));
            prop_assert_eq!((theirs.mask, len, cursor.position()), (header.mask, header.len, used as u64));
        }
    }

    #[test]
    fn encode_close_fits_and_reads_back(code in any::<u16>(), reason in "\\PC{0,200}", masked in any::<bool>()) {
        let sender = if masked { Sender::Client } else { Sender::Server };
        let mut out = Vec::new();
        encode_close(Some(&CloseFrame::new(code, reason.clone())), masked.then_some(KEY), &mut out);
        let outcome = run(sender, [&out[..]]);
        prop_assert!(outcome.data.is_empty() && outcome.error.is_none());
        let read = CloseFrame::parse(outcome.controls[0].1.payload()).unwrap().unwrap();
        prop_assert_eq!(read.code, if is_sendable(code) { code } else { 1011 });
        prop_assert!(reason.starts_with(&read.reason) && read.reason.len() <= MAX_CLOSE_REASON);
        prop_assert!(reason.len() <= MAX_CLOSE_REASON || read.reason.len() > MAX_CLOSE_REASON - 4);
    }
}
