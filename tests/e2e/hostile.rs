//! Requests that no well-meaning client sends. Each gets a precise refusal, and the grid is whole afterwards.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::Method;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use wharf_testkit::{BrowserUnderTest, Cdp, CdpError, Grid, GridBuilder};

use crate::support::{Raw, count_is, create, id, is_whole, listed, only_active, post, release, upgrade};

fn impatient() -> GridBuilder {
    Grid::builder()
        .slots(1)
        .arg("--header-timeout", "500ms")
        .arg("--body-timeout", "500ms")
}

#[tokio::test]
async fn upgrade_that_is_not_one_is_refused_before_anything_is_reserved() -> Result<()> {
    let grid = Grid::builder().slots(1).start().await?;
    let good = upgrade("/");
    let without = |line: &str| {
        good.lines()
            .filter(|l| !l.starts_with(line))
            .collect::<Vec<_>>()
            .join("\r\n")
            + "\r\n\r\n"
    };
    let cases = [
        ("no key", without("Sec-WebSocket-Key"), 400),
        ("bad key", good.replace("dGhlIHNhbXBsZSBub25jZQ==", "c2hvcnQ="), 400),
        ("no base64", good.replace("dGhlIHNhbXBsZSBub25jZQ==", "!!!!"), 400),
        ("version 12", good.replace("Version: 13", "Version: 12"), 426),
        ("no version", without("Sec-WebSocket-Version"), 426),
        ("no upgrade header", without("Upgrade:"), 426),
        ("no connection header", without("Connection"), 426),
        ("plain GET", "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".to_owned(), 426),
        ("POST", good.replace("GET / ", "POST / "), 405),
        ("HTTP/1.0", good.replace("HTTP/1.1", "HTTP/1.0"), 400),
        (
            "another protocol",
            good.replace("Upgrade: websocket", "Upgrade: h2c"),
            426,
        ),
        (
            "foreign origin",
            good.replace("\r\n\r\n", "\r\nOrigin: https://evil.example\r\n\r\n"),
            403,
        ),
        (
            "unknown session",
            good.replace("GET /", "GET /devtools/browser/ses_00000000000070008000000000000000"),
            404,
        ),
        ("bad id", good.replace("GET /", "GET /devtools/browser/nonsense"), 400),
        (
            "bad page id",
            good.replace("GET /", "GET /devtools/page/a%2Fb?session=x"),
            400,
        ),
        ("unknown path", good.replace("GET /", "GET /firefox9"), 404),
    ];
    for (what, request, status) in cases {
        let mut raw = Raw::connect(grid.addr()).await?;
        raw.send(&request).await?;
        let reply = raw.reply().await.with_context(|| what.to_owned())?;
        ensure!(reply.status == status, "{what}: expected {status}, got {reply:?}");
        if status == 426 {
            ensure!(reply.head.contains("sec-websocket-version: 13"), "{what}: {reply:?}");
        }
    }
    ensure!(
        listed(&grid, "/v1/sessions/history").await?.is_empty(),
        "a refused upgrade made a session"
    );
    is_whole(&grid, 1).await?;
    grid.finish().await
}

#[tokio::test]
async fn request_without_a_path_opens_a_session() -> Result<()> {
    let grid = Grid::builder().slots(1).start().await?;
    let mut raw = Raw::connect(grid.addr()).await?;
    raw.send(upgrade("?token=secret")).await?;
    let reply = raw.reply().await?;
    ensure!(reply.status == 101, "{reply:?}");
    let session = only_active(&grid).await?;
    drop(raw);
    crate::support::ends_as(&grid, &session, "client_disconnected").await?;
    ensure!(!grid.log().contains("secret"), "the token is in the log");
    is_whole(&grid, 1).await?;
    grid.finish().await
}

#[tokio::test]
async fn silent_and_slow_writers_are_dropped_at_the_header_timeout() -> Result<()> {
    let grid = impatient().start().await?;
    let beginnings: [&[u8]; 4] = [
        b"",
        b"G",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n",
        b"GET / HTTP/1.1\r\nUpgrade: web",
    ];
    let mut sockets = Vec::new();
    for beginning in beginnings {
        let mut raw = Raw::connect(grid.addr()).await?;
        raw.send(beginning).await?;
        sockets.push(raw);
    }
    for (raw, beginning) in sockets.iter_mut().zip(beginnings) {
        let answer = raw.rest().await.with_context(|| format!("after {beginning:?}"))?;
        ensure!(
            answer.is_empty() || answer.starts_with(b"HTTP/1.1 408"),
            "{}",
            String::from_utf8_lossy(&answer)
        );
    }
    // One byte at a time never becomes a request either.
    let mut slow = Raw::connect(grid.addr()).await?;
    let drip = async {
        for byte in upgrade("/").bytes() {
            if slow.0.write_all(&[byte]).await.is_err() {
                return true;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        false
    };
    ensure!(
        drip.await,
        "a request that took longer than the header timeout was read to its end"
    );
    ensure!(listed(&grid, "/v1/sessions/history").await?.is_empty());
    is_whole(&grid, 1).await?;
    grid.finish().await
}

#[tokio::test]
async fn slow_body_is_408_and_short_body_leaves_nothing() -> Result<()> {
    let grid = impatient().start().await?;
    let mut slow = Raw::connect(grid.addr()).await?;
    let request = post("/v1/sessions", "{}").replace("Content-Length: 2", "Content-Length: 200");
    slow.send(&request).await?;
    let reply = slow.reply().await?;
    ensure!(
        reply.status == 408 && reply.body.contains("request_timeout"),
        "{reply:?}"
    );
    let mut short = Raw::connect(grid.addr()).await?;
    short.send(&request).await?;
    drop(short);
    let mut broken = Raw::connect(grid.addr()).await?;
    let chunked = "POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nnot a size\r\n";
    broken.send(chunked).await?;
    let reply = broken.reply().await?;
    ensure!(reply.status == 400, "{reply:?}");
    ensure!(listed(&grid, "/v1/sessions").await?.is_empty());
    is_whole(&grid, 1).await?;
    grid.finish().await
}

#[tokio::test]
async fn oversized_body_and_headers_are_refused() -> Result<()> {
    let grid = Grid::builder().slots(1).arg("--body-limit", "4KiB").start().await?;
    let body = json!({"data": "x".repeat(5000)});
    let reply = grid.http().post("/v1/sessions", &body).await?;
    ensure!(
        reply.status == 413 && reply.error_code().as_deref() == Some("body_too_large"),
        "{}",
        reply.text()
    );
    let reply = grid.http().post("/sessions", &body).await?;
    ensure!(reply.status == 413, "{}", reply.text());
    let mut raw = Raw::connect(grid.addr()).await?;
    raw.send(format!(
        "GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: {}\r\n\r\n",
        "y".repeat(1 << 20)
    ))
    .await
    .ok();
    if let Ok(reply) = raw.reply().await {
        ensure!(reply.status == 431 || reply.status == 400, "{}", reply.status);
    }
    let many: String = (0..2000).map(|n| format!("X-{n}: 1\r\n")).collect();
    let mut raw = Raw::connect(grid.addr()).await?;
    raw.send(format!("GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n{many}\r\n"))
        .await
        .ok();
    if let Ok(reply) = raw.reply().await {
        ensure!(reply.status == 431 || reply.status == 400, "{}", reply.status);
    }
    ensure!(grid.http().get("/livez").await?.status == 200);
    is_whole(&grid, 1).await?;
    grid.finish().await
}

#[tokio::test]
async fn malformed_bodies_are_400_naming_the_place() -> Result<()> {
    let grid = Grid::builder().slots(1).start().await?;
    let json = Some("application/json");
    let deep = "[".repeat(100_000);
    let cases: [(&[u8], Option<&str>, u16, &str); 13] = [
        (b"{\"data\":", json, 400, "line 1 column 8"),
        (b"{\"data\": tru}", json, 400, "line 1 column"),
        (b"nonsense", json, 400, "line 1 column"),
        (b"[]", json, 400, "invalid_request"),
        (b"42", json, 400, "invalid_request"),
        (b"{}{}", json, 400, "trailing"),
        (b"{\"description\": \"\xff\xfe\"}", json, 400, "invalid_request"),
        (b"\x00\x00", json, 400, "invalid_request"),
        (b"{\"priority\": \"high\"}", json, 400, "invalid_request"),
        (b"{\"priority\": 1e99}", json, 400, "invalid_request"),
        (b"{\"data\": 1, \"data\": 2}", json, 400, "duplicate"),
        (b"<xml/>", Some("text/xml"), 415, "unsupported_media_type"),
        (deep.as_bytes(), json, 400, "invalid_request"),
    ];
    for (body, kind, status, named) in cases {
        let reply = grid
            .http()
            .raw(Method::POST, "/v1/sessions", kind, Bytes::copy_from_slice(body))
            .await?;
        let what = String::from_utf8_lossy(&body[..body.len().min(40)]);
        ensure!(reply.status == status, "{what}: {} {}", reply.status, reply.text());
        ensure!(
            reply.text().contains(named),
            "{what}: {} does not say {named}",
            reply.text()
        );
    }
    // NUL in a text is legal JSON; wherever it ends up, it must come back as it went in.
    let odd = json!({"data": {"k\u{0}": "a\u{0}b\u{10ffff}"}, "description": "x\u{0}y"});
    let session = create(&grid, odd.clone()).await?;
    let found = crate::support::get(&grid, &id(&session)).await?;
    ensure!(
        found["data"] == odd["data"] && found["description"] == odd["description"],
        "{found}"
    );
    release(&grid, &id(&session)).await?;
    is_whole(&grid, 1).await?;
    grid.finish().await
}

#[tokio::test]
async fn bad_ids_routes_and_methods_are_told_apart() -> Result<()> {
    let grid = Grid::builder().slots(1).start().await?;
    let get = |path: &'static str| (Method::GET, path);
    let cases = [
        (get("/v1/sessions/nonsense"), 400, "invalid_id"),
        (
            get("/v1/sessions/wrk_00000000000070008000000000000000"),
            400,
            "invalid_id",
        ),
        (
            get("/v1/sessions/ses_0000000000007000800000000000000G"),
            400,
            "invalid_id",
        ),
        (get("/v1/sessions/..%2f..%2fetc%2fpasswd"), 400, "invalid_id"),
        (get("/v1/sessions/%00"), 400, "invalid_id"),
        (get("/v1/sessions/%ff"), 400, ""),
        (get("/v2/sessions"), 404, "route_not_found"),
        (get("/nothing"), 404, "route_not_found"),
        (get("/v1/sessions/a/b"), 404, "route_not_found"),
        ((Method::PUT, "/v1/sessions"), 405, "method_not_allowed"),
        (
            (Method::PATCH, "/v1/sessions/ses_00000000000070008000000000000000"),
            405,
            "method_not_allowed",
        ),
        ((Method::DELETE, "/metrics"), 405, "method_not_allowed"),
        ((Method::POST, "/json/version"), 405, "method_not_allowed"),
    ];
    for ((method, path), status, code) in cases {
        let reply = grid.http().raw(method.clone(), path, None, Bytes::new()).await?;
        ensure!(
            reply.status == status,
            "{method} {path}: {} {}",
            reply.status,
            reply.text()
        );
        ensure!(
            code.is_empty() || reply.error_code().as_deref() == Some(code),
            "{path}: {}",
            reply.text()
        );
        if status == 405 {
            ensure!(reply.header("allow").is_some(), "{method} {path}: no Allow header");
        }
    }
    let foreign = grid.http().header("origin", "https://evil.example");
    let reply = foreign.post("/v1/sessions", &json!({})).await?;
    ensure!(
        reply.status == 403 && reply.error_code().as_deref() == Some("origin_refused"),
        "{}",
        reply.text()
    );
    let own = grid.http().header("origin", &grid.url());
    let session = own.post("/v1/sessions", &json!({})).await?.expect(201)?;
    release(&grid, &id(&session)).await?;
    is_whole(&grid, 1).await?;
    grid.finish().await
}

#[tokio::test]
async fn websocket_from_a_foreign_origin_is_403() -> Result<()> {
    let grid = Grid::builder().slots(1).start().await?;
    let session = create(&grid, json!({})).await?;
    for path in ["/".to_owned(), crate::support::attach_path(&session)] {
        let url = format!("{}{path}", grid.ws_url());
        let Err(CdpError::Refused(reply)) = Cdp::connect_with(&url, &[("origin", "http://evil.example")]).await else {
            anyhow::bail!("a foreign origin was let in at {path}")
        };
        ensure!(reply.status == 403, "{} {}", reply.status, reply.text());
    }
    release(&grid, &id(&session)).await?;
    grid.finish().await
}

#[tokio::test]
async fn many_half_open_sockets_do_not_keep_others_out() -> Result<()> {
    let grid = Grid::builder().slots(1).arg("--header-timeout", "1s").start().await?;
    let mut silent = Vec::new();
    for n in 0..300 {
        let mut raw = Raw::connect(grid.addr()).await?;
        if n % 2 == 0 {
            raw.send("GET /chromium HTTP/1.1\r\n").await?;
        }
        silent.push(raw);
    }
    is_whole(&grid, 1).await?;
    for mut raw in silent {
        let answer = raw.rest().await?;
        ensure!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 408"));
    }
    count_is(&grid, "active", 0).await?;
    grid.finish().await
}

#[tokio::test]
async fn page_in_headless_shell_cannot_reach_metadata_addresses() -> Result<()> {
    let grid = Grid::builder()
        .browser(BrowserUnderTest::HeadlessShell)
        .slots(1)
        .start()
        .await?;
    let mut cdp = grid.cdp("/").await?;
    let page = cdp.new_page("about:blank").await?;
    for url in [
        "http://169.254.169.254/latest/meta-data/",
        "http://[fe80::1]/",
        "http://[fd00:ec2::254]/",
        "http://metadata.google.internal/",
        // The same address in other spellings.
        "http://2852039166/",
        "http://0xa9fea9fe/",
    ] {
        let answer = cdp.call_in(&page, "Page.navigate", json!({ "url": url })).await?;
        ensure!(answer["errorText"] == "net::ERR_NAME_NOT_RESOLVED", "{url}: {answer}");
    }
    let answer = cdp
        .call_in(
            &page,
            "Page.navigate",
            json!({ "url": format!("{}/livez", grid.url()) }),
        )
        .await?;
    ensure!(answer["errorText"].is_null(), "{answer}");
    cdp.close().await;
    grid.finish().await
}
