//! Order, marks, trimming, waking: the contract on a healthy server.
//!
//! The suite that all journals share is called in `conformance`; what is here is what this engine can get wrong besides.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tokio::task::JoinSet;
use wharf_core::Timestamp;
use wharf_journal::{Checkpoint, Draft, Journal as _, JournalError, Position, Writer};
use wharf_store_postgres::Options;

use crate::support::{ISOLATIONS, START, Scribe, admin, check, open, open_at, position, read_all, run, server};

#[tokio::test(flavor = "multi_thread")]
async fn eight_writers_make_one_journal_without_gaps() -> Result<()> {
    for isolation in ISOLATIONS {
        let server = server(isolation)?;
        let started = Instant::now();
        let mut writers = JoinSet::new();
        for _ in 0..8 {
            let journal = open(&server).await?;
            writers.spawn(async move {
                let mut scribe = Scribe::new();
                for n in 0..200 {
                    scribe.write(&journal, format!("{{\"n\":{n}}}")).await?;
                }
                journal.close().await;
                anyhow::Ok(scribe)
            });
        }
        let scribes: Vec<Scribe> = writers.join_all().await.into_iter().collect::<Result<_>>()?;
        println!("{isolation}: 8 x 200 pages in {:?}", started.elapsed());
        let journal = open(&server).await?;
        check(&read_all(&journal).await?, &scribes)?;
    }
    Ok(())
}

#[tokio::test]
async fn second_attempt_is_answered_with_the_first_page() -> Result<()> {
    let server = server("read committed")?;
    let journal = open(&server).await?;
    let (mut ann, mut bob) = (Scribe::new(), Scribe::new());
    let before = ann.at;
    let draft = ann.draft("{}");
    let first = journal.append(before, &draft).await?;
    for _ in 0..3 {
        bob.write(&journal, "{}").await?;
    }
    let again = journal.append(before, &draft).await?;
    ensure!(again.pages == first.pages, "{again:?}");
    // From a position behind its own page (it began again from a checkpoint that has it): its page alone.
    let late = journal.append(bob.at, &draft).await?;
    ensure!(late.pages == first.pages, "{late:?}");
    ensure!(read_all(&journal).await?.len() == 4);
    // The draft of a writer that missed three pages: they come along.
    ann.apply(first)?;
    ann.write(&journal, "{}").await?;
    ensure!(ann.seen == read_all(&journal).await?);
    Ok(())
}

#[tokio::test]
async fn time_is_the_servers_or_the_drafts_and_never_steps_back() -> Result<()> {
    let server = server("read committed")?;
    let journal = open(&server).await?;
    let mut ann = Scribe::new();
    ensure!(
        journal.read(START, 1).await?.now > Timestamp::from_micros(1_700_000_000_000_000),
        "not the server's clock"
    );
    ann.write(&journal, "{}").await?;
    let far = Timestamp::from_micros(9_000_000_000_000_000);
    for (given, expected) in [(far, far), (Timestamp::from_micros(5), far)] {
        let draft = Draft {
            at: Some(given),
            ..ann.draft("{}")
        };
        let tail = journal.append(ann.at, &draft).await?;
        ensure!(tail.pages[0].at == expected && tail.now >= expected, "{tail:?}");
        ann.apply(tail)?;
    }
    ensure!(
        journal.read(START, 1).await?.now == far,
        "the clock must not be before the last page"
    );
    Ok(())
}

#[tokio::test]
async fn read_says_whether_there_is_more() -> Result<()> {
    let server = server("read committed")?;
    let journal = open(&server).await?;
    let mut ann = Scribe::new();
    for _ in 0..3 {
        ann.write(&journal, "{}").await?;
    }
    for (limit, pages, is_partial) in [(0, 0, true), (2, 2, true), (3, 3, false), (u32::MAX, 3, false)] {
        let tail = journal.read(START, limit).await?;
        ensure!(
            (tail.pages.len(), tail.is_partial) == (pages, is_partial),
            "{limit}: {tail:?}"
        );
    }
    ensure!(journal.read(ann.at, 5).await?.pages.is_empty());
    Ok(())
}

#[tokio::test]
async fn trimmed_position_is_rewound_but_not_at_the_limit() -> Result<()> {
    for isolation in ISOLATIONS {
        let server = server(isolation)?;
        let journal = open(&server).await?;
        let mut ann = Scribe::new();
        for _ in 0..6 {
            ann.write(&journal, "{}").await?;
        }
        let places: Vec<Position> = ann.seen.iter().map(position).collect();
        let kept = Checkpoint {
            position: places[4],
            at: ann.seen[4].at,
            image: "{\"five\":5}".to_owned(),
        };
        ensure!(journal.checkpoint().await?.is_none());
        // Never beyond the checkpoint kept.
        journal.keep(&kept, 4).await?;
        ensure!(journal.checkpoint().await?.as_ref() == Some(&kept));
        let older = Checkpoint {
            position: places[2],
            at: ann.seen[2].at,
            image: "{}".to_owned(),
        };
        journal.keep(&older, 99).await?;
        ensure!(
            journal.checkpoint().await? == Some(kept),
            "an older checkpoint took the place of a newer one"
        );
        // `trim_to` 99 went as far as the checkpoint that is kept: 5.
        let mut bob = Scribe::new();
        let draft = bob.draft("{}");
        for place in [START, places[0], places[3]] {
            let read = journal.read(place, 9).await;
            ensure!(
                matches!(read, Err(JournalError::Rewound(seq)) if seq == place.seq),
                "{place:?}: {read:?}"
            );
            let append = journal.append(place, &draft).await;
            ensure!(
                matches!(append, Err(JournalError::Rewound(seq)) if seq == place.seq),
                "{place:?}: {append:?}"
            );
        }
        ensure!(
            journal.read(places[4], 9).await?.pages.len() == 1,
            "exactly at the limit"
        );
        let tail = journal.append(places[4], &draft).await?;
        ensure!(
            tail.pages.iter().map(|page| page.seq).collect::<Vec<_>>() == [6, 7],
            "{tail:?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn trimmed_pages_are_deleted_after_their_grace_but_the_writers_last() -> Result<()> {
    let server = server("read committed")?;
    let journal = open(&server).await?;
    let (mut ann, mut bob) = (Scribe::new(), Scribe::new());
    ann.write(&journal, "{}").await?;
    let lost = bob.draft("{}");
    let first = journal.append(bob.at, &lost).await?;
    for _ in 0..2_999 {
        ann.write(&journal, "{}").await?;
    }
    let end = ann.seen.last().map(|page| (position(page), page.at)).expect("pages");
    let kept = Checkpoint {
        position: end.0,
        at: end.1,
        image: "{}".to_owned(),
    };
    journal.keep(&kept, end.0.seq).await?;
    let mut admin = admin(&server).await?;
    let count = "SELECT count(*) FROM wharf.wharf_pages";
    ensure!(
        sqlx::query_scalar::<_, i64>(count).fetch_one(&mut admin).await? == 3_001,
        "within the grace all stay"
    );
    // An append that was accepted just before the trim asks again: what it missed is still there.
    let again = journal.append(START, &lost).await?;
    ensure!(again.pages == first.pages, "{again:?}");
    run(&mut admin, "UPDATE wharf.wharf_head SET pending_at = 0").await?;
    journal.keep(&kept, end.0.seq).await?;
    // Bob's only page, and the one at the limit (Ann's last).
    ensure!(sqlx::query_scalar::<_, i64>(count).fetch_one(&mut admin).await? == 2);
    // Long after, Bob asks for the fate of his page: from where he was he must begin again, and then hears of it.
    ensure!(matches!(
        journal.append(START, &lost).await,
        Err(JournalError::Rewound(0))
    ));
    let fate = journal.append(end.0, &lost).await?;
    ensure!(fate.pages == first.pages[1..], "{fate:?}");
    Ok(())
}

#[tokio::test]
async fn journal_that_lost_its_tail_is_rewound() -> Result<()> {
    let server = server("read committed")?;
    let journal = open(&server).await?;
    let mut ann = Scribe::new();
    for _ in 0..3 {
        ann.write(&journal, "{}").await?;
    }
    let mut admin = admin(&server).await?;
    run(
        &mut admin,
        "DELETE FROM wharf.wharf_pages WHERE seq = 3; UPDATE wharf.wharf_head SET seq = 2",
    )
    .await?;
    let at = ann.at;
    let draft = ann.draft("{}");
    ensure!(matches!(journal.read(at, 9).await, Err(JournalError::Rewound(3))));
    ensure!(matches!(
        journal.append(at, &draft).await,
        Err(JournalError::Rewound(3))
    ));
    let image = Checkpoint {
        position: at,
        at: ann.seen[2].at,
        image: "{}".to_owned(),
    };
    ensure!(
        matches!(journal.keep(&image, 0).await, Err(JournalError::Rewound(3))),
        "a checkpoint nobody could follow"
    );
    // Another writes page 3: it is not the page that Ann knows.
    let mut bob = Scribe::new();
    bob.write(&journal, "{}").await?;
    ensure!(bob.at.seq == 3);
    ensure!(matches!(journal.read(at, 9).await, Err(JournalError::Rewound(3))));
    ensure!(matches!(
        journal.append(at, &draft).await,
        Err(JournalError::Rewound(3))
    ));
    let forged = Position {
        seq: 3,
        mark: Some((Writer(ann.writer.0), 1)),
    };
    ensure!(matches!(journal.read(forged, 9).await, Err(JournalError::Rewound(3))));
    ensure!(read_all(&journal).await?.len() == 3, "nothing was appended");
    Ok(())
}

#[tokio::test]
async fn damage_is_told_and_not_passed_on() -> Result<()> {
    let server = server("read committed")?;
    let journal = open(&server).await?;
    let mut ann = Scribe::new();
    for _ in 0..4 {
        ann.write(&journal, "{}").await?;
    }
    let mut admin = admin(&server).await?;
    run(&mut admin, "DELETE FROM wharf.wharf_pages WHERE seq = 3").await?;
    ensure!(
        matches!(journal.read(START, 9).await, Err(JournalError::Corrupt(_))),
        "a page is missing"
    );
    run(&mut admin, "UPDATE wharf.wharf_head SET seq = 1").await?;
    let draft = ann.draft("{}");
    let append = journal.append(START, &draft).await;
    ensure!(matches!(append, Err(JournalError::Corrupt(_)) | Ok(_)), "{append:?}");
    run(&mut admin, "DROP SCHEMA wharf CASCADE").await?;
    let started = Instant::now();
    ensure!(matches!(journal.read(START, 9).await, Err(JournalError::Corrupt(_))));
    ensure!(
        started.elapsed() < Duration::from_secs(2),
        "waiting does not bring tables back"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_wakes_with_and_without_notifications() -> Result<()> {
    let server = server("read committed")?;
    for (schema, listen, bound) in [("heard", true, 80), ("asked", false, 700)] {
        let options = Options {
            listen,
            schema: schema.to_owned(),
            ..Options::default()
        };
        let reader = open_at(&server.url(), options.clone()).await?;
        let writer = open_at(&server.url(), options).await?;
        wharf_testkit::eventually("listening", async || {
            ensure!(reader.is_listening() == listen);
            Ok(())
        })
        .await?;
        // Nothing to wait for: it comes back all the same.
        let started = Instant::now();
        reader.wait(0).await;
        ensure!(
            started.elapsed() < Duration::from_millis(1_500),
            "{:?}",
            started.elapsed()
        );
        let mut ann = Scribe::new();
        ann.write(&writer, "{}").await?;
        let mut slowest = Duration::ZERO;
        for _ in 0..5 {
            let at = ann.at.seq;
            let (woken, written) = tokio::join!(
                async {
                    reader.wait(at).await;
                    Instant::now()
                },
                async {
                    tokio::time::sleep(Duration::from_millis(30)).await;
                    let draft = ann.draft("{}");
                    let tail = writer.append(ann.at, &draft).await?;
                    anyhow::Ok((tail, Instant::now()))
                }
            );
            let (tail, written) = written?;
            slowest = slowest.max(woken.saturating_duration_since(written));
            ann.apply(tail)?;
        }
        println!("{schema}: woken {slowest:?} after the append at worst");
        ensure!(slowest < Duration::from_millis(bound), "{schema}: {slowest:?}");
        // What was told before anybody waited is not lost.
        let before = Instant::now();
        reader.wait(ann.at.seq - 1).await;
        ensure!(
            before.elapsed() < Duration::from_millis(bound + 150),
            "{:?}",
            before.elapsed()
        );
        reader.close().await;
        writer.close().await;
        ensure!(
            matches!(reader.read(START, 1).await, Err(JournalError::Unavailable(_))),
            "closed"
        );
    }
    Ok(())
}

#[tokio::test]
async fn large_and_hostile_text_is_kept_as_it_is() -> Result<()> {
    let server = server("read committed")?;
    let journal = open(&server).await?;
    let mut ann = Scribe::new();
    let mut megabyte = "x'\"\\;--$1 {s} é 🜁\u{7f}\u{1}\r\n\t".repeat(40_000);
    megabyte.push_str("{\"nul\":\"\\u0000\"}");
    for body in [
        megabyte.as_str(),
        "",
        "'); DROP SCHEMA wharf CASCADE; --",
        "\u{feff}\u{fffe}",
        "{notify}",
    ] {
        ann.write(&journal, body).await?;
    }
    let bodies: Vec<String> = read_all(&journal).await?.into_iter().map(|page| page.body).collect();
    ensure!(bodies.len() == 5 && bodies[0] == megabyte && bodies[2].starts_with("')"));
    let number = ann.number;
    let draft = ann.draft("a\0b");
    let refused = journal.append(ann.at, &draft).await;
    ensure!(
        matches!(&refused, Err(JournalError::Corrupt(why)) if why.contains("NUL") && why.contains("byte 1")),
        "{refused:?}"
    );
    ann.number = number;
    let kept = Checkpoint {
        position: ann.at,
        at: ann.seen[4].at,
        image: megabyte,
    };
    journal.keep(&kept, 0).await?;
    ensure!(journal.checkpoint().await? == Some(kept));
    Ok(())
}

#[tokio::test]
async fn description_names_the_engine_and_warns() -> Result<()> {
    let mut server = server("serializable")?;
    let journal = open(&server).await?;
    let told = journal.describe().await?;
    ensure!(
        told.starts_with("PostgreSQL 1") && told.contains("WARNING: fsync is off") && told.contains("serializable"),
        "{told}"
    );
    server.set("fsync", "on");
    server.set("synchronous_commit", "off");
    server.restart()?;
    let told = journal.describe().await?;
    ensure!(told.contains("WARNING: synchronous_commit is off"), "{told}");
    ensure!(!told.contains(wharf_testkit::postgres::PASSWORD), "{told}");
    Ok(())
}
