//! The journal on a real Redis Cluster: three primaries, three replicas, fail-overs and a slot that moves.
#![expect(
    clippy::unwrap_used,
    reason = "a test; the lint knows test functions only, not their helpers"
)]
mod support;

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use support::{Hand, START, connect, position_of, read_all};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use wharf_journal::{Checkpoint, Journal, JournalError, Page, Writer};
use wharf_store_redis::{Options, RedisJournal};
use wharf_testkit::{eventually, redis::Cluster};

#[tokio::test]
async fn cluster_pages_of_concurrent_writers_are_in_one_order_without_gaps() {
    let cluster = Cluster::start().await.unwrap();
    support::concurrent_writers(&cluster.url()).await;
}

/// What a writer did until it was told to stop.
struct Story {
    /// What was acknowledged, in order.
    acknowledged: Vec<Page>,
    /// How often it was told that its place is gone.
    rewinds: usize,
    writer: Writer,
}

/// Writes until told to stop; begins again from page 1 when its place is gone.
async fn write(url: String, options: Options, stop: CancellationToken) -> Story {
    let journal = RedisJournal::connect(&url, options).await.unwrap();
    let mut hand = Hand::new();
    let mut story = Story {
        acknowledged: Vec::new(),
        rewinds: 0,
        writer: hand.writer,
    };
    while !stop.is_cancelled() {
        let draft = hand.draft("x");
        loop {
            match journal.append(hand.position, &draft).await {
                Ok(tail) => {
                    let own = tail.pages.last().unwrap().clone();
                    assert_eq!((own.writer, own.number), (draft.writer, draft.number));
                    hand.position = position_of(&own);
                    story.acknowledged.push(own);
                    break;
                }
                Err(JournalError::Rewound(_)) => {
                    story.rewinds += 1;
                    hand.position = START;
                }
                Err(JournalError::Unavailable(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(error) => panic!("{error}"),
            }
        }
    }
    story
}

/// Writers at work while the slot's primary is killed, and for a while after.
async fn stories_of_a_failover(cluster: &mut Cluster, options: &Options) -> Vec<Story> {
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let handles: Vec<_> = (0..4)
        .map(|_| tasks.spawn(write(cluster.url(), options.clone(), stop.clone())))
        .collect();
    let reader = connect(&cluster.url()).await;
    let grown = async |by: u64| {
        let tip = read_all(&reader, START)
            .await
            .map_or(0, |(pages, _)| pages.len() as u64);
        eventually("the journal to grow", async || {
            let now = read_all(&reader, START).await?.0.len() as u64;
            anyhow::ensure!(now >= tip + by, "{tip} pages, then {now}");
            Ok(())
        })
        .await
        .unwrap();
    };
    grown(100).await;
    let started = Instant::now();
    let (old, _) = cluster.fail_over("wharf").await.unwrap();
    eprintln!("taken over after {:?}", started.elapsed());
    // It comes back as a replica, which those who want one wait for.
    cluster.node_mut(old).restart().await.unwrap();
    grown(100).await;
    stop.cancel();
    let mut stories = Vec::new();
    for handle in handles {
        stories.push(handle.await.unwrap());
    }
    stories
}

fn check_stories(pages: &[Page], stories: &[Story], may_lose: bool) {
    assert!(pages.iter().map(|page| page.seq).eq(1..=pages.len() as u64));
    let there: HashMap<(Writer, u64), &Page> = pages.iter().map(|page| ((page.writer, page.number), page)).collect();
    assert_eq!(there.len(), pages.len(), "a page is there twice");
    let mut lost = 0;
    for story in stories {
        let gone = story
            .acknowledged
            .iter()
            .filter(|page| there.get(&(page.writer, page.number)) != Some(page))
            .count();
        assert!(
            gone == 0 || (may_lose && story.rewinds > 0),
            "{gone} pages of {:?} went unnoticed",
            story.writer
        );
        lost += gone;
    }
    let acknowledged: usize = stories.iter().map(|story| story.acknowledged.len()).sum();
    let rewinds: usize = stories.iter().map(|story| story.rewinds).sum();
    eprintln!(
        "{acknowledged} acknowledged, {} on the journal, {lost} lost, {rewinds} rewinds",
        pages.len()
    );
}

#[tokio::test]
async fn cluster_failover_under_writers_loses_nothing_unnoticed() {
    let mut cluster = Cluster::start().await.unwrap();
    let stories = stories_of_a_failover(&mut cluster, &Options::default()).await;
    let (pages, _) = read_all(&connect(&cluster.url()).await, START).await.unwrap();
    check_stories(&pages, &stories, true);
}

#[tokio::test]
async fn cluster_failover_with_wait_replicas_loses_nothing_acknowledged() {
    let mut cluster = Cluster::start().await.unwrap();
    let options = Options {
        wait_replicas: 1,
        ..Options::default()
    };
    let stories = stories_of_a_failover(&mut cluster, &options).await;
    let (pages, _) = read_all(&connect(&cluster.url()).await, START).await.unwrap();
    check_stories(&pages, &stories, false);
}

#[tokio::test]
async fn cluster_failover_to_a_replica_that_lagged_is_rewound() {
    let mut cluster = Cluster::start().await.unwrap();
    let journal = connect(&cluster.url()).await;
    let witness = connect(&cluster.url()).await;
    let mut hand = Hand::new();
    for n in 0..10 {
        hand.append(&journal, &n.to_string()).await.unwrap();
    }
    let early = hand.position;
    let primary = cluster.primary_of("wharf").await.unwrap();
    let replica = cluster.replica_of(primary).await.unwrap();
    cluster.node(replica).pause().unwrap();
    // More than sockets hold between the two.
    let body = "x".repeat(400_000);
    for _ in 0..60 {
        hand.append(&journal, &body).await.unwrap();
    }
    let (seen, _) = read_all(&witness, START).await.unwrap();
    let last = seen.last().unwrap();
    assert_eq!(last.seq, 70);
    cluster.node_mut(primary).kill().unwrap();
    cluster.node(replica).resume().unwrap();
    assert_eq!(cluster.promoted("wharf", primary).await.unwrap(), replica);

    let asked = eventually("an answer", async || match witness.read(position_of(last), 1).await {
        Err(JournalError::Unavailable(text)) => anyhow::bail!(text),
        other => Ok(other),
    });
    assert!(matches!(asked.await.unwrap(), Err(JournalError::Rewound(70))));
    let checkpoint = Checkpoint {
        position: position_of(last),
        at: last.at,
        image: "{}".into(),
    };
    assert!(matches!(
        witness.keep(&checkpoint, 0).await,
        Err(JournalError::Rewound(70))
    ));
    // What the replica had is as it was, and the journal grows past the lost place with other pages.
    let (left, _) = read_all(&witness, START).await.unwrap();
    assert!((10..70).contains(&left.len()), "{}", left.len());
    assert_eq!(left, seen[..left.len()]);
    let mut other = Hand::new();
    other.position = early;
    for n in 0..70 {
        other.append(&journal, &n.to_string()).await.unwrap();
    }
    assert!(matches!(
        witness.read(position_of(last), 1).await,
        Err(JournalError::Rewound(70))
    ));
    assert!(matches!(
        connect(&cluster.url()).await.read(position_of(last), 1).await,
        Err(JournalError::Rewound(70))
    ));
}

#[tokio::test]
async fn cluster_waiters_wake_before_and_after_a_failover() {
    let mut cluster = Cluster::start().await.unwrap();
    let journal = Arc::new(connect(&cluster.url()).await);
    let mut hand = Hand::new();
    let wakes = async |hand: &mut Hand| {
        let after = hand.position.seq;
        let (woken, ()) = tokio::join!(
            async {
                journal.wait(after).await;
                Instant::now()
            },
            async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                hand.append(&journal, "x").await.unwrap();
            }
        );
        // From the append's answer: the wake-up may even come before it.
        woken.elapsed() < Duration::from_millis(100) && {
            let started = Instant::now();
            journal.wait(after).await;
            started.elapsed() < Duration::from_millis(100)
        }
    };
    journal.wait(0).await;
    assert!(wakes(&mut hand).await);
    cluster.fail_over("wharf").await.unwrap();
    eventually("a wake-up", async || {
        anyhow::ensure!(wakes(&mut hand).await, "late");
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn cluster_slot_that_moves_takes_the_journal_along() {
    let cluster = Cluster::start().await.unwrap();
    let journal = connect(&cluster.url()).await;
    let mut hand = Hand::new();
    for n in 0..10 {
        hand.append(&journal, &n.to_string()).await.unwrap();
    }
    let (before, _) = read_all(&journal, START).await.unwrap();
    let from = cluster.primary_of("wharf").await.unwrap();
    let to = (from + 1) % 3;
    let (source, target) = (cluster.node(from), cluster.node(to));
    let slot = source.command(&["CLUSTER", "KEYSLOT", "{wharf}:"]).await.unwrap();
    let (source_id, target_id) = (
        source.command(&["CLUSTER", "MYID"]).await.unwrap(),
        target.command(&["CLUSTER", "MYID"]).await.unwrap(),
    );
    target
        .command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source_id])
        .await
        .unwrap();
    source
        .command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target_id])
        .await
        .unwrap();
    let keys = source
        .command(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"])
        .await
        .unwrap();
    let port = target.port().to_string();
    let mut first = true;
    let quick = Options {
        response_timeout: Duration::from_millis(300),
        ..Options::default()
    };
    let other = RedisJournal::connect(&cluster.url(), quick).await;
    for key in keys.lines() {
        source
            .command(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"])
            .await
            .unwrap();
        if first && let Ok(other) = &other {
            // Some keys here, some there: no script can run, and it is said in time.
            let started = Instant::now();
            let error = other.read(START, 1).await.unwrap_err();
            assert!(matches!(error, JournalError::Unavailable(_)), "{error}");
            assert!(started.elapsed() < Duration::from_secs(1));
        }
        first = false;
    }
    for node in [target, source] {
        node.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &target_id])
            .await
            .unwrap();
    }
    assert_eq!(read_all(&journal, START).await.unwrap().0, before);
    let tail = hand.append(&journal, "moved").await.unwrap();
    assert_eq!(tail.pages[0].seq, 11);
}

#[tokio::test]
async fn cluster_addressed_as_a_single_server_is_explained() {
    let cluster = Cluster::start().await.unwrap();
    let owner = cluster.primary_of("wharf").await.unwrap();
    let wrong = cluster.node((owner + 1) % 3).url();
    let error = RedisJournal::connect(&wrong, Options::default())
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("redis+cluster://"), "{error}");
    let text = connect(&cluster.url()).await.describe().await.unwrap();
    assert!(
        text.starts_with("Redis Cluster 7") && text.contains("Replicas: 1."),
        "{text}"
    );
    // One seed is enough.
    let seed = format!("redis+cluster://127.0.0.1:{}", cluster.node((owner + 1) % 3).port());
    assert!(connect(&seed).await.read(START, 1).await.is_ok());
}
