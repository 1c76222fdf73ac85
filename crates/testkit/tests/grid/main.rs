//! The Grid builder and its leak check, tried on a stub that keeps or breaks wharf's contract.
//!
//! Separate from the end-to-end tests because here the *kit* is under test: it must see each kind of leak, and must
//! itself leave nothing behind, whichever way a test ends.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use wharf_testkit::{Grid, GridBuilder, eventually, processes};

/// A command that runs the stub under the pid it was started with.
fn stub(dir: &TempDir) -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/grid/stub-wharf.mjs");
    let path = dir.path().join("wharf");
    fs::write(&path, format!("#!/bin/sh\nexec node '{}' \"$@\"\n", script.display())).expect("a writable directory");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("our own file");
    path
}

fn grid(dir: &TempDir, fault: &str) -> GridBuilder {
    let fake = env!("CARGO_BIN_EXE_fake-browser");
    Grid::builder()
        .slots(2)
        .min(2)
        .program(stub(dir))
        .binary(fake)
        .env("STUB_FAULT", fault)
}

async fn browsers_are(grid: &Grid, count: usize) -> Result<Vec<u32>> {
    eventually(format!("{count} browsers"), async || {
        let pids = grid.browser_pids();
        ensure!(pids.len() == count, "{pids:?}");
        Ok(pids)
    })
    .await
}

#[tokio::test]
async fn grid_that_keeps_the_contract_finishes() {
    let dir = tempfile::tempdir().unwrap();
    let grid = grid(&dir, "").start().await.unwrap();
    assert_eq!(grid.url(), format!("http://{}", grid.addr()));
    browsers_are(&grid, 2).await.unwrap();
    assert_eq!(grid.session_dirs().len(), 2);
    assert_eq!(grid.metric("wharf_browsers{state=\"warm\"}").await.unwrap(), 2.0);
    let reply = grid.http().header("x-test", "1").delete("/none").await.unwrap();
    assert_eq!(
        (reply.status.as_u16(), reply.error_code().as_deref()),
        (404, Some("not_found"))
    );
    let home = grid.home().to_owned();
    grid.finish().await.unwrap();
    assert!(!home.exists(), "the temporary directory is left");
}

#[tokio::test]
async fn grid_finish_sees_what_shutdown_left() {
    for (fault, message) in [
        ("directory", "session directories are left"),
        ("panic", "wharf panicked"),
        ("status", "ended with"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let grid = grid(&dir, fault).start().await.unwrap();
        browsers_are(&grid, 2).await.unwrap();
        let error = grid.finish().await.unwrap_err();
        assert!(format!("{error:#}").contains(message), "{fault}: {error:#}");
    }
}

#[tokio::test]
async fn grid_leak_check_sees_what_is_still_held() {
    let cases = [
        ("session", "wharf_sessions_active is 1"),
        ("slot", "wharf_slots_busy is 1"),
        ("metric", "wharf_slots_busy is missing"),
        ("listed", "active sessions"),
    ];
    // At once, because each has to wait until patience runs out.
    let checks = cases.map(async |(fault, message)| {
        let dir = tempfile::tempdir().unwrap();
        let grid = grid(&dir, fault)
            .patience(Duration::from_secs(3))
            .start()
            .await
            .unwrap();
        let error = grid.leak_check().await.unwrap_err();
        assert!(format!("{error:#}").contains(message), "{fault}: {error:#}");
    });
    futures_util::future::join_all(checks).await;
}

#[tokio::test]
async fn grid_leak_check_sees_an_orphan() {
    let dir = tempfile::tempdir().unwrap();
    let grid = grid(&dir, "").min(1).fault("leak_child").fault("crash_after:300ms");
    let grid = grid.patience(Duration::from_secs(2)).start().await.unwrap();
    // Not "one process is left": before the browser has forked its child there is also only one.
    let orphan = eventually("the leaked child to be an orphan", async || {
        let found = processes::orphans(grid.run_dir(), grid.pid());
        found.first().copied().context("none yet")
    });
    let orphan = orphan.await.unwrap();
    let error = grid.leak_check().await.unwrap_err();
    assert!(
        format!("{error:#}").contains(&format!("orphan {orphan}: ")),
        "{error:#}"
    );
}

#[tokio::test]
async fn grid_that_never_gets_ready_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let error = grid(&dir, "never_ready")
        .patience(Duration::from_millis(500))
        .start()
        .await
        .unwrap_err();
    assert!(format!("{error:#}").contains("no ready file within 500ms"), "{error:#}");
}

#[tokio::test]
async fn http_events_are_read_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let grid = grid(&dir, "").min(0).start().await.unwrap();
    let mut events = grid.http().events("/v1/events").await.unwrap();
    assert_eq!(events.next().await.unwrap().id, "1");
    assert_eq!(
        events.next_named("session_ended").await.unwrap().json().unwrap()["n"],
        2
    );
    assert_eq!(events.next_within(Duration::from_millis(50)).await.unwrap(), None);
    drop(events);
    grid.finish().await.unwrap();
}

#[tokio::test]
async fn grid_shutdown_that_leaves_a_process_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut grid = grid(&dir, "").min(1).fault("leak_child").start().await.unwrap();
    browsers_are(&grid, 2).await.unwrap();
    let run_dir = grid.run_dir().to_owned();
    let error = grid.terminate().await.unwrap_err();
    assert!(error.to_string().contains("left 1 processes"), "{error:#}");
    drop(grid);
    assert_eq!(
        processes::with_run_dir(&run_dir),
        [0; 0],
        "the kit itself must clean up"
    );
}

#[tokio::test]
async fn grid_that_does_not_start_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let error = grid(&dir, "exit").start().await.unwrap_err();
    let text = format!("{error:#}");
    assert!(
        text.contains("stub: refusing to start") && text.contains("exit status: 3"),
        "{text}"
    );
}

#[tokio::test]
async fn grid_killed_takes_its_browsers_along_and_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let mut grid = grid(&dir, "").start().await.unwrap();
    let before = browsers_are(&grid, 2).await.unwrap();
    grid.kill9().await.unwrap();
    assert!(before.iter().all(|pid| !processes::is_alive(*pid)));
    grid.restart().await.unwrap();
    let after = browsers_are(&grid, 2).await.unwrap();
    assert!(before.iter().all(|pid| !after.contains(pid)));
    let stopped = grid.terminate().await.unwrap();
    assert!(stopped.status.success() && stopped.took < Duration::from_secs(10));
    grid.finish().await.unwrap();
}

#[tokio::test]
async fn grid_dropped_leaves_no_process_and_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let grid = grid(&dir, "")
        .fault("leak_child")
        .fault("ignore_sigterm")
        .start()
        .await
        .unwrap();
    let pids = browsers_are(&grid, 4).await.unwrap();
    let (wharf, home) = (grid.pid(), grid.home().to_owned());
    drop(grid);
    assert!(pids.iter().all(|pid| !processes::is_alive(*pid)), "browsers are left");
    assert!(!processes::is_alive(wharf) && !home.exists());
}
