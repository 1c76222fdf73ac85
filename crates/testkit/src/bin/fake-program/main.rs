//! `fake-program`: a program for the driver `command` that serves one session over HTTP and misbehaves on request.
//!
//! Its own program, because the grid launches a *binary*: only a real process has an exit status, a process group and a
//! port of its own. It follows seed 000's worker contract; every way in which such a program fails is a switch
//! (`--fault=…`, see [`options`]), alone or with a probability, so that of a pool some fail.
//!
//! Invariant: without a fault it serves exactly the contract: `PORT`, `/health`, `/status`, `/sessions`, one session at
//! a time, a new one replaces the old.
//!
//! Plain std and one small-stacked thread per connection instead of a runtime: thousands must fit on one machine.

mod faults;
mod http;
mod options;
mod session;

use std::{
    io,
    net::{Ipv4Addr, TcpListener},
    process::ExitCode,
    sync::Arc,
    thread,
};

use wharf_testkit::misbehave;

use crate::{faults::Faults, options::Options, session::Sessions};

/// Enough for one JSON document; the default of 2 MiB would only cost address space, but thousands add up.
const STACK: usize = 128 * 1024;
/// The usage error of sysexits.h.
const USAGE: u8 = 64;

fn main() -> ExitCode {
    let faults_env = std::env::var(options::FAULTS_ENV).ok();
    let options = match Options::parse(std::env::args().skip(1), faults_env.as_deref()) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("fake-program: {problem}");
            return ExitCode::from(USAGE);
        }
    };
    if options.help {
        print!("{}", options::HELP);
        return ExitCode::SUCCESS;
    }
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fake-program: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> io::Result<()> {
    if options.leaked_child {
        return misbehave::live_as_leaked_child();
    }
    let port: u16 = std::env::var("PORT")
        .ok()
        .and_then(|port| port.parse().ok())
        .ok_or_else(|| io::Error::other("the variable PORT must name the port to listen on"))?;
    let faults = Faults::draw(options)?;
    faults.before_ready(options)?;
    let port = if faults.takes_another_port() { 0 } else { port };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .map_err(|error| io::Error::new(error.kind(), format!("could not listen on port {port}: {error}")))?;
    println!("listening on port {port}");
    faults.after_ready();
    http::serve(&listener, &Arc::new(Sessions::default()), &Arc::new(faults))
}

/// Starts a thread with a small stack.
fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new()
        .name(name.to_owned())
        .stack_size(STACK)
        .spawn(work)
        .map(drop)
}
