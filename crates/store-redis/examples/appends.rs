//! How many appends a second a Redis takes: `cargo run -p wharf-store-redis --example appends -- redis://127.0.0.1:6379`.
//!
//! With one and with three instances (coordinators), each appending one page after the other as the store does, and pages
//! of 1, 8 and 64 operations (about 300 bytes each). A prefix of its own; its keys stay behind for a look.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use uuid::Uuid;
use wharf_journal::{Checkpoint, Draft, Journal, JournalError, Position, Writer};
use wharf_store_redis::{Options, RedisJournal};

const OPERATION: usize = 300;
const SPAN: Duration = Duration::from_secs(2);
/// As a store would: the journal is trimmed now and then.
const TRIM_EVERY: u64 = 2000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let prefix = format!("appends-{}", Uuid::new_v4().simple());
    let options = Options {
        prefix,
        ..Options::default()
    };
    let journal = RedisJournal::connect(&url, options.clone()).await?;
    println!("{}", journal.describe().await?);
    println!(
        "{:>9} {:>10} {:>9} {:>12} {:>9} {:>9}",
        "instances", "operations", "pages/s", "operations/s", "p50", "p99"
    );
    for instances in [1, 3] {
        for operations in [1, 8, 64] {
            let mut hands = JoinSet::new();
            for _ in 0..instances {
                hands.spawn(run(url.clone(), options.clone(), "x".repeat(OPERATION * operations)));
            }
            let mut took = Vec::new();
            while let Some(done) = hands.join_next().await {
                took.extend(done??);
            }
            took.sort_unstable();
            let rate = took.len() as f64 / SPAN.as_secs_f64();
            let (p50, p99) = (took[took.len() / 2], took[took.len() * 99 / 100]);
            println!(
                "{instances:>9} {operations:>10} {rate:>9.0} {:>12.0} {p50:>9.0?} {p99:>9.0?}",
                rate * operations as f64
            );
        }
    }
    Ok(())
}

/// One coordinator: appends for a while; how long each took.
async fn run(url: String, options: Options, body: String) -> Result<Vec<Duration>, JournalError> {
    let journal = RedisJournal::connect(&url, options)
        .await
        .map_err(|e| JournalError::Unavailable(e.to_string()))?;
    let writer = Writer(Uuid::new_v4());
    // At the end: from the checkpoint, and what follows it.
    let mut position = journal
        .checkpoint()
        .await?
        .map_or(Position { seq: 0, mark: None }, |kept| kept.position);
    let mut took = Vec::new();
    let started = Instant::now();
    while started.elapsed() < SPAN {
        let number = took.len() as u64 + 1;
        let draft = Draft {
            writer,
            number,
            body: body.clone(),
            at: None,
        };
        let asked = Instant::now();
        let tail = match journal.append(position, &draft).await {
            Err(JournalError::Rewound(_)) => {
                // Another instance trimmed before this one had begun.
                position = journal.checkpoint().await?.map_or(position, |kept| kept.position);
                journal.append(position, &draft).await?
            }
            other => other?,
        };
        took.push(asked.elapsed());
        let Some(own) = tail.pages.last() else { continue };
        position = Position {
            seq: own.seq,
            mark: Some((own.writer, own.number)),
        };
        if own.seq % TRIM_EVERY == 0 {
            let checkpoint = Checkpoint {
                position,
                at: own.at,
                image: "{}".to_owned(),
            };
            journal.keep(&checkpoint, own.seq.saturating_sub(500)).await?;
        }
    }
    Ok(took)
}
