//! schemathesis against a running grid: what `/openapi.json` promises is what every route does, whatever it is sent.
//!
//! How it asks is in `tests/schema/schemathesis.toml`, with the reason of every exception. Here is what it asks: a grid
//! of fake browsers on which no session lives longer than a second, with a key, since schemathesis makes keys too and
//! the first one closes an open grid.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;
use wharf_testkit::{Grid, binaries::workspace_root};

use crate::{conformance::admin_key, python};

const CONFIG: &str = "tests/schema/schemathesis.toml";
/// Printed with every failure; another one finds other things.
const SEED: &str = "20261116";
const LIMIT: Duration = Duration::from_secs(330);
/// WebSockets: a plain GET is answered 426 and an upgrade 101, which no HTTP client of schemathesis' kind can follow.
/// `tests/e2e/attach.rs` and `frames.rs` are about them. Events: an answer without an end; `events.rs` is about it.
const SOCKETS: &str = "^/(chromium)?$|^/devtools/|^/v1/events$";

#[tokio::test]
async fn schema_every_route_does_what_the_document_says() -> Result<()> {
    let home = tempfile::tempdir()?;
    let store = home.path().join("wharf.db");
    let key = admin_key(&store).await?;
    let header = format!("Bearer {key}");
    let grid = Grid::builder()
        .slots(8)
        .min(2)
        .queue(20)
        .store(&format!("sqlite:{}", store.display()))
        .header("authorization", &header)
        .arg("--idle-timeout", "500ms")
        .arg("--connect-timeout", "500ms")
        .arg("--queue-timeout", "500ms")
        .arg("--longest-idle-timeout", "1s")
        .arg("--longest-queue-timeout", "1s")
        .arg("--longest-max-duration", "1s")
        .arg("--max-duration", "1s")
        .flag("--enable-faults")
        .start()
        .await?;
    let url = format!("{}/openapi.json", grid.url());
    let header = format!("Authorization: {header}");
    let config = workspace_root().join(CONFIG).display().to_string();
    let arguments = [
        "--config-file",
        &config,
        "run",
        &url,
        "--header",
        &header,
        "--seed",
        SEED,
        "--exclude-path-regex",
        SOCKETS,
        "--no-color",
    ];
    // It keeps notes of its own where it runs.
    let printed = python::run(&python::installed("schemathesis")?, &arguments, home.path(), LIMIT).await?;
    println!("{}", printed.stdout);
    ensure!(
        printed.status.success(),
        "schemathesis ended with {} (seed {SEED}):\n{}{}",
        printed.status,
        printed.stdout,
        printed.stderr
    );
    ensure!(grid.http().get("/readyz").await?.status == 200, "the grid is not ready");
    tidy(&grid).await?;
    grid.finish().await
}

/// What schemathesis set and took is not a leak, but it would keep the last sessions from being placed.
async fn tidy(grid: &Grid) -> Result<()> {
    let locks = grid.http().get("/v1/locks").await?.expect(200)?;
    for lock in locks["locks"].as_array().into_iter().flatten() {
        let path = format!("/v1/locks/{}/force-unlock", lock["name"].as_str().unwrap_or_default());
        grid.http().post(&path, &json!(null)).await?;
    }
    grid.http()
        .put("/v1/pool/limits", &json!({"max": null}))
        .await?
        .expect(200)?;
    let session = crate::support::create(grid, json!({})).await?;
    crate::support::release(grid, &crate::support::id(&session)).await
}
