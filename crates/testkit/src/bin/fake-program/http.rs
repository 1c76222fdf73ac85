//! The HTTP side: the contract's five calls, one thread per connection.
//!
//! Its own file because it is what the grid meets. Invariant: a request is either answered as the contract says or
//! misbehaves as the drawn faults say; nothing in between.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::Arc,
    thread,
};

use serde_json::{Value, json};

use crate::{
    faults::{self, Faults},
    options::{Fault, Garbage},
    session::Sessions,
};

/// No HTTP answer begins like this.
const NONSENSE: &[u8] = b"\xff\xfe this is not HTTP \x00\r\n\r\n";
/// More than the grid reads.
const HUGE: usize = 3 << 20;
/// The grid's own limit for data is lower.
const LONGEST_BODY: u64 = 8 << 20;

struct Request {
    method: String,
    path: String,
    body: Vec<u8>,
}

struct Response {
    status: &'static str,
    body: String,
}

pub fn serve(listener: &TcpListener, sessions: &Arc<Sessions>, faults: &Arc<Faults>) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept()?;
        let (sessions, faults) = (Arc::clone(sessions), Arc::clone(faults));
        crate::spawn("connection", move || {
            // A client that breaks off is everyday life, not worth a word.
            let _ = converse(stream, &sessions, &faults);
        })?;
    }
}

/// One request, one answer, close.
fn converse(stream: TcpStream, sessions: &Sessions, faults: &Faults) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut output = stream.try_clone()?;
    let Some(request) = Request::read(&mut BufReader::new(stream))? else {
        return Ok(());
    };
    faults::gate();
    let is_health = request.path == "/health";
    if is_health {
        if let Some(delay) = faults.slow_health() {
            thread::sleep(delay);
        }
    } else if request.path != "/status" {
        faults.on_call(&request.method);
    }
    match (faults.garbage(), is_health) {
        (Some(Garbage::Health), true) | (Some(Garbage::Http), false) => return output.write_all(NONSENSE),
        _ => {}
    }
    answer(&request, sessions, faults).write(&mut output)
}

fn answer(request: &Request, sessions: &Sessions, faults: &Faults) -> Response {
    let id = request.path.strip_prefix("/sessions/");
    match (request.method.as_str(), request.path.as_str(), id) {
        ("GET", "/health", _) if faults.has(&Fault::Sick) => Response::new("503 Service Unavailable", "sick"),
        ("GET", "/health", _) => Response::new("200 OK", "ok"),
        ("GET", "/status", _) => Response::json("200 OK", &sessions.status()),
        ("POST", "/sessions", _) if faults.has(&Fault::RefuseCreate) => {
            Response::new("500 Internal Server Error", "no browser today")
        }
        ("POST", "/sessions", _) => create(request, sessions, faults),
        ("GET", _, Some(id)) => match sessions.get(id).filter(|_| !faults.has(&Fault::Forget)) {
            Some(session) => Response::json("200 OK", &session),
            None => Response::new("404 Not Found", "no such session"),
        },
        ("DELETE", _, Some(id)) if sessions.delete(id) => Response::new("204 No Content", ""),
        _ => Response::new("404 Not Found", "not here"),
    }
}

fn create(request: &Request, sessions: &Sessions, faults: &Faults) -> Response {
    let Ok(data) = serde_json::from_slice(&request.body) else {
        return Response::new("400 Bad Request", "not JSON");
    };
    let mut session = sessions.create(data);
    match faults.garbage() {
        Some(Garbage::Json) => return Response::new("201 Created", "{\"id\": nonsense"),
        Some(Garbage::List) => return Response::json("201 Created", &json!([session])),
        Some(Garbage::NoId) => drop(session.as_object_mut().and_then(|object| object.remove("id"))),
        Some(Garbage::Huge) => session["padding"] = Value::from("x".repeat(HUGE)),
        _ => {}
    }
    Response::json("201 Created", &session)
}

// === impl Request ===

impl Request {
    fn read(input: &mut impl BufRead) -> io::Result<Option<Self>> {
        let mut line = String::new();
        if input.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let mut words = line.split_whitespace().map(str::to_owned);
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let mut length = 0;
        loop {
            let mut line = String::new();
            if input.read_line(&mut line)? == 0 || line.trim().is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        let mut body = Vec::new();
        input.take(length.min(LONGEST_BODY)).read_to_end(&mut body)?;
        Ok(Some(Self { method, path, body }))
    }
}

// === impl Response ===

impl Response {
    fn new(status: &'static str, body: &str) -> Self {
        Self {
            status,
            body: body.to_owned(),
        }
    }

    fn json(status: &'static str, body: &Value) -> Self {
        Self::new(status, &body.to_string())
    }

    fn write(&self, output: &mut TcpStream) -> io::Result<()> {
        let (status, body) = (self.status, &self.body);
        // 204 has no length (RFC 9110 §8.6).
        let length = if body.is_empty() {
            String::new()
        } else {
            format!("Content-Length: {}\r\n", body.len())
        };
        let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\n{length}Connection: close\r\n\r\n");
        output.write_all(format!("{head}{body}").as_bytes())
    }
}
