//! What the tests of this crate share: opening, a hand that writes, reading it all.
#![expect(dead_code, reason = "each test binary uses a part")]
#![expect(clippy::unwrap_used, reason = "test support")]

pub mod cutter;

use std::{collections::HashMap, sync::Arc, time::Duration};

use uuid::Uuid;
use wharf_core::Timestamp;
use wharf_journal::{Draft, Journal, JournalError, Page, Position, Tail, Writer};
use wharf_store_redis::{Options, RedisJournal};

pub const START: Position = Position { seq: 0, mark: None };

pub fn options(prefix: &str) -> Options {
    Options {
        prefix: prefix.to_owned(),
        ..Options::default()
    }
}

pub async fn connect(url: &str) -> RedisJournal {
    RedisJournal::connect(url, Options::default()).await.unwrap()
}

pub fn position_of(page: &Page) -> Position {
    Position {
        seq: page.seq,
        mark: Some((page.writer, page.number)),
    }
}

/// The draft that a page was made from.
pub fn draft(page: &Page, body: &str) -> Draft {
    Draft {
        writer: page.writer,
        number: page.number,
        body: body.to_owned(),
        at: None,
    }
}

/// A writer that numbers its pages and knows where it is.
pub struct Hand {
    pub writer: Writer,
    pub number: u64,
    pub position: Position,
}

impl Hand {
    pub fn new() -> Self {
        Self {
            writer: Writer(Uuid::new_v4()),
            number: 0,
            position: START,
        }
    }

    pub fn draft(&mut self, body: &str) -> Draft {
        self.number += 1;
        Draft {
            writer: self.writer,
            number: self.number,
            body: body.to_owned(),
            at: None,
        }
    }

    /// Appends, and tries again while the journal cannot be reached.
    pub async fn append(&mut self, journal: &RedisJournal, body: &str) -> Result<Tail, JournalError> {
        let draft = self.draft(body);
        self.insist(journal, &draft).await
    }

    pub async fn insist(&mut self, journal: &RedisJournal, draft: &Draft) -> Result<Tail, JournalError> {
        for _ in 0..100 {
            match journal.append(self.position, draft).await {
                Err(JournalError::Unavailable(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
                Ok(tail) => {
                    self.position = position_of(tail.pages.last().unwrap());
                    return Ok(tail);
                }
                Err(error) => return Err(error),
            }
        }
        panic!("the journal did not come back");
    }
}

/// All pages after a position, in parts.
pub async fn read_all(journal: &RedisJournal, mut after: Position) -> Result<(Vec<Page>, Timestamp), JournalError> {
    let mut pages = Vec::new();
    loop {
        let tail = journal.read(after, 137).await?;
        pages.extend(tail.pages);
        if let Some(last) = pages.last() {
            after = position_of(last);
        }
        if !tail.is_partial {
            return Ok((pages, tail.now));
        }
    }
}

/// Every writer's pages are there once, in its order, and nothing else.
pub fn check_complete(pages: &[Page], written: &HashMap<Writer, u64>) {
    assert!(
        pages.iter().map(|page| page.seq).eq(1..=pages.len() as u64),
        "places have gaps"
    );
    assert!(pages.is_sorted_by_key(|page| page.at), "time steps back");
    let mut counts: HashMap<Writer, u64> = HashMap::new();
    for page in pages {
        let count = counts.entry(page.writer).or_default();
        *count += 1;
        assert_eq!(page.number, *count, "a writer's pages are out of order or twice");
        assert_eq!(page.body, format!("{} {}", page.writer.0, page.number));
    }
    assert_eq!(&counts, written);
}

/// Eight writers with an instance each, two hundred pages each.
pub async fn concurrent_writers(url: &str) {
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let journal = connect(url).await;
        writers.spawn(async move {
            let mut hand = Hand::new();
            let mut seen: Vec<Page> = Vec::new();
            for _ in 0..200 {
                let body = format!("{} {}", hand.writer.0, hand.number + 1);
                seen.extend(hand.append(&journal, &body).await.unwrap().pages);
            }
            (hand, seen)
        });
    }
    let mut written = HashMap::new();
    let mut views = Vec::new();
    while let Some(done) = writers.join_next().await {
        let (hand, seen) = done.unwrap();
        written.insert(hand.writer, hand.number);
        views.push(seen);
    }
    let journal = Arc::new(connect(url).await);
    let (pages, now) = read_all(&journal, START).await.unwrap();
    check_complete(&pages, &written);
    assert!(now >= pages.last().unwrap().at);
    for seen in views {
        assert_eq!(seen, pages[..seen.len()], "a writer saw another history");
    }
}
