//! Can the configured address be listened on right now, and if not, who does?
//!
//! Its own file because the answer needs three tables: the bind itself, the kernel's list of listening sockets, and the
//! descriptors of every process. The invariant: the trial socket is closed at once, and accepts nobody.

use std::{
    fs, io,
    net::{IpAddr, SocketAddr, TcpListener},
};

use super::{
    finding::{Finding, Group},
    host::{self, Process},
};

const GROUP: Group = Group::Ports;
/// TCP_LISTEN in /proc/net/tcp.
const LISTENING: &str = "0A";

/// What binding told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bind {
    Free,
    Taken,
    Forbidden,
    NotHere,
    Failed(String),
}

#[derive(Debug, Clone)]
pub struct Facts {
    pub address: SocketAddr,
    pub bind: Bind,
    /// Who listens there, if it can be told.
    pub holder: Option<Process>,
    /// Who holds the store or the run directory: if it listens too, it is this very grid.
    pub grid: Option<Process>,
}

// === impl Facts ===

impl Facts {
    pub fn gather(address: SocketAddr) -> Self {
        let bind = match TcpListener::bind(address) {
            Ok(_closed_at_once) => Bind::Free,
            Err(error) => match error.kind() {
                io::ErrorKind::AddrInUse => Bind::Taken,
                io::ErrorKind::PermissionDenied => Bind::Forbidden,
                io::ErrorKind::AddrNotAvailable => Bind::NotHere,
                _ => Bind::Failed(error.to_string()),
            },
        };
        let holder = (bind == Bind::Taken).then(|| listener(address)).flatten();
        Self {
            address,
            bind,
            holder,
            grid: None,
        }
    }
}

fn listener(address: SocketAddr) -> Option<Process> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| fs::read_to_string(table).unwrap_or_default());
    let inodes: Vec<String> = tables.iter().flat_map(|table| listening(table, address)).collect();
    let names: Vec<String> = inodes.iter().map(|inode| format!("socket:[{inode}]")).collect();
    host::holder_of(|target| names.iter().any(|name| target.as_os_str() == name.as_str()))
}

/// Inodes of the sockets that listen on this port, at this address or at every one.
fn listening(table: &str, address: SocketAddr) -> Vec<String> {
    let line = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
        let (ip, port) = local.split_once(':')?;
        let is_port = u16::from_str_radix(port, 16).ok()? == address.port();
        let is_any = ip.bytes().all(|byte| byte == b'0');
        let is_it = *state == LISTENING && is_port && (is_any || ip == hexadecimal(address.ip()));
        is_it.then(|| (*inode).to_owned())
    };
    table.lines().skip(1).filter_map(line).collect()
}

/// As the kernel prints it: words of the network's order, read in the machine's.
fn hexadecimal(ip: IpAddr) -> String {
    let octets = match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let word = |bytes: &[u8]| {
        let word = bytes.try_into().map(u32::from_ne_bytes).unwrap_or_default();
        format!("{word:08X}")
    };
    octets.chunks(4).map(word).collect()
}

pub fn judge(facts: &Facts) -> Vec<Finding> {
    vec![listen(facts)]
}

fn listen(facts: &Facts) -> Finding {
    let address = facts.address;
    match &facts.bind {
        Bind::Free if address.port() == 0 => GROUP.note(
            "listen",
            format!("{address} takes a free port at every start; --ready-file PATH tells which"),
        ),
        Bind::Free => GROUP.ok("listen", format!("{address} is free")),
        Bind::Taken if facts.holder.is_some() && facts.holder == facts.grid => GROUP.note(
            "listen",
            format!(
                "{address} is in use by {}: this grid is running",
                host::named(facts.holder.as_ref())
            ),
        ),
        Bind::Taken => {
            let holder = facts.holder.as_ref();
            let stop = holder.map_or_else(
                || format!("ss -ltnp 'sport = :{}' as root tells who; stop it", address.port()),
                |holder| format!("stop it (kill {})", holder.pid),
            );
            GROUP
                .problem("listen", format!("{address} is in use by {}", host::named(holder)))
                .fix(format!(
                    "{stop}, or choose another port with --listen {}:0",
                    host_part(address)
                ))
        }
        Bind::Forbidden => GROUP
            .problem("listen", format!("{address} may not be bound by this user"))
            .fix(format!(
                "--listen {}:8080, or sysctl -w net.ipv4.ip_unprivileged_port_start={}",
                host_part(address),
                address.port()
            )),
        Bind::NotHere => GROUP
            .problem("listen", format!("{} is no address of this host", address.ip()))
            .fix(format!("--listen 127.0.0.1:{}", address.port())),
        Bind::Failed(cause) => GROUP
            .problem("listen", format!("{address} cannot be bound: {cause}"))
            .fix("another address with --listen"),
    }
}

/// With the brackets of version 6.
fn host_part(address: SocketAddr) -> String {
    match address.ip() {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Level;

    fn facts(address: &str, bind: Bind, holder: Option<u32>) -> Facts {
        Facts {
            address: address.parse().unwrap(),
            bind,
            holder: holder.map(|pid| Process {
                pid,
                name: "nginx".to_owned(),
            }),
            grid: None,
        }
    }

    #[test]
    fn taken_port_names_its_holder_and_a_way_out() {
        let finding = listen(&facts("127.0.0.1:8080", Bind::Taken, Some(42)));
        assert_eq!(finding.level, Level::Problem);
        assert_eq!(finding.says, "127.0.0.1:8080 is in use by process 42 (nginx)");
        assert!(finding.fix.unwrap().contains("--listen 127.0.0.1:0"));
        let unknown = listen(&facts("[::1]:8080", Bind::Taken, None));
        assert!(unknown.fix.unwrap().contains("ss -ltnp"));
    }

    #[test]
    fn port_of_this_grid_is_a_note() {
        let mut facts = facts("127.0.0.1:8080", Bind::Taken, Some(42));
        facts.grid = facts.holder.clone();
        assert_eq!(listen(&facts).level, Level::Note);
    }

    #[test]
    fn port_zero_low_ports_and_foreign_addresses_are_told_apart() {
        assert_eq!(listen(&facts("127.0.0.1:0", Bind::Free, None)).level, Level::Note);
        assert_eq!(listen(&facts("127.0.0.1:8080", Bind::Free, None)).level, Level::Ok);
        let low = listen(&facts("127.0.0.1:80", Bind::Forbidden, None));
        assert!(low.fix.unwrap().contains("ip_unprivileged_port_start=80"));
        let foreign = listen(&facts("127.9.9.9:80", Bind::NotHere, None));
        assert!(foreign.says.contains("127.9.9.9"));
    }

    #[test]
    fn own_listener_is_found_in_the_kernels_table() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let facts = Facts::gather(socket.local_addr().unwrap());
        assert_eq!(facts.bind, Bind::Taken);
        assert_eq!(facts.holder.unwrap().pid, std::process::id());
    }
}
