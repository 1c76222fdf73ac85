//! The commands that call a grid: tables for people, JSON for programs, exit codes for scripts.

use std::process::Output;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use wharf_testkit::{Grid, binaries::built_binary, eventually};

use crate::support::{count_is, create, end_of, id, is_whole};

/// Runs a command against a grid.
async fn wharf(grid: &Grid, args: &[&str]) -> Result<Output> {
    let mut command = tokio::process::Command::new(built_binary("wharf")?);
    command
        .args(args)
        .env("WHARF_URL", grid.url())
        .env_remove("WHARF_TOKEN");
    command.output().await.with_context(|| format!("{args:?}"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

async fn said(grid: &Grid, args: &[&str]) -> Result<String> {
    let output = wharf(grid, args).await?;
    ensure!(
        output.status.success(),
        "{args:?}: {} {}",
        output.status,
        text(&output.stderr)
    );
    ensure!(
        !output.stdout.contains(&0x1b),
        "{args:?} prints escape codes into a pipe"
    );
    Ok(text(&output.stdout))
}

async fn json_of(grid: &Grid, args: &[&str]) -> Result<Value> {
    let args: Vec<_> = args.iter().copied().chain(["--json"]).collect();
    let text = said(grid, &args).await?;
    serde_json::from_str(&text).with_context(|| text.clone())
}

#[tokio::test]
async fn sessions_are_made_listed_shown_and_ended() -> Result<()> {
    let grid = Grid::builder().slots(2).start().await?;
    ensure!(said(&grid, &["sessions"]).await?.contains("no session waits or runs"));
    let made = json_of(
        &grid,
        &["sessions", "create", "--operation", "agent", "--data", r#"{"a":1}"#],
    )
    .await?;
    ensure!(made["status"] == "active" && made["data"] == json!({"a": 1}), "{made}");
    let list = said(&grid, &["sessions", "list"]).await?;
    ensure!(
        list.starts_with("SESSION") && list.contains(&id(&made)) && list.contains("agent"),
        "{list}"
    );
    let shown = said(&grid, &["sessions", "show", &id(&made)]).await?;
    ensure!(shown.contains("cdp          ws://"), "{shown}");
    let pool = said(&grid, &["pool"]).await?;
    ensure!(
        pool.starts_with("pool default: 1 of 2 running, 0 queued, 1 available"),
        "{pool}"
    );
    ensure!(
        said(&grid, &["sessions", "end", &id(&made)])
            .await?
            .contains("ended ses_")
    );
    ensure!(end_of(&grid, &id(&made)).await?.0 == "released");
    let history = said(&grid, &["sessions", "list", "--history"]).await?;
    ensure!(
        history.contains("released") && history.contains(&id(&made)),
        "{history}"
    );
    ensure!(said(&grid, &["pool", "recent"]).await?.contains(&id(&made)));
    is_whole(&grid, 2).await?;
    grid.finish().await
}

#[tokio::test]
async fn limits_queue_locks_and_top_work_from_the_command_line() -> Result<()> {
    let grid = Grid::builder().slots(2).start().await?;
    let limited = said(&grid, &["pool", "limit", "1"]).await?;
    ensure!(limited.contains("(limit 1)"), "{limited}");
    let session = create(&grid, json!({"operation": "scrape"})).await?;
    let waiter = crate::support::create_async(&grid, json!({"operation": "scrape", "description": "a waiter"})).await?;
    let queue = said(&grid, &["queue"]).await?;
    ensure!(queue.contains(&id(&waiter)) && queue.contains("a waiter"), "{queue}");
    let top = said(&grid, &["top"]).await?;
    ensure!(top.contains(&id(&session)) && top.contains(&id(&waiter)), "{top}");
    ensure!(
        said(&grid, &["queue", "clear", "--operation", "scrape"])
            .await?
            .contains(&id(&waiter))
    );
    ensure!(said(&grid, &["queue", "clear"]).await?.contains("nobody waited"));
    said(&grid, &["pool", "limit", "none"]).await?;
    let token = said(&grid, &["lock", "take", "nightly", "--holder", "me", "--ttl", "5m"]).await?;
    let token = token.trim();
    ensure!(
        token.starts_with("lck_") && !token.contains(char::is_whitespace),
        "{token}"
    );
    let refused = wharf(&grid, &["sessions", "create"]).await?;
    ensure!(
        refused.status.code() == Some(1) && text(&refused.stderr).contains("held by me"),
        "{refused:?}"
    );
    ensure!(said(&grid, &["lock", "list"]).await?.contains("nightly"));
    ensure!(
        said(&grid, &["lock", "renew", "nightly", token])
            .await?
            .contains("holds until")
    );
    ensure!(said(&grid, &["lock", "release", "nightly", token]).await? == "released\n");
    said(
        &grid,
        &["lock", "take", "x", "--holder", "me", "--operations", "scrape,agent"],
    )
    .await?;
    ensure!(said(&grid, &["lock", "force-unlock", "x"]).await?.contains("me"));
    ensure!(
        said(&grid, &["pool", "cleanup", "--max-age", "0s"])
            .await?
            .contains(&id(&session))
    );
    count_is(&grid, "active", 0).await?;
    is_whole(&grid, 2).await?;
    grid.finish().await
}

#[tokio::test]
async fn keys_are_made_on_the_store_and_through_the_grid() -> Result<()> {
    let mut grid = Grid::builder().slots(1).start().await?;
    grid.terminate().await?;
    let data_dir = grid.data_dir().to_str().context("a path")?.to_owned();
    let offline = async |args: &[&str]| -> Result<Output> {
        let mut command = tokio::process::Command::new(built_binary("wharf")?);
        command
            .args(args)
            .args(["--data-dir", &data_dir])
            .env_remove("WHARF_URL")
            .env_remove("WHARF_TOKEN");
        Ok(command.output().await?)
    };
    let made = offline(&["key", "create", "ops", "--admin"]).await?;
    ensure!(made.status.success(), "{made:?}");
    let admin = text(&made.stdout).trim().to_owned();
    ensure!(admin.starts_with("whf_"), "{admin}");
    let list = offline(&["key", "list"]).await?;
    ensure!(
        text(&list.stdout).contains("ops") && !text(&list.stdout).contains("whf_"),
        "{list:?}"
    );
    grid.set_header("authorization", &format!("Bearer {admin}"));
    grid.restart().await?;
    // While the grid has the store, the same command asks the grid; here by its URL.
    let refused = wharf(&grid, &["key", "list"]).await?;
    ensure!(
        refused.status.code() == Some(1) && text(&refused.stderr).contains("unauthorized"),
        "{refused:?}"
    );
    let key = json_of(
        &grid,
        &["key", "create", "ci", "--max-sessions", "1", "--token", &admin],
    )
    .await?;
    let client = key["token"].as_str().context("no token")?.to_owned();
    let session = json_of(&grid, &["sessions", "create", "--token", &client]).await?;
    let over = wharf(&grid, &["sessions", "create", "--token", &client]).await?;
    ensure!(
        over.status.code() == Some(1) && text(&over.stderr).contains("quota_reached"),
        "{over:?}"
    );
    said(&grid, &["key", "limit", &id(&key), "none", "--token", &admin]).await?;
    said(&grid, &["key", "revoke", &id(&key), "--token", &admin]).await?;
    eventually("the session of the revoked key to end", async || {
        let reply = grid.http().get(&format!("/v1/sessions/{}", id(&session))).await?;
        ensure!(
            reply.status == 404 && reply.text().contains("policy"),
            "{}",
            reply.text()
        );
        Ok(())
    })
    .await?;
    let out = wharf(&grid, &["sessions", "--token", &client]).await?;
    ensure!(out.status.code() == Some(1), "{out:?}");
    grid.finish().await
}

#[tokio::test]
async fn wrong_usage_and_missing_grids_have_their_own_exit_codes() -> Result<()> {
    let grid = Grid::builder().start().await?;
    for args in [
        &["sessions", "create", "--data", "{"][..],
        &["pool", "limit", "many"],
        &["lock", "take", "x", "--holder", "me", "--ttl", "soon"],
        &["pool", "cleanup", "--max-age", "-1"],
        &["nonsense"],
        &["sessions", "list", "--limit", "0"],
    ] {
        let output = wharf(&grid, args).await?;
        ensure!(output.status.code() == Some(2), "{args:?}: {output:?}");
        ensure!(
            output.stdout.is_empty() && !output.stderr.is_empty(),
            "{args:?}: {output:?}"
        );
    }
    let nowhere = wharf(&grid, &["pool", "--url", "http://127.0.0.1:9"]).await?;
    ensure!(nowhere.status.code() == Some(69), "{nowhere:?}");
    ensure!(text(&nowhere.stderr).contains("wharf up"), "{nowhere:?}");
    for shell in ["bash", "zsh", "fish"] {
        let script = said(&grid, &["completions", shell]).await?;
        ensure!(script.contains("force-unlock"), "{shell}: no completions");
    }
    for command in ["sessions", "pool", "queue", "lock", "key", "top", "doctor", "up"] {
        let help = said(&grid, &[command, "--help"]).await?;
        ensure!(help.contains("Examples:"), "{command}: no examples");
    }
    grid.finish().await
}
