//! How many pages a second a server takes: `cargo run -p wharf-store-postgres --example postgres-appends -- <url> [seconds]`.
//!
//! For 1 and 3 coordinators (instances with connections of their own, each appending one page after the other) and pages
//! the size of 1, 8 and 64 operations. Without a URL it starts a throw-away server with fsync switched on. Uses the schema
//! `wharf_appends` and leaves it there.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tokio::task::JoinSet;
use uuid::Uuid;
use wharf_journal::{Draft, Journal as _, Position, Writer};
use wharf_store_postgres::{Options, PostgresJournal};
use wharf_testkit::postgres::Server;

/// About what a submission takes as JSON.
const OPERATION: usize = 400;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let given = arguments.next();
    let span = Duration::from_secs(arguments.next().map_or(Ok(3), |text| text.parse())?);
    let own = match given {
        Some(_) => None,
        None => Some(
            Server::builder()
                .set("fsync", "on")
                .set("full_page_writes", "on")
                .set("max_wal_size", "1GB")
                .start()?,
        ),
    };
    let url = given.or_else(|| own.as_ref().map(Server::url)).context("no URL")?;
    println!(
        "{:>12} {:>10} {:>10} {:>12} {:>9} {:>9}",
        "coordinators", "operations", "pages/s", "operations/s", "p50", "p99"
    );
    for coordinators in [1, 3] {
        for operations in [1, 8, 64] {
            measure(&url, coordinators, operations, span).await?;
        }
    }
    Ok(())
}

async fn measure(url: &str, coordinators: usize, operations: usize, span: Duration) -> Result<()> {
    let options = Options {
        schema: "wharf_appends".to_owned(),
        ..Options::default()
    };
    let mut journals = Vec::new();
    for _ in 0..coordinators {
        journals.push(PostgresJournal::connect(url, options.clone()).await?);
    }
    let mut writers = JoinSet::new();
    for journal in journals {
        writers.spawn(async move {
            let mut latencies = Vec::new();
            let (writer, mut number) = (Writer(Uuid::now_v7()), 0);
            let mut at = end(&journal).await?;
            let started = Instant::now();
            while started.elapsed() < span {
                number += 1;
                let draft = Draft {
                    writer,
                    number,
                    body: body(operations),
                    at: None,
                };
                let sent = Instant::now();
                let tail = journal.append(at, &draft).await?;
                latencies.push(sent.elapsed());
                let last = tail.pages.last().context("no page")?;
                at = Position {
                    seq: last.seq,
                    mark: Some((last.writer, last.number)),
                };
            }
            journal.close().await;
            anyhow::Ok(latencies)
        });
    }
    let mut latencies = Vec::new();
    for written in writers.join_all().await {
        latencies.extend(written?);
    }
    latencies.sort_unstable();
    let rate = latencies.len() as f64 / span.as_secs_f64();
    let at = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize];
    println!(
        "{coordinators:>12} {operations:>10} {rate:>10.0} {:>12.0} {:>9.2?} {:>9.2?}",
        rate * operations as f64,
        at(0.5),
        at(0.99)
    );
    Ok(())
}

/// Where the journal ends now.
async fn end(journal: &PostgresJournal) -> Result<Position> {
    let mut at = Position { seq: 0, mark: None };
    loop {
        let tail = journal.read(at, 1_000).await?;
        if let Some(last) = tail.pages.last() {
            at = Position {
                seq: last.seq,
                mark: Some((last.writer, last.number)),
            };
        }
        if !tail.is_partial {
            return Ok(at);
        }
    }
}

/// Text that compresses about as well as operations do.
fn body(operations: usize) -> String {
    let mut body = String::with_capacity(operations * (OPERATION + 64));
    for _ in 0..operations {
        while body.len() % (OPERATION + 64) < OPERATION {
            body.push_str("{\"op\":\"submit\",\"session\":\"ses_");
            body.push_str(&Uuid::new_v4().simple().to_string());
            body.push_str("\",\"pool\":\"default\"},");
        }
        body.push_str(&" ".repeat(64));
    }
    body
}
