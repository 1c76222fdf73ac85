//! What every client does the same way: asking for a session, attaching, calling, releasing. Nothing waits for ever.
//!
//! Its own file because the limit "answered within a minute" is kept here for all of them.

use std::{
    net::SocketAddr,
    str::FromStr,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock};
use serde_json::{Value, json};
use tokio::time::timeout;
use wharf_core::EndReason;
use wharf_testkit::{Cdp, Http};

use crate::{
    book::Book,
    outcome::Outcome,
    told::{Span, Told},
};

/// A client that is not told anything for this long is a finding.
pub const LIMIT: Duration = Duration::from_secs(60);
/// In the queue, in seconds. With a held coordinator and a held store it stays below the limit.
const QUEUE: u64 = 20;
/// Sessions that were forgotten go soon: their slots are wanted.
const IDLE: u64 = 12;
const CONNECT: u64 = 6;

/// What clients know.
pub struct World {
    pub book: Arc<Book>,
    pub seed: u64,
    /// The balancer.
    pub door: SocketAddr,
    pub coordinators: Vec<SocketAddr>,
    /// The workers' ids, by number.
    pub workers: RwLock<Vec<Option<String>>>,
}

/// A session that a client has.
#[derive(Debug)]
pub struct Own {
    pub id: String,
    pub worker: Option<usize>,
    attached: Mutex<Vec<Span>>,
}

// === impl Own ===

impl Own {
    /// Over a connection from now on.
    fn attached(&self) {
        let now = Instant::now();
        self.attached.lock().push(Span { from: now, to: now });
    }

    /// The connection was there until now.
    pub fn is_attached(&self) {
        if let Some(span) = self.attached.lock().last_mut() {
            span.to = Instant::now();
        }
    }
}

// === impl World ===

impl World {
    pub fn http(&self, addr: SocketAddr) -> Http {
        Http::new(addr).limit(LIMIT)
    }

    /// Asks for a session through the balancer.
    pub async fn create(&self, label: &str, operation: &str, key: Option<&str>) -> Result<Own, Outcome> {
        let body = json!({
            "data": {"label": label, "key": key}, "operation": operation,
            "queue_timeout": QUEUE, "idle_timeout": IDLE, "connect_timeout": CONNECT,
        });
        let mut http = self.http(self.door);
        if let Some(key) = key {
            http = http.header("idempotency-key", key);
        }
        let reply = http.post("/v1/sessions", &body).await;
        let reply = reply.map_err(|error| Outcome::of_transport(&error))?;
        match Outcome::of_reply(&reply) {
            Outcome::Done => self.own(&reply.json().unwrap_or_default()),
            other => Err(other),
        }
    }

    fn own(&self, body: &Value) -> Result<Own, Outcome> {
        let text = |name: &str| body[name].as_str().map(str::to_owned);
        match (text("id"), text("status").as_deref()) {
            (Some(id), Some("active")) => Ok(Own {
                id,
                worker: text("worker").and_then(|worker| self.number(&worker)),
                attached: Mutex::default(),
            }),
            (Some(_), Some("ended")) => Err(Outcome::Closed(text("reason").unwrap_or_default())),
            _ => Err(Outcome::Strange(format!("a session that is not active: {body}"))),
        }
    }

    /// Which of the fleet's workers it is.
    pub fn number(&self, worker: &str) -> Option<usize> {
        let workers = self.workers.read();
        workers.iter().position(|known| known.as_deref() == Some(worker))
    }

    /// Opens a WebSocket at a path.
    pub async fn connect(&self, addr: SocketAddr, path: &str) -> Result<Cdp, Outcome> {
        let url = format!("ws://{addr}{path}");
        match timeout(LIMIT, Cdp::connect(&url)).await {
            Ok(Ok(mut cdp)) => {
                cdp.set_limit(LIMIT);
                Ok(cdp)
            }
            Ok(Err(error)) => Err(Outcome::of_error(&error)),
            Err(_) => Err(Outcome::Unanswered(format!(
                "no answer to the upgrade of {path} within {LIMIT:?}"
            ))),
        }
    }

    pub async fn attach(&self, addr: SocketAddr, own: &Own) -> Result<Cdp, Outcome> {
        let cdp = self.connect(addr, &format!("/devtools/browser/{}", own.id)).await?;
        own.attached();
        Ok(cdp)
    }

    pub async fn release(&self, own: &Own) -> Outcome {
        let reply = self.http(self.door).delete(&format!("/v1/sessions/{}", own.id)).await;
        match reply {
            Ok(reply) => Outcome::of_reply(&reply),
            Err(error) => Outcome::of_transport(&error),
        }
    }

    /// Releases what a visit had, and says how the visit ended: by what it was told first.
    pub async fn finish(&self, own: &Own, used: Result<(), Outcome>) -> Result<(), Outcome> {
        let told_at = Instant::now();
        let released = self.release(own).await;
        let (outcome, at) = match used {
            Err(outcome) => (outcome, told_at),
            Ok(()) => (released, Instant::now()),
        };
        self.note(own, &outcome, at);
        match outcome {
            Outcome::Done => Ok(()),
            other => Err(other),
        }
    }

    fn note(&self, own: &Own, outcome: &Outcome, at: Instant) {
        let Outcome::Closed(reason) = outcome else { return };
        if let (Ok(reason), Some(worker)) = (EndReason::from_str(reason), own.worker) {
            let told = Told {
                session: own.id.clone(),
                worker,
                reason,
                at,
                attached: own.attached.lock().clone(),
            };
            self.book.write(|pages| pages.told.push(told));
        }
    }
}

/// A few calls, each answered or the end of the connection.
pub async fn calls(cdp: &mut Cdp, count: usize, think: Duration) -> Result<(), Outcome> {
    for number in 0..count {
        // What the fake and the real browser answer alike.
        let method = ["Browser.getVersion", "Target.getTargets"][number % 2];
        let answer = cdp.call(method, json!({})).await;
        answer.map_err(|error| Outcome::of_error(&error))?;
        tokio::time::sleep(think).await;
    }
    Ok(())
}

/// The same on a session of one's own: how long the connection was there is noted.
pub async fn own_calls(own: &Own, cdp: &mut Cdp, count: usize, think: Duration) -> Result<(), Outcome> {
    let made = calls(cdp, count, think).await;
    own.is_attached();
    made
}

/// Closes properly; a socket that does not answer is not waited for.
pub async fn close(cdp: Cdp) {
    let _ = timeout(Duration::from_secs(5), cdp.close()).await;
}
