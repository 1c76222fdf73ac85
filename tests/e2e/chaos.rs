//! Chaos, briefly: three quarters of a minute of it on each engine, with a seed that has met every kind of process fault.
//!
//! Its own file because it runs a program, not a grid: `cargo xtask chaos` is that program for longer. What is asserted is
//! its verdict and its table.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::process::Command;
use wharf_testkit::{binaries::built_binary, fleet::hosts};

/// Faults for 45 s, then the clients' own limits, then calm.
const LIMIT: Duration = Duration::from_secs(330);

/// A count of the table.
fn row(table: &str, name: &str) -> Result<u64> {
    let mut rows = table
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let cell = rows.find_map(|row| row.strip_prefix(name)?.strip_prefix(" | "));
    let cell = cell.with_context(|| format!("no row {name:?} in\n{table}"))?;
    Ok(cell.trim().parse()?)
}

/// Whether the table says so.
fn says(table: &str, name: &str, value: &str) -> bool {
    table.lines().any(|line| line == format!("| {name} | {value} |"))
}

/// With partitions by these means; the table says which they were.
async fn survives(store: &str, seed: &str, lines: &str) -> Result<String> {
    let mut command = Command::new(built_binary("chaos")?);
    command.args(["--minutes", "0.75", "--clients", "16", "--seed", seed, "--store", store]);
    command.args(["--lines", lines]);
    let output = tokio::time::timeout(LIMIT, command.kill_on_drop(true).output()).await??;
    let (table, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    ensure!(output.status.success(), "{}\n{table}\n{errors}", output.status);
    ensure!(row(&table, "faults in all")? >= 10, "{table}");
    ensure!(row(&table, "sessions run")? >= 50, "{table}");
    ensure!(row(&table, "visit ended: done")? >= 20, "{table}");
    ensure!(row(&table, "looks into the store")? >= 5, "{table}");
    ensure!(row(&table, "events followed")? >= 100, "{table}");
    let zeros: Vec<_> = table.lines().filter(|line| line.starts_with("| must be 0: ")).collect();
    ensure!(
        zeros.len() == 6 && zeros.iter().all(|line| line.ends_with("| 0 |")),
        "{table}"
    );
    ensure!(
        table.contains(&format!("seed {seed}: repeat with `cargo xtask chaos ")),
        "{table}"
    );
    ensure!(row(&table, "workers with the fake browser")? == 3, "{table}");
    ensure!(row(&table, "workers with the real headless shell")? == 1, "{table}");
    Ok(table.into_owned())
}

#[tokio::test]
async fn fleet_on_postgres_survives_chaos() -> Result<()> {
    let table = survives("postgres", "1", "auto").await?;
    // Whatever this machine allows: a host of its own for each worker, or a proxy in each line.
    let lines = match hosts::probe() {
        Ok(()) => "namespaces",
        Err(_) => "proxies",
    };
    ensure!(says(&table, "lines", lines), "{lines} are not in\n{table}");
    Ok(())
}

#[tokio::test]
async fn fleet_on_redis_survives_chaos() -> Result<()> {
    let table = survives("redis", "2", "proxies").await?;
    ensure!(says(&table, "lines", "proxies"), "{table}");
    Ok(())
}
