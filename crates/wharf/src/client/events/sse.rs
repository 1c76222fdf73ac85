//! Reading `text/event-stream` (WHATWG HTML §9.2.6), block by block.
//!
//! Its own file because it is a parser: whatever arrives, it neither grows without bound nor stops understanding what
//! comes after.

use std::io::{self, BufRead, Read as _};

/// Longer lines are not of a Wharf.
const LONGEST_LINE: u64 = 1 << 20;

/// What stands between two empty lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Block {
    pub id: Option<u64>,
    pub event: String,
    pub data: String,
}

/// The blocks of a stream.
pub(super) struct Blocks<R> {
    reader: R,
}

// === impl Blocks ===

impl<R: BufRead> Blocks<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader }
    }

    /// The next block, comments alone included (they say that somebody is there); `None` at the end. A block that was cut
    /// off by the end is dropped, as the standard has it.
    pub(super) fn next(&mut self) -> io::Result<Option<Block>> {
        let mut block = Block::default();
        loop {
            let mut line = Vec::new();
            let read = (&mut self.reader).take(LONGEST_LINE).read_until(b'\n', &mut line)?;
            if line.last() != Some(&b'\n') {
                return match read as u64 == LONGEST_LINE {
                    true => Err(io::Error::other("a line that is too long: is this a Wharf?")),
                    false => Ok(None),
                };
            }
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\n', '\r']);
            if line.is_empty() {
                return Ok(Some(block));
            }
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "id" => block.id = value.parse().ok(),
                "event" => value.clone_into(&mut block.event),
                "data" if block.data.is_empty() => value.clone_into(&mut block.data),
                "data" => {
                    block.data.push('\n');
                    block.data.push_str(value);
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(text: &str) -> Vec<Block> {
        // In pieces of one byte, as the network may have it.
        let mut blocks = Blocks::new(io::BufReader::with_capacity(1, text.as_bytes()));
        std::iter::from_fn(|| blocks.next().unwrap()).collect()
    }

    fn block(id: Option<u64>, event: &str, data: &str) -> Block {
        Block {
            id,
            event: event.to_owned(),
            data: data.to_owned(),
        }
    }

    #[test]
    fn blocks_comments_and_a_cut_off_end() {
        let text = "retry: 1000\n: following\nid: 4\n\nid: 5\nevent: a.b\ndata: {\"x\":1}\r\n\r\n: alive\n\n\
                    id:6\nevent:c\ndata:1\ndata:2\n\nid: 7\nevent: cut\ndata: o";
        assert_eq!(
            blocks(text),
            [
                block(Some(4), "", ""),
                block(Some(5), "a.b", "{\"x\":1}"),
                block(None, "", ""),
                block(Some(6), "c", "1\n2"),
            ]
        );
    }

    #[test]
    fn endless_line_is_refused() {
        let mut blocks = Blocks::new(io::BufReader::new(io::repeat(b'a')));
        assert!(blocks.next().is_err());
    }
}
