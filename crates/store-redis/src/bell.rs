//! Waiting for pages: one blocking reader for all who wait.
//!
//! Its own file because a blocking read needs a connection of its own and must outlive whoever started it: a caller that
//! gives up would otherwise leave a blocked connection behind. The reader listens to a stream of one tiny entry (the
//! bell) instead of the pages, which everybody reads anyway. It starts with the first who waits and ends with the
//! journal.
//!
//! Invariant: only a wake-up. A lost one costs a second; a false one, a look.

use std::{sync::Arc, time::Duration};

use redis::Value;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use wharf_journal::JournalError;

use crate::{
    link::{Ask, Lane},
    reply::{corrupt, list, text},
};

/// How long one blocking read blocks, and how long one waits at most.
const BLOCK: Duration = Duration::from_secs(1);
/// After an error: the link has tried again and again already.
const PAUSE: Duration = Duration::from_millis(200);

pub(crate) struct Bell {
    reader: Arc<Reader>,
    heard: watch::Sender<u64>,
    tasks: TaskTracker,
    end: CancellationToken,
}

struct Reader {
    lane: Lane,
    key: String,
    response_timeout: Duration,
}

// === impl Bell ===

impl Bell {
    pub(crate) fn new(lane: Lane, key: String, response_timeout: Duration) -> Self {
        let reader = Arc::new(Reader {
            lane,
            key,
            response_timeout,
        });
        Self {
            reader,
            heard: watch::Sender::new(0),
            tasks: TaskTracker::new(),
            end: CancellationToken::new(),
        }
    }

    /// Returns when the bell has rung for a later page, when the journal went back, or after a second.
    pub(crate) async fn wait(&self, after: u64) {
        self.start();
        let mut heard = self.heard.subscribe();
        let mut before = *heard.borrow_and_update();
        let rung = async {
            while before <= after && heard.changed().await.is_ok() {
                let now = *heard.borrow_and_update();
                if now < before {
                    break;
                }
                before = now;
            }
        };
        // Also when the journal was closed: a caller that waits in a loop must not spin.
        let _ = timeout(BLOCK, rung).await;
    }

    /// Starts the reader, once.
    fn start(&self) {
        // A closed tracker has started it (or the journal was closed).
        if self.tasks.close() {
            let (reader, heard, end) = (Arc::clone(&self.reader), self.heard.clone(), self.end.clone());
            self.tasks
                .spawn(async move { end.run_until_cancelled(reader.listen(heard)).await });
        }
    }

    pub(crate) async fn close(&self) {
        self.end.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.reader.lane.close().await;
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

// === impl Reader ===

impl Reader {
    async fn listen(&self, heard: watch::Sender<u64>) {
        // Where the journal is; asked again whenever the bell was silent: after a fail-over it may be behind what was
        // heard, and a read from there would sleep until it has caught up.
        let mut tip = None;
        loop {
            let rung = match tip {
                Some(tip) => self.next(tip).await,
                None => self.tip().await.map(Some),
            };
            match rung {
                Ok(Some(seq)) => {
                    tip = Some(seq);
                    heard.send_if_modified(|now| std::mem::replace(now, seq) != seq);
                }
                Ok(None) => tip = None,
                Err(error) => {
                    tracing::debug!(%error, "cannot listen for pages; callers look by themselves");
                    tip = None;
                    sleep(PAUSE).await;
                }
            }
        }
    }

    /// The place the bell rang for last.
    async fn tip(&self) -> Result<u64, JournalError> {
        let mut command = redis::cmd("XREVRANGE");
        command.arg(&self.key).arg("+").arg("-").arg("COUNT").arg(1);
        let values = self.lane.call(&Ask::one(command), self.response_timeout).await?;
        match list(values.into_iter().next().unwrap_or_default())?.into_iter().next() {
            Some(entry) => place(entry),
            None => Ok(0),
        }
    }

    /// The next place it rings for; nothing if it was silent.
    async fn next(&self, after: u64) -> Result<Option<u64>, JournalError> {
        let mut command = redis::cmd("XREAD");
        command
            .arg("BLOCK")
            .arg(BLOCK.as_millis().to_string())
            .arg("STREAMS")
            .arg(&self.key)
            .arg(format!("{after}-0"));
        let values = self
            .lane
            .call(&Ask::one(command), BLOCK + self.response_timeout)
            .await?;
        let value = values.into_iter().next().unwrap_or_default();
        if value == Value::Nil {
            return Ok(None);
        }
        // [[key, [entry, …]]]: of one stream, of which the last entry is all there is.
        let stream = list(value)?
            .pop()
            .map(list)
            .transpose()?
            .and_then(|mut parts| parts.pop());
        let entry = stream.map(list).transpose()?.and_then(|mut entries| entries.pop());
        entry.map(place).transpose()
    }
}

fn place(entry: Value) -> Result<u64, JournalError> {
    let id = text(list(entry)?.into_iter().next().unwrap_or_default())?;
    let seq = id.split_once('-').and_then(|(seq, _)| seq.parse().ok());
    seq.ok_or_else(|| corrupt(format_args!("the bell rang for {id:?}")))
}
