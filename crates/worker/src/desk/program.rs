//! Telling a program of its session: the begin before the lease is answered, the end before the kill.
//!
//! Its own file because it is the only place where the desk's work waits for a browser's own answer. The rules: nobody is
//! given a program that has not taken the session; a program that failed to is killed and its lease fails, so that the
//! grid places it again; and no answer, or none in time, ever keeps a program alive. Both run on tasks of their own: the
//! desk never waits.

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use wharf_core::BrowserId;
use wharf_driver::{Browser, CallFailed, Exit};

use super::{
    Desk, Event,
    book::{Lease, Reply, Waiting},
    serve::verdict,
};
use crate::{Leased, handle::LeaseError, supervisor::Trouble};

/// A program is asked to end its session for at most this long: a stop must fit into the clean-up with it.
const FINISH_LIMIT: Duration = Duration::from_secs(5);
/// A broken connection is usually an exit that the kernel has not told us yet.
const EXIT_FOLLOWS: Duration = Duration::from_millis(200);

/// A lease whose program has not answered yet.
pub(crate) struct Beginning {
    pub reply: Reply,
}

// === impl Desk ===

impl Desk {
    /// Answers a lease: at once, or when the program has taken the session.
    pub(super) fn answer(&mut self, id: BrowserId, browser: Arc<dyn Browser>, waiting: Waiting) {
        if browser.program().is_none() {
            self.give(id, waiting.lease(), waiting.reply, Leased { browser, answer: None });
            return;
        }
        let Some(kept) = self.book.get_mut(id) else { return };
        kept.beginning = Some(Beginning { reply: waiting.reply });
        let (limit, events) = (self.config.forward_timeout, self.events.clone());
        self.tasks.spawn(async move {
            let result = begin(browser.as_ref(), &waiting.request.data, limit).await;
            let _ = events.send(Event::Begun { id, result }).await;
        });
    }

    pub(super) fn begun(&mut self, id: BrowserId, result: Result<Value, String>) {
        let Some(kept) = self.book.get_mut(id) else { return };
        // Closed or troubled meanwhile: whoever waited has been told.
        let Some(Beginning { reply }) = kept.beginning.take() else {
            return;
        };
        let (browser, lease) = (kept.browser.clone(), kept.lease);
        match (result, browser, lease) {
            (Ok(answer), Some(browser), Some(lease)) => {
                let answer = Some(answer);
                self.give(id, lease, reply, Leased { browser, answer });
            }
            (Err(cause), ..) => self.not_begun(id, reply, cause),
            // Cannot be: a program begins only when it is launched and leased.
            (Ok(_), ..) => self.not_begun(id, reply, "the program was lost".to_owned()),
        }
    }

    /// The program would not take the session. It never served anybody, so the lease fails and the session lives on.
    pub(super) fn not_begun(&mut self, id: BrowserId, reply: Reply, cause: String) {
        tracing::warn!(browser = %id, cause, "a program did not take its session");
        self.metrics.leased("failed");
        self.breaker.crashed(self.clock.now());
        if reply.send(Err(LeaseError::LaunchFailed(cause))).is_ok() {
            // The coordinator knows and gives the slot back itself, with the failure: a free slot that is told by us could
            // overtake that, and would end the session instead of placing it again.
            self.book.unbind(id);
        }
        self.close(id, None);
    }

    fn give(&mut self, id: BrowserId, (session, epoch): Lease, reply: Reply, leased: Leased) {
        self.held.write().insert(session, (epoch, leased.browser.clone()));
        if reply.send(Ok(leased)).is_err() {
            // The coordinator gave up at the very hand-over; it says so by `close` too, but need not.
            self.metrics.leased("withdrawn");
            self.close(id, None);
        }
    }

    /// Programs whose coordinator has given up while they were beginning.
    pub(super) fn close_abandoned(&mut self) {
        let is_abandoned = |kept: &super::Kept| kept.beginning.as_ref().is_some_and(|begin| begin.reply.is_closed());
        let abandoned: Vec<_> = self
            .book
            .iter()
            .filter(|(_, kept)| is_abandoned(kept))
            .map(|(id, _)| id)
            .collect();
        for id in abandoned {
            self.metrics.leased("withdrawn");
            self.close(id, None);
        }
    }
}

/// Tells the program of its session. The cause of a failure names the exit, if there was one.
async fn begin(browser: &dyn Browser, data: &Value, limit: Duration) -> Result<Value, String> {
    let Some(program) = browser.program() else {
        return Err("the browser is no program".to_owned());
    };
    let failed = tokio::select! {
        // Biased: of an exit and the broken connection it causes, the exit is the cause.
        biased;
        exit = browser.exited() => return Err(left(exit)),
        // Dropping the call closes its connection.
        answer = program.begin(data, limit) => match answer {
            Ok(answer) => return Ok(answer),
            Err(failed) => failed,
        },
    };
    match failed {
        CallFailed::Unreachable { .. } => match tokio::time::timeout(EXIT_FOLLOWS, browser.exited()).await {
            Ok(exit) => Err(left(exit)),
            Err(_) => Err(failed.to_string()),
        },
        _ => Err(failed.to_string()),
    }
}

/// A program's exit while it was asked to take a session, in the words of a session's end.
fn left(exit: Exit) -> String {
    let (reason, detail) = verdict(&Trouble::Exited(exit));
    let detail = detail.unwrap_or_default();
    format!("the program exited while it was asked POST /sessions ({reason}: {detail})")
}

/// Tells the program that its session is over, unless it has left. A failure is worth a line, no more: the kill follows.
pub(super) async fn finish(browser: &dyn Browser, limit: Duration) {
    let Some(program) = browser.program() else { return };
    tokio::select! {
        // Biased: who has left is not asked.
        biased;
        _left = browser.exited() => {}
        // Dropping the call closes its connection.
        finished = program.finish(limit.min(FINISH_LIMIT)) => {
            if let Err(failed) = finished {
                tracing::warn!(browser = %browser.id(), %failed, "a program did not end its session; it is killed");
            }
        }
    }
}
