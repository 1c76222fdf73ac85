//! `fake-browser`: a stand-in for Chromium's executable that costs a megabyte and misbehaves on request.
//!
//! Its own program, because the grid launches a *binary*: only a real process has an exit status, a process group,
//! a pipe on fds 3 and 4 and a port of its own. It takes Chromium's command line, speaks enough CDP for raw clients
//! and for puppeteer's `connect()`, and every way in which a browser fails is a switch (`--fake-fault=…`, see
//! [`options`]) or a CDP method (`Fake.…`, see [`methods`]).
//!
//! Invariant: without a fault switch it behaves as Chromium does in everything the grid looks at: the ready line,
//! `DevToolsActivePort`, exit on `Browser.close`, exit when the pipe closes, refusal of foreign hosts and origins.
//!
//! Plain std and one small-stacked thread per connection instead of a runtime: thousands must fit on one machine.

mod browser;
mod evaluate;
mod faults;
mod http;
mod methods;
mod options;
mod pages;
mod sink;
mod targets;
mod ws;

use std::{
    fs,
    io::{self, Write},
    net::{Ipv4Addr, TcpListener},
    process::ExitCode,
    sync::Arc,
    thread,
};

use crate::{browser::Browser, options::Options};

/// Enough for one JSON document; the default of 2 MiB would only cost address space, but thousands add up.
const STACK: usize = 128 * 1024;

fn main() -> ExitCode {
    let options = match Options::parse(
        std::env::args().skip(1),
        std::env::var(options::FAULTS_ENV).ok().as_deref(),
    ) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("fake-browser: {problem}");
            return ExitCode::from(64);
        }
    };
    if options.version {
        println!("{}", browser::VERSION_LINE);
        return ExitCode::SUCCESS;
    }
    if options.help {
        print!("{}", options::HELP);
        return ExitCode::SUCCESS;
    }
    match run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fake-browser: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> io::Result<()> {
    if options.leaked_child {
        return faults::live_as_leaked_child();
    }
    faults::before_ready(&options)?;
    let listener = options
        .port
        .map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)))
        .transpose()?;
    let port = listener
        .as_ref()
        .map(TcpListener::local_addr)
        .transpose()?
        .map(|addr| addr.port());
    let browser = Arc::new(Browser::new(&options)?);
    if let Some(port) = port {
        announce(&options, &browser, port)?;
    }
    faults::after_ready(&options);
    if options.pipe {
        let browser = Arc::clone(&browser);
        spawn("pipe", move || sink::serve_pipe(&browser))?;
    }
    match listener {
        Some(listener) if !options.refuses_connections() => http::serve(&listener, &browser, &options),
        // With `refuse_connect` the port was announced and is closed again: the next connection is refused.
        closed => {
            drop(closed);
            faults::park()
        }
    }
}

/// Tells the world where to connect, in Chromium's two ways.
fn announce(options: &Options, browser: &Browser, port: u16) -> io::Result<()> {
    let path = format!("/devtools/browser/{}", browser.uuid);
    if let Some(dir) = &options.user_data_dir {
        fs::create_dir_all(dir)?;
        fs::write(dir.join("DevToolsActivePort"), format!("{port}\n{path}"))?;
    }
    writeln!(io::stderr(), "\nDevTools listening on ws://127.0.0.1:{port}{path}")
}

/// Starts a thread with a small stack.
fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new()
        .name(name.to_owned())
        .stack_size(STACK)
        .spawn(work)
        .map(drop)
}
