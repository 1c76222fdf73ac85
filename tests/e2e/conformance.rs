//! The conformance tester (`conformance/`): on real browsers, on programs of the driver `command`, with keys, and the
//! tester's own test.

use std::{collections::BTreeSet, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use wharf_testkit::{
    BrowserUnderTest, Grid, GridBuilder,
    binaries::{built_binary, workspace_root},
    patience,
};

use crate::python;

const TESTER: &str = "conformance/wharf_conformance.py";
const SELFTEST: &str = "conformance/selftest.py";
/// Less than the test runner's own limit, so that a hang is told with what was printed.
const LIMIT: Duration = Duration::from_secs(330);
/// All checks there are; a check that vanishes must not go unnoticed.
const CHECKS: usize = 41;
/// Without an admin key of our own: the first key would close an open grid to the tester itself.
const NEED_KEY: [&str; 2] = ["key-sees-its-own", "key-revoked"];

/// Two slots, an idle timeout that can be waited for, hangs that are noticed within seconds, faults.
fn grid() -> GridBuilder {
    Grid::builder()
        .slots(2)
        .min(2)
        .arg("--idle-timeout", "3s")
        .arg("--probe-interval", "1s")
        .arg("--probe-limit", "500ms")
        .flag("--enable-faults")
}

/// Runs the tester on a grid; everything passes but what is skipped, and that is exactly `skipped`.
async fn conforms(grid: &Grid, more: &[&str], skipped: &[&str]) -> Result<()> {
    let url = grid.url();
    // The tester's own deadlines are twenty seconds, as ours are by default.
    let factor = (patience().as_secs_f64() / 20.0).max(1.0).to_string();
    let mut arguments = vec![TESTER, &url, "--json", "--idle-timeout", "3", "--patience", &factor];
    arguments.extend(more);
    let printed = python::run(&python::python3()?, &arguments, workspace_root(), LIMIT).await?;
    let report: Value = serde_json::from_str(&printed.stdout)
        .with_context(|| format!("no report but {:?} and {:?}", printed.stdout, printed.stderr))?;
    let results = report["results"].as_array().context("a report without results")?;
    for result in results {
        println!("{} {} {}", result["outcome"], result["name"], result["message"]);
    }
    let closing = printed.stderr.lines().last().unwrap_or_default();
    println!("{closing}");
    let named = |outcome: &str| -> BTreeSet<&str> {
        let found = results.iter().filter(|result| result["outcome"] == outcome);
        found.filter_map(|result| result["name"].as_str()).collect()
    };
    ensure!(named("failed").is_empty(), "{:?} failed: {report:#}", named("failed"));
    ensure!(
        named("skipped") == skipped.iter().copied().collect(),
        "{:?} were skipped: {report:#}",
        named("skipped")
    );
    let (passed, expected) = (named("passed").len(), CHECKS - skipped.len());
    ensure!(passed == expected, "{passed} passed, {expected} were expected");
    ensure!(
        closing == format!("{passed} passed, 0 failed, {} skipped", skipped.len()),
        "the closing line is {closing:?}"
    );
    ensure!(printed.status.success(), "the tester ended with {}", printed.status);
    Ok(())
}

#[tokio::test]
async fn conformance_holds_on_headless_shell() -> Result<()> {
    let grid = grid().browser(BrowserUnderTest::HeadlessShell).start().await?;
    conforms(&grid, &[], &NEED_KEY).await?;
    grid.finish().await
}

#[tokio::test]
async fn conformance_holds_on_programs_of_the_driver_command() -> Result<()> {
    let grid = grid().browser(BrowserUnderTest::Program).start().await?;
    conforms(&grid, &[], &NEED_KEY).await?;
    grid.finish().await
}

/// A key made on the store before the grid starts, as an operator would.
pub async fn admin_key(store: &Path) -> Result<String> {
    let url = format!("sqlite:{}", store.display());
    let arguments = ["key", "create", "conformance", "--admin", "--store", &url];
    let made = python::run(&built_binary("wharf")?, &arguments, workspace_root(), patience()).await?;
    ensure!(made.status.success(), "wharf key create: {}", made.stderr);
    Ok(made.stdout.trim().to_owned())
}

#[tokio::test]
async fn conformance_with_an_admin_key_skips_nothing() -> Result<()> {
    let home = tempfile::tempdir()?;
    let store = home.path().join("wharf.db");
    let key = admin_key(&store).await?;
    let grid = grid()
        .store(&format!("sqlite:{}", store.display()))
        .header("authorization", &format!("Bearer {key}"))
        .start()
        .await?;
    conforms(&grid, &["--token", &key], &[]).await?;
    ensure!(!grid.log().contains(&key), "the key is in the log");
    grid.finish().await
}

#[tokio::test]
async fn conformance_one_slot_and_no_faults_skips_what_needs_them() -> Result<()> {
    let grid = Grid::builder().slots(1).arg("--idle-timeout", "3s").start().await?;
    let skipped = [
        "crash-recovery",
        "fault-arguments",
        "reason-browser-crashed",
        "reason-browser-hung",
        "limit-operation",
        "limit-pool",
    ];
    conforms(&grid, &[], &[&skipped[..], &NEED_KEY].concat()).await?;
    grid.finish().await
}

#[tokio::test]
async fn conformance_tester_fails_exactly_the_rule_that_is_broken() -> Result<()> {
    let printed = python::run(&python::python3()?, &[SELFTEST], workspace_root(), LIMIT).await?;
    println!("{}", printed.stderr);
    ensure!(printed.status.success(), "{}{}", printed.stdout, printed.stderr);
    Ok(())
}

#[test]
fn conformance_readme_names_every_option() -> Result<()> {
    let read = |name: &str| std::fs::read_to_string(workspace_root().join("conformance").join(name));
    let (program, readme) = (read("wharf_conformance.py")?, read("README.md")?);
    let options = program
        .split('"')
        .filter(|word| word.starts_with("--") && !word.contains(' '));
    for option in options {
        ensure!(readme.contains(option), "conformance/README.md does not name {option}");
    }
    Ok(())
}
