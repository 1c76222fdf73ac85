//! What the fake browser does right: the command line, the port, the pipe, CDP.
//!
//! Invariant under test: the grid and its clients cannot tell it from Chromium by what they ask.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    process::Command,
    time::Duration,
};

use command_fds::{CommandFdExt, FdMapping};
use serde_json::{Value, json};
use wharf_testkit::{Cdp, CdpError, Script, node_script};

use crate::support::{EXECUTABLE, Fake};

#[test]
fn version_flag_prints_version() {
    let output = Command::new(EXECUTABLE).arg("--version").output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stdout), "FakeBrowser 1.0.0.0\n");
}

#[tokio::test]
async fn port_is_announced_in_line_file_and_json() {
    let fake = Fake::start(&[]);
    let url = fake.ready();
    let file = fs::read_to_string(fake.home.path().join("profile/DevToolsActivePort")).unwrap();
    let (port, path) = file.split_once('\n').unwrap();
    assert_eq!(url, format!("ws://127.0.0.1:{port}{path}"));
    let version = fake.http(&url).get("/json/version").await.unwrap().expect(200).unwrap();
    assert_eq!(version["webSocketDebuggerUrl"], url);
    let list = fake.http(&url).get("/json/list").await.unwrap().expect(200).unwrap();
    assert_eq!(list.as_array().map(Vec::len), Some(1));
    assert_eq!(fake.http(&url).get("/else").await.unwrap().status, 404);
}

#[tokio::test]
async fn foreign_host_and_origin_are_refused() {
    let fake = Fake::start(&[]);
    let url = fake.ready();
    let reply = Cdp::connect_with(&url, &[("host", "evil.example")]).await;
    assert!(matches!(reply, Err(CdpError::Refused(reply)) if reply.status == 500));
    let reply = Cdp::connect_with(&url, &[("origin", "http://evil.example")]).await;
    assert!(matches!(reply, Err(CdpError::Refused(reply)) if reply.status == 403));
    let reply = Cdp::connect(&format!("{url}0")).await;
    assert!(matches!(reply, Err(CdpError::Refused(reply)) if reply.status == 500));
}

#[tokio::test]
async fn page_session_evaluates_and_carries_large_replies() {
    let fake = Fake::start(&[]);
    let mut cdp = fake.cdp().await;
    let session = cdp.new_page("about:blank").await.unwrap();
    let sum = cdp
        .call_in(&session, "Runtime.evaluate", json!({"expression": "1+1"}))
        .await
        .unwrap();
    assert_eq!(sum["result"]["value"], 2);
    let large = json!({"expression": "'x'.repeat(20000000)", "returnByValue": true});
    let large = cdp.call_in(&session, "Runtime.evaluate", large).await.unwrap();
    assert_eq!(large["result"]["value"].as_str().map(str::len), Some(20_000_000));
    let echo = "y".repeat(1_000_000);
    let text = cdp
        .call_in(&session, "Runtime.evaluate", json!({"expression": format!("'{echo}'")}))
        .await
        .unwrap();
    assert_eq!(text["result"]["value"], echo);
    cdp.close().await;
}

#[tokio::test]
async fn unknown_method_session_and_target_are_errors() {
    let fake = Fake::start(&[]);
    let mut cdp = fake.cdp().await;
    let code = |reply: Result<Value, CdpError>| match reply {
        Err(CdpError::Method { code, .. }) => code,
        other => panic!("expected an error, got {other:?}"),
    };
    assert_eq!(code(cdp.call("No.such", json!({})).await), -32601);
    assert_eq!(code(cdp.call_in("none", "Page.enable", json!({})).await), -32001);
    assert_eq!(
        code(cdp.call("Target.closeTarget", json!({"targetId": "none"})).await),
        -32602
    );
}

#[tokio::test]
async fn targets_are_discovered_attached_and_destroyed() {
    let fake = Fake::start(&[]);
    let mut watcher = fake.cdp().await;
    let mut actor = Cdp::connect(watcher.url()).await.unwrap();
    watcher
        .call("Target.setDiscoverTargets", json!({"discover": true}))
        .await
        .unwrap();
    watcher.event("Target.targetCreated").await.unwrap();
    let flat = json!({"autoAttach": true, "flatten": true, "waitForDebuggerOnStart": false});
    watcher.call("Target.setAutoAttach", flat).await.unwrap();
    watcher.event("Target.attachedToTarget").await.unwrap();
    let created = actor
        .call("Target.createTarget", json!({"url": "about:blank#two"}))
        .await
        .unwrap();
    let seen = watcher.event("Target.targetCreated").await.unwrap();
    assert_eq!(seen["params"]["targetInfo"]["targetId"], created["targetId"]);
    let attached = watcher.event("Target.attachedToTarget").await.unwrap();
    assert_eq!(attached["params"]["targetInfo"]["url"], "about:blank#two");
    actor.call("Target.closeTarget", created.clone()).await.unwrap();
    let gone = watcher.event("Target.targetDestroyed").await.unwrap();
    assert_eq!(gone["params"]["targetId"], created["targetId"]);
    let left = actor.call("Target.getTargets", json!({})).await.unwrap();
    assert_eq!(left["targetInfos"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn contexts_take_their_targets_along() {
    let fake = Fake::start(&[]);
    let mut cdp = fake.cdp().await;
    let context = cdp.call("Target.createBrowserContext", json!({})).await.unwrap();
    let target = json!({"url": "", "browserContextId": context["browserContextId"]});
    cdp.call("Target.createTarget", target).await.unwrap();
    let contexts = cdp.call("Target.getBrowserContexts", json!({})).await.unwrap();
    assert_eq!(contexts["browserContextIds"], json!([context["browserContextId"]]));
    cdp.call("Target.disposeBrowserContext", context).await.unwrap();
    let left = cdp.call("Target.getTargets", json!({})).await.unwrap();
    assert_eq!(left["targetInfos"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn page_socket_speaks_without_sessions() {
    let fake = Fake::start(&[]);
    let url = fake.ready();
    let list = fake.http(&url).get("/json/list").await.unwrap().json().unwrap();
    let mut page = Cdp::connect(list[0]["webSocketDebuggerUrl"].as_str().unwrap())
        .await
        .unwrap();
    page.call("Page.enable", json!({})).await.unwrap();
    page.call("Page.navigate", json!({"url": "http://x.test/"}))
        .await
        .unwrap();
    page.event("Page.loadEventFired").await.unwrap();
    let href = page
        .call("Runtime.evaluate", json!({"expression": "location.href"}))
        .await
        .unwrap();
    assert_eq!(href["result"]["value"], "http://x.test/");
}

#[tokio::test]
async fn browser_close_answers_and_exits() {
    let mut fake = Fake::start(&[]);
    let mut cdp = fake.cdp().await;
    cdp.call("Browser.close", json!({})).await.unwrap();
    assert_eq!(fake.ended().await.unwrap().code(), Some(0));
}

#[tokio::test]
async fn pipe_answers_beside_the_port_and_its_end_exits() {
    let (child_in, mut to_child) = std::io::pipe().unwrap();
    let (from_child, child_out) = std::io::pipe().unwrap();
    let mut fake = Fake::start_with(|command| {
        command.args(["--remote-debugging-port=0", "--remote-debugging-pipe"]);
        let input = FdMapping {
            parent_fd: child_in.into(),
            child_fd: 3,
        };
        let output = FdMapping {
            parent_fd: child_out.into(),
            child_fd: 4,
        };
        command.fd_mappings(vec![input, output]).unwrap();
    });
    let mut cdp = fake.cdp().await;
    to_child
        .write_all(b"{\"id\":7,\"method\":\"Browser.getVersion\"}\0")
        .unwrap();
    let mut answer = Vec::new();
    BufReader::new(from_child).read_until(0, &mut answer).unwrap();
    answer.pop();
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!(
        (&answer["id"], &answer["result"]["product"]),
        (&json!(7), &json!("FakeBrowser/1.0.0.0"))
    );
    cdp.call("Browser.getVersion", json!({})).await.unwrap();
    drop(to_child);
    assert_eq!(fake.ended().await.unwrap().code(), Some(0));
}

#[tokio::test]
async fn puppeteer_and_playwright_connect_and_disconnect() {
    let fake = Fake::start(&[]);
    let source = "
        import puppeteer from 'puppeteer-core';
        import { chromium } from 'playwright-core';
        const one = await puppeteer.connect({ browserWSEndpoint: process.env.WS });
        const page = await one.newPage();
        await page.goto('http://x.test/');
        const pages = (await one.pages()).length;
        await one.disconnect();
        const two = await chromium.connectOverCDP(process.env.WS);
        const version = two.version();
        await two.close();
        console.log(JSON.stringify({ pages, version, url: page.url() }));";
    let output = node_script(Script::Source(source), &[("WS", &fake.ready())])
        .await
        .unwrap();
    assert_eq!(
        output.json().unwrap(),
        json!({"pages": 2, "version": "1.0.0.0", "url": "http://x.test/"})
    );
    assert!(
        fake.is_alive(),
        "a client that disconnects must not take the browser along"
    );
}

/// The numbers that make thousands of them possible, with room for a busy machine.
#[tokio::test]
async fn fake_browser_is_light_and_quick() {
    let mut quickest = Duration::MAX;
    let fakes: Vec<_> = (0..20)
        .map(|_| {
            let started = std::time::Instant::now();
            let fake = Fake::start(&[]);
            fake.ready();
            quickest = quickest.min(started.elapsed());
            fake
        })
        .collect();
    let pss = |fake: &Fake| {
        let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", fake.child.id())).unwrap();
        let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let mean = fakes.iter().map(pss).sum::<u64>() / 20;
    assert!(mean < 1536, "{mean} kB PSS each");
    assert!(quickest < Duration::from_millis(50), "{quickest:?} to start");
}
