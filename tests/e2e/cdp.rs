//! Discovery as Chromium answers it, addresses behind proxies, and messages of any size.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use wharf_testkit::{BrowserUnderTest, Cdp, Grid, Http, eventually};

use crate::support::{attach_path, count_is, create, get, id, listed, metric_is, release};

#[tokio::test]
async fn json_version_has_chromiums_shape_and_launches_nothing() -> Result<()> {
    let grid = Grid::builder().min(0).start().await?;
    for path in ["/json/version", "/json/version/", "/json/version?token=x"] {
        let reply = grid.http().get(path).await?;
        ensure!(
            reply
                .header("content-type")
                .is_some_and(|kind| kind.starts_with("application/json"))
        );
        let version = reply.expect(200)?;
        for field in [
            "Browser",
            "Protocol-Version",
            "User-Agent",
            "V8-Version",
            "WebKit-Version",
        ] {
            ensure!(version[field].is_string(), "{path}: {field} is missing from {version}");
        }
        ensure!(
            version["Browser"].as_str().is_some_and(|text| text.contains('/')),
            "{version}"
        );
        let url = version["webSocketDebuggerUrl"].as_str().context("no URL")?;
        ensure!(
            url.starts_with(&format!("{}/devtools/browser/", grid.ws_url())),
            "{url}"
        );
    }
    ensure!(
        grid.metric("wharf_launches_total").await? == 0.0,
        "discovery launched a browser"
    );
    ensure!(listed(&grid, "/v1/sessions").await?.is_empty());
    let version = grid.http().get("/json/version").await?.expect(200)?;
    let mut cdp = grid
        .cdp(version["webSocketDebuggerUrl"].as_str().unwrap_or_default())
        .await?;
    let product = cdp.call("Browser.getVersion", json!({})).await?["product"].take();
    ensure!(product == version["Browser"], "{product} is not {}", version["Browser"]);
    cdp.close().await;
    grid.finish().await
}

#[tokio::test]
async fn json_list_names_the_pages_of_live_sessions() -> Result<()> {
    let grid = Grid::builder().start().await?;
    for path in ["/json", "/json/", "/json/list", "/json/list/"] {
        ensure!(grid.http().get(path).await?.expect(200)? == json!([]), "{path}");
    }
    let session = create(&grid, json!({})).await?;
    let list = grid.http().get("/json/list").await?.expect(200)?;
    let target = &list[0];
    for field in [
        "description",
        "devtoolsFrontendUrl",
        "id",
        "title",
        "type",
        "url",
        "webSocketDebuggerUrl",
    ] {
        ensure!(target[field].is_string(), "{field} is missing from {list}");
    }
    ensure!(
        target["type"] == "page" && list.as_array().is_some_and(|list| list.len() == 1),
        "{list}"
    );
    let mut page = Cdp::connect(target["webSocketDebuggerUrl"].as_str().unwrap_or_default()).await?;
    page.call("Runtime.evaluate", json!({"expression": "1+1"})).await?;
    page.close().await;
    let missing = format!("/devtools/page/NOSUCHPAGE?session={}", id(&session));
    let refused = grid
        .cdp(&missing)
        .await
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    ensure!(
        refused.contains("404") && refused.contains("target_not_found"),
        "{refused}"
    );
    release(&grid, &id(&session)).await?;
    grid.finish().await
}

#[tokio::test]
async fn json_new_opens_a_page_and_its_url_attaches_in_headless_shell() -> Result<()> {
    let grid = Grid::builder().browser(BrowserUnderTest::HeadlessShell).start().await?;
    // It comes from a browser that is up; none is launched for it.
    metric_is(&grid, "wharf_browsers{state=\"warm\"}", 1.0).await?;
    let protocol = grid.http().get("/json/protocol").await?.expect(200)?;
    ensure!(
        protocol["domains"].as_array().is_some_and(|domains| domains.len() > 30),
        "the protocol is short"
    );
    let url = "data:text/html,<title>fresh</title>";
    let encoded = "data%3Atext%2Fhtml%2C%3Ctitle%3Efresh%3C%2Ftitle%3E";
    let reply = grid
        .http()
        .raw(Method::PUT, &format!("/json/new?{encoded}"), None, Bytes::new())
        .await?;
    let target = reply.expect(200)?;
    ensure!(target["type"] == "page", "{target}");
    let mut page = Cdp::connect(target["webSocketDebuggerUrl"].as_str().context("no URL")?).await?;
    eventually("the page to be loaded", async || {
        let expression = json!({"expression": "location.href + '|' + document.title"});
        let seen = page.call("Runtime.evaluate", expression).await?;
        ensure!(seen["result"]["value"] == format!("{url}|fresh"), "{seen}");
        Ok(())
    })
    .await?;
    page.close().await;
    let sessions = count_is(&grid, "active", 1).await?;
    release(&grid, &id(&sessions[0])).await?;
    ensure!(
        grid.http().get("/json/new").await?.status == 405,
        "GET may not open pages"
    );
    grid.finish().await
}

async fn advertised(http: &Http) -> Result<String> {
    let version = http.get("/json/version").await?.expect(200)?;
    Ok(version["webSocketDebuggerUrl"].as_str().context("no URL")?.to_owned())
}

fn behind_proxy(grid: &Grid) -> Http {
    let http = grid.http().header("x-forwarded-proto", "https");
    http.header("x-forwarded-host", "grid.example:8443, inner")
        .header("x-forwarded-prefix", "/wharf/")
}

#[tokio::test]
async fn forwarded_headers_count_only_from_a_trusted_proxy() -> Result<()> {
    let grid = Grid::builder().arg("--trusted-proxy", "127.0.0.0/8").start().await?;
    let url = advertised(&behind_proxy(&grid)).await?;
    ensure!(
        url.starts_with("wss://grid.example:8443/wharf/devtools/browser/"),
        "{url}"
    );
    let forwarded = grid
        .http()
        .header("forwarded", "for=1.2.3.4;proto=https;host=\"rfc.example\"");
    let url = advertised(&forwarded).await?;
    ensure!(url.starts_with("wss://rfc.example/devtools/browser/"), "{url}");
    let session = behind_proxy(&grid)
        .post("/v1/sessions", &json!({}))
        .await?
        .expect(201)?;
    let cdp = session["connect"]["cdp"].as_str().unwrap_or_default();
    ensure!(
        cdp == format!("wss://grid.example:8443/wharf/devtools/browser/{}", id(&session)),
        "{cdp}"
    );
    release(&grid, &id(&session)).await?;
    grid.finish().await?;

    let grid = Grid::builder().arg("--trusted-proxy", "10.0.0.0/8").start().await?;
    let url = advertised(&behind_proxy(&grid)).await?;
    ensure!(
        url.starts_with(&grid.ws_url()),
        "an untrusted proxy was believed: {url}"
    );
    grid.finish().await
}

#[tokio::test]
async fn external_url_is_what_clients_are_told() -> Result<()> {
    let grid = Grid::builder()
        .arg("--external-url", "https://grid.example/sub")
        .start()
        .await?;
    let url = advertised(&grid.http()).await?;
    ensure!(url.starts_with("wss://grid.example/sub/devtools/browser/"), "{url}");
    grid.finish().await
}

#[tokio::test]
async fn root_and_chromium_paths_open_a_session_each() -> Result<()> {
    let grid = Grid::builder().slots(4).start().await?;
    let mut open = Vec::new();
    for path in ["/", "/chromium", "/chromium/", "/?token=secret"] {
        let mut cdp = grid.cdp(path).await.with_context(|| path.to_owned())?;
        cdp.call("Browser.getVersion", json!({})).await?;
        open.push(cdp);
    }
    count_is(&grid, "active", 4).await?;
    for cdp in open {
        cdp.close().await;
    }
    count_is(&grid, "active", 0).await?;
    ensure!(!grid.log().contains("secret"), "the token is in the log");
    grid.finish().await
}

/// `'x'.repeat(bytes)` from the browser, and a text of that size to it.
async fn large_messages_pass(bytes: usize) -> Result<()> {
    let grid = Grid::builder().browser(BrowserUnderTest::HeadlessShell).start().await?;
    let session = create(&grid, json!({})).await?;
    let mut cdp = grid.cdp(&attach_path(&session)).await?;
    cdp.set_limit(wharf_testkit::patience() * 3);
    let page = cdp.new_page("about:blank").await?;
    let evaluate = |expression: String| json!({"expression": expression, "returnByValue": true});
    let down = cdp
        .call_in(&page, "Runtime.evaluate", evaluate(format!("'x'.repeat({bytes})")))
        .await?;
    let text = down["result"]["value"].as_str().context("no text")?;
    ensure!(
        text.len() == bytes && text.bytes().all(|byte| byte == b'x'),
        "{} bytes came",
        text.len()
    );
    let up = cdp
        .call_in(
            &page,
            "Runtime.evaluate",
            evaluate(format!("'{}'.length", "y".repeat(bytes))),
        )
        .await?;
    ensure!(up["result"]["value"] == json!(bytes), "{up}");
    cdp.close().await;
    ensure!(get(&grid, &id(&session)).await?["status"] == Value::from("active"));
    release(&grid, &id(&session)).await?;
    grid.finish().await
}

#[tokio::test]
async fn messages_of_5_mb_pass_through_headless_shell() -> Result<()> {
    large_messages_pass(5 << 20).await
}

#[tokio::test]
async fn messages_of_60_mb_pass_through_headless_shell() -> Result<()> {
    large_messages_pass(60 << 20).await
}
