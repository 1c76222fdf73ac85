//! The frame scanner on arbitrary bytes, whole and cut anywhere.
//!
//! Invariant: no panic, progress on every call, and the same data, control frames and error however the stream is cut.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use wharf_wire::frame::{CloseFrame, Control, HeaderScanner, ProtocolError, Sender};

#[derive(Arbitrary, Debug)]
struct Input {
    from_client: bool,
    cuts: Vec<u8>,
    bytes: Vec<u8>,
}

#[derive(Debug, Default, PartialEq)]
struct Outcome {
    data: Vec<u8>,
    controls: Vec<(usize, Control)>,
    remaining: u64,
    error: Option<ProtocolError>,
}

fn run<'a>(sender: Sender, slices: impl Iterator<Item = &'a [u8]>) -> Outcome {
    let mut scanner = HeaderScanner::new(sender);
    let mut outcome = Outcome::default();
    for mut rest in slices {
        while !rest.is_empty() {
            match scanner.scan(rest) {
                Ok(step) => {
                    assert!(step.consumed > 0 && step.data <= step.consumed && step.consumed <= rest.len());
                    outcome.data.extend_from_slice(&step.held);
                    outcome.data.extend_from_slice(&rest[..step.data]);
                    if let Some(control) = step.control {
                        let _ = CloseFrame::parse(control.payload());
                        outcome.controls.push((outcome.data.len(), control));
                    }
                    rest = &rest[step.consumed..];
                }
                Err(error) => {
                    outcome.error = Some(error);
                    return outcome;
                }
            }
        }
    }
    outcome.remaining = scanner.remaining();
    outcome
}

/// Slices whose lengths are the cuts, in turn.
fn cut<'a>(bytes: &'a [u8], cuts: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let mut rest = bytes;
    let mut cuts = cuts.iter();
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let len = cuts.next().map_or(rest.len(), |&len| rest.len().min(usize::from(len)));
        let (front, back) = rest.split_at(len);
        rest = back;
        Some(front)
    })
}

fuzz_target!(|input: Input| {
    let sender = if input.from_client { Sender::Client } else { Sender::Server };
    let whole = run(sender, std::iter::once(&input.bytes[..]));
    assert_eq!(run(sender, cut(&input.bytes, &input.cuts)), whole);
    assert_eq!(run(sender, input.bytes.chunks(1)), whole);
});
