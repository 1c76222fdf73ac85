//! The journal when the server, the connection or the data goes: exactly once, in time, and never two histories mixed.
mod support;

use std::{
    collections::HashMap,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use support::{Hand, START, connect, cutter::Cutter, options, position_of, read_all};
use wharf_journal::{Checkpoint, Journal, JournalError, Page};
use wharf_store_redis::{Options, RedisJournal};
use wharf_testkit::redis::Server;

fn checkpoint_at(page: &Page) -> Checkpoint {
    Checkpoint {
        position: position_of(page),
        at: page.at,
        image: format!("{{\"after\":{}}}", page.seq),
    }
}

#[tokio::test]
async fn append_is_exactly_once_over_connections_cut_anywhere() {
    // Where and how often it cuts is chance: until it has cut often enough.
    let mut cuts = 0;
    while cuts <= 50 {
        let server = Server::start().await.unwrap();
        let cutter = Cutter::before(server.port()).await;
        let url = format!("redis://127.0.0.1:{}", cutter.port);
        let mut writers = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let journal = connect(&url).await;
            writers.spawn(async move {
                let mut hand = Hand::new();
                for _ in 0..150 {
                    let body = format!("{} {}", hand.writer.0, hand.number + 1);
                    let tail = hand.append(&journal, &body).await.unwrap();
                    let own = tail.pages.last().unwrap();
                    assert_eq!((own.writer, own.number, &own.body), (hand.writer, hand.number, &body));
                }
                hand
            });
        }
        cutter.is_sharp.store(true, Ordering::Relaxed);
        let mut written = HashMap::new();
        while let Some(hand) = writers.join_next().await {
            let hand = hand.unwrap();
            written.insert(hand.writer, hand.number);
        }
        let (pages, _) = read_all(&connect(&server.url()).await, START).await.unwrap();
        support::check_complete(&pages, &written);
        cuts += cutter.cuts.load(Ordering::Relaxed);
    }
}

#[tokio::test]
async fn outage_fails_in_time_and_ends_without_reopening() {
    let mut server = Server::builder().append_only().start().await.unwrap();
    let limits = Options {
        response_timeout: Duration::from_secs(1),
        ..Options::default()
    };
    let journal = RedisJournal::connect(&server.url(), limits).await.unwrap();
    let mut hand = Hand::new();
    hand.append(&journal, "before").await.unwrap();
    journal.wait(0).await;
    for is_paused in [false, true] {
        if is_paused {
            server.pause().unwrap()
        } else {
            server.kill().unwrap()
        }
        let draft = hand.draft("during");
        let started = Instant::now();
        let (append, read) = tokio::join!(journal.append(hand.position, &draft), journal.read(START, 1));
        assert!(matches!(append, Err(JournalError::Unavailable(_))), "{append:?}");
        assert!(matches!(read, Err(JournalError::Unavailable(_))), "{read:?}");
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
        let text = format!("{}", append.unwrap_err());
        assert!(text.contains(&server.port().to_string()), "{text}");
        let started = Instant::now();
        journal.wait(hand.position.seq).await;
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
        if is_paused {
            server.resume().unwrap()
        } else {
            server.restart().await.unwrap()
        }
        // The same draft: whether or not the paused server has done it already.
        hand.insist(&journal, &draft).await.unwrap();
    }
    let (pages, _) = read_all(&journal, START).await.unwrap();
    assert_eq!(
        pages.iter().map(|page| page.body.as_str()).collect::<Vec<_>>(),
        ["before", "during", "during"]
    );
    let started = Instant::now();
    journal.wait(2).await;
    assert!(started.elapsed() < Duration::from_millis(1500));
}

#[tokio::test]
async fn lost_tail_is_rewound_and_the_journal_goes_on() {
    let mut server = Server::builder().append_only().start().await.unwrap();
    let journal = connect(&server.url()).await;
    let (mut a, mut b) = (Hand::new(), Hand::new());
    for n in 0..5 {
        a.append(&journal, &n.to_string()).await.unwrap();
    }
    let (kept, _) = read_all(&journal, START).await.unwrap();
    journal.keep(&checkpoint_at(&kept[2]), 2).await.unwrap();
    let snapshot = server.snapshot().unwrap();
    for n in 0..5 {
        a.append(&journal, &format!("lost {n}")).await.unwrap();
    }
    let (lost, _) = read_all(&journal, position_of(&kept[4])).await.unwrap();
    let ahead = checkpoint_at(&lost[3]);
    server.restart_with(&snapshot).await.unwrap();

    // The journal is shorter than the reader's place.
    assert!(matches!(
        journal.read(a.position, 10).await,
        Err(JournalError::Rewound(10))
    ));
    assert!(matches!(
        journal.append(a.position, &b.draft("x")).await,
        Err(JournalError::Rewound(10))
    ));
    assert!(matches!(journal.keep(&ahead, 9).await, Err(JournalError::Rewound(9))));
    assert!(journal.read(position_of(&kept[4]), 10).await.unwrap().pages.is_empty());

    // From the checkpoint on, it can be used again; it grows past that place with other pages.
    let checkpoint = journal.checkpoint().await.unwrap().unwrap();
    assert_eq!(checkpoint.position.seq, 3);
    b = Hand::new();
    b.position = checkpoint.position;
    for n in 0..8 {
        b.append(&journal, &format!("new {n}")).await.unwrap();
    }
    assert!(matches!(
        journal.read(a.position, 10).await,
        Err(JournalError::Rewound(10))
    ));
    assert!(matches!(
        connect(&server.url()).await.read(a.position, 10).await,
        Err(JournalError::Rewound(10))
    ));
    assert!(matches!(journal.keep(&ahead, 9).await, Err(JournalError::Rewound(9))));

    // A writer that lost pages goes on with its next number.
    a.position = checkpoint.position;
    let tail = a.append(&journal, "again").await.unwrap();
    assert!(tail.pages.iter().map(|page| page.seq).eq(4..=14));
    assert_eq!(tail.pages[2].body, "new 0");
}

#[tokio::test]
async fn draft_appended_again_after_its_loss_is_not_taken_for_the_first() {
    let mut server = Server::builder().append_only().start().await.unwrap();
    let (journal, reader) = (connect(&server.url()).await, connect(&server.url()).await);
    let mut hand = Hand::new();
    hand.append(&journal, "1").await.unwrap();
    let before = hand.position;
    let snapshot = server.snapshot().unwrap();
    let draft = hand.draft("2");
    journal.append(before, &draft).await.unwrap();
    let (pages, _) = read_all(&reader, START).await.unwrap();
    server.restart_with(&snapshot).await.unwrap();
    // Its answer was lost with the page: the writer tries again, and the same mark is at the same place once more.
    let second = journal.append(before, &draft).await.unwrap();
    assert_eq!(position_of(&second.pages[0]), position_of(&pages[1]));
    assert_ne!(second.pages[0].at, pages[1].at);
    assert!(matches!(
        reader.read(position_of(&pages[1]), 10).await,
        Err(JournalError::Rewound(2))
    ));
    assert!(matches!(
        reader.keep(&checkpoint_at(&pages[1]), 0).await,
        Err(JournalError::Rewound(2))
    ));
    assert_eq!(read_all(&reader, START).await.unwrap().0[1], second.pages[0]);
    assert!(reader.read(position_of(&pages[1]), 10).await.unwrap().pages.is_empty());
}

#[tokio::test]
async fn everything_lost_is_rewound_and_begins_anew() {
    let mut server = Server::start().await.unwrap();
    let journal = connect(&server.url()).await;
    let mut hand = Hand::new();
    hand.append(&journal, "1").await.unwrap();
    server.restart().await.unwrap();
    assert!(matches!(
        journal.read(hand.position, 10).await,
        Err(JournalError::Rewound(1))
    ));
    assert!(journal.checkpoint().await.unwrap().is_none());
    hand.position = START;
    assert_eq!(hand.append(&journal, "2").await.unwrap().pages[0].seq, 1);
}

#[tokio::test]
async fn place_before_the_checkpoint_is_never_given_out_again() {
    let server = Server::start().await.unwrap();
    let journal = connect(&server.url()).await;
    let mut hand = Hand::new();
    for n in 0..6 {
        hand.append(&journal, &n.to_string()).await.unwrap();
    }
    let (pages, _) = read_all(&journal, START).await.unwrap();
    journal.keep(&checkpoint_at(&pages[3]), 1).await.unwrap();

    // The head alone is gone: the pages tell it.
    server.command(&["DEL", "{wharf}:head"]).await.unwrap();
    assert_eq!(
        journal.read(position_of(&pages[3]), 10).await.unwrap().pages,
        pages[4..]
    );
    assert_eq!(hand.append(&journal, "7").await.unwrap().pages[0].seq, 7);

    // The checkpoint alone is left.
    server
        .command(&["DEL", "{wharf}:head", "{wharf}:pages", "{wharf}:writers"])
        .await
        .unwrap();
    assert!(matches!(
        journal.read(hand.position, 10).await,
        Err(JournalError::Rewound(7))
    ));
    assert!(matches!(
        journal.read(position_of(&pages[1]), 10).await,
        Err(JournalError::Rewound(2))
    ));
    let checkpoint = journal.checkpoint().await.unwrap().unwrap();
    assert!(journal.read(checkpoint.position, 10).await.unwrap().pages.is_empty());
    hand.position = checkpoint.position;
    let page = hand.append(&journal, "x").await.unwrap().pages.remove(0);
    assert_eq!(page.seq, 5);
    assert!(page.at >= checkpoint.at);
    assert!(matches!(journal.read(START, 10).await, Err(JournalError::Rewound(0))));
    assert_eq!(journal.read(checkpoint.position, 10).await.unwrap().pages, [page]);

    // The head is behind the checkpoint, with pages of its own (a half restored backup).
    server
        .command(&["HSET", "{wharf}:checkpoint", "seq", "20"])
        .await
        .unwrap();
    assert!(matches!(
        journal.read(hand.position, 10).await,
        Err(JournalError::Rewound(5))
    ));
    hand.position = journal.checkpoint().await.unwrap().unwrap().position;
    assert_eq!(hand.append(&journal, "y").await.unwrap().pages[0].seq, 21);
    assert_eq!(server.command(&["XLEN", "{wharf}:pages"]).await.unwrap(), "1");
}

#[tokio::test]
async fn evicted_pages_or_checkpoint_are_said_and_not_guessed() {
    let server = Server::start().await.unwrap();
    let journal = connect(&server.url()).await;
    let mut hand = Hand::new();
    for n in 0..4 {
        hand.append(&journal, &n.to_string()).await.unwrap();
    }
    let (pages, _) = read_all(&journal, START).await.unwrap();
    journal.keep(&checkpoint_at(&pages[2]), 3).await.unwrap();
    server.command(&["DEL", "{wharf}:checkpoint"]).await.unwrap();
    let error = journal.read(START, 10).await.unwrap_err();
    assert!(
        matches!(&error, JournalError::Corrupt(text) if text.contains("maxmemory-policy")),
        "{error}"
    );
    server.command(&["DEL", "{wharf}:pages"]).await.unwrap();
    for error in [
        journal.read(position_of(&pages[2]), 10).await.unwrap_err(),
        journal
            .append(position_of(&pages[2]), &hand.draft("x"))
            .await
            .unwrap_err(),
    ] {
        assert!(
            matches!(&error, JournalError::Corrupt(text) if text.contains("{wharf}:pages")),
            "{error}"
        );
    }
    // Somebody else's key under our name.
    let journal = RedisJournal::connect(&server.url(), options("taken")).await.unwrap();
    server.command(&["SET", "{taken}:pages", "x"]).await.unwrap();
    let error = journal.append(START, &Hand::new().draft("x")).await.unwrap_err();
    assert!(matches!(&error, JournalError::Corrupt(_)), "{error}");
}

#[tokio::test]
async fn append_without_the_wanted_replicas_is_not_acknowledged() {
    let server = Server::start().await.unwrap();
    let url = format!("{}?wait_replicas=1&wait_timeout_ms=100", server.url());
    let journal = RedisJournal::connect(&url, Options::default()).await.unwrap();
    let mut hand = Hand::new();
    let draft = hand.draft("x");
    for _ in 0..2 {
        let error = journal.append(START, &draft).await.unwrap_err();
        assert!(
            matches!(&error, JournalError::Unavailable(text) if text.contains("0 of 1 replicas")),
            "{error}"
        );
    }
    let replica = Server::builder()
        .set("replicaof", &format!("127.0.0.1 {}", server.port()))
        .set("repl-diskless-sync-delay", "0")
        .start()
        .await
        .unwrap();
    hand.insist(&journal, &draft).await.unwrap();
    assert_eq!(replica.command(&["XLEN", "{wharf}:pages"]).await.unwrap(), "1");
    // A second attempt must be confirmed, too, not waved through: the replica does not hear of anything now.
    replica.pause().unwrap();
    assert!(journal.append(START, &draft).await.is_err());
    replica.resume().unwrap();
    hand.insist(&journal, &draft).await.unwrap();
    // A replica itself cannot keep a journal.
    let error = RedisJournal::connect(&replica.url(), Options::default())
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("is a replica") && error.contains(&server.port().to_string()),
        "{error}"
    );
}
