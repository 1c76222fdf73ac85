//! Close frames: whatever code and reason we are given, what goes out is legal, and reads back as what was meant.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wharf_wire::frame::{
    CloseFrame, HeaderScanner, MAX_CLOSE_REASON, Opcode, Sender, cut_reason, encode_close, is_sendable,
};

fuzz_target!(|input: (u16, String, Option<[u8; 4]>, Vec<u8>)| {
    let (code, reason, mask, payload) = input;
    let mut out = Vec::new();
    encode_close(Some(&CloseFrame::new(code, reason.clone())), mask, &mut out);
    let sender = if mask.is_some() { Sender::Client } else { Sender::Server };
    let step = HeaderScanner::new(sender).scan(&out).expect("our own frame is legal");
    let control = step.control.expect("and whole");
    assert_eq!((control.opcode(), step.data, step.consumed), (Opcode::Close, 0, out.len()));
    let read = CloseFrame::parse(control.payload()).expect("a legal payload").expect("with a code");
    assert_eq!(read.code, if is_sendable(code) { code } else { 1011 });
    assert_eq!(read.reason, cut_reason(&reason));
    assert!(read.reason.len() <= MAX_CLOSE_REASON);
    assert!(reason.len() == read.reason.len() || read.reason.len() + 4 > MAX_CLOSE_REASON);
    // And a stranger's payload never panics.
    let _ = CloseFrame::parse(&payload);
});
