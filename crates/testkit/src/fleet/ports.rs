//! Ports that stay the same across restarts.
//!
//! Its own file because of the one rule in it: what is to be started again on the same port must not have one that the
//! kernel gives to outgoing connections (32768 and up), or somebody else's connection may have it meanwhile.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    net::TcpListener,
};

use anyhow::{Result, bail};

const PORTS: std::ops::Range<u16> = 22_000..32_000;

/// A port on which nobody listens now. Somebody may the next moment: whoever binds it tries again with another.
pub(super) fn free() -> Result<u16> {
    for _ in 0..1000 {
        let port = PORTS.start + random() % (PORTS.end - PORTS.start);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port between {} and {}", PORTS.start, PORTS.end);
}

/// Tests run in many processes at once: each must begin elsewhere.
fn random() -> u16 {
    let bytes = RandomState::new().build_hasher().finish().to_le_bytes();
    u16::from_le_bytes([bytes[0], bytes[1]])
}
