//! Exactly once, whatever fails: injected conflicts, connections cut anywhere, answers swallowed.

use std::{sync::atomic::Ordering, time::Duration};

use anyhow::{Result, ensure};
use tokio::task::JoinSet;
use wharf_journal::Journal as _;
use wharf_store_postgres::Options;

use crate::{
    proxy::Proxy,
    support::{ISOLATIONS, Scribe, admin, check, open, open_at, read_all, run, server},
};

#[tokio::test(flavor = "multi_thread")]
async fn conflicts_are_tried_again() -> Result<()> {
    for isolation in ISOLATIONS {
        let server = server(isolation)?;
        let journal = open(&server).await?;
        let mut admin = admin(&server).await?;
        // At the insert, at the update of the head, and at COMMIT itself (a deferred constraint): one in five each.
        run(
            &mut admin,
            "CREATE FUNCTION wharf.stumble() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF random() < 0.2 THEN
                    RAISE EXCEPTION 'injected' USING ERRCODE = (ARRAY['40001', '40P01', '57P01'])[1 + floor(random() * 3)::int];
                END IF;
                RETURN NEW;
             END $$;
             CREATE TRIGGER a BEFORE INSERT ON wharf.wharf_pages FOR EACH ROW EXECUTE FUNCTION wharf.stumble();
             CREATE TRIGGER b BEFORE UPDATE ON wharf.wharf_head FOR EACH ROW EXECUTE FUNCTION wharf.stumble();
             CREATE CONSTRAINT TRIGGER c AFTER INSERT ON wharf.wharf_pages DEFERRABLE INITIALLY DEFERRED
                FOR EACH ROW EXECUTE FUNCTION wharf.stumble();
             CREATE TRIGGER d BEFORE INSERT ON wharf.wharf_archive FOR EACH STATEMENT EXECUTE FUNCTION wharf.stumble();
             CREATE TRIGGER e BEFORE INSERT ON wharf.wharf_checkpoint FOR EACH STATEMENT EXECUTE FUNCTION wharf.stumble();",
        )
        .await?;
        let mut writers = JoinSet::new();
        for _ in 0..3 {
            let journal = open(&server).await?;
            writers.spawn(async move {
                let mut scribe = Scribe::new();
                for _ in 0..60 {
                    scribe.write(&journal, "{}").await?;
                }
                anyhow::Ok(scribe)
            });
        }
        let scribes: Vec<Scribe> = writers.join_all().await.into_iter().collect::<Result<_>>()?;
        let pages = read_all(&journal).await?;
        check(&pages, &scribes)?;
        for page in &pages[..10] {
            let position = crate::support::position(page);
            journal
                .keep(
                    &wharf_journal::Checkpoint {
                        position,
                        at: page.at,
                        image: "{}".to_owned(),
                    },
                    0,
                )
                .await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn swallowed_answer_is_settled_by_looking() -> Result<()> {
    let server = server("read committed")?;
    let proxy = Proxy::start(server.port()).await?;
    // Nothing but appends on the way through the proxy: the next answer is the append's.
    let options = Options {
        listen: false,
        ..Options::default()
    };
    let journal = open_at(&server.url_at(proxy.port), options).await?;
    let direct = open(&server).await?;
    let (mut ann, mut bob) = (Scribe::new(), Scribe::new());
    ann.write(&journal, "{}").await?;
    for round in 1..=50 {
        bob.write(&direct, "{}").await?;
        proxy.cuts.next_answer.store(true, Ordering::Relaxed);
        ann.write(&journal, "{}").await?;
        ensure!(proxy.cuts.count.load(Ordering::Relaxed) == round, "not cut");
    }
    check(&read_all(&direct).await?, &[ann, bob])
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_cut_at_any_byte_lose_and_repeat_nothing() -> Result<()> {
    for isolation in ISOLATIONS {
        let server = server(isolation)?;
        let proxy = Proxy::start(server.port()).await?;
        let mut journals = Vec::new();
        for _ in 0..4 {
            let options = Options {
                statement_timeout: Duration::from_secs(2),
                ..Options::default()
            };
            journals.push(open_at(&server.url_at(proxy.port), options).await?);
        }
        // A connection costs about 1,500 bytes to open, a page 300 to append and 150 to read: few live for more than some
        // dozen pages. An answer must fit into a connection's life, so the writers read what they missed in pieces.
        proxy.cuts.bytes.store(12_000, Ordering::Relaxed);
        let mut writers = JoinSet::new();
        for journal in journals {
            writers.spawn(async move {
                let mut scribe = Scribe::new();
                for n in 0..80 {
                    scribe.catch_up(&journal).await?;
                    scribe.write(&journal, "x".repeat(n % 9 * 7)).await?;
                }
                anyhow::Ok(scribe)
            });
        }
        let scribes: Vec<Scribe> = writers.join_all().await.into_iter().collect::<Result<_>>()?;
        let cuts = proxy.cuts.count.load(Ordering::Relaxed);
        println!("{isolation}: {cuts} connections cut");
        ensure!(cuts > 20, "only {cuts} connections were cut");
        let direct = open(&server).await?;
        check(&read_all(&direct).await?, &scribes)?;
        direct.close().await;
    }
    Ok(())
}
