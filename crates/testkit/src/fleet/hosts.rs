//! Workers as hosts of their own: each in a network namespace, joined to ours by one line that can really break.
//!
//! Its own file because it is the other way to part a fleet: a [`super::Cutter`] is a peer that answers the handshake and
//! acknowledges every byte, also of a line that it swallows; here packets are lost, TCP repeats them and gives up by its own
//! clock, and all that a worker says and hears goes at once.
//!
//! The namespaces live in a private namespace of the program itself, which [`enter`] makes by executing the program anew:
//! whatever ends it, the kernel takes everything away. What is left on the machine is at most the empty `/run/netns`, which
//! `ip netns` makes as well.
//!
//! - Silence: each end has a wrong link address for the other, so packets leave and nobody takes them. A link that is down
//!   would not do: its routes go with it, and senders are told at once that there is no network.
//! - Cut: each end holds the other's address itself, so whatever is sent meets a host that knows nothing of it: RST for
//!   connections, refused for new ones. A connection on which nothing is said meanwhile survives, as it does when a switch
//!   restarts. An `unreachable` route would not do: TCP takes it for a passing trouble of an established connection.
//!
//! Invariant: a healed host is reached as before; addresses and routes are never touched.

use std::{
    ffi::OsString,
    net::{Ipv4Addr, SocketAddr},
    os::unix::process::CommandExt as _,
    process::{Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context, Result, bail, ensure};

use super::cutter::Cutter;

/// Set in the environment of a program that is in its private namespace.
const MARKER: &str = "_TESTKIT_PRIVATE_NETWORK";
/// What the private namespace needs first. The tmpfs keeps the names of our namespaces off the machine.
const SETTLE: &str = "ip link set lo up && mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns";
/// Its own namespace, so its own ports; below those that the kernel gives to outgoing connections.
const GATEWAY_PORT: u16 = 7500;
/// No network card has it: locally administered, made up.
const NOBODY: &str = "02:00:00:00:00:01";
/// A host that a probe makes; workers count from 0.
const PROBED: u8 = 255;

/// A worker's host. Whole unless told otherwise.
#[derive(Debug, Clone)]
pub struct Host {
    number: u8,
    state: Arc<Mutex<State>>,
}

/// What its line does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Whole,
    Cut,
    Silent,
}

/// A line that can be disturbed, whatever it is made of.
#[derive(Debug, Clone)]
pub enum Line {
    /// A proxy between two processes.
    Proxy(Cutter),
    /// All of a worker's host.
    Host(Host),
}

/// All hosts of a fleet; dropped, they are gone.
#[derive(Debug, Default)]
pub(super) struct Hosts(Vec<Host>);

/// Whether this program may have hosts: root, `ip`, `unshare` and `nsenter`, and a kernel that lets it. Tries all of it.
///
/// # Errors
/// What is missing, in a line.
pub fn probe() -> Result<(), String> {
    let enter = enter_line(PROBED);
    let all = [
        SETTLE.to_owned(),
        up(PROBED),
        cut(PROBED),
        silence(PROBED),
        format!("{} true", enter.join(" ")),
    ];
    let mut command = private();
    command.arg(all.join(" && ")).stdin(Stdio::null());
    let output = command.output().map_err(|error| format!("unshare: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(said.lines().next().unwrap_or("no word").to_owned())
        }
    }
}

/// Whether this program is in its private namespace.
#[must_use]
pub fn is_inside() -> bool {
    std::env::var_os(MARKER).is_some()
}

/// Executes this program anew, with the same arguments, in a private namespace: the same process, so signals, output and exit
/// code are what they were. Call it before threads matter.
///
/// # Errors
/// Returns only if it could not.
pub fn enter() -> anyhow::Error {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return anyhow::Error::new(error).context("could not find this program's own path"),
    };
    let mut command = private();
    command.arg(format!("{SETTLE} && exec \"$0\" \"$@\""));
    command.arg(program).args(std::env::args_os().skip(1)).env(MARKER, "1");
    anyhow::Error::new(command.exec()).context("could not execute unshare")
}

/// A shell in a network and a mount namespace of its own; its script is the next argument.
fn private() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--propagation", "private", "--", "sh", "-c"]);
    command
}

// === impl Hosts ===

impl Hosts {
    /// One more host, with its line to us.
    pub(super) fn add(&mut self) -> Result<Host> {
        ensure!(is_inside(), "hosts need a private namespace: call `hosts::enter` first");
        let number = u8::try_from(self.0.len()).ok().filter(|number| *number < PROBED);
        let number = number.with_context(|| format!("a fleet has at most {PROBED} hosts"))?;
        // Before it is made: half of one is removed as well.
        let host = Host {
            number,
            state: Arc::new(Mutex::new(State::Whole)),
        };
        self.0.push(host.clone());
        shell(&up(number))?;
        Ok(host)
    }

    pub(super) fn heal_all(&self) {
        for host in &self.0 {
            if let Err(error) = host.heal() {
                eprintln!("testkit: {error:#}");
            }
        }
    }

    pub(super) fn get(&self, index: usize) -> Option<&Host> {
        self.0.get(index)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in &self.0 {
            // Their processes are gone; what cannot be removed goes with our own namespace.
            let _ = shell(&down(host.number));
        }
    }
}

// === impl Host ===

impl Host {
    /// Ours, as the host sees it.
    pub(super) fn outside(&self) -> Ipv4Addr {
        outside(self.number)
    }

    /// Where its gateway listens and is reached.
    pub(super) fn gateway(&self) -> SocketAddr {
        SocketAddr::from((inside(self.number), GATEWAY_PORT))
    }

    /// What goes before a command line to have it executed there; it keeps its process id.
    pub(super) fn enter_line(&self) -> Vec<OsString> {
        enter_line(self.number).into_iter().map(OsString::from).collect()
    }

    fn change(&self, to: State) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let undo = match *state {
            State::Whole => None,
            State::Cut => Some(join(self.number)),
            State::Silent => Some(speak(self.number)),
        };
        if let Some(undo) = undo {
            shell(&undo)?;
            *state = State::Whole;
        }
        match to {
            State::Whole => return Ok(()),
            State::Cut => shell(&cut(self.number))?,
            State::Silent => shell(&silence(self.number))?,
        }
        *state = to;
        Ok(())
    }

    fn heal(&self) -> Result<()> {
        self.change(State::Whole)
    }
}

// === impl Line ===

impl Line {
    /// Errors: connections are reset (at a host: those on which something is said), new ones fail.
    ///
    /// # Errors
    /// When a host's network cannot be changed.
    pub fn cut(&self) -> Result<()> {
        match self {
            Self::Proxy(cutter) => cutter.cut(),
            Self::Host(host) => host.change(State::Cut)?,
        }
        Ok(())
    }

    /// Silence: nothing goes through, nobody is told.
    ///
    /// # Errors
    /// When a host's network cannot be changed.
    pub fn blackhole(&self) -> Result<()> {
        match self {
            Self::Proxy(cutter) => cutter.blackhole(),
            Self::Host(host) => host.change(State::Silent)?,
        }
        Ok(())
    }

    /// Undoes either.
    ///
    /// # Errors
    /// When a host's network cannot be changed.
    pub fn heal(&self) -> Result<()> {
        match self {
            Self::Proxy(cutter) => cutter.heal(),
            Self::Host(host) => host.heal()?,
        }
        Ok(())
    }
}

fn outside(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 213, number, 1)
}

fn inside(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 213, number, 2)
}

fn enter_line(number: u8) -> [String; 3] {
    [
        "nsenter".to_owned(),
        format!("--net=/run/netns/host{number}"),
        "--".to_owned(),
    ]
}

/// The same on both ends: `ip` here and there, each with the other's address.
fn both(number: u8, ours: impl Fn(Ipv4Addr, &str) -> String) -> String {
    let here = ours(inside(number), &format!("host{number}"));
    let there = ours(outside(number), "eth0");
    format!("ip {here} && ip -n host{number} {there}")
}

fn up(number: u8) -> String {
    let (name, out, ins) = (format!("host{number}"), outside(number), inside(number));
    [
        format!("ip netns add {name}"),
        format!("ip link add {name} type veth peer name eth0 netns {name}"),
        format!("ip addr add {out}/30 dev {name}"),
        format!("ip link set {name} up"),
        format!("ip -n {name} link set lo up"),
        format!("ip -n {name} addr add {ins}/30 dev eth0"),
        format!("ip -n {name} link set eth0 up"),
    ]
    .join(" && ")
}

/// The line goes with either of its ends.
fn down(number: u8) -> String {
    format!("ip link del host{number}; ip netns del host{number}")
}

fn cut(number: u8) -> String {
    both(number, |other, _| format!("addr add {other}/32 dev lo"))
}

fn join(number: u8) -> String {
    both(number, |other, _| format!("addr del {other}/32 dev lo"))
}

fn silence(number: u8) -> String {
    both(number, |other, line| {
        format!("neigh replace {other} lladdr {NOBODY} dev {line} nud permanent")
    })
}

fn speak(number: u8) -> String {
    both(number, |other, line| format!("neigh del {other} dev {line}"))
}

fn shell(script: &str) -> Result<()> {
    let output = Command::new("sh").args(["-c", script]).stdin(Stdio::null()).output()?;
    if !output.status.success() {
        bail!("`{script}`: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_is_told_of_the_other() {
        assert_eq!(
            cut(3),
            "ip addr add 10.213.3.2/32 dev lo && ip -n host3 addr add 10.213.3.1/32 dev lo"
        );
        assert_eq!(
            silence(3),
            "ip neigh replace 10.213.3.2 lladdr 02:00:00:00:00:01 dev host3 nud permanent && \
             ip -n host3 neigh replace 10.213.3.1 lladdr 02:00:00:00:00:01 dev eth0 nud permanent"
        );
        // What is undone is what was done.
        assert_eq!(join(3), cut(3).replace(" add ", " del "));
        assert!(speak(3).starts_with("ip neigh del 10.213.3.2 dev host3 && "));
    }

    #[test]
    fn host_is_entered_by_name() {
        assert_eq!(enter_line(0), ["nsenter", "--net=/run/netns/host0", "--"]);
        let host = Host {
            number: 7,
            state: Arc::new(Mutex::new(State::Whole)),
        };
        assert_eq!(host.gateway().to_string(), "10.213.7.2:7500");
        assert_eq!(host.outside().to_string(), "10.213.7.1");
    }

    #[test]
    fn host_needs_a_private_namespace() {
        // Tests are not in one: nothing of this machine may be touched.
        assert!(
            Hosts::default()
                .add()
                .is_err_and(|error| error.to_string().contains("private"))
        );
    }
}
