//! The faults that a client asks for over CDP.
//!
//! Invariant under test: each acts at once, on the connection or the process it is meant for.

use std::{os::unix::process::ExitStatusExt, time::Duration};

use rustix::process::Signal;
use serde_json::json;
use wharf_testkit::{Cdp, CdpError, processes};

use crate::support::Fake;

#[tokio::test]
async fn fake_crash_exit_and_abort_end_the_process() {
    for (method, params, code, signal) in [
        ("Fake.crash", json!({}), None, Some(Signal::SEGV.as_raw())),
        ("Fake.abort", json!({}), None, Some(Signal::ABORT.as_raw())),
        ("Fake.exit", json!({"code": 3}), Some(3), None),
    ] {
        let mut fake = Fake::start(&[]);
        let mut cdp = fake.cdp().await;
        assert!(
            matches!(cdp.call(method, params).await, Err(CdpError::Ended(_))),
            "{method} answered"
        );
        let status = fake.ended().await.unwrap();
        assert_eq!((status.code(), status.signal()), (code, signal), "{method}");
    }
}

#[tokio::test]
async fn fake_hang_silences_every_connection() {
    let fake = Fake::start(&[]);
    let url = fake.ready();
    let mut one = Cdp::connect(&url).await.unwrap();
    let mut two = Cdp::connect(&url).await.unwrap();
    for cdp in [&mut one, &mut two] {
        cdp.set_limit(Duration::from_millis(300));
    }
    two.call("Browser.getVersion", json!({})).await.unwrap();
    assert!(matches!(
        one.call("Fake.hang", json!({})).await,
        Err(CdpError::Timeout { .. })
    ));
    assert!(matches!(
        two.call("Browser.getVersion", json!({})).await,
        Err(CdpError::Timeout { .. })
    ));
    let new = tokio::time::timeout(Duration::from_millis(300), Cdp::connect(&url)).await;
    assert!(new.is_err(), "a hung browser answered an upgrade");
    assert!(fake.is_alive());
}

#[tokio::test]
async fn fake_allocate_grows_the_process() {
    let fake = Fake::start(&[]);
    let mut cdp = fake.cdp().await;
    cdp.call("Fake.allocate", json!({"mb": 64})).await.unwrap();
    let statm = std::fs::read_to_string(format!("/proc/{}/statm", fake.child.id())).unwrap();
    let pages: usize = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(pages * rustix::param::page_size() > 64 << 20);
}

#[tokio::test]
async fn fake_garbage_breaks_only_its_own_connection() {
    let fake = Fake::start(&[]);
    let url = fake.ready();
    let mut one = Cdp::connect(&url).await.unwrap();
    let mut two = Cdp::connect(&url).await.unwrap();
    let broken = one.call("Fake.garbage", json!({})).await;
    assert!(matches!(broken, Err(CdpError::Ended(end)) if end.code.is_none()));
    two.call("Browser.getVersion", json!({})).await.unwrap();
}

#[tokio::test]
async fn fake_leak_child_names_the_child() {
    let mut fake = Fake::start(&[]);
    let mut cdp = fake.cdp().await;
    let reply = cdp.call("Fake.leakChild", json!({})).await.unwrap();
    let child = u32::try_from(reply["pid"].as_u64().unwrap()).unwrap();
    assert_eq!(fake.children(1).await.unwrap(), [child]);
    let _ = cdp.call("Fake.exit", json!({"code": 0})).await;
    fake.ended().await.unwrap();
    assert!(processes::is_alive(child));
}

#[tokio::test]
async fn fake_flood_sends_all_before_the_answer() {
    let fake = Fake::start(&[]);
    let mut cdp = fake.cdp().await;
    cdp.call("Fake.flood", json!({"messages": 500, "bytes": 10_000}))
        .await
        .unwrap();
    for serial in 0..500 {
        let event = cdp.event("Fake.flooded").await.unwrap();
        assert_eq!(event["params"]["serial"], serial);
    }
}

#[tokio::test]
async fn fake_sleep_answers_late() {
    let fake = Fake::start(&[]);
    let mut cdp = fake.cdp().await;
    let started = std::time::Instant::now();
    cdp.call("Fake.sleep", json!({"ms": 200})).await.unwrap();
    assert!(started.elapsed() >= Duration::from_millis(200));
}
