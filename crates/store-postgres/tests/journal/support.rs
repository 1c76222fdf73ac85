//! What the tests share: opening journals, writers that keep their position, and the check of a whole journal.

use std::collections::HashMap;

use anyhow::{Context as _, Result, ensure};
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;
use wharf_journal::{Draft, Journal as _, JournalError, Page, Position, Tail, Writer};
use wharf_store_postgres::{Options, PostgresJournal};
use wharf_testkit::postgres::Server;

/// Before the first page.
pub const START: Position = Position { seq: 0, mark: None };

/// Both isolation levels: CockroachDB's default, and PostgreSQL's.
pub const ISOLATIONS: [&str; 2] = ["read committed", "serializable"];

pub fn server(isolation: &str) -> Result<Server> {
    Server::builder()
        .set("default_transaction_isolation", isolation)
        .start()
}

pub async fn open(server: &Server) -> Result<PostgresJournal> {
    open_at(&server.url(), Options::default()).await
}

pub async fn open_at(url: &str, options: Options) -> Result<PostgresJournal> {
    PostgresJournal::connect(url, options)
        .await
        .context("could not open the journal")
}

/// A connection beside the journal, to look and to damage.
pub async fn admin(server: &Server) -> Result<PgConnection> {
    Ok(PgConnection::connect(&server.url()).await?)
}

pub async fn run(connection: &mut PgConnection, sql: &'static str) -> Result<()> {
    sqlx::raw_sql(sql).execute(connection).await.with_context(|| sql)?;
    Ok(())
}

pub fn position(page: &Page) -> Position {
    Position {
        seq: page.seq,
        mark: Some((page.writer, page.number)),
    }
}

/// A coordinator in miniature: knows its position, numbers its pages, sees every page once.
pub struct Scribe {
    pub writer: Writer,
    pub at: Position,
    pub number: u64,
    pub seen: Vec<Page>,
}

impl Scribe {
    pub fn new() -> Self {
        Self {
            writer: Writer(Uuid::now_v7()),
            at: START,
            number: 0,
            seen: Vec::new(),
        }
    }

    pub fn draft(&mut self, body: impl Into<String>) -> Draft {
        self.number += 1;
        Draft {
            writer: self.writer,
            number: self.number,
            body: body.into(),
            at: None,
        }
    }

    /// Takes a tail in, which must begin right after what was seen.
    pub fn apply(&mut self, tail: Tail) -> Result<()> {
        for page in tail.pages {
            ensure!(page.seq == self.at.seq + 1, "page {} after {}", page.seq, self.at.seq);
            if let Some(last) = self.seen.last() {
                ensure!(page.at >= last.at, "time went back at page {}", page.seq);
            }
            self.at = position(&page);
            self.seen.push(page);
        }
        Ok(())
    }

    /// Appends one page and insists on it, as long as the journal says `Unavailable`.
    pub async fn write(&mut self, journal: &PostgresJournal, body: impl Into<String>) -> Result<()> {
        let draft = self.draft(body);
        let tail = self.insist(journal, &draft).await?;
        let own = tail.pages.last().context("an answer without pages")?;
        ensure!(
            (own.writer, own.number, &own.body) == (draft.writer, draft.number, &draft.body),
            "not our page: {own:?}"
        );
        self.apply(tail)
    }

    /// Reads what others wrote, in pieces.
    pub async fn catch_up(&mut self, journal: &PostgresJournal) -> Result<()> {
        loop {
            match journal.read(self.at, 10).await {
                Ok(tail) => {
                    let is_partial = tail.is_partial;
                    self.apply(tail)?;
                    if !is_partial {
                        return Ok(());
                    }
                }
                Err(JournalError::Unavailable(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub async fn insist(&self, journal: &PostgresJournal, draft: &Draft) -> Result<Tail> {
        let mut last = String::new();
        for _ in 0..20 {
            match journal.append(self.at, draft).await {
                Ok(tail) => return Ok(tail),
                Err(JournalError::Unavailable(why)) => last = why,
                Err(error) => return Err(error.into()),
            }
        }
        anyhow::bail!("unavailable for ever: {last}")
    }
}

/// The whole journal, read from the start in pieces.
pub async fn read_all(journal: &PostgresJournal) -> Result<Vec<Page>> {
    let mut reader = Scribe::new();
    loop {
        let tail = journal.read(reader.at, 97).await?;
        let is_partial = tail.is_partial;
        reader.apply(tail)?;
        if !is_partial {
            return Ok(reader.seen);
        }
    }
}

/// Every writer's pages are there once, in its own order, and every scribe saw a beginning of this very journal.
pub fn check(pages: &[Page], scribes: &[Scribe]) -> Result<()> {
    let mut last: HashMap<Writer, u64> = HashMap::new();
    for page in pages {
        let number = last.entry(page.writer).or_default();
        *number += 1;
        ensure!(
            page.number == *number,
            "page {} of {:?} where {number} was due",
            page.number,
            page.writer
        );
    }
    for scribe in scribes {
        ensure!(
            last.get(&scribe.writer).copied().unwrap_or(0) == scribe.number,
            "pages of {:?} are lost",
            scribe.writer
        );
        ensure!(
            pages.starts_with(&scribe.seen),
            "{:?} saw another journal",
            scribe.writer
        );
    }
    let sum = scribes.iter().map(|scribe| scribe.number).sum::<u64>();
    ensure!(sum == pages.len() as u64, "{} pages, {sum} written", pages.len());
    Ok(())
}
