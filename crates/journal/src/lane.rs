//! One page in flight: operations that arrive while it travels make the next one.
//!
//! Its own file because throughput and exactly-once are decided here. Invariants: a page keeps its number until its fate
//! is known or its callers have been told that nothing is known; operations of one process are applied in the order in
//! which they were asked for.

use std::{sync::Arc, time::Duration};

use tokio::{sync::mpsc, time::Instant};
use wharf_ledger::{Op, read_text};
use wharf_store::StoreError;

use crate::{
    port::{Draft, JournalError, Page},
    replica::{Asker, Body, VERSION},
    store::Inner,
};

/// Operations in one page.
const PAGE_OPS: usize = 256;
/// Text in one page, about: one operation may be as large as a request's body.
const PAGE_BYTES: usize = 1 << 20;
/// How often everybody who is ready goes first before a page is closed: a page costs more than an operation, and so each has
/// what was about to be ordered anyway. Nobody waits for time to pass.
const TURNS: usize = 2;
/// How long callers wait for a journal that cannot be reached.
const PATIENCE: Duration = Duration::from_secs(6);
/// Between attempts, at first.
const PAUSE: Duration = Duration::from_millis(20);

/// An operation on its way.
pub(crate) struct Order {
    /// Its JSON.
    pub text: String,
    /// Who waits for the answer.
    pub asker: Asker,
}

/// Runs until the store is closed and its last operation written.
pub(crate) async fn run(inner: Arc<Inner>, mut orders: mpsc::Receiver<Order>) {
    let mut number = 0;
    while let Some(first) = orders.recv().await {
        for _ in 0..TURNS {
            tokio::task::yield_now().await;
        }
        let mut size = first.text.len();
        let mut batch = vec![first];
        while batch.len() < PAGE_OPS
            && size < PAGE_BYTES
            && let Ok(order) = orders.try_recv()
        {
            size += order.text.len();
            batch.push(order);
        }
        number += 1;
        if let Err(error) = write(&inner, number, batch).await {
            // Whoever waited while it failed shares the failure: a line in which each waits for the patience of all before
            // it is one that an outage never lets through. Nothing of theirs was sent.
            while let Ok(order) = orders.try_recv() {
                let _ = order.asker.send(Err(error.clone()));
            }
        }
    }
}

async fn write(inner: &Arc<Inner>, number: u64, batch: Vec<Order>) -> Result<(), StoreError> {
    let kept = inner.announce_kept();
    let draft = Draft {
        writer: inner.config.writer,
        number,
        body: body(&batch, kept),
        at: inner.config.clock.as_ref().map(|clock| clock.now()),
    };
    let askers = batch.into_iter().map(|order| order.asker).collect();
    inner.replica.lock().pending.insert(number, askers);
    let deadline = Instant::now() + PATIENCE;
    let Err(error) = append(inner, &draft, deadline).await else {
        return Ok(());
    };
    // Unless the tail has brought it meanwhile, nothing is known of this page. Whoever begins again has the askers
    // meanwhile.
    let _nobody_begins_again = inner.rebuilding.lock().await;
    let askers = inner.replica.lock().pending.remove(&number);
    for asker in askers.into_iter().flatten() {
        // A caller that has left needs no answer.
        let _ = asker.send(Err(error.clone()));
    }
    // One that was refused in time says nothing of the next.
    match Instant::now() >= deadline {
        true => Err(error),
        false => Ok(()),
    }
}

/// Appends until it is known to be there and applied.
async fn append(inner: &Arc<Inner>, draft: &Draft, deadline: Instant) -> Result<(), StoreError> {
    let mut pause = PAUSE;
    loop {
        let position = inner.position()?;
        inner.traffic.appends.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let error = match inner.journal.append(position, draft).await {
            Ok(tail) => {
                let is_own = |page: &&Page| page.writer == draft.writer && page.number == draft.number;
                let own = tail.pages.iter().find(is_own).map(|page| page.seq);
                match inner.absorb(tail.pages) {
                    Ok(()) if !inner.replica.lock().pending.contains_key(&draft.number) => return Ok(()),
                    // A checkpoint that we began again from has it already: it is there, but not what it answered.
                    Ok(()) if own.is_some_and(|seq| seq <= inner.replica.lock().position.seq) => {
                        let text = "it was written, but the answer is lost: look before asking again";
                        return Err(StoreError::Unavailable(text.to_owned()));
                    }
                    Ok(()) => "the page was not in the answer".to_owned(),
                    Err(error) => error.to_string(),
                }
            }
            Err(JournalError::Rewound(_)) => {
                inner.rebuild(position).await?;
                continue;
            }
            Err(JournalError::Corrupt(error)) => return Err(StoreError::Corrupt(error)),
            Err(JournalError::Unavailable(error)) => error,
        };
        if !inner.replica.lock().pending.contains_key(&draft.number) {
            // It was there after all, and somebody else applied it.
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(StoreError::Unavailable(error));
        }
        tracing::debug!(error, number = draft.number, "the journal did not answer; trying again");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(500));
        // Perhaps it was appended and only the answer was lost; then the tail has it.
        if inner.catch_up().await.is_err() && Instant::now() >= deadline {
            return Err(StoreError::Unavailable(error));
        }
    }
}

fn body(batch: &[Order], kept: Option<u64>) -> String {
    let size: usize = batch.iter().map(|order| order.text.len() + 1).sum();
    let mut text = String::with_capacity(size + 32);
    text.push_str(&format!("{{\"v\":{VERSION}"));
    if let Some(kept) = kept {
        text.push_str(&format!(",\"kept\":{kept}"));
    }
    text.push_str(",\"ops\":[");
    for (index, order) in batch.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        text.push_str(&order.text);
    }
    text.push_str("]}");
    debug_assert!(read_text::<Body>(&text).is_ok(), "a page reads back: {text}");
    text
}

/// An operation as pages have it.
pub(crate) fn text(op: &Op) -> Result<String, StoreError> {
    serde_json::to_string(op)
        .map_err(|error| StoreError::Corrupt(format!("an operation that cannot be written: {error}")))
}
