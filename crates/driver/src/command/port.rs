//! Ports for programs to bind.
//!
//! Its own file because the contract forces a gap: the port must be known before the program starts and is bound by the
//! program, so whoever chose it had to let go of it. What can be done about that is here: the kernel chooses among free
//! ports, no two launches of ours get the same one, and one that was just used is not used again. What cannot is told
//! by the launch, which looks whose listener it is. The invariant: a [`Reserved`] port is nobody else's in this process.

use std::{
    collections::{HashSet, VecDeque},
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::net::TcpSocket;

/// Ports given back lately and not given out again: the last connections to a dead program linger for a minute.
const RECENT: usize = 256;
/// How often the kernel may answer with a port that is reserved or recent before this is called a failure.
const TRIES: usize = 64;

/// Chooses ports.
#[derive(Debug, Clone, Default)]
pub(super) struct Ports(Arc<Mutex<Book>>);

#[derive(Debug, Default)]
struct Book {
    reserved: HashSet<u16>,
    recent: VecDeque<u16>,
}

/// A port for one program, until dropped.
#[derive(Debug)]
pub(super) struct Reserved {
    port: u16,
    ports: Ports,
}

// === impl Ports ===

impl Ports {
    /// A free loopback port that no other program of ours has or just had.
    pub(super) fn reserve(&self) -> io::Result<Reserved> {
        // Held until the choice is made, so that the kernel does not answer with the same one again.
        let mut refused = Vec::new();
        for _ in 0..TRIES {
            // Without SO_REUSEADDR, unlike a listener of std: a port with lingering connections is free only for programs
            // that set it.
            let socket = TcpSocket::new_v4()?;
            socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
            let port = socket.local_addr()?.port();
            let mut book = self.0.lock();
            if !book.recent.contains(&port) && book.reserved.insert(port) {
                let ports = self.clone();
                return Ok(Reserved { port, ports });
            }
            drop(book);
            refused.push(socket);
        }
        Err(io::Error::new(
            io::ErrorKind::AddrNotAvailable,
            "no free loopback port (see `sysctl net.ipv4.ip_local_port_range`)",
        ))
    }
}

// === impl Reserved ===

impl Reserved {
    pub(super) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut book = self.ports.0.lock();
        book.reserved.remove(&self.port);
        book.recent.push_back(self.port);
        if book.recent.len() > RECENT {
            book.recent.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ports_are_never_given_to_two_and_not_again_at_once() {
        let ports = Ports::default();
        let mut seen = HashSet::new();
        let mut held = Vec::new();
        for turn in 0..200 {
            let reserved = ports.reserve().unwrap();
            assert!(seen.insert(reserved.port()), "{} twice", reserved.port());
            // Every other one is given back and must still not come again.
            if turn % 2 == 0 {
                held.push(reserved);
            }
        }
        drop(held);
        assert!(ports.0.lock().reserved.is_empty());
    }
}
