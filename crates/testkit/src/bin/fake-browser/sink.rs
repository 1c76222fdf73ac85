//! Where a client's messages go: a WebSocket or the control pipe.
//!
//! Its own file because events for one client are written by the threads of others: a sink serialises whole messages.
//! The pipe's reader lives here too, being ten lines.
//!
//! Invariant: a message is written whole or the client is gone; two messages never mix.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufRead, BufReader, Write},
    net::TcpStream,
    sync::{Arc, Mutex, PoisonError},
};

use crate::{browser::Browser, faults, methods, ws};

pub enum Sink {
    Socket(Mutex<TcpStream>),
    Pipe(Mutex<File>),
}

// === impl Sink ===

impl Sink {
    pub fn send(&self, text: &str) -> io::Result<()> {
        faults::gate();
        match self {
            Self::Socket(stream) => ws::write_frame(&mut *hold(stream), ws::TEXT, text.as_bytes()),
            Self::Pipe(pipe) => {
                let mut pipe = hold(pipe);
                pipe.write_all(text.as_bytes())?;
                pipe.write_all(&[0])
            }
        }
    }

    /// Answers a control frame; the pipe has none.
    pub fn control(&self, opcode: u8, payload: &[u8]) -> io::Result<()> {
        faults::gate();
        match self {
            Self::Socket(stream) => ws::write_frame(&mut *hold(stream), opcode, payload),
            Self::Pipe(_) => Ok(()),
        }
    }

    /// Bytes as they are, breaking the protocol on purpose.
    pub fn raw(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Socket(stream) => hold(stream).write_all(bytes),
            Self::Pipe(pipe) => hold(pipe).write_all(bytes),
        }
    }
}

fn hold<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves fds 3 (in) and 4 (out); when the other side closes, the browser exits, as Chromium does.
pub fn serve_pipe(browser: &Arc<Browser>) {
    let code = match pipe_loop(browser) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("fake-browser: remote debugging pipe: {error}");
            1
        }
    };
    faults::gate();
    faults::exit(code)
}

fn pipe_loop(browser: &Arc<Browser>) -> io::Result<()> {
    // Opened by name: taking over a bare descriptor would need unsafe code.
    let mut input = BufReader::with_capacity(4096, File::open("/proc/self/fd/3")?);
    let output = OpenOptions::new().write(true).open("/proc/self/fd/4")?;
    let sink = Arc::new(Sink::Pipe(Mutex::new(output)));
    let client = browser.connect(Arc::clone(&sink), None);
    let mut message = Vec::new();
    loop {
        message.clear();
        if input.read_until(0, &mut message)? == 0 {
            return Ok(());
        }
        message.pop();
        faults::gate();
        methods::serve(browser, client, &sink, &message);
    }
}
