//! `wharf doctor` on the real binary: what it finds on a healthy host and on sick ones, its exit codes, what it leaves.
//!
//! Its own file because nothing here needs a grid: each test runs the doctor to its end in a home of its own, and then
//! looks for processes and files as the grid's leak check does.

use std::{
    net::TcpListener,
    path::PathBuf,
    process::{Command, Output},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use wharf_testkit::{BrowserUnderTest, Grid, binaries::built_binary, processes};

const GROUPS: [&str; 10] = [
    "browser",
    "sandbox",
    "shared_memory",
    "directories",
    "fonts",
    "limits",
    "cgroups",
    "memory",
    "ports",
    "kernel",
];

/// A home for one doctor.
struct Host {
    home: tempfile::TempDir,
    browser: PathBuf,
}

// === impl Host ===

impl Host {
    fn with(browser: BrowserUnderTest) -> Result<Self> {
        Ok(Self {
            home: tempfile::tempdir()?,
            browser: browser.executable()?,
        })
    }

    /// Canonical, as the marker of its processes has it.
    fn run_dir(&self) -> Result<PathBuf> {
        Ok(self.home.path().canonicalize()?.join("run"))
    }

    /// `program` and then the doctor's words; without the settings of whoever runs the tests.
    fn doctor(&self, mut program: Command, args: &[&str]) -> Result<Output> {
        let foreign = std::env::vars_os().map(|(name, _)| name);
        for name in foreign.filter(|name| name.to_string_lossy().starts_with("WHARF_")) {
            program.env_remove(name);
        }
        program.arg("doctor").arg("--binary").arg(&self.browser);
        program.arg("--data-dir").arg(self.home.path().join("data"));
        program.arg("--run-dir").arg(self.run_dir()?);
        program.args(args);
        program.output().context("could not run wharf doctor")
    }

    fn ask(&self, args: &[&str]) -> Result<Output> {
        self.doctor(Command::new(built_binary("wharf")?), args)
    }

    /// No process, no file: the home is as empty as it was.
    fn finish(self) -> Result<()> {
        let run_dir = self.run_dir()?;
        for marked in [run_dir.clone(), run_dir.join("doctor")] {
            let left = processes::with_run_dir(&marked);
            let lines: Vec<_> = left.iter().map(|pid| processes::command_line(*pid)).collect();
            ensure!(left.is_empty(), "processes are left: {lines:?}");
        }
        let left: Vec<_> = std::fs::read_dir(self.home.path())?.flatten().collect();
        ensure!(left.is_empty(), "files are left: {left:?}");
        Ok(())
    }
}

fn report(output: &Output) -> Result<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_slice(&output.stdout).with_context(|| format!("no JSON: {text}"))
}

fn finding<'a>(report: &'a Value, group: &str, name: &str) -> Result<&'a Value> {
    let all = report["findings"].as_array().context("findings are a list")?;
    let found = all
        .iter()
        .find(|finding| finding["group"] == group && finding["name"] == name);
    found.with_context(|| format!("no finding {group}/{name} in {report}"))
}

fn has(value: &Value, part: &str) -> bool {
    value.as_str().is_some_and(|text| text.contains(part))
}

#[test]
fn doctor_on_a_healthy_host_with_headless_shell_finds_no_problem_in_any_group() -> Result<()> {
    let host = Host::with(BrowserUnderTest::HeadlessShell)?;
    let output = host.ask(&["--json", "--listen", "127.0.0.1:0"])?;
    let report = report(&output)?;
    ensure!(output.status.code() == Some(0), "{}: {report}", output.status);
    let all = report["findings"].as_array().context("findings are a list")?;
    for group in GROUPS {
        ensure!(
            all.iter().any(|finding| finding["group"] == group),
            "no {group} in {report}"
        );
    }
    let found = finding(&report, "browser", "found")?;
    ensure!(
        has(&found["says"], "Chrome/") && has(&found["says"], "headless-shell"),
        "{found}"
    );
    for finding in all {
        let is_fine = finding["level"] == "ok" || finding["level"] == "note";
        ensure!(is_fine || finding["fix"].is_string(), "no fix: {finding}");
    }
    let summary = &report["summary"];
    ensure!(summary["problems"] == 0 && summary["checks"] == all.len(), "{summary}");
    host.finish()
}

#[test]
fn doctor_with_a_wrong_binary_exits_1_and_names_the_fix() -> Result<()> {
    let mut host = Host::with(BrowserUnderTest::Fake)?;
    host.browser = "/nowhere/chromium".into();
    let output = host.ask(&["--json", "--listen", "127.0.0.1:0"])?;
    let report = report(&output)?;
    ensure!(output.status.code() == Some(1), "{}", output.status);
    let found = finding(&report, "browser", "found")?;
    ensure!(
        found["level"] == "problem" && has(&found["says"], "/nowhere/chromium"),
        "{found}"
    );
    ensure!(
        has(&found["fix"], "--binary") && has(&found["fix"], "apt-get install"),
        "{found}"
    );
    host.finish()
}

#[test]
fn doctor_on_a_taken_port_names_who_holds_it() -> Result<()> {
    let host = Host::with(BrowserUnderTest::Fake)?;
    let socket = TcpListener::bind("127.0.0.1:0")?;
    let address = socket.local_addr()?.to_string();
    let output = host.ask(&["--json", "--listen", &address])?;
    let report = report(&output)?;
    ensure!(output.status.code() == Some(1), "{}", output.status);
    let listen = finding(&report, "ports", "listen")?;
    let holder = format!("process {}", std::process::id());
    ensure!(
        has(&listen["says"], &address) && has(&listen["says"], &holder),
        "{listen}"
    );
    ensure!(has(&listen["fix"], "--listen"), "{listen}");
    host.finish()
}

#[test]
fn doctor_under_a_tiny_limit_of_files_finds_a_problem() -> Result<()> {
    let host = Host::with(BrowserUnderTest::Fake)?;
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""])
        .arg(built_binary("wharf")?);
    let output = host.doctor(shell, &["--json", "--listen", "127.0.0.1:0"])?;
    let report = report(&output)?;
    ensure!(output.status.code() == Some(1), "{}", output.status);
    let files = finding(&report, "limits", "open files")?;
    ensure!(files["level"] == "problem" && has(&files["says"], "64"), "{files}");
    ensure!(has(&files["fix"], "LimitNOFILE="), "{files}");
    host.finish()
}

#[test]
fn doctor_in_a_pipe_prints_marks_and_no_escape_codes() -> Result<()> {
    let host = Host::with(BrowserUnderTest::Fake)?;
    for (locale, mark) in [("C.UTF-8", "✓"), ("C", "+")] {
        let mut wharf = Command::new(built_binary("wharf")?);
        wharf.env("LC_ALL", locale);
        let output = host.doctor(wharf, &["--listen", "127.0.0.1:0"])?;
        let text = String::from_utf8(output.stdout)?;
        ensure!(
            !text.contains('\x1b') && text.is_ascii() == (locale == "C"),
            "{locale}: {text}"
        );
        ensure!(text.contains(&format!("\n  {mark} ")), "{locale}: {text}");
        let last = text.lines().last().unwrap_or_default();
        ensure!(last.contains(" checks: ") && last.ends_with(" problems"), "{last}");
        ensure!(
            output.stderr.is_empty(),
            "progress in a pipe: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    host.finish()
}

#[test]
fn doctor_with_wrong_settings_exits_2() -> Result<()> {
    let host = Host::with(BrowserUnderTest::Fake)?;
    for args in [["--max", "many"], ["--config", "/nowhere.toml"], ["--no-such", "flag"]] {
        let output = host.ask(&args)?;
        ensure!(output.status.code() == Some(2), "{args:?}: {}", output.status);
        ensure!(output.stdout.is_empty() && !output.stderr.is_empty(), "{args:?}");
    }
    host.finish()
}

#[tokio::test]
async fn doctor_beside_a_running_grid_says_so_and_leaves_it_alone() -> Result<()> {
    let grid = Grid::builder().slots(1).start().await?;
    let session = crate::support::create(&grid, json!({})).await?;
    let address = grid.addr().to_string();
    let home = grid.run_dir().parent().context("a grid has a home")?.to_owned();
    let browser = BrowserUnderTest::Fake.executable()?;
    let doctor = tokio::task::spawn_blocking(move || {
        Command::new(built_binary("wharf")?)
            .args(["doctor", "--json", "--listen", &address, "--binary"])
            .arg(browser)
            .arg("--data-dir")
            .arg(home.join("data"))
            .arg("--run-dir")
            .arg(home.join("run"))
            .output()
            .context("could not run wharf doctor")
    });
    let output = doctor.await??;
    let report = report(&output)?;
    ensure!(output.status.code() == Some(0), "{}: {report}", output.status);
    let holder = format!("process {}", grid.pid());
    for (group, name) in [
        ("ports", "listen"),
        ("directories", "store"),
        ("directories", "run lock"),
    ] {
        let found = finding(&report, group, name)?;
        ensure!(found["level"] == "note" && has(&found["says"], &holder), "{found}");
    }
    let left = processes::with_run_dir(&grid.run_dir().join("doctor"));
    ensure!(left.is_empty() && !grid.run_dir().join("doctor").exists(), "{left:?}");
    let id = crate::support::id(&session);
    crate::support::get(&grid, &id).await?;
    crate::support::release(&grid, &id).await?;
    grid.finish().await
}
