//! WebSocket frames, the server's side of RFC 6455 §5.
//!
//! Its own code instead of a library: a library buffers by the 128 KiB, refuses to write garbage, and ties reading
//! and writing to one owner. Limits and extensions are left out; a fake has no enemies.
//!
//! Invariant: [`read_message`] returns whole unmasked messages and answers pings itself.

use std::io::{self, Read, Write};

use crate::sink::Sink;

const CONTINUATION: u8 = 0x0;
pub const TEXT: u8 = 0x1;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;
const PONG: u8 = 0xA;
/// Up to here header and payload go out in one write; beyond it a copy costs more than a second system call.
const ONE_WRITE: usize = 16 * 1024;

/// The next message, or `None` when the client closed.
pub fn read_message(input: &mut impl Read, sink: &Sink) -> io::Result<Option<Vec<u8>>> {
    let mut message = Vec::new();
    loop {
        let (fin, opcode, payload) = match read_frame(input) {
            Ok(frame) => frame,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        };
        match opcode {
            CLOSE => {
                sink.control(CLOSE, &payload)?;
                return Ok(None);
            }
            PING => sink.control(PONG, &payload)?,
            PONG => {}
            CONTINUATION => message.extend_from_slice(&payload),
            _ => message = payload,
        }
        if fin && opcode < CLOSE {
            return Ok(Some(message));
        }
    }
}

fn read_frame(input: &mut impl Read) -> io::Result<(bool, u8, Vec<u8>)> {
    let mut head = [0; 2];
    input.read_exact(&mut head)?;
    let length = match head[1] & 0x7F {
        126 => {
            let mut long = [0; 2];
            input.read_exact(&mut long)?;
            u64::from(u16::from_be_bytes(long))
        }
        127 => {
            let mut long = [0; 8];
            input.read_exact(&mut long)?;
            u64::from_be_bytes(long)
        }
        short => u64::from(short),
    };
    if head[1] & 0x80 == 0 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a client's frame must be masked",
        ));
    }
    let mut mask = [0; 4];
    input.read_exact(&mut mask)?;
    let mut payload = Vec::new();
    if input.take(length).read_to_end(&mut payload)? as u64 != length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    for (byte, key) in payload.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= key;
    }
    Ok((head[0] & 0x80 != 0, head[0] & 0x0F, payload))
}

pub fn write_frame(output: &mut impl Write, opcode: u8, payload: &[u8]) -> io::Result<()> {
    let mut frame = vec![0x80 | opcode];
    match payload.len() {
        length @ 0..=125 => frame.push(u8::try_from(length).unwrap_or(125)),
        length => match u16::try_from(length) {
            Ok(length) => {
                frame.push(126);
                frame.extend_from_slice(&length.to_be_bytes());
            }
            Err(_) => {
                frame.push(127);
                frame.extend_from_slice(&(length as u64).to_be_bytes());
            }
        },
    }
    if payload.len() > ONE_WRITE {
        output.write_all(&frame)?;
        return output.write_all(payload);
    }
    frame.extend_from_slice(payload);
    output.write_all(&frame)
}
