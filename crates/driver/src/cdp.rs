//! A thin client of the DevTools protocol over the private pipe.
//!
//! Its own file because the transport has rules of its own: NUL-terminated JSON, a reader that must never stop (a full
//! pipe blocks the browser), and only the envelope typed, so that a new browser's new values lose nothing. The
//! invariant: every call ends, by an answer, by its caller's deadline or by the pipe's death; memory is bounded by the
//! message cap.

use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::unix::pipe,
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::{Instant, timeout_at},
};

/// A target list of ten thousand pages fits; a longer message is skipped, not stored.
const LONGEST_MESSAGE: usize = 8 * 1024 * 1024;
/// Our own calls are few; a browser that stopped reading fills this and then its callers' deadlines strike.
const WRITE_QUEUE: usize = 32;

/// Why a call on the control channel failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ControlError {
    /// No answer in time.
    #[error("no answer to `{method}` within {} ms", limit.as_millis())]
    Timeout {
        /// What was asked.
        method: &'static str,
        /// How long.
        limit: Duration,
    },
    /// The browser closed its end.
    #[error("the control channel is closed")]
    Closed,
    /// It refused.
    #[error("`{method}` was refused: {message} ({code})")]
    Refused {
        /// What was asked.
        method: &'static str,
        /// Its code.
        code: i64,
        /// Its words.
        message: String,
    },
    /// It answered something else.
    #[error("the answer to `{method}` cannot be read: {problem}")]
    Unreadable {
        /// What was asked.
        method: &'static str,
        /// Why.
        problem: String,
    },
}

/// One question.
pub(crate) struct Call<'a, P> {
    pub(crate) method: &'static str,
    pub(crate) params: P,
    pub(crate) session: Option<&'a str>,
    pub(crate) limit: Duration,
}

#[derive(Serialize)]
struct Outgoing<'a, P> {
    id: u64,
    method: &'a str,
    params: P,
    #[serde(rename = "sessionId", skip_serializing_if = "Option::is_none")]
    session: Option<&'a str>,
}

#[derive(Deserialize)]
struct Incoming<'a> {
    id: Option<u64>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    error: Option<Refusal>,
}

#[derive(Deserialize)]
struct Refusal {
    #[serde(default)]
    code: i64,
    #[serde(default)]
    message: String,
}

type Answer = Result<Box<RawValue>, Refusal>;
/// `None` once the pipe is dead.
type Pending = Arc<Mutex<Option<HashMap<u64, oneshot::Sender<Answer>>>>>;

/// The client.
#[derive(Debug)]
pub(crate) struct Cdp {
    pending: PendingCalls,
    next: AtomicU64,
    outbox: mpsc::Sender<Vec<u8>>,
    _tasks: JoinSet<()>,
}

struct PendingCalls(Pending);

impl std::fmt::Debug for PendingCalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PendingCalls")
    }
}

/// Forgets a call whose caller left.
struct Forget<'a>(&'a Pending, u64);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        if let Some(pending) = self.0.lock().as_mut() {
            pending.remove(&self.1);
        }
    }
}

// === impl Cdp ===

impl Cdp {
    /// Takes our two ends of the pipe; inside a runtime.
    pub(crate) fn new(to_browser: OwnedFd, from_browser: OwnedFd) -> std::io::Result<Self> {
        let writer = pipe::Sender::from_owned_fd(to_browser)?;
        let reader = pipe::Receiver::from_owned_fd(from_browser)?;
        let pending: Pending = Arc::new(Mutex::new(Some(HashMap::new())));
        let (outbox, inbox) = mpsc::channel(WRITE_QUEUE);
        let mut tasks = JoinSet::new();
        tasks.spawn(write(writer, inbox));
        tasks.spawn(read(reader, Arc::clone(&pending)));
        Ok(Self {
            pending: PendingCalls(pending),
            next: AtomicU64::new(1),
            outbox,
            _tasks: tasks,
        })
    }

    /// Asks and waits for the answer, at most `limit`.
    pub(crate) async fn call<P: Serialize, R: DeserializeOwned>(&self, call: Call<'_, P>) -> Result<R, ControlError> {
        let (method, limit) = (call.method, call.limit);
        let unreadable = |e: serde_json::Error| ControlError::Unreadable {
            method,
            problem: e.to_string(),
        };
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let outgoing = Outgoing {
            id,
            method,
            params: call.params,
            session: call.session,
        };
        let mut message = serde_json::to_vec(&outgoing).map_err(unreadable)?;
        message.push(0);
        let (answer, answered) = oneshot::channel();
        self.pending
            .0
            .lock()
            .as_mut()
            .ok_or(ControlError::Closed)?
            .insert(id, answer);
        let _forget = Forget(&self.pending.0, id);
        let exchange = async {
            self.outbox.send(message).await.map_err(|_| ControlError::Closed)?;
            answered.await.map_err(|_| ControlError::Closed)
        };
        match timeout_at(Instant::now() + limit, exchange).await {
            Err(_) => Err(ControlError::Timeout { method, limit }),
            Ok(Err(closed)) => Err(closed),
            Ok(Ok(Err(no))) => Err(ControlError::Refused {
                method,
                code: no.code,
                message: no.message,
            }),
            Ok(Ok(Ok(result))) => serde_json::from_str(result.get()).map_err(unreadable),
        }
    }
}

async fn write(mut pipe: pipe::Sender, mut inbox: mpsc::Receiver<Vec<u8>>) {
    while let Some(message) = inbox.recv().await {
        if pipe.write_all(&message).await.is_err() {
            return;
        }
    }
}

async fn read(mut pipe: pipe::Receiver, pending: Pending) {
    let mut chunk = vec![0_u8; 16 * 1024];
    let mut message = Vec::new();
    let mut skipping = false;
    while let Ok(count) = pipe.read(&mut chunk).await {
        if count == 0 {
            break;
        }
        let mut rest = &chunk[..count];
        while let Some(end) = rest.iter().position(|byte| *byte == 0) {
            message.extend_from_slice(&rest[..end]);
            if !std::mem::take(&mut skipping) {
                deliver(&message, &pending);
            }
            message.clear();
            rest = &rest[end + 1..];
        }
        if skipping || message.len() + rest.len() > LONGEST_MESSAGE {
            skipping = true;
            message.clear();
        } else {
            message.extend_from_slice(rest);
        }
        message.shrink_to(64 * 1024);
    }
    // Dropping the senders fails every call that still waits.
    pending.lock().take();
}

/// Events and answers that nobody waits for are ignored.
fn deliver(message: &[u8], pending: &Pending) {
    let Ok(incoming) = serde_json::from_slice::<Incoming<'_>>(message) else {
        return;
    };
    let Some(id) = incoming.id else { return };
    let waiting = pending.lock().as_mut().and_then(|calls| calls.remove(&id));
    let answer = match (incoming.error, incoming.result) {
        (Some(refusal), _) => Err(refusal),
        (None, Some(result)) => Ok(result.to_owned()),
        (None, None) => return,
    };
    if let Some(waiting) = waiting {
        let _left = waiting.send(answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};

    fn ends() -> (Cdp, std::fs::File, std::fs::File) {
        let (their_in, our_out) = rustix::pipe::pipe().unwrap();
        let (our_in, their_out) = rustix::pipe::pipe().unwrap();
        (Cdp::new(our_out, our_in).unwrap(), their_in.into(), their_out.into())
    }

    fn ask(limit: u64) -> Call<'static, serde_json::Value> {
        Call {
            method: "X.y",
            params: serde_json::json!({}),
            session: None,
            limit: Duration::from_millis(limit),
        }
    }

    #[tokio::test]
    async fn answer_is_found_among_events_garbage_and_too_long_messages() {
        let (cdp, mut their_in, mut their_out) = ends();
        std::thread::spawn(move || {
            let mut asked = [0_u8; 128];
            let count = their_in.read(&mut asked).unwrap();
            assert!(
                asked[..count].starts_with(br#"{"id":1,"method":"X.y","params":{}}"#),
                "{asked:?}"
            );
            their_out
                .write_all(b"{\"method\":\"E.v\",\"params\":{}}\0garbage\0{\"id\":77,\"result\":{}}\0")
                .unwrap();
            their_out.write_all(&vec![b'x'; LONGEST_MESSAGE + 5]).unwrap();
            their_out
                .write_all(b"\0{\"id\":1,\"result\":{\"a\":5},\"new\":[]}\0")
                .unwrap();
            std::thread::park_timeout(Duration::from_secs(5));
        });
        let answer: serde_json::Value = cdp.call(ask(5000)).await.unwrap();
        assert_eq!(answer["a"], 5);
    }

    #[tokio::test]
    async fn dead_pipe_fails_pending_and_later_calls_and_silence_times_out() {
        let (cdp, their_in, their_out) = ends();
        assert!(matches!(
            cdp.call::<_, ()>(ask(20)).await,
            Err(ControlError::Timeout { .. })
        ));
        assert_eq!(
            cdp.pending.0.lock().as_ref().map(HashMap::len),
            Some(0),
            "a call that timed out is forgotten"
        );
        let pending = cdp.call::<_, ()>(ask(5000));
        let (answer, ()) = tokio::join!(pending, async { drop((their_in, their_out)) });
        assert!(matches!(answer, Err(ControlError::Closed)), "{answer:?}");
        assert!(matches!(cdp.call::<_, ()>(ask(5000)).await, Err(ControlError::Closed)));
    }
}
