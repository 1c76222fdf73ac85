//! A web server with one small page.
//!
//! Its own file, on a thread of its own with blocking sockets, so that serving the page never waits for the client
//! that measures. The thread ends with the process.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    thread,
};

use anyhow::Result;

pub const TITLE: &str = "Wharf bench";

/// Starts it; returns the page's address.
pub fn start() -> Result<String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let url = format!("http://{}/", listener.local_addr()?);
    thread::Builder::new().name("page".into()).spawn(move || {
        for stream in listener.incoming().flatten() {
            // Browsers open connections ahead of need and keep them: one thread each.
            let _ = thread::Builder::new()
                .stack_size(64 * 1024)
                .spawn(move || serve(stream));
        }
    })?;
    Ok(url)
}

fn serve(mut stream: TcpStream) {
    let body = format!("<!doctype html><title>{TITLE}</title><link rel=icon href=data:,><p>A page.</p>");
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncache-control: no-store\r\n";
    let answer = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = stream.read(&mut buffer) {
        seen.extend_from_slice(&buffer[..read]);
        if seen.ends_with(b"\r\n\r\n") {
            seen.clear();
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }
}
