//! What several topics need: sessions in one line, how they ended, raw sockets, the browsers' processes.
//!
//! Its own file because the tests should read as sentences. Nothing here knows more of wharf than its HTTP API, `/proc`
//! and, once a grid has ended, its store.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use wharf_core::{Clock, Timestamp};
use wharf_store::{Store as _, StoreRules, invariants::violations};
use wharf_store_sqlite::{Durability, SqliteStore};
use wharf_testkit::{Grid, Http, eventually, patience, processes};

/// A session of the API, as it was answered.
pub async fn create(grid: &Grid, body: Value) -> Result<Value> {
    grid.http().post("/v1/sessions", &body).await?.expect(201)
}

/// A session that is answered at once, with its place in the queue if it has to wait.
pub async fn create_async(grid: &Grid, body: Value) -> Result<Value> {
    let http = grid.http().header("prefer", "respond-async");
    http.post("/v1/sessions", &body).await?.expect(202)
}

pub fn id(session: &Value) -> String {
    session["id"].as_str().unwrap_or_default().to_owned()
}

/// Where to attach to a session.
pub fn attach_path(session: &Value) -> String {
    format!("/devtools/browser/{}", id(session))
}

pub async fn get(grid: &Grid, session: &str) -> Result<Value> {
    grid.http().get(&format!("/v1/sessions/{session}")).await?.expect(200)
}

pub async fn release(grid: &Grid, session: &str) -> Result<()> {
    let reply = grid.http().delete(&format!("/v1/sessions/{session}")).await?;
    reply.expect(204).map(drop)
}

/// The sessions of a list or history answer.
pub async fn listed(grid: &Grid, path: &str) -> Result<Vec<Value>> {
    let mut answer = grid.http().get(path).await?.expect(200)?;
    match answer["sessions"].take() {
        Value::Array(sessions) => Ok(sessions),
        other => bail!("{path} answered no list but {other}"),
    }
}

/// Waits until there are exactly so many sessions in a state.
pub async fn count_is(grid: &Grid, status: &str, count: usize) -> Result<Vec<Value>> {
    eventually(format!("{count} sessions {status}"), async || {
        let sessions = listed(grid, &format!("/v1/sessions?status={status}&limit=1000")).await?;
        ensure!(sessions.len() == count, "{} are {status}", sessions.len());
        Ok(sessions)
    })
    .await
}

/// The one active session.
pub async fn only_active(grid: &Grid) -> Result<String> {
    Ok(id(&count_is(grid, "active", 1).await?[0]))
}

pub async fn becomes_active(grid: &Grid, session: &str) -> Result<Value> {
    eventually(format!("{session} to be active"), async || {
        let body = get(grid, session).await?;
        ensure!(body["status"] == "active", "it is {}", body["status"]);
        Ok(body)
    })
    .await
}

/// Waits until a session has ended; the reason, and the message of the 404 that tells it.
pub async fn end_of(grid: &Grid, session: &str) -> Result<(String, String)> {
    eventually(format!("the end of {session}"), async || {
        let reply = grid.http().get(&format!("/v1/sessions/{session}")).await?;
        ensure!(reply.status == 404, "it is {}", reply.text());
        let error = reply.json()?["error"].take();
        ensure!(error["code"] == "session_ended", "{error}");
        let text = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
        Ok((text("reason"), text("message")))
    })
    .await
}

/// Waits for the end of a session with this reason.
pub async fn ends_as(grid: &Grid, session: &str, reason: &str) -> Result<String> {
    let (found, message) = end_of(grid, session).await?;
    ensure!(found == reason, "expected {reason}, it ended with {found}: {message}");
    Ok(message)
}

/// The newest entry of the history.
pub async fn last_ended(grid: &Grid) -> Result<Value> {
    let history = listed(grid, "/v1/sessions/history?limit=1").await?;
    history.into_iter().next().context("the history is empty")
}

/// Waits until a metric has this value.
pub async fn metric_is(grid: &Grid, query: &str, value: f64) -> Result<()> {
    eventually(format!("{query} to be {value}"), async || {
        let now = grid.metric(query).await?;
        ensure!(now == value, "it is {now}");
        Ok(())
    })
    .await
}

/// Every slot works: as many sessions at once as there are slots, each with a browser that answers, then all released.
pub async fn is_whole(grid: &Grid, slots: usize) -> Result<()> {
    let mut sessions = Vec::new();
    for _ in 0..slots {
        let session = create(grid, json!({})).await?;
        let mut cdp = grid.cdp(&attach_path(&session)).await?;
        cdp.call("Browser.getVersion", json!({})).await?;
        cdp.close().await;
        sessions.push(id(&session));
    }
    for session in sessions {
        release(grid, &session).await?;
    }
    grid.leak_check().await
}

/// The main processes of the browsers: those with a debugging pipe that are nobody's helper.
pub fn browser_roots(grid: &Grid) -> Vec<u32> {
    let is_root = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let has = |flag: &[u8]| line.split(|byte| *byte == 0).any(|word| word.starts_with(flag));
        has(b"--remote-debugging-pipe") && !has(b"--type=")
    };
    grid.browser_pids().into_iter().filter(is_root).collect()
}

/// The only browser there is.
pub async fn only_browser(grid: &Grid) -> Result<u32> {
    eventually("exactly one browser", async || match browser_roots(grid)[..] {
        [pid] => Ok(pid),
        ref pids => bail!("there are {pids:?}"),
    })
    .await
}

pub fn signal(pid: u32, signal: Signal) -> Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("a pid")?;
    Ok(kill_process(pid, signal)?)
}

pub async fn is_gone(pid: u32) -> Result<()> {
    eventually(format!("the end of process {pid}"), async || {
        ensure!(!processes::is_alive(pid), "it lives: {}", processes::command_line(pid));
        Ok(())
    })
    .await
}

/// A socket for requests that no HTTP library would send.
pub struct Raw(pub TcpStream);

/// A raw answer.
#[derive(Debug)]
pub struct RawReply {
    pub status: u16,
    pub head: String,
    pub body: String,
}

// === impl Raw ===

impl Raw {
    pub async fn connect(addr: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        Ok(Self(stream))
    }

    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) -> Result<()> {
        Ok(self.0.write_all(bytes.as_ref()).await?)
    }

    /// Reads one whole answer.
    pub async fn reply(&mut self) -> Result<RawReply> {
        let mut bytes = Vec::new();
        let end = loop {
            if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            ensure!(
                self.read_into(&mut bytes).await? > 0,
                "the connection ended after {bytes:?}"
            );
        };
        let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|word| word.parse().ok())
            .context("no status")?;
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
        let length: usize = length.unwrap_or(0);
        while bytes.len() < end + length {
            ensure!(self.read_into(&mut bytes).await? > 0, "the body was cut short");
        }
        let body = String::from_utf8_lossy(&bytes[end..]).into_owned();
        Ok(RawReply { status, head, body })
    }

    /// Everything until the other side ends the connection.
    pub async fn rest(&mut self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while self.read_into(&mut bytes).await? > 0 {}
        Ok(bytes)
    }

    async fn read_into(&mut self, bytes: &mut Vec<u8>) -> Result<usize> {
        let limit = patience();
        let read = tokio::time::timeout(limit, self.0.read_buf(bytes)).await;
        match read.with_context(|| format!("nothing came within {limit:?}"))? {
            // Whether an abandoned connection ends with FIN or RST is the kernel's choice.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Ok(0),
            result => Ok(result?),
        }
    }
}

/// Long after any test: whatever time may end has ended by then.
struct Afterwards;

impl Clock for Afterwards {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(4_102_444_800_000_000)
    }
}

/// Ends the grid and asks its store: no invariant is broken, everybody has ended once, no slot is held.
pub async fn store_is_sound(grid: &mut Grid) -> Result<()> {
    grid.terminate().await?;
    let path = grid.data_dir().join("wharf.db");
    let store = SqliteStore::open(
        &path,
        Durability::default(),
        Arc::new(Afterwards),
        StoreRules::default(),
    )?;
    let snapshot = store.snapshot().await?;
    let broken = violations(&snapshot);
    ensure!(broken.is_empty(), "{broken:?}");
    ensure!(!snapshot.sessions.is_empty(), "the store of the grid is another one");
    ensure!(snapshot.leases.is_empty(), "slots are held: {:?}", snapshot.leases);
    let alive: Vec<_> = snapshot
        .sessions
        .iter()
        .filter(|record| !record.state.is_ended())
        .collect();
    ensure!(alive.is_empty(), "not ended: {alive:?}");
    Ok(store.close().await?)
}

/// Each of these requests (method, path, body) is refused with 400, in words that contain the last part.
pub async fn refuses(grid: &Grid, cases: &[(Method, &str, &str, &str)]) -> Result<()> {
    for (method, path, body, part) in cases {
        let kind = (!body.is_empty()).then_some("application/json");
        let reply = grid
            .http()
            .raw(method.clone(), path, kind, Bytes::from((*body).to_owned()))
            .await?;
        let (status, text) = (reply.status, reply.text());
        ensure!(
            status == 400 && text.contains(part),
            "{method} {path} {body}: {status} {text}"
        );
    }
    Ok(())
}

/// A proper upgrade request for a path, as text.
pub fn upgrade(path: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
}

/// A POST of JSON, as text.
pub fn post(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A client that waits as long as the longest queue.
pub fn patient(grid: &Grid) -> Http {
    grid.http().limit(patience() * 4 + Duration::from_secs(60))
}
