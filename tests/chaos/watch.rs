//! The watch: every other second, I1-I8 from a replica of its own on the store, and the browsers from the kernel.
//!
//! Its own file because it must not depend on what it watches: it asks no coordinator and no worker.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use wharf_e2e::observer;
use wharf_journal::JournalStore;
use wharf_store::{Snapshot, Store as _, invariants::violations};

use crate::{
    book::{Book, Sort},
    follow::Heard,
    kernel::{self, Lonely, Roster},
};

const STORE_BEAT: Duration = Duration::from_secs(2);
const MINUTE: Duration = Duration::from_secs(60);
const KERNEL_BEAT: Duration = Duration::from_millis(700);
/// A store that is held answers nobody; that is no finding.
const PATIENCE: Duration = Duration::from_secs(30);
/// A look reads the whole archive, which grows: after an hour a look takes seconds. Watching must not become the load.
const REST: u32 = 10;

/// Looks into the store until told to stop.
pub async fn store(observer: Arc<JournalStore>, book: Arc<Book>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        let started = Instant::now();
        if let Ok(Ok(snapshot)) = timeout(PATIENCE, observer.snapshot()).await {
            check(&snapshot, &book);
        }
        let pause = STORE_BEAT.max(REST * started.elapsed());
        tokio::select! {
            () = sleep(pause) => {}
            () = stop.cancelled() => {}
        }
    }
}

/// A line a minute, for whoever waits for an hour.
pub async fn progress(book: Arc<Book>, heard: Arc<Heard>, stop: CancellationToken) {
    for minute in 1.. {
        tokio::select! {
            () = sleep(MINUTE) => {}
            () = stop.cancelled() => return,
        }
        let (faults, findings) = book.read(|pages| (pages.faults.values().sum::<u64>(), pages.findings.len()));
        let sessions = heard.sessions();
        eprintln!("chaos: {minute} min: {faults} faults, {sessions} sessions ended, {findings} findings");
    }
}

pub fn check(snapshot: &Snapshot, book: &Book) {
    book.write(|pages| pages.snapshots += 1);
    for violation in violations(snapshot) {
        book.finding(Sort::Invariant, violation);
    }
}

/// Looks into the kernel until told to stop.
pub async fn kernel(roster: Arc<Roster>, book: Arc<Book>, stop: CancellationToken) {
    let mut lonely = Lonely::default();
    while !stop.is_cancelled() {
        let (roster, seen) = (roster.clone(), book.clone());
        for post in roster
            .all()
            .iter()
            .filter(|post| post.is_held || post.down_since.is_some())
        {
            lonely.forgive(&post.run_dir);
        }
        // Reading hundreds of files would hold up the clients on this thread.
        let looked = tokio::task::spawn_blocking(move || {
            kernel::inspect(&roster, &mut lonely, &seen);
            lonely
        });
        match looked.await {
            Ok(back) => lonely = back,
            Err(error) => {
                book.finding(Sort::Rest, format!("the watch itself failed: {error}"));
                return;
            }
        }
        sleep(KERNEL_BEAT).await;
    }
}

/// A replica on the fleet's store.
pub async fn observer(url: &str) -> Result<Arc<JournalStore>> {
    let store = observer::open(url, observer::default_rules()).await;
    store.map(Arc::new).context("could not look into the store")
}
