//! A real browser and a real client library over two hops, through nginx: only the address is the fleet's.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::json;
use wharf_testkit::{BrowserUnderTest, Fleet, Script, node_script, processes};

use crate::{
    fleet_support::{attach_path, create, ends_as, finish, id, took},
    support::signal,
};

const PUPPETEER: &str = r#"
import puppeteer from 'puppeteer-core';
const browser = await puppeteer.connect({ browserWSEndpoint: process.env.ENDPOINT });
const page = await browser.newPage();
await page.goto('data:text/html,<title>wharf</title><h1>ahoy</h1>');
const seen = {
  title: await page.title(),
  heading: await page.$eval('h1', (h) => h.textContent),
  sum: await page.evaluate(() => 6 * 7),
  shot: (await page.screenshot()).length,
};
await browser.close();
console.log(JSON.stringify(seen));
"#;

const TEN_MEGABYTES: usize = 10 << 20;

/// Letters that do not repeat in any short period.
fn letters(count: usize) -> String {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(b'a' + u8::try_from(state % 26).unwrap_or(0))
    };
    std::iter::repeat_with(next).take(count).collect()
}

#[tokio::test]
async fn puppeteer_large_messages_and_a_crash_of_headless_shell_over_two_hops() -> Result<()> {
    let builder = Fleet::builder().coordinators(2).workers(1).slots(1).balancer(true);
    let fleet = builder.browser(BrowserUnderTest::HeadlessShell).start().await?;
    let endpoint = format!("ws://{}/", fleet.front());
    let seen = node_script(Script::Source(PUPPETEER), &[("ENDPOINT", &endpoint)])
        .await?
        .json()?;
    ensure!(
        seen["title"] == "wharf" && seen["heading"] == "ahoy" && seen["sum"] == 42,
        "{seen}"
    );
    ensure!(seen["shot"].as_u64().is_some_and(|bytes| bytes > 500), "{seen}");

    let session = create(&fleet.http(), json!({})).await?;
    let mut client = fleet.cdp(&attach_path(&session)).await?;
    let page = client.new_page("about:blank").await?;
    let sent = letters(TEN_MEGABYTES);
    let began = Instant::now();
    let asked = json!({"expression": format!("'{sent}'"), "returnByValue": true});
    let back = client.call_in(&page, "Runtime.evaluate", asked).await?;
    took("10 MB to the browser and back through nginx and two hops", began);
    ensure!(
        back["result"]["value"].as_str() == Some(sent.as_str()),
        "10 MB came back changed"
    );

    let pids = fleet.worker(0).browser_pids();
    let is_root = |pid: &&u32| {
        let line = processes::command_line(**pid);
        line.contains("headless") && !line.contains("--type=")
    };
    let roots: Vec<_> = pids.iter().filter(is_root).copied().collect();
    let root = *roots.first().with_context(|| format!("no browser among {pids:?}"))?;
    ensure!(roots.len() == 1, "{roots:?}");
    let began = Instant::now();
    signal(root, Signal::KILL)?;
    let end = client.closed().await?;
    took("browser killed: its client told, through nginx and two hops", began);
    ensure!(
        end.code == Some(1011) && end.reason.starts_with("browser_crashed"),
        "{end:?}"
    );
    ends_as(&fleet.http(), &id(&session), "browser_crashed").await?;
    finish(fleet).await
}

#[tokio::test]
async fn browser_crash_and_large_messages_over_two_hops() -> Result<()> {
    let fleet = Fleet::builder().coordinators(2).workers(1).slots(2).start().await?;
    let sent = letters(TEN_MEGABYTES);
    for (maker, attached) in [(0, 1), (1, 1), (0, 0)] {
        let session = create(&fleet.http_at(maker), json!({})).await?;
        let mut client = fleet.cdp_at(attached, &attach_path(&session)).await?;
        let page = client.new_page("about:blank").await?;
        let asked = json!({"expression": format!("'{sent}'")});
        let back = client.call_in(&page, "Runtime.evaluate", asked).await?;
        ensure!(
            back["result"]["value"].as_str() == Some(sent.as_str()),
            "10 MB came back changed"
        );
        let began = Instant::now();
        client.send("", "Fake.crash", json!({})).await?;
        let end = client.closed().await?;
        took("fake browser crashed: its client told, over two hops", began);
        ensure!(
            end.code == Some(1011) && end.reason.starts_with("browser_crashed"),
            "{end:?}"
        );
        ends_as(&fleet.http_at(0), &id(&session), "browser_crashed").await?;
    }
    finish(fleet).await
}
