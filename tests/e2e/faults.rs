//! Browsers that crash, hang, grow, fail to start or talk nonsense: what the client is told, and that the slot is back.

use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;
use wharf_testkit::{BrowserUnderTest, CdpError, Grid, GridBuilder, eventually, processes};

use crate::support::{
    attach_path, browser_roots, create, ends_as, id, is_gone, is_whole, metric_is, only_active, only_browser, release,
    signal,
};

async fn killed_browser_is_told_and_replaced(browser: BrowserUnderTest) -> Result<()> {
    let grid = Grid::builder().browser(browser).slots(1).start().await?;
    // One session by connecting, one of the API: both are told the same.
    for path in ["/", "api"] {
        let session = if path == "api" {
            Some(create(&grid, json!({})).await?)
        } else {
            None
        };
        let path = session.as_ref().map_or_else(|| path.to_owned(), attach_path);
        let mut cdp = grid.cdp(&path).await?;
        cdp.call("Browser.getVersion", json!({})).await?;
        let session = only_active(&grid).await?;
        let victim = only_browser(&grid).await?;
        let tree = grid.browser_pids();
        signal(victim, Signal::KILL)?;
        let end = cdp.closed().await?;
        ensure!(
            end.code == Some(1011) && end.reason.starts_with("browser_crashed"),
            "{end:?}"
        );
        let message = ends_as(&grid, &session, "browser_crashed").await?;
        ensure!(
            message.contains("KILL") || message.contains('9'),
            "the signal is not named: {message}"
        );
        for pid in tree {
            is_gone(pid).await?;
        }
        let late = grid
            .cdp(&format!("/devtools/browser/{session}"))
            .await
            .err()
            .map(|error| error.to_string());
        ensure!(late.is_some_and(|text| text.contains("404") && text.contains("browser_crashed")));
    }
    ensure!(
        grid.metric("wharf_sessions_ended_total{reason=\"browser_crashed\"}")
            .await?
            == 2.0
    );
    is_whole(&grid, 1).await?;
    grid.finish().await
}

#[tokio::test]
async fn browser_killed_in_mid_session_is_told_and_replaced() -> Result<()> {
    killed_browser_is_told_and_replaced(BrowserUnderTest::Fake).await
}

#[tokio::test]
async fn headless_shell_killed_in_mid_session_is_told_and_replaced() -> Result<()> {
    killed_browser_is_told_and_replaced(BrowserUnderTest::HeadlessShell).await
}

async fn stopped_browser_is_noticed_and_replaced(browser: BrowserUnderTest) -> Result<()> {
    let grid = Grid::builder()
        .browser(browser)
        .slots(1)
        .arg("--probe-interval", "1s")
        .arg("--probe-limit", "500ms")
        .start()
        .await?;
    let mut cdp = grid.cdp("/").await?;
    cdp.call("Browser.getVersion", json!({})).await?;
    let session = only_active(&grid).await?;
    let victim = only_browser(&grid).await?;
    signal(victim, Signal::STOP)?;
    let end = cdp.closed().await?;
    ensure!(
        end.code == Some(1011) && end.reason.starts_with("browser_hung"),
        "{end:?}"
    );
    ends_as(&grid, &session, "browser_hung").await?;
    is_gone(victim).await?;
    ensure!(grid.metric("wharf_browsers_hung_total").await? == 1.0);
    is_whole(&grid, 1).await?;
    grid.finish().await
}

#[tokio::test]
async fn headless_shell_stopped_in_mid_session_is_noticed_and_replaced() -> Result<()> {
    stopped_browser_is_noticed_and_replaced(BrowserUnderTest::HeadlessShell).await
}

#[tokio::test]
async fn browser_stopped_in_mid_session_is_noticed_and_replaced() -> Result<()> {
    stopped_browser_is_noticed_and_replaced(BrowserUnderTest::Fake).await
}

#[tokio::test]
async fn warm_browser_that_hangs_is_replaced_before_anybody_gets_it() -> Result<()> {
    let builder = Grid::builder()
        .slots(1)
        .arg("--probe-interval", "500ms")
        .arg("--probe-limit", "200ms");
    let grid = builder.start().await?;
    let victim = only_browser(&grid).await?;
    signal(victim, Signal::STOP)?;
    is_gone(victim).await?;
    let fresh = only_browser(&grid).await?;
    ensure!(fresh != victim);
    is_whole(&grid, 1).await?;
    grid.finish().await
}

#[tokio::test]
async fn browser_over_its_memory_limit_ends_as_out_of_memory() -> Result<()> {
    let grid = Grid::builder()
        .slots(1)
        .arg("--memory-limit", "100MiB")
        .arg("--probe-interval", "300ms")
        .arg("--probe-limit", "200ms")
        .start()
        .await?;
    let mut cdp = grid.cdp("/").await?;
    cdp.call("Browser.getVersion", json!({})).await?;
    let session = only_active(&grid).await?;
    let victim = only_browser(&grid).await?;
    match cdp.call("Fake.allocate", json!({"mb": 200})).await {
        Ok(_) | Err(CdpError::Ended(_)) => {}
        Err(error) => return Err(error.into()),
    }
    let end = cdp.closed().await?;
    ensure!(
        end.code == Some(4413) && end.reason.starts_with("out_of_memory"),
        "{end:?}"
    );
    let message = ends_as(&grid, &session, "out_of_memory").await?;
    ensure!(
        message.contains("MiB of 100 MiB"),
        "used and limit are not named: {message}"
    );
    is_gone(victim).await?;
    is_whole(&grid, 1).await?;
    grid.finish().await
}

/// A browser that is sound when wharf tries it at its start and gets its faults from a file afterwards.
struct Switched {
    dir: TempDir,
}

impl Switched {
    fn new() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let fake = BrowserUnderTest::Fake.executable()?;
        let path = dir.path().join("browser");
        let script = format!(
            "#!/bin/sh\nread -r faults < '{}' 2>/dev/null\nexec '{}' \"$@\" $faults\n",
            dir.path().join("faults").display(),
            fake.display()
        );
        fs::write(&path, script)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(Self { dir })
    }

    fn grid(&self) -> GridBuilder {
        Grid::builder().slots(1).min(0).binary(self.dir.path().join("browser"))
    }

    fn set(&self, fault: &str) -> Result<()> {
        Ok(fs::write(
            self.dir.path().join("faults"),
            format!("--fake-fault={fault}\n"),
        )?)
    }

    /// The next `n` launches fail.
    fn fail_next(&self, n: u32) -> Result<()> {
        self.set(&format!("fail_first:{n}@{}", self.dir.path().join("count").display()))
    }
}

#[tokio::test]
async fn launch_that_fails_is_502_naming_the_cause_and_the_circuit_recovers() -> Result<()> {
    let browser = Switched::new()?;
    let grid = browser.grid().start().await?;
    browser.fail_next(4)?;
    let reply = grid.http().post("/v1/sessions", &json!({})).await?;
    ensure!(
        reply.status == 502 && reply.error_code().as_deref() == Some("launch_failed"),
        "{}",
        reply.text()
    );
    ensure!(
        reply.text().contains("this launch fails") && reply.text().contains("21"),
        "no cause: {}",
        reply.text()
    );
    let session = reply.json()?["error"]["session"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    ends_as(&grid, &session, "launch_failed").await?;
    metric_is(&grid, "wharf_circuit_open", 1.0).await?;
    // The trial launches go on; the next client waits for one that works.
    let session = create(&grid, json!({})).await?;
    let mut cdp = grid.cdp(&attach_path(&session)).await?;
    cdp.call("Browser.getVersion", json!({})).await?;
    cdp.close().await;
    metric_is(&grid, "wharf_circuit_open", 0.0).await?;
    release(&grid, &id(&session)).await?;
    is_whole(&grid, 1).await?;
    grid.finish().await
}

#[tokio::test]
async fn launch_that_fails_once_is_tried_again_unseen() -> Result<()> {
    let browser = Switched::new()?;
    let grid = browser.grid().start().await?;
    browser.fail_next(1)?;
    let mut cdp = grid.cdp("/").await?;
    cdp.call("Browser.getVersion", json!({})).await?;
    cdp.close().await;
    ensure!(grid.metric("wharf_launches_total{outcome=\"failed\"}").await? == 1.0);
    grid.finish().await
}

#[tokio::test]
async fn launch_that_crashes_refuses_an_upgrade_with_502() -> Result<()> {
    let browser = Switched::new()?;
    let grid = browser.grid().start().await?;
    browser.set("crash_at_start")?;
    let Err(CdpError::Refused(reply)) = grid.cdp("/").await else {
        anyhow::bail!("the upgrade was not refused")
    };
    ensure!(
        reply.status == 502 && reply.text().starts_with("launch_failed"),
        "{}",
        reply.text()
    );
    grid.finish().await
}

#[tokio::test]
async fn launch_that_hangs_is_given_up_at_the_launch_timeout() -> Result<()> {
    let browser = Switched::new()?;
    let grid = browser.grid().arg("--launch-timeout", "1s").start().await?;
    browser.set("hang_at_start")?;
    let reply = grid.http().post("/v1/sessions", &json!({})).await?;
    ensure!(
        reply.status == 502 && reply.error_code().as_deref() == Some("launch_failed"),
        "{}",
        reply.text()
    );
    eventually("the hung browsers to be gone", async || {
        let left = browser_roots(&grid);
        ensure!(left.len() <= 1, "{left:?}");
        Ok(())
    })
    .await?;
    grid.finish().await
}

#[tokio::test]
async fn browser_that_cannot_start_at_all_is_told_at_start() -> Result<()> {
    let refused = Grid::builder()
        .fault("crash_at_start")
        .start()
        .await
        .err()
        .context("wharf started")?;
    let text = format!("{refused:#}");
    ensure!(
        text.contains("trial launch failed") && text.contains("signal 11"),
        "{text}"
    );
    let refused = Grid::builder()
        .binary("/nonexistent/browser")
        .start()
        .await
        .err()
        .context("wharf started")?;
    let text = format!("{refused:#}");
    ensure!(text.contains("/nonexistent/browser"), "{text}");
    Ok(())
}

#[tokio::test]
async fn child_that_leaves_the_process_group_dies_with_its_session() -> Result<()> {
    let grid = Grid::builder()
        .slots(1)
        .min(0)
        .fault("leak_child")
        .fault("ignore_sigterm")
        .start()
        .await?;
    for _ in 0..3 {
        let mut cdp = grid.cdp("/").await?;
        let leaked = cdp.call("Fake.leakChild", json!({})).await?["pid"]
            .as_u64()
            .unwrap_or_default();
        let tree = grid.browser_pids();
        ensure!(tree.len() >= 2, "{tree:?}");
        cdp.abandon();
        is_gone(u32::try_from(leaked)?).await?;
        for pid in tree {
            is_gone(pid).await?;
        }
    }
    grid.finish().await
}

#[tokio::test]
async fn garbage_from_the_browser_closes_1011_and_blames_the_browser() -> Result<()> {
    let grid = Grid::builder().slots(1).start().await?;
    let mut cdp = grid.cdp("/").await?;
    cdp.call("Browser.getVersion", json!({})).await?;
    let session = only_active(&grid).await?;
    cdp.send("", "Fake.garbage", json!({})).await?;
    let end = cdp.closed().await?;
    ensure!(end.code == Some(1011), "{end:?}");
    ends_as(&grid, &session, "browser_crashed").await?;
    is_whole(&grid, 1).await?;
    grid.finish().await
}

#[tokio::test]
async fn browser_that_refuses_connections_is_502_and_the_slot_comes_back() -> Result<()> {
    let grid = Grid::builder().slots(1).fault("refuse_connect").start().await?;
    let Err(CdpError::Refused(reply)) = grid.cdp("/").await else {
        anyhow::bail!("the upgrade was not refused")
    };
    ensure!(reply.status == 502, "{} {}", reply.status, reply.text());
    grid.finish().await
}

#[tokio::test]
async fn profile_of_a_session_is_removed_with_it() -> Result<()> {
    let grid = Grid::builder().slots(1).min(0).fault("fill_profile:20").start().await?;
    let mut cdp = grid.cdp("/").await?;
    cdp.call("Browser.getVersion", json!({})).await?;
    ensure!(grid.session_dirs().len() == 1, "{:?}", grid.session_dirs());
    let browser = only_browser(&grid).await?;
    let home = processes::variable(browser, "TMPDIR");
    ensure!(
        home.is_some_and(|dir| dir.starts_with(grid.run_dir())),
        "TMPDIR is outside the run directory"
    );
    let used = grid.session_dirs().remove(0);
    cdp.close().await;
    eventually("the session's directory to be gone", async || {
        ensure!(!used.exists(), "{} is there", used.display());
        Ok(())
    })
    .await?;
    grid.finish().await
}

#[tokio::test]
async fn crashes_in_a_row_leave_the_grid_whole() -> Result<()> {
    let grid = Grid::builder().slots(2).spare(1).start().await?;
    for _ in 0..10 {
        let mut cdp = grid.cdp("/").await?;
        cdp.set_limit(Duration::from_secs(60));
        cdp.send("", "Fake.crash", json!({})).await?;
        let end = cdp.closed().await?;
        ensure!(
            end.code == Some(1011) && end.reason.starts_with("browser_crashed"),
            "{end:?}"
        );
    }
    is_whole(&grid, 2).await?;
    grid.finish().await
}

#[tokio::test]
async fn browser_paused_on_purpose_goes_on_although_its_client_left() -> Result<()> {
    let grid = Grid::builder().slots(1).flag("--enable-faults").start().await?;
    let session = create(&grid, json!({})).await?;
    let path = format!("/debug/slow-worker?session_id={}&for=60s", id(&session));
    let browser = crate::support::only_browser(&grid).await?;
    let state = || -> Result<String> {
        let stat = std::fs::read_to_string(format!("/proc/{browser}/stat"))?;
        let after = stat.rsplit(')').next().unwrap_or_default().trim_start();
        Ok(after.chars().take(1).collect())
    };
    let mut raw = crate::support::Raw::connect(grid.addr()).await?;
    raw.send(format!(
        "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n"
    ))
    .await?;
    eventually("the browser to be stopped", async || {
        ensure!(state()? == "T", "it is {}", state()?);
        Ok(())
    })
    .await?;
    drop(raw);
    eventually("the browser to go on", async || {
        ensure!(state()? != "T", "it is stopped");
        Ok(())
    })
    .await?;
    let mut cdp = grid.cdp(&crate::support::attach_path(&session)).await?;
    cdp.call("Browser.getVersion", json!({})).await?;
    cdp.close().await;
    crate::support::release(&grid, &id(&session)).await?;
    grid.finish().await
}
