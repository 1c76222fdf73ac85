//! The journal against one real server: order, exactly once, trimming, waiting, checkpoints.
mod support;

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use support::{Hand, START, connect, options, position_of, read_all};
use wharf_core::Timestamp;
use wharf_journal::{Checkpoint, Journal, JournalError, Position};
use wharf_store_redis::RedisJournal;
use wharf_testkit::{eventually, redis::Server};

#[tokio::test]
async fn pages_of_concurrent_writers_are_in_one_order_without_gaps() {
    let server = Server::start().await.unwrap();
    support::concurrent_writers(&server.url()).await;
}

#[tokio::test]
async fn append_answers_with_what_was_missed_and_its_own_page_last() {
    let server = Server::start().await.unwrap();
    let journal = connect(&server.url()).await;
    let (mut a, mut b) = (Hand::new(), Hand::new());
    for n in 0..5 {
        a.append(&journal, &format!("a{n}")).await.unwrap();
    }
    let tail = journal.append(START, &b.draft("b")).await.unwrap();
    let bodies: Vec<&str> = tail.pages.iter().map(|page| page.body.as_str()).collect();
    assert_eq!(bodies, ["a0", "a1", "a2", "a3", "a4", "b"]);
    assert_eq!(
        tail.pages.iter().map(|page| page.seq).collect::<Vec<_>>(),
        [1, 2, 3, 4, 5, 6]
    );
    assert!(tail.pages.is_sorted_by_key(|page| page.at));
    assert!(tail.now >= tail.pages[5].at);
    // From where it is: only its own.
    let tail = journal
        .append(position_of(&tail.pages[5]), &b.draft("b2"))
        .await
        .unwrap();
    assert_eq!(tail.pages.len(), 1);
}

#[tokio::test]
async fn append_tried_again_is_answered_with_the_first_page() {
    let server = Server::start().await.unwrap();
    let journal = connect(&server.url()).await;
    let (mut a, mut b) = (Hand::new(), Hand::new());
    b.append(&journal, "b").await.unwrap();
    let draft = a.draft("once");
    let first = journal.append(START, &draft).await.unwrap();
    let own = first.pages[1].clone();
    b.append(&journal, "between").await.unwrap();
    assert_eq!(journal.append(START, &draft).await.unwrap().pages, first.pages);
    // From its own page, and from beyond it: that page alone.
    assert_eq!(
        journal.append(position_of(&own), &draft).await.unwrap().pages,
        std::slice::from_ref(&own)
    );
    let (all, _) = read_all(&journal, START).await.unwrap();
    assert_eq!(
        journal.append(position_of(&all[2]), &draft).await.unwrap().pages,
        std::slice::from_ref(&own)
    );
    // An older one than the last.
    a.append(&journal, "second").await.unwrap();
    assert_eq!(journal.append(START, &draft).await.unwrap().pages, first.pages);
    assert_eq!(read_all(&journal, START).await.unwrap().0.len(), 4);
    // Its page is trimmed: still known, with its place and time.
    let (all, _) = read_all(&journal, START).await.unwrap();
    let last = all.last().unwrap();
    let checkpoint = Checkpoint {
        position: position_of(last),
        at: last.at,
        image: "{}".into(),
    };
    journal.keep(&checkpoint, last.seq).await.unwrap();
    let again = support::draft(last, "second");
    assert_eq!(
        journal.append(position_of(last), &again).await.unwrap().pages,
        std::slice::from_ref(last)
    );
}

#[tokio::test]
async fn read_is_partial_beyond_its_limit() {
    let server = Server::start().await.unwrap();
    let journal = connect(&server.url()).await;
    let empty = journal.read(START, 10).await.unwrap();
    assert!(empty.pages.is_empty() && !empty.is_partial && empty.now > Timestamp::from_micros(0));
    let mut hand = Hand::new();
    for n in 0..10 {
        hand.append(&journal, &n.to_string()).await.unwrap();
    }
    let part = journal.read(START, 4).await.unwrap();
    assert_eq!((part.pages.len(), part.is_partial), (4, true));
    let rest = journal.read(position_of(&part.pages[3]), 6).await.unwrap();
    assert_eq!((rest.pages.len(), rest.is_partial), (6, false));
    assert!(journal.read(START, 0).await.unwrap().is_partial);
}

#[tokio::test]
async fn time_never_steps_back_and_tests_have_their_own() {
    let server = Server::start().await.unwrap();
    let journal = connect(&server.url()).await;
    let mut hand = Hand::new();
    let mut times = Vec::new();
    for at in [5_000_000, 7_000_000, 6_000_000, 1_753_000_000_123_457] {
        let mut draft = hand.draft("x");
        draft.at = Some(Timestamp::from_micros(at));
        let tail = journal.append(hand.position, &draft).await.unwrap();
        hand.position = position_of(tail.pages.last().unwrap());
        assert_eq!(tail.now, tail.pages[0].at);
        times.push(tail.pages[0].at.as_micros());
    }
    assert_eq!(times, [5_000_000, 7_000_000, 7_000_000, 1_753_000_000_123_457]);
    let (pages, _) = read_all(&journal, START).await.unwrap();
    assert_eq!(pages.iter().map(|page| page.at.as_micros()).collect::<Vec<_>>(), times);
}

#[tokio::test]
async fn flushed_scripts_are_taught_again() {
    let server = Server::start().await.unwrap();
    let journal = connect(&server.url()).await;
    let mut hand = Hand::new();
    for n in 0..50 {
        server.command(&["SCRIPT", "FLUSH"]).await.unwrap();
        hand.append(&journal, &n.to_string()).await.unwrap();
        server.command(&["SCRIPT", "FLUSH"]).await.unwrap();
        assert_eq!(read_all(&journal, START).await.unwrap().0.len(), n + 1);
    }
}

#[tokio::test]
async fn waiters_wake_at_once_and_share_one_connection() {
    let server = Server::start().await.unwrap();
    let journal = Arc::new(connect(&server.url()).await);
    let mut hand = Hand::new();
    hand.append(&journal, "1").await.unwrap();
    // There are pages already.
    journal.wait(0).await;
    let mut waiters = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let journal = Arc::clone(&journal);
        waiters.spawn(async move { journal.wait(1).await });
    }
    eventually("all of them to wait by one connection", async || {
        let blocked = server.command(&["INFO", "clients"]).await?;
        anyhow::ensure!(blocked.contains("blocked_clients:1\r"), "{blocked}");
        Ok(())
    })
    .await
    .unwrap();
    let rung = Instant::now();
    hand.append(&journal, "2").await.unwrap();
    waiters.join_all().await;
    assert!(rung.elapsed() < Duration::from_millis(100), "{:?}", rung.elapsed());
    // Nothing comes: not for ever. Dropped: nothing stays.
    let started = Instant::now();
    journal.wait(2).await;
    assert!(started.elapsed() < Duration::from_secs(2));
    for _ in 0..100 {
        let _ = tokio::time::timeout(Duration::from_millis(1), journal.wait(2)).await;
    }
    let started = Instant::now();
    hand.append(&journal, "3").await.unwrap();
    journal.wait(2).await;
    assert!(
        started.elapsed() < Duration::from_millis(200),
        "{:?}",
        started.elapsed()
    );
    journal.close().await;
    let clients = server.command(&["CLIENT", "LIST"]).await.unwrap();
    assert_eq!(
        clients.lines().filter(|line| !line.contains("cmd=client")).count(),
        0,
        "{clients}"
    );
}

#[tokio::test]
async fn trimmed_boundary_is_fine_and_what_lies_before_it_is_rewound() {
    let server = Server::start().await.unwrap();
    let journal = connect(&server.url()).await;
    let mut hand = Hand::new();
    for n in 0..10 {
        hand.append(&journal, &n.to_string()).await.unwrap();
    }
    let (pages, _) = read_all(&journal, START).await.unwrap();
    let at = |seq: usize| position_of(&pages[seq - 1]);
    let checkpoint = |seq: usize| Checkpoint {
        position: at(seq),
        at: pages[seq - 1].at,
        image: format!("{{\"at\":{seq}}}"),
    };
    assert!(journal.checkpoint().await.unwrap().is_none());
    // Never beyond the checkpoint.
    journal.keep(&checkpoint(6), 9).await.unwrap();
    assert_eq!(journal.checkpoint().await.unwrap().unwrap(), checkpoint(6));
    // An older one is not kept, but what may go, goes; a part of it only leaves the rest.
    let other = RedisJournal::connect(&server.url(), options("other")).await.unwrap();
    assert!(other.checkpoint().await.unwrap().is_none());
    journal.keep(&checkpoint(3), 4).await.unwrap();
    assert_eq!(journal.checkpoint().await.unwrap().unwrap(), checkpoint(6));
    for fresh in [&journal, &connect(&server.url()).await] {
        for seq in 1..=5 {
            assert!(
                matches!(fresh.read(at(seq), 10).await, Err(JournalError::Rewound(_))),
                "{seq}"
            );
        }
        assert!(matches!(fresh.read(START, 10).await, Err(JournalError::Rewound(0))));
        assert_eq!(fresh.read(at(6), 10).await.unwrap().pages, pages[6..]);
        assert_eq!(fresh.read(at(8), 10).await.unwrap().pages, pages[8..]);
        assert!(fresh.read(at(10), 10).await.unwrap().pages.is_empty());
        let mut late = Hand::new();
        assert!(matches!(
            fresh.append(at(5), &late.draft("x")).await,
            Err(JournalError::Rewound(5))
        ));
    }
    // All of it may go.
    journal.keep(&checkpoint(10), 10).await.unwrap();
    assert_eq!(server.command(&["XLEN", "{wharf}:pages"]).await.unwrap(), "0");
    assert!(journal.read(at(10), 10).await.unwrap().pages.is_empty());
    assert_eq!(
        journal.append(at(10), &hand.draft("11")).await.unwrap().pages[0].seq,
        11
    );
}

#[tokio::test]
async fn position_with_another_mark_is_rewound() {
    let server = Server::start().await.unwrap();
    let journal = connect(&server.url()).await;
    let mut hand = Hand::new();
    for n in 0..3 {
        hand.append(&journal, &n.to_string()).await.unwrap();
    }
    let stranger = Hand::new().draft("x");
    for seq in 1..=4 {
        for mark in [None, Some((stranger.writer, seq)), Some((hand.writer, 99))] {
            let position = Position { seq, mark };
            assert!(
                matches!(journal.read(position, 10).await, Err(JournalError::Rewound(_))),
                "{position:?}"
            );
            assert!(
                matches!(journal.append(position, &stranger).await, Err(JournalError::Rewound(_))),
                "{position:?}"
            );
        }
    }
    assert_eq!(read_all(&journal, START).await.unwrap().0.len(), 3);
}

#[tokio::test]
async fn page_of_a_megabyte_and_hostile_text_come_back_as_they_went() {
    let server = Server::start().await.unwrap();
    let journal = connect(&server.url()).await;
    let mut hand = Hand::new();
    let bodies = [
        "x".repeat(1 << 20),
        String::new(),
        "\0\r\n$5\r\n*1\r\n'\"\\ ]] {wharf} ';return redis.call('FLUSHALL')".to_owned(),
        "żółć 漢字 \u{1f6a2} \u{0} \u{feff} \u{202e}".to_owned(),
    ];
    for body in &bodies {
        let tail = hand.append(&journal, body).await.unwrap();
        assert_eq!(&tail.pages.last().unwrap().body, body);
    }
    let (pages, _) = read_all(&journal, START).await.unwrap();
    assert!(pages.iter().map(|page| &page.body).eq(&bodies));
    let last = pages.last().unwrap();
    let image = bodies.concat().repeat(20);
    let checkpoint = Checkpoint {
        position: position_of(last),
        at: last.at,
        image,
    };
    journal.keep(&checkpoint, 2).await.unwrap();
    assert!(journal.checkpoint().await.unwrap().unwrap() == checkpoint);
}

#[tokio::test]
async fn silent_writers_are_forgotten_after_a_day() {
    let server = Server::start().await.unwrap();
    let journal = connect(&server.url()).await;
    let (mut old, mut new) = (Hand::new(), Hand::new());
    let day = 24 * 60 * 60 * 1_000_000;
    for (hand, at) in [(&mut old, 1), (&mut new, day - 1)] {
        let mut draft = hand.draft("x");
        draft.at = Some(Timestamp::from_micros(at));
        journal.append(START, &draft).await.unwrap();
    }
    let mut draft = new.draft("x");
    draft.at = Some(Timestamp::from_micros(day + 2));
    let tail = journal.append(START, &draft).await.unwrap();
    let last = tail.pages.last().unwrap();
    assert_eq!(server.command(&["HLEN", "{wharf}:writers"]).await.unwrap(), "2");
    journal
        .keep(
            &Checkpoint {
                position: position_of(last),
                at: last.at,
                image: "{}".into(),
            },
            0,
        )
        .await
        .unwrap();
    assert_eq!(
        server.command(&["HKEYS", "{wharf}:writers"]).await.unwrap(),
        new.writer.0.to_string()
    );
}

#[tokio::test]
async fn prefixes_do_not_see_each_other() {
    let server = Server::start().await.unwrap();
    let a = RedisJournal::connect(&server.url(), options("a")).await.unwrap();
    let b = RedisJournal::connect(&server.url(), options("b")).await.unwrap();
    let mut hand = Hand::new();
    hand.append(&a, "a").await.unwrap();
    assert!(b.read(START, 1).await.unwrap().pages.is_empty());
    let keys: HashSet<String> = server
        .command(&["KEYS", "*"])
        .await
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect();
    assert!(
        !keys.is_empty() && keys.iter().all(|key| key.starts_with("{a}:")),
        "{keys:?}"
    );
}
