//! A browser's standard error (and output, where it is wanted): drained for ever, its end kept, its one useful line read.
//!
//! Its own file because a pipe nobody reads stops the browser that writes to it. The invariant: the drain goes on as
//! long as the browser lives and keeps at most 64 KiB.

use std::{collections::VecDeque, os::fd::OwnedFd, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{io::AsyncReadExt as _, net::unix::pipe, sync::watch, task::JoinSet};

use crate::Endpoint;

const KEPT: usize = 64 * 1024;
/// Enough lines to see a cause, few enough for an error message.
const LAST_LINES: usize = 20;
const LISTENING: &str = "DevTools listening on ws://";

/// The reading end.
#[derive(Debug)]
pub(crate) struct Stderr {
    kept: Arc<Mutex<VecDeque<u8>>>,
    endpoint: watch::Receiver<Option<Endpoint>>,
    _drain: JoinSet<()>,
}

// === impl Stderr ===

impl Stderr {
    /// Starts draining, each stream into the same end; inside a runtime.
    pub(crate) fn drain(streams: impl IntoIterator<Item = OwnedFd>) -> std::io::Result<Self> {
        let kept = Arc::new(Mutex::new(VecDeque::new()));
        let (found, endpoint) = watch::channel(None);
        let mut drain = JoinSet::new();
        for stream in streams {
            let pipe = pipe::Receiver::from_owned_fd(stream)?;
            drain.spawn(run(pipe, Arc::clone(&kept), found.clone()));
        }
        Ok(Self {
            kept,
            endpoint,
            _drain: drain,
        })
    }

    /// Waits for the line that names the port. Cancel-safe. Never resolves if the stream ends without it.
    pub(crate) async fn endpoint(&self) -> Endpoint {
        let mut endpoint = self.endpoint.clone();
        match endpoint.wait_for(Option::is_some).await.map(|found| found.clone()) {
            Ok(Some(endpoint)) => endpoint,
            _ => std::future::pending().await,
        }
    }

    /// Waits, briefly, until everything written has been read: after an exit the last words are still in the pipe. The
    /// stream ends only with the last helper, which is too late for a client that waits to be told.
    pub(crate) async fn settled(&self) {
        let mut endpoint = self.endpoint.clone();
        let closed = async { while endpoint.changed().await.is_ok() {} };
        let _late = tokio::time::timeout(Duration::from_millis(10), closed).await;
    }

    /// The last lines, without the desktop-bus complaints that every headless host produces.
    pub(crate) fn tail(&self) -> String {
        let bytes: Vec<u8> = self.kept.lock().iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| !line.trim().is_empty() && !line.contains(":dbus/"))
            .collect();
        lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
    }
}

async fn run(mut pipe: pipe::Receiver, kept: Arc<Mutex<VecDeque<u8>>>, found: watch::Sender<Option<Endpoint>>) {
    let mut chunk = [0_u8; 4096];
    let mut line = Vec::new();
    loop {
        let count = match pipe.read(&mut chunk).await {
            Ok(0) | Err(_) => return,
            Ok(count) => count,
        };
        let bytes = &chunk[..count];
        {
            let mut kept = kept.lock();
            kept.extend(bytes);
            let excess = kept.len().saturating_sub(KEPT);
            kept.drain(..excess);
        }
        if found.borrow().is_none() {
            look(bytes, &mut line, &found);
        }
    }
}

/// Feeds bytes into `line` until one of them is the wanted one.
fn look(bytes: &[u8], line: &mut Vec<u8>, found: &watch::Sender<Option<Endpoint>>) {
    for byte in bytes {
        if *byte != b'\n' {
            // A line without an end is not the one.
            if line.len() < 4096 {
                line.push(*byte);
            }
            continue;
        }
        if let Some(endpoint) = parse(&String::from_utf8_lossy(line)) {
            found.send_replace(Some(endpoint));
            return;
        }
        line.clear();
    }
}

fn parse(line: &str) -> Option<Endpoint> {
    let rest = line.trim().strip_prefix(LISTENING)?;
    let (addr, path) = rest.split_at(rest.find('/')?);
    Some(Endpoint {
        addr: addr.parse().ok()?,
        path: path.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_line_is_found_across_chunks_and_garbage() {
        let (found, seen) = watch::channel(None);
        let mut line = Vec::new();
        for chunk in [
            "noise\n\nDevTools listening on ws://",
            "127.0.0.1:4567/devtools/browser/ab",
            "-cd\nmore",
        ] {
            look(chunk.as_bytes(), &mut line, &found);
        }
        let endpoint = seen.borrow().clone().unwrap();
        assert_eq!(endpoint.addr.to_string(), "127.0.0.1:4567");
        assert_eq!(endpoint.path, "/devtools/browser/ab-cd");
        assert_eq!(parse("DevTools listening on ws://nonsense"), None);
    }
}
