//! The faults that are switched on at start.
//!
//! Invariant under test: each does what its name says, and nothing else goes wrong before it does.

use std::{
    os::unix::process::ExitStatusExt,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::json;
use wharf_testkit::{Cdp, CdpError, processes};

use crate::support::Fake;

/// Long enough to see that nothing comes.
const A_WHILE: Duration = Duration::from_millis(300);

fn pid(fake: &Fake) -> Pid {
    Pid::from_child(&fake.child)
}

#[tokio::test]
async fn unknown_fault_refuses_to_start() {
    let mut fake = Fake::start(&["chrash_at_start"]);
    assert_eq!(fake.ended().await.unwrap().code(), Some(64));
}

#[tokio::test]
async fn fault_from_environment_acts() {
    let mut fake = Fake::start_with(|command| {
        command
            .arg("--remote-debugging-port=0")
            .env("FAKE_BROWSER_FAULTS", "exit_code:9");
    });
    assert_eq!(fake.ended().await.unwrap().code(), Some(9));
}

#[tokio::test]
async fn crash_at_start_dies_of_sigsegv_before_the_line() {
    let mut fake = Fake::start(&["crash_at_start"]);
    assert_eq!(fake.ended().await.unwrap().signal(), Some(Signal::SEGV.as_raw()));
    assert_eq!(fake.ready_within(A_WHILE), None);
}

#[tokio::test]
async fn exit_code_exits_with_it() {
    let mut fake = Fake::start(&["exit_code:7"]);
    assert_eq!(fake.ended().await.unwrap().code(), Some(7));
}

#[tokio::test]
async fn crash_after_serves_first() {
    let started = Instant::now();
    let mut fake = Fake::start(&["crash_after:500ms"]);
    let mut cdp = fake.cdp().await;
    cdp.call("Browser.getVersion", json!({})).await.unwrap();
    assert_eq!(fake.ended().await.unwrap().signal(), Some(Signal::SEGV.as_raw()));
    assert!(started.elapsed() >= Duration::from_millis(500));
    assert_eq!(cdp.closed().await.unwrap().code, None);
}

#[tokio::test]
async fn hang_at_start_never_prints_the_line() {
    let fake = Fake::start(&["hang_at_start"]);
    assert_eq!(fake.ready_within(A_WHILE), None);
    assert!(fake.is_alive());
}

#[tokio::test]
async fn slow_start_prints_the_line_late() {
    let started = Instant::now();
    let fake = Fake::start(&["slow_start:400ms"]);
    fake.ready();
    assert!(started.elapsed() >= Duration::from_millis(400));
}

#[tokio::test]
async fn hang_after_stops_answering_and_stays_alive() {
    let fake = Fake::start(&["hang_after:200ms"]);
    let mut cdp = fake.cdp().await;
    cdp.set_limit(A_WHILE);
    let end = loop {
        if let Err(error) = cdp.call("Browser.getVersion", json!({})).await {
            break error;
        }
    };
    assert!(matches!(end, CdpError::Timeout { .. }), "{end}");
    assert!(fake.is_alive());
}

#[tokio::test]
async fn ignore_sigterm_survives_it_and_keeps_its_pid() {
    let mut fake = Fake::start(&["ignore_sigterm"]);
    let mut cdp = fake.cdp().await;
    kill_process(pid(&fake), Signal::TERM).unwrap();
    cdp.call("Browser.getVersion", json!({})).await.unwrap();
    kill_process(pid(&fake), Signal::KILL).unwrap();
    assert_eq!(fake.ended().await.unwrap().signal(), Some(Signal::KILL.as_raw()));
}

#[tokio::test]
async fn sigterm_without_the_fault_ends_it() {
    let mut fake = Fake::start(&[]);
    fake.ready();
    kill_process(pid(&fake), Signal::TERM).unwrap();
    assert_eq!(fake.ended().await.unwrap().signal(), Some(Signal::TERM.as_raw()));
}

#[tokio::test]
async fn leak_child_survives_a_group_kill() {
    let mut fake = Fake::start(&["leak_child"]);
    fake.ready();
    // The child is safe from the group only once it has a session of its own.
    let child = fake.children(1).await.unwrap()[0];
    wharf_testkit::eventually("the child's own session", async || {
        // Not by `getsid`: rustix panics at a session without a number, as in a container entered from outside.
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat"))?;
        let session = stat
            .rsplit(')')
            .next()
            .and_then(|fields| fields.split_ascii_whitespace().nth(3));
        anyhow::ensure!(session == Some(child.to_string().as_str()), "not yet: {session:?}");
        Ok(())
    })
    .await
    .unwrap();
    kill_process_group(pid(&fake), Signal::KILL).unwrap();
    fake.ended().await.unwrap();
    assert!(processes::is_alive(child));
    assert!(!processes::descends_from(child, fake.child.id()));
    assert_eq!(processes::orphans(fake.home.path(), fake.child.id()), [child]);
}

#[tokio::test]
async fn garbage_breaks_the_protocol_after_the_upgrade() {
    let fake = Fake::start(&["garbage"]);
    let mut cdp = fake.cdp().await;
    let end = cdp.closed().await.unwrap();
    assert_eq!(end.code, None, "{end:?}");
    assert!(fake.is_alive());
}

#[tokio::test]
async fn hang_on_connect_accepts_and_says_nothing() {
    let fake = Fake::start(&["hang_on_connect"]);
    let url = fake.ready();
    let upgrade = tokio::time::timeout(A_WHILE, Cdp::connect(&url)).await;
    assert!(upgrade.is_err(), "the upgrade was answered");
}

#[tokio::test]
async fn refuse_connect_announces_a_closed_port() {
    let fake = Fake::start(&["refuse_connect"]);
    let url = fake.ready();
    assert!(matches!(Cdp::connect(&url).await, Err(CdpError::Connect { .. })));
    assert!(fake.is_alive());
}

#[tokio::test]
async fn fill_profile_writes_that_much() {
    let fake = Fake::start(&["fill_profile:3"]);
    fake.ready();
    let file = std::fs::metadata(fake.home.path().join("profile/Fake Cache")).unwrap();
    assert_eq!(file.len(), 3 << 20);
}

#[tokio::test]
async fn counted_faults_count_across_launches() {
    let dir = tempfile::tempdir().unwrap();
    for (fault, expected) in [
        ("fail_first:2", [false, false, true, true]),
        ("fail_every:2", [true, false, true, false]),
    ] {
        let counter = dir.path().join(fault.replace(':', "-"));
        let fault = format!("{fault}@{}", counter.display());
        for starts in expected {
            let mut fake = Fake::start(&[&fault]);
            if starts {
                fake.ready();
            } else {
                assert_eq!(fake.ended().await.unwrap().code(), Some(21), "{fault}");
            }
        }
    }
}
