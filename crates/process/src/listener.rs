//! Who listens on a port: a tree of ours, a stranger, or nobody.
//!
//! Its own file because a program that binds a port chosen by us may lose it to somebody else between the choice and the
//! bind, and an answer on the port proves nothing about who gives it. The kernel's socket tables name the listening
//! sockets, `/proc/<pid>/fd` names their holders. The invariant: [`Listener::Ours`] is said only when every socket that a
//! connection could reach is held by the tree.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, BufRead, BufReader},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use crate::{
    Marker,
    marker::{self, Owner},
    scan,
};

/// `TCP_LISTEN` of the kernel's tcp_states.h, as the tables print it.
const LISTENING: &str = "0A";

/// As much of a table as one read asks the kernel for.
const TABLE_PIECE: usize = 2048;

/// Who listens on a loopback port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listener {
    /// Nobody yet.
    Nobody,
    /// The tree; this address reaches it.
    Ours(SocketAddr),
    /// Somebody else.
    Stranger,
}

/// Whose sockets are asked for.
pub(crate) struct Tree<'a> {
    pub(crate) root: u32,
    pub(crate) started: u64,
    pub(crate) marker: &'a Marker,
}

/// One line of the kernel's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Socket {
    ip: IpAddr,
    inode: u64,
}

/// Reads the tables and the tree's descriptors: milliseconds, so not on an async thread.
pub(crate) fn listener(tree: &Tree<'_>, port: u16) -> Listener {
    let sockets = sockets(port);
    // What a client of 127.0.0.1 would reach; a program that took `localhost` for ::1 is reached there.
    for (loopback, is_reached) in [
        (IpAddr::V4(Ipv4Addr::LOCALHOST), is_v4 as fn(&IpAddr) -> bool),
        (IpAddr::V6(Ipv6Addr::LOCALHOST), is_v6),
    ] {
        let wanted: BTreeSet<u64> = sockets.iter().filter(|s| is_reached(&s.ip)).map(|s| s.inode).collect();
        if !wanted.is_empty() {
            return if tree.holds(&wanted) {
                Listener::Ours(SocketAddr::new(loopback, port))
            } else {
                Listener::Stranger
            };
        }
    }
    Listener::Nobody
}

/// Whether a connection to 127.0.0.1 may arrive at a socket bound here (`::` takes both families unless told not to).
fn is_v4(ip: &IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_unspecified() || ip == Ipv4Addr::LOCALHOST,
        IpAddr::V6(ip) => ip.is_unspecified(),
    }
}

fn is_v6(ip: &IpAddr) -> bool {
    *ip == IpAddr::V6(Ipv6Addr::LOCALHOST)
}

fn sockets(port: u16) -> Vec<Socket> {
    // A host without IPv6 has no second table.
    ["/proc/self/net/tcp", "/proc/self/net/tcp6"]
        .into_iter()
        .filter_map(|table| listening(BufReader::with_capacity(TABLE_PIECE, File::open(table).ok()?)).ok())
        .flat_map(|text| parse(&text, port))
        .collect()
}

/// The head of a table, with its first line. The kernel lists listening sockets before all others, and what follows costs
/// it a walk of every connection of the host: reading in small pieces and stopping there halved the time of a thousand
/// launches (30 s to 14 s).
fn listening(mut table: impl BufRead) -> io::Result<String> {
    let mut text = String::new();
    table.read_line(&mut text)?;
    loop {
        let end = text.len();
        if table.read_line(&mut text)? == 0 {
            return Ok(text);
        }
        if text[end..].split_ascii_whitespace().nth(3) != Some(LISTENING) {
            text.truncate(end);
            return Ok(text);
        }
    }
}

fn parse(table: &str, port: u16) -> Vec<Socket> {
    let wanted = format!(":{port:04X}");
    table
        .lines()
        .skip(1)
        .filter(|line| line.contains(&wanted))
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let (address, state) = (fields.get(1)?, fields.get(3)?);
            let ip = address.strip_suffix(&wanted).and_then(ip)?;
            let inode = fields.get(9)?.parse().ok()?;
            (*state == LISTENING).then_some(Socket { ip, inode })
        })
        .collect()
}

/// The kernel prints each 32-bit word in the host's byte order.
fn ip(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(hex.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    match hex.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let mut bytes = [0_u8; 16];
            for (at, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(at * 8)?);
            }
            Some(Ipv6Addr::from(bytes).into())
        }
        _ => None,
    }
}

// === impl Tree ===

impl Tree<'_> {
    /// The main process is asked first: it is nearly always the one, and the others cost a pass over /proc.
    fn holds(&self, wanted: &BTreeSet<u64>) -> bool {
        let mut left = wanted.clone();
        if self.take(self.root, &mut left) {
            return true;
        }
        let members = scan::processes_after(self.root, self.started).into_iter().filter(|p| {
            p.session == self.root
                || p.group == self.root
                || matches!(marker::owner(p, &self.marker.run_dir), Owner::Browser(id) if id == self.marker.browser.as_bytes())
        });
        members.map(|p| p.pid).any(|pid| self.take(pid, &mut left))
    }

    /// Strikes out what the process holds; `true` when nothing is left. A process of the tree whose descriptors are not
    /// ours to read (it gained privileges) is believed.
    fn take(&self, pid: u32, left: &mut BTreeSet<u64>) -> bool {
        let entries = match fs::read_dir(format!("/proc/{pid}/fd")) {
            Ok(entries) => entries,
            Err(error) => return error.kind() == io::ErrorKind::PermissionDenied,
        };
        for entry in entries.flatten() {
            if let Some(inode) = fs::read_link(entry.path()).ok().and_then(|target| {
                let text = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
                text.parse::<u64>().ok()
            }) {
                left.remove(&inode);
            }
        }
        left.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn own(marker: &Marker) -> Tree<'_> {
        Tree {
            root: std::process::id(),
            started: 0,
            marker,
        }
    }

    fn marker() -> Marker {
        Marker {
            run_dir: "/nowhere".into(),
            browser: "none".to_owned(),
        }
    }

    #[test]
    fn listener_of_this_process_is_found_on_either_family() {
        for (bound, reached) in [
            ("127.0.0.1:0", "127.0.0.1"),
            ("0.0.0.0:0", "127.0.0.1"),
            ("[::]:0", "127.0.0.1"),
            ("[::1]:0", "::1"),
        ] {
            let Ok(socket) = TcpListener::bind(bound) else {
                eprintln!("SKIPPED: this host cannot bind {bound}");
                continue;
            };
            let port = socket.local_addr().unwrap().port();
            let expected = SocketAddr::new(reached.parse().unwrap(), port);
            assert_eq!(listener(&own(&marker()), port), Listener::Ours(expected), "{bound}");
            drop(socket);
            assert_eq!(listener(&own(&marker()), port), Listener::Nobody, "{bound}");
        }
    }

    #[test]
    fn listener_of_another_process_is_a_stranger() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let marker = marker();
        let tree = Tree {
            root: child.id(),
            started: u64::MAX,
            marker: &marker,
        };
        let found = listener(&tree, socket.local_addr().unwrap().port());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, Listener::Stranger);
    }

    #[test]
    fn table_lines_are_parsed_and_other_states_and_ports_passed_over() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000 0 4711 1 0 100 0 0 10 0\n\
            1: 0100007F:1F90 0100007F:C001 01 00000000:00000000 00:00000000 00000000  1000 0 4712 1 0 100 0 0 10 0\n\
            2: 00000000:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000 0 4713 1 0 100 0 0 10 0\n";
        let found = parse(table, 8080);
        assert_eq!(
            listening(table.as_bytes()).unwrap().lines().count(),
            2,
            "stops at the first connection"
        );
        if cfg!(target_endian = "little") {
            assert_eq!(
                found,
                [Socket {
                    ip: Ipv4Addr::LOCALHOST.into(),
                    inode: 4711
                }]
            );
        }
    }
}
