//! What the journal says: errors that name the thing and never the password, and what a server's settings mean.
mod support;

use std::time::{Duration, Instant};

use support::{START, connect};
use wharf_journal::Journal;
use wharf_store_redis::{Options, RedisJournal};
use wharf_testkit::redis::Server;

async fn refused(url: &str) -> String {
    let error = RedisJournal::connect(url, Options::default()).await.expect_err(url);
    format!("{error} {error:?}")
}

#[tokio::test]
async fn password_is_taken_and_never_told() {
    let mut server = Server::builder().password("hunter2").start().await.unwrap();
    let journal = connect(&server.url()).await;
    assert!(!format!("{journal:?}").contains("hunter2"));
    let at = format!("127.0.0.1:{}", server.port());
    for url in [
        format!("redis://{at}"),
        format!("redis://:hunter3@{at}"),
        format!("redis://me:hunter3@{at}"),
    ] {
        let text = refused(&url).await;
        assert!(text.contains("user and password") && text.contains(&at), "{text}");
        assert!(!text.contains("hunter3"), "{text}");
    }
    server.kill().unwrap();
    let text = journal.read(START, 1).await.unwrap_err().to_string();
    assert!(text.contains(&at) && !text.contains("hunter2"), "{text}");
    let text = refused(&server.url()).await;
    assert!(
        text.contains(&at) && text.contains("is it running") && !text.contains("hunter2"),
        "{text}"
    );
}

#[tokio::test]
async fn address_that_cannot_work_is_explained_in_time() {
    let server = Server::start().await.unwrap();
    let started = Instant::now();
    let text = refused(&format!("redis+cluster://127.0.0.1:{}", server.port())).await;
    assert!(text.contains("it is not a cluster: write redis://"), "{text}");
    assert!(refused("redis://127.0.0.1:1").await.contains("127.0.0.1:1"));
    assert!(
        refused("redis://no-such-host.invalid")
            .await
            .contains("no-such-host.invalid")
    );
    assert!(started.elapsed() < Duration::from_secs(12), "{:?}", started.elapsed());
    let options = Options {
        prefix: "a{b}".into(),
        ..Options::default()
    };
    let error = RedisJournal::connect(&server.url(), options)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("a{b}"), "{error}");
    // A paused server is not waited for.
    server.pause().unwrap();
    let started = Instant::now();
    assert!(refused(&server.url()).await.contains("is it running"));
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
}

#[tokio::test]
async fn socket_in_the_file_system_works() {
    let server = Server::start().await.unwrap();
    let journal = connect(&server.socket_url()).await;
    assert!(journal.read(START, 1).await.is_ok());
}

#[tokio::test]
async fn settings_are_described_by_what_they_may_lose() {
    let server = Server::start().await.unwrap();
    let journal = connect(&server.url()).await;
    type Case<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str]);
    let cases: [Case<'_>; 6] = [
        (
            &[],
            &[
                "Redis 7",
                "no snapshots: a restart of the server loses everything",
                "No replica",
            ],
        ),
        (
            &[("save", "60 1")],
            &["everything since the last snapshot (save \"60 1\")"],
        ),
        (
            &[("appendonly", "yes"), ("appendfsync", "everysec")],
            &["the last second or two"],
        ),
        (&[("appendfsync", "always")], &["loses nothing that was acknowledged"]),
        (&[("appendfsync", "no")], &["30 seconds"]),
        (
            &[("maxmemory-policy", "allkeys-lru")],
            &["allkeys-lru may evict", "noeviction"],
        ),
    ];
    for (settings, expected) in cases {
        for (name, value) in settings {
            server.command(&["CONFIG", "SET", name, value]).await.unwrap();
        }
        let text = journal.describe().await.unwrap();
        for part in expected {
            assert!(text.contains(part), "{settings:?}: {text}");
        }
    }
    let waiting = RedisJournal::connect(&format!("{}?wait_replicas=1", server.url()), Options::default())
        .await
        .unwrap();
    let text = waiting.describe().await.unwrap();
    assert!(text.contains("wait_replicas=1, but no replica"), "{text}");
}

#[tokio::test]
async fn settings_that_may_not_be_read_are_said_to_be_unknown() {
    let server = Server::start().await.unwrap();
    // As managed services do it.
    server
        .command(&[
            "ACL", "SETUSER", "grid", "on", ">secret", "~*", "+@all", "-config", "-info",
        ])
        .await
        .unwrap();
    let url = format!("redis://grid:secret@127.0.0.1:{}", server.port());
    let text = connect(&url).await.describe().await.unwrap();
    assert!(text.contains("could not be told") && text.contains("CONFIG"), "{text}");
}
