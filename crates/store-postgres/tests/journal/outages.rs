//! The server away: stopped, crashed, paused; and back.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use wharf_core::Timestamp;
use wharf_journal::{ArchiveQuery, Journal as _, JournalError};
use wharf_store_postgres::Options;
use wharf_testkit::{eventually, postgres::Server};

use crate::support::{START, Scribe, check, open, open_at, read_all};

fn impatient() -> Options {
    Options {
        statement_timeout: Duration::from_secs(1),
        connect_timeout: Duration::from_millis(800),
        ..Options::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn server_down_is_unavailable_in_time_and_back_works_again() -> Result<()> {
    let mut server = Server::start()?;
    let journal = open_at(&server.url(), impatient()).await?;
    let mut ann = Scribe::new();
    ann.write(&journal, "{}").await?;
    for outage in ["stopped", "crashed", "paused"] {
        match outage {
            "stopped" => server.stop(),
            "crashed" => server.crash(),
            _ => server.pause(),
        }
        let draft = ann.draft(outage);
        let started = Instant::now();
        let (append, read, checkpoint, list, prune, archived, describe, ()) = tokio::join!(
            journal.append(ann.at, &draft),
            async { journal.read(START, 9).await.map(drop) },
            async { journal.checkpoint().await.map(drop) },
            async {
                journal
                    .archived_list(&ArchiveQuery {
                        limit: 1,
                        ..ArchiveQuery::default()
                    })
                    .await
                    .map(drop)
            },
            async { journal.prune_archive(Timestamp::from_micros(1)).await.map(drop) },
            async {
                journal
                    .archived(wharf_core::SessionId::from_uuid(uuid::Uuid::nil()))
                    .await
                    .map(drop)
            },
            async { journal.describe().await.map(drop) },
            async { journal.wait(99).await },
        );
        let took = started.elapsed();
        for answer in [append.map(drop), read, checkpoint, list, prune, archived, describe] {
            let Err(JournalError::Unavailable(why)) = &answer else {
                anyhow::bail!("{outage}: {answer:?}");
            };
            ensure!(
                why.contains("127.0.0.1") && !why.contains(wharf_testkit::postgres::PASSWORD),
                "{why}"
            );
            if outage == "paused" {
                continue;
            }
            ensure!(why.contains("refused"), "the reason is lost: {why}");
        }
        ensure!(took < Duration::from_millis(2_500), "{outage}: {took:?}");
        if outage == "paused" {
            server.resume();
        } else {
            server.start_again()?;
        }
        // The same draft again: whether the one before the pause was committed meanwhile or not.
        let tail = ann.insist(&journal, &draft).await?;
        ann.apply(tail)?;
        ann.write(&journal, "after").await?;
        eventually("listening again", async || {
            ensure!(journal.is_listening());
            Ok(())
        })
        .await?;
    }
    check(&read_all(&journal).await?, &[ann])
}

#[tokio::test(flavor = "multi_thread")]
async fn restart_within_the_budget_is_not_even_noticed() -> Result<()> {
    let mut server = Server::start()?;
    let journal = open(&server).await?;
    let mut ann = Scribe::new();
    for n in 0..3 {
        ann.write(&journal, "{}").await?;
        if n == 1 {
            server.crash();
        } else {
            server.stop();
        }
        let draft = ann.draft("{}");
        let (tail, back) = tokio::join!(journal.append(ann.at, &draft), async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            tokio::task::block_in_place(|| server.start_again())
        });
        back?;
        ann.apply(tail?)?;
    }
    check(&read_all(&journal).await?, &[ann])
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_call_leaves_the_journal_usable() -> Result<()> {
    let server = Server::start()?;
    let journal = open(&server).await?;
    let mut ann = Scribe::new();
    for n in 0..200_u64 {
        let draft = ann.draft("{}");
        // Given up at every stage, before it was sent or after it was committed.
        let _ = tokio::time::timeout(Duration::from_micros(n * 20), journal.append(ann.at, &draft)).await;
        let _ = tokio::time::timeout(Duration::from_micros(n * 20), journal.read(START, 9)).await;
        let tail = ann.insist(&journal, &draft).await?;
        ann.apply(tail)?;
    }
    check(&read_all(&journal).await?, &[ann])
}
