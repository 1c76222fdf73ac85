//! Starting: ten at once, on an empty and on a migrated database; wrong URLs and rights, told without the password.

use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::task::JoinSet;
use wharf_journal::Journal as _;
use wharf_store_postgres::{ConnectError, Options, PostgresJournal};
use wharf_testkit::postgres::{PASSWORD, Server};

use crate::support::{ISOLATIONS, Scribe, admin, check, open, open_at, read_all, run, server};

#[tokio::test(flavor = "multi_thread")]
async fn ten_start_at_once_on_an_empty_and_on_a_migrated_database() -> Result<()> {
    for isolation in ISOLATIONS {
        let server = server(isolation)?;
        let mut scribes = Vec::new();
        for _ in 0..2 {
            let mut starters = JoinSet::new();
            for _ in 0..10 {
                let url = server.url();
                starters.spawn(async move {
                    let journal = open_at(&url, Options::default()).await?;
                    let mut scribe = Scribe::new();
                    scribe.write(&journal, "{}").await?;
                    journal.close().await;
                    anyhow::Ok(scribe)
                });
            }
            for scribe in starters.join_all().await {
                scribes.push(scribe?);
            }
        }
        let journal = open(&server).await?;
        check(&read_all(&journal).await?, &scribes)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn schemas_share_a_server_without_meeting() -> Result<()> {
    let server = Server::start()?;
    let with = |schema: &str| Options {
        schema: schema.to_owned(),
        ..Options::default()
    };
    let one = open_at(&server.url(), with("one")).await?;
    let two = open_at(&server.url(), with("two")).await?;
    let (mut ann, mut bob) = (Scribe::new(), Scribe::new());
    ann.write(&one, "{}").await?;
    bob.write(&two, "{}").await?;
    ensure!((ann.at.seq, bob.at.seq) == (1, 1));
    for schema in ["", "Upper", "a-b", "1a", "a\"b", &"a".repeat(49)] {
        let error = PostgresJournal::connect(&server.url(), with(schema))
            .await
            .expect_err("a bad name");
        ensure!(matches!(error, ConnectError::Schema(_)), "{error}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn user_without_rights_needs_none_on_a_migrated_database() -> Result<()> {
    let server = Server::start()?;
    let mut admin = admin(&server).await?;
    run(
        &mut admin,
        "CREATE ROLE weak LOGIN PASSWORD 'schwach'; REVOKE CREATE ON DATABASE postgres FROM PUBLIC",
    )
    .await?;
    let url = server.url().replace("postgres:geheim-4711@", "weak:schwach@");
    let error = PostgresJournal::connect(&url, Options::default())
        .await
        .expect_err("no rights");
    ensure!(
        matches!(error, ConnectError::Tables { .. }) && error.to_string().contains("42501"),
        "{error}"
    );
    ensure!(!format!("{error} {error:?}").contains("schwach"), "{error}");
    drop(open(&server).await?);
    run(
        &mut admin,
        "GRANT USAGE ON SCHEMA wharf TO weak; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA wharf TO weak",
    )
    .await?;
    let weak = open_at(&url, Options::default()).await?;
    Scribe::new().write(&weak, "{}").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_start_says_what_to_do_and_never_the_password() -> Result<()> {
    let server = Server::start()?;
    let good = server.url();
    let nobody = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    let silent = server.url_at(nobody.local_addr()?.port());
    let options = || Options {
        connect_timeout: Duration::from_millis(700),
        ..Options::default()
    };
    let cases = [
        (good.replace(PASSWORD, "falsch-0815"), "refuses to let us in"),
        (
            good.replace("/postgres", "/nirgends")
                .replace("//nirgends", "//postgres"),
            "CREATE DATABASE \"nirgends\"",
        ),
        (
            good.replace("postgres://", "mysql://"),
            "expected a URL that begins with",
        ),
        (format!("{good}?sslmode=require"), "could not reach"),
        (server.url_at(1), "could not reach"),
        (silent, "check that the server runs"),
    ];
    for (url, words) in cases {
        let started = std::time::Instant::now();
        let error = PostgresJournal::connect(&url, options()).await.expect_err(words);
        let told = format!("{error} {error:?}");
        ensure!(told.contains(words), "{told}");
        ensure!(!told.contains(PASSWORD) && !told.contains("falsch-0815"), "{told}");
        ensure!(
            started.elapsed() < Duration::from_secs(3),
            "{told}: {:?}",
            started.elapsed()
        );
    }
    let journal = open(&server).await?;
    let shown = format!("{journal:?} {}", journal.describe().await?);
    ensure!(shown.contains("127.0.0.1") && !shown.contains(PASSWORD), "{shown}");
    Ok(())
}
