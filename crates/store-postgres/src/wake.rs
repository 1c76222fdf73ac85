//! Waking a reader: by the server's notifications where it has them, else by asking the head in short intervals.
//!
//! Its own file because it is only an accelerator: whatever fails here costs at most a second, never a page. The newest
//! page heard of is kept in a watch, so a notification that arrives before anybody waits is not lost. Invariant: a wait
//! takes a second at most, and leaves nothing behind when dropped.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use sqlx::{
    postgres::{PgListener, PgPoolOptions},
    query_scalar,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};
use wharf_journal::JournalError;

use crate::{
    failure,
    lane::{Lane, Settings},
    sql::{Statements, safe},
};

/// The longest wait; a lost notification costs no more.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// Between two questions while pages arrive …
const SHORTEST_POLL: Duration = Duration::from_millis(100);
/// … and when none did for some time.
const LONGEST_POLL: Duration = Duration::from_millis(500);
/// A listener that heard nothing for so long makes sure that the server is there: a half-open connection says nothing.
const SILENCE: Duration = Duration::from_secs(10);
/// Between two attempts to listen again.
const RECONNECT_PAUSE: Duration = Duration::from_millis(250);

/// What was heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Heard {
    /// The newest page.
    seq: u64,
    /// Whether somebody listens.
    is_listening: bool,
}

/// Where waiting readers are woken.
pub(crate) struct Wakes {
    heard: watch::Sender<Heard>,
    /// The present interval of asking, in milliseconds: it outlives a single wait.
    poll_ms: AtomicU64,
}

/// The task that listens.
pub(crate) struct Listener {
    heard: watch::Sender<Heard>,
    settings: Settings,
    sql: Arc<Statements>,
}

// === impl Wakes ===

impl Wakes {
    pub(crate) fn new() -> Self {
        let heard = watch::Sender::new(Heard {
            seq: 0,
            is_listening: false,
        });
        Self {
            heard,
            poll_ms: AtomicU64::new(to_ms(SHORTEST_POLL)),
        }
    }

    pub(crate) fn listener(&self, settings: Settings, sql: Arc<Statements>) -> Listener {
        Listener {
            heard: self.heard.clone(),
            settings,
            sql,
        }
    }

    pub(crate) fn is_listening(&self) -> bool {
        self.heard.borrow().is_listening
    }

    /// A journal that lost its tail has fewer pages than we heard of: waiting for its next one must not return at once.
    pub(crate) fn forget_if_rewound<T>(&self, answer: &Result<T, JournalError>) {
        if matches!(answer, Err(JournalError::Rewound(_))) {
            self.heard.send_modify(|heard| heard.seq = 0);
        }
    }

    pub(crate) async fn wait(&self, after: u64, lane: &Lane, sql: &Statements) {
        let mut heard = self.heard.subscribe();
        let woken = async {
            if heard.wait_for(|heard| heard.seq > after).await.is_err() {
                pending::<()>().await;
            }
        };
        tokio::select! {
            () = woken => {}
            () = sleep(LONGEST_WAIT) => {}
            // Dropped in the middle of a question, it drops that connection, too; nothing else is lost.
            () = self.poll(after, lane, sql) => {}
        }
    }

    /// Asks for the head until it is beyond `after`; while somebody listens, it does not ask.
    async fn poll(&self, after: u64, lane: &Lane, sql: &Statements) {
        let ends = Instant::now() + LONGEST_WAIT;
        loop {
            let interval = self.poll_ms.load(Ordering::Relaxed);
            sleep_until((Instant::now() + Duration::from_millis(interval)).min(ends)).await;
            if self.is_listening() {
                return pending().await;
            }
            if head(lane, sql).await.is_some_and(|seq| seq > after) {
                self.poll_ms.store(to_ms(SHORTEST_POLL), Ordering::Relaxed);
                return;
            }
            self.poll_ms
                .store((interval + interval / 4).min(to_ms(LONGEST_POLL)), Ordering::Relaxed);
        }
    }
}

fn to_ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// The newest page, if the server says. Not retried: it is asked again soon.
async fn head(lane: &Lane, sql: &Statements) -> Option<u64> {
    let mut taken = lane.take().await.ok()?;
    let answer = query_scalar::<_, i64>(safe(&sql.head))
        .fetch_one(&mut taken.connection)
        .await;
    let seq = answer.ok()?;
    lane.give_back(taken.connection);
    u64::try_from(seq).ok()
}

// === impl Listener ===

impl Listener {
    /// Listens for ever; ended by dropping it.
    pub(crate) async fn run(self) {
        loop {
            let Err(error) = self.listen().await else { continue };
            self.heard.send_modify(|heard| heard.is_listening = false);
            tracing::warn!(
                reason = failure::text(&error),
                "lost the connection that listens for new pages; asking for them until it is back"
            );
            sleep(RECONNECT_PAUSE.mul_f64(rand::random_range(0.5..1.5))).await;
        }
    }

    /// One connection's life. A pool of one, because that is what sqlx's listener takes.
    async fn listen(&self) -> Result<(), sqlx::Error> {
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(self.settings.connect_timeout)
            .max_lifetime(None)
            .idle_timeout(None)
            .connect_lazy_with(self.settings.connect.clone());
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.ignore_pool_close_event(true);
        listener.eager_reconnect(false);
        listener.listen(&self.sql.channel).await?;
        // After LISTEN, so that no page falls between the two. It may also be less than before: a server that lost some.
        let seq: i64 = query_scalar(safe(&self.sql.head)).fetch_one(&mut listener).await?;
        self.hear(seq);
        loop {
            match timeout(SILENCE, listener.try_recv()).await {
                Ok(Ok(Some(told))) => {
                    if let Ok(seq) = told.payload().parse() {
                        self.hear(seq);
                    }
                }
                Ok(Ok(None)) => return Err(sqlx::Error::Protocol("the server closed the connection".to_owned())),
                Ok(Err(error)) => return Err(error),
                Err(_) => {
                    let asked = query_scalar::<_, i64>(safe(&self.sql.head)).fetch_one(&mut listener);
                    match timeout(self.settings.statement_timeout, asked).await {
                        Ok(seq) => self.hear(seq?),
                        Err(_) => return Err(sqlx::Error::Protocol("the server does not answer".to_owned())),
                    }
                }
            }
        }
    }

    fn hear(&self, seq: i64) {
        let seq = u64::try_from(seq).unwrap_or(0);
        self.heard.send_replace(Heard {
            seq,
            is_listening: true,
        });
    }
}
