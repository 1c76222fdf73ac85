//! puppeteer and Playwright, unchanged, on real browsers: only the address is the grid's.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use wharf_testkit::{BrowserUnderTest, Grid, Script, node_script};

use crate::support::{count_is, create, end_of, ends_as, get, id, last_ended, release};

const PUPPETEER: &str = r#"
import puppeteer from 'puppeteer-core';
const browser = await puppeteer.connect(JSON.parse(process.env.CONNECT));
const page = await browser.newPage();
await page.goto('data:text/html,<title>wharf</title><h1>ahoy</h1>');
const seen = {
  title: await page.title(),
  heading: await page.$eval('h1', (h) => h.textContent),
  shot: (await page.screenshot()).length,
  version: await browser.version(),
};
if (process.env.LEAVE === 'disconnect') await browser.disconnect(); else await browser.close();
console.log(JSON.stringify(seen));
"#;

const PLAYWRIGHT: &str = r#"
import { chromium } from 'playwright-core';
const browser = await chromium.connectOverCDP(process.env.ENDPOINT);
const context = browser.contexts()[0] ?? await browser.newContext();
const page = await context.newPage();
await page.goto('data:text/html,<title>wharf</title><h1>ahoy</h1>');
const seen = {
  title: await page.title(),
  heading: await page.textContent('h1'),
  shot: (await page.screenshot()).length,
  version: browser.version(),
};
await browser.close();
console.log(JSON.stringify(seen));
"#;

fn shell() -> wharf_testkit::GridBuilder {
    Grid::builder().browser(BrowserUnderTest::HeadlessShell)
}

fn check(seen: &Value) -> Result<()> {
    ensure!(seen["title"] == "wharf" && seen["heading"] == "ahoy", "{seen}");
    ensure!(seen["shot"].as_u64().is_some_and(|bytes| bytes > 500), "{seen}");
    ensure!(seen["version"].as_str().is_some_and(|text| !text.is_empty()), "{seen}");
    Ok(())
}

async fn puppeteer(connect: Value, leave: &str) -> Result<()> {
    let env = [("CONNECT", connect.to_string()), ("LEAVE", leave.to_owned())];
    let env = [(env[0].0, env[0].1.as_str()), (env[1].0, env[1].1.as_str())];
    check(&node_script(Script::Source(PUPPETEER), &env).await?.json()?)
}

async fn playwright(endpoint: &str) -> Result<()> {
    check(
        &node_script(Script::Source(PLAYWRIGHT), &[("ENDPOINT", endpoint)])
            .await?
            .json()?,
    )
}

#[tokio::test]
async fn puppeteer_ws_endpoint_close_releases_the_session() -> Result<()> {
    let grid = shell().start().await?;
    puppeteer(json!({"browserWSEndpoint": grid.ws_url()}), "close").await?;
    count_is(&grid, "active", 0).await?;
    let record = last_ended(&grid).await?;
    ensure!(record["reason"] == "released", "{record}");
    puppeteer(
        json!({"browserWSEndpoint": format!("{}/chromium?token=x", grid.ws_url())}),
        "disconnect",
    )
    .await?;
    count_is(&grid, "active", 0).await?;
    grid.finish().await
}

#[tokio::test]
async fn puppeteer_browser_url_gets_a_session_of_its_own() -> Result<()> {
    let grid = shell().start().await?;
    puppeteer(json!({"browserURL": grid.url()}), "disconnect").await?;
    count_is(&grid, "active", 0).await?;
    let record = last_ended(&grid).await?;
    ensure!(record["reason"] == "released", "{record}");
    grid.finish().await
}

#[tokio::test]
async fn puppeteer_attached_to_an_api_session_leaves_it_alive() -> Result<()> {
    let grid = shell().start().await?;
    let session = create(&grid, json!({"operation": "agent"})).await?;
    let endpoint = json!({"browserWSEndpoint": session["connect"]["cdp"]});
    puppeteer(endpoint.clone(), "disconnect").await?;
    ensure!(get(&grid, &id(&session)).await?["status"] == "active");
    puppeteer(endpoint.clone(), "disconnect").await?;
    ensure!(get(&grid, &id(&session)).await?["status"] == "active");
    // Browser.close is the wish to end it.
    puppeteer(endpoint, "close").await?;
    ends_as(&grid, &id(&session), "released").await?;
    grid.finish().await
}

#[tokio::test]
async fn playwright_over_cdp_connects_by_ws_and_http() -> Result<()> {
    let grid = shell().start().await?;
    playwright(&grid.ws_url()).await?;
    playwright(&grid.url()).await?;
    count_is(&grid, "active", 0).await?;
    let session = create(&grid, json!({})).await?;
    playwright(session["connect"]["cdp"].as_str().unwrap_or_default()).await?;
    if grid.http().get(&format!("/v1/sessions/{}", id(&session))).await?.status == 200 {
        release(&grid, &id(&session)).await?;
    }
    ensure!(end_of(&grid, &id(&session)).await?.0 == "released");
    grid.finish().await
}

#[tokio::test]
async fn playwright_refused_upgrade_shows_status_and_sentence() -> Result<()> {
    let grid = Grid::builder().slots(1).queue(0).start().await?;
    let holder = create(&grid, json!({})).await?;
    let script = "import { chromium } from 'playwright-core';\n\
                  try { await chromium.connectOverCDP(process.env.ENDPOINT); console.log('null'); }\n\
                  catch (error) { console.log(JSON.stringify(String(error.message))); }";
    let seen = node_script(Script::Source(script), &[("ENDPOINT", &grid.ws_url())])
        .await?
        .json()?;
    let text = seen.as_str().unwrap_or_default();
    ensure!(text.contains("503") && text.contains("queue_full"), "{seen}");
    release(&grid, &id(&holder)).await?;
    grid.finish().await
}

#[tokio::test]
async fn puppeteer_and_playwright_drive_full_chromium() -> Result<()> {
    let grid = Grid::builder()
        .browser(BrowserUnderTest::Chromium)
        .arg("--browser", "chromium")
        .start()
        .await?;
    puppeteer(json!({"browserWSEndpoint": grid.ws_url()}), "close").await?;
    playwright(&grid.url()).await?;
    count_is(&grid, "active", 0).await?;
    grid.finish().await
}

#[tokio::test]
async fn full_chromium_has_only_page_and_tab_targets() -> Result<()> {
    let grid = Grid::builder()
        .browser(BrowserUnderTest::Chromium)
        .arg("--browser", "chromium")
        .start()
        .await?;
    let mut cdp = grid.cdp("/").await?;
    let filter = json!({"filter": [{"type": "browser", "exclude": true}, {}]});
    let targets = cdp.call("Target.getTargets", filter).await?;
    let kinds: Vec<_> = targets["targetInfos"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|info| &info["type"])
        .collect();
    ensure!(
        kinds.iter().all(|kind| **kind == "page" || **kind == "tab"),
        "{targets}"
    );
    ensure!(kinds.iter().filter(|kind| ***kind == "page").count() == 1, "{targets}");
    let page = cdp.new_page("data:text/html,<title>full</title>").await?;
    let title = cdp
        .call_in(&page, "Runtime.evaluate", json!({"expression": "navigator.userAgent"}))
        .await?;
    ensure!(
        title["result"]["value"]
            .as_str()
            .is_some_and(|agent| agent.contains("Chrome/")),
        "{title}"
    );
    cdp.close().await;
    grid.finish().await
}
