//! The debugging port: Chromium's small HTTP server and its WebSocket upgrade.
//!
//! Its own file because this is what the grid's probes and clients meet first. One thread per connection, requests
//! without bodies only.
//!
//! Invariant: what Chromium refuses is refused here too: a `Host` that is neither an address nor localhost (500), an
//! `Origin` that was not allowed (403), an unknown target (500).

use std::{
    io::{self, BufRead, BufReader, Write},
    net::{IpAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use crate::{
    browser::Browser,
    faults, methods,
    options::{Fault, Options},
    sink::Sink,
    ws,
};

/// How connections are treated.
#[derive(Clone)]
struct Manners {
    hangs: bool,
    garbage: bool,
    allow_origins: Option<String>,
}

struct Request {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
}

pub fn serve(listener: &TcpListener, browser: &Arc<Browser>, options: &Options) -> io::Result<()> {
    let manners = Manners {
        hangs: options.faults.contains(&Fault::HangOnConnect),
        garbage: options.faults.contains(&Fault::Garbage),
        allow_origins: options.allow_origins.clone(),
    };
    loop {
        let (stream, _) = listener.accept()?;
        faults::gate();
        let (browser, manners) = (Arc::clone(browser), manners.clone());
        crate::spawn("connection", move || {
            // A client that breaks off is everyday life, not worth a word.
            let _ = converse(stream, &browser, &manners);
        })?;
    }
}

fn converse(stream: TcpStream, browser: &Arc<Browser>, manners: &Manners) -> io::Result<()> {
    stream.set_nodelay(true)?;
    if manners.hangs {
        faults::park();
    }
    let mut input = BufReader::with_capacity(4096, stream.try_clone()?);
    let mut output = stream;
    while let Some(request) = Request::read(&mut input)? {
        faults::gate();
        if let Some(refusal) = refusal(&request, manners) {
            return respond(&mut output, refusal.0, "text/plain", refusal.1);
        }
        if request
            .header("upgrade")
            .is_some_and(|upgrade| upgrade.eq_ignore_ascii_case("websocket"))
        {
            return upgrade(input, output, &request, browser, manners);
        }
        match document(&request, browser) {
            Some(body) => respond(
                &mut output,
                "200 OK",
                "application/json; charset=UTF-8",
                &format!("{body:#}"),
            )?,
            None => respond(&mut output, "404 Not Found", "text/html", "Unknown command")?,
        }
    }
    Ok(())
}

fn refusal(request: &Request, manners: &Manners) -> Option<(&'static str, &'static str)> {
    if !request.header("host").is_none_or(is_local_name) {
        let why = "Host header is specified and is not an IP address or localhost.";
        return Some(("500 Internal Server Error", why));
    }
    let origin = request.header("origin")?;
    let allowed = manners
        .allow_origins
        .as_deref()
        .is_some_and(|list| list.split(',').any(|o| o == "*" || o == origin));
    (!allowed).then_some((
        "403 Forbidden",
        "Rejected an incoming WebSocket connection from this origin.",
    ))
}

fn is_local_name(host: &str) -> bool {
    let name = host
        .rsplit_once(':')
        .map_or(host, |(name, _)| name)
        .trim_matches(['[', ']']);
    name == "localhost" || name.ends_with(".localhost") || name.parse::<IpAddr>().is_ok()
}

fn document(request: &Request, browser: &Browser) -> Option<Value> {
    let host = request.header("host").unwrap_or("127.0.0.1");
    match request.path.split('?').next()?.trim_end_matches('/') {
        "/json/version" => Some(browser.version_document(host)),
        "/json" | "/json/list" => Some(browser.list_document(host)),
        "/json/protocol" => Some(json!({"version": {"major": "1", "minor": "3"}, "domains": []})),
        _ => None,
    }
}

fn upgrade(
    mut input: BufReader<TcpStream>,
    mut output: TcpStream,
    request: &Request,
    browser: &Arc<Browser>,
    manners: &Manners,
) -> io::Result<()> {
    let page = match request.path.strip_prefix("/devtools/page/") {
        Some(id) if browser.has_target(id) => Some(id.to_owned()),
        None if request.path == format!("/devtools/browser/{}", browser.uuid) => None,
        _ => {
            return respond(
                &mut output,
                "500 Internal Server Error",
                "text/plain",
                "No such target id",
            );
        }
    };
    let (Some(key), "GET") = (request.header("sec-websocket-key"), request.method.as_str()) else {
        return respond(
            &mut output,
            "400 Bad Request",
            "text/plain",
            "not a WebSocket handshake",
        );
    };
    let accept = derive_accept_key(key.as_bytes());
    write!(
        output,
        "HTTP/1.1 101 WebSocket Protocol Handshake\r\nUpgrade: WebSocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    )?;
    let sink = Arc::new(Sink::Socket(Mutex::new(output)));
    if manners.garbage {
        return sink.raw(faults::GARBAGE);
    }
    let client = browser.connect(Arc::clone(&sink), page);
    let end = loop {
        match ws::read_message(&mut input, &sink) {
            Ok(Some(message)) => {
                faults::gate();
                methods::serve(browser, client, &sink, &message);
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    browser.disconnect(client);
    end
}

fn respond(output: &mut TcpStream, status: &str, kind: &str, body: &str) -> io::Result<()> {
    let length = body.len();
    let text = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{body}");
    output.write_all(text.as_bytes())
}

// === impl Request ===

impl Request {
    /// The next request's head, or `None` at the end of the connection.
    fn read(input: &mut impl BufRead) -> io::Result<Option<Self>> {
        let mut line = String::new();
        if input.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let mut words = line.split_whitespace();
        let (method, path) = (
            words.next().unwrap_or_default().to_owned(),
            words.next().unwrap_or_default().to_owned(),
        );
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            if input.read_line(&mut line)? == 0 || line.trim().is_empty() {
                return Ok(Some(Self { method, path, headers }));
            }
            if let Some((name, value)) = line.split_once(':') {
                headers.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
            }
        }
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }
}
