//! The examples of the README, taken from it and run.
//!
//! Each example is the fenced block after a line `<!-- test: NAME -->`; the grid's address takes the place of
//! `127.0.0.1:8080` and nothing else is changed. An example without its marker fails here.

use std::{fs, process::Stdio};

use anyhow::{Context, Result, ensure};
use wharf_testkit::{BrowserUnderTest, Grid, Script, binaries::workspace_root, node_script, patience};

const PRINTED: &str = "127.0.0.1:8080";
/// For examples that visit a page: it must not need the network.
const PAGE: (&str, &str) = (
    "WHARF_EXAMPLE_URL",
    "data:text/html,<title>Example Domain</title><h1>Example Domain</h1>",
);

/// The block that follows the marker of this name.
fn example(name: &str) -> Result<String> {
    let path = workspace_root().join("README.md");
    let text = fs::read_to_string(&path).with_context(|| format!("could not read {}", path.display()))?;
    let marker = format!("<!-- test: {name} -->");
    let (_, after) = text
        .split_once(&marker)
        .with_context(|| format!("README.md has no `{marker}`"))?;
    let mut lines = after.lines().skip_while(|line| line.trim().is_empty());
    let fence = lines.next().unwrap_or_default();
    ensure!(
        fence.starts_with("```"),
        "`{marker}` must stand before a fenced block, found `{fence}`"
    );
    let block: Vec<_> = lines.take_while(|line| !line.starts_with("```")).collect();
    ensure!(!block.is_empty(), "the block after `{marker}` is empty");
    Ok(block.join("\n"))
}

async fn grid() -> Result<Grid> {
    Grid::builder().browser(BrowserUnderTest::HeadlessShell).start().await
}

async fn node_example_runs(name: &str) -> Result<()> {
    let source = example(name)?;
    ensure!(source.contains(PRINTED), "the {name} example does not name {PRINTED}");
    let grid = grid().await?;
    let source = source.replace(PRINTED, &grid.addr().to_string());
    let output = node_script(Script::Source(&source), &[PAGE]).await?;
    ensure!(
        output.status.success(),
        "{}\n{}\n{}",
        output.status,
        output.stdout,
        output.stderr
    );
    ensure!(!output.stdout.trim().is_empty(), "the {name} example prints nothing");
    let started = grid.metric("wharf_sessions_ended_total").await?;
    ensure!(started >= 1.0, "the {name} example used no session");
    grid.finish().await
}

#[tokio::test]
async fn readme_puppeteer_example_runs() -> Result<()> {
    node_example_runs("puppeteer").await
}

#[tokio::test]
async fn readme_playwright_example_runs() -> Result<()> {
    node_example_runs("playwright").await
}

#[tokio::test]
async fn readme_curl_example_on_headless_shell_runs() -> Result<()> {
    let source = example("curl")?;
    ensure!(source.contains(PRINTED), "the curl example does not name {PRINTED}");
    let grid = grid().await?;
    let source = format!(
        "set -euo pipefail\n{}",
        source.replace(PRINTED, &grid.addr().to_string())
    );
    let child = tokio::process::Command::new("bash")
        .args(["-c", &source])
        .env(PAGE.0, PAGE.1)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(patience() * 3, child)
        .await
        .context("the example hangs")??;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    ensure!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    ensure!(stdout.contains("ses_"), "no session in\n{stdout}\n{stderr}");
    grid.finish().await
}
