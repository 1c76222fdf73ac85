//! Bodies, headers and paths that make no sense, on every route that the server's own document lists: each gets its
//! error, nothing is held, nothing is lost.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::Method;
use serde_json::json;
use wharf_testkit::{Grid, Http};

use crate::support::{Raw, is_whole, listed};

const LIMIT: usize = 64 << 10;

fn small() -> wharf_testkit::GridBuilder {
    Grid::builder()
        .slots(1)
        .flag("--enable-faults")
        .arg("--body-limit", "64KiB")
        .arg("--body-timeout", "400ms")
        .arg("--header-timeout", "2s")
}

/// Method and path of every route; only those with a body if asked so.
async fn routes(grid: &Grid, with_body: bool) -> Result<Vec<(Method, String)>> {
    let document = Http::new(grid.addr()).get("/openapi.json").await?.expect(200)?;
    let mut routes = Vec::new();
    for (path, methods) in document["paths"].as_object().context("no paths")? {
        let path = path
            .replace("/v1/keys/{id}", "/v1/keys/key_00000000000070008000000000000000")
            .replace("{id}", "ses_00000000000070008000000000000000")
            .replace("{name}", "nightly")
            .replace("{target}", "ABC");
        for (method, operation) in methods.as_object().context("no methods")? {
            if !with_body || operation["requestBody"].is_object() {
                routes.push((method.to_uppercase().parse()?, path.clone()));
            }
        }
    }
    Ok(routes)
}

#[tokio::test]
async fn every_route_with_a_body_refuses_what_is_not_one() -> Result<()> {
    let grid = small().start().await?;
    let routes = routes(&grid, true).await?;
    ensure!(routes.len() >= 8, "{routes:?}");
    let json_type = Some("application/json");
    let deep = format!("{}{}", "[".repeat(2000), "]".repeat(2000));
    let cases: Vec<(&str, Option<&str>, Bytes, u16)> = vec![
        ("cut short", json_type, Bytes::from_static(b"{\"a\":"), 400),
        ("not JSON", json_type, Bytes::from_static(b"hello"), 400),
        ("not UTF-8", json_type, Bytes::from_static(b"{\"a\":\"\xff\xfe\"}"), 400),
        ("a NUL", json_type, Bytes::from_static(b"{\"a\":\"\0\"}"), 400),
        ("two values", json_type, Bytes::from_static(b"{} {}"), 400),
        ("deep", json_type, Bytes::from(deep), 400),
        ("too large", json_type, Bytes::from(vec![b' '; LIMIT + 1]), 413),
        ("another type", Some("text/html"), Bytes::from_static(b"{}"), 415),
    ];
    for (method, path) in &routes {
        let is_free_form = path == "/sessions";
        for (what, kind, body, status) in &cases {
            let reply = grid.http().raw(method.clone(), path, *kind, body.clone()).await?;
            ensure!(
                reply.status == *status,
                "{method} {path}, {what}: {} {}",
                reply.status,
                reply.text()
            );
            ensure!(
                reply.error_code().is_some(),
                "{method} {path}, {what}: {}",
                reply.text()
            );
        }
        if !is_free_form {
            for body in [r#"{"no_such_field":1}"#, "[]", "7", r#""text""#] {
                let reply = grid
                    .http()
                    .raw(method.clone(), path, json_type, Bytes::from(body))
                    .await?;
                ensure!(
                    reply.status == 400,
                    "{method} {path} {body}: {} {}",
                    reply.status,
                    reply.text()
                );
            }
        }
        // Announced and never sent.
        let mut raw = Raw::connect(grid.addr()).await?;
        let head = format!("{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n");
        raw.send(format!("{head}Content-Length: 100\r\n\r\n{{\"a\"")).await?;
        let reply = raw.reply().await?;
        ensure!(reply.status == 408, "{method} {path}, slow: {reply:?}");
    }
    ensure!(
        listed(&grid, "/v1/sessions/history").await?.is_empty(),
        "nonsense made a session"
    );
    ensure!(grid.http().get("/v1/locks").await?.expect(200)? == json!({"locks": []}));
    ensure!(grid.http().get("/v1/keys").await?.expect(200)? == json!({"keys": []}));
    is_whole(&grid, 1).await?;
    grid.finish().await
}

#[tokio::test]
async fn every_route_survives_hostile_heads_and_paths() -> Result<()> {
    let grid = small().start().await?;
    let many: String = (0..5000).map(|n| format!("X-{n}: y\r\n")).collect();
    let long = format!("X-Long: {}\r\n", "a".repeat(300 << 10));
    for (method, path) in routes(&grid, false).await? {
        let cases: Vec<(&str, String, &[u16])> = vec![
            (
                "thousands of headers",
                format!("{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{many}\r\n"),
                &[431, 400],
            ),
            (
                "a huge header",
                format!("{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{long}\r\n"),
                &[431, 400],
            ),
            (
                "a foreign host",
                format!("{method} {path} HTTP/1.1\r\nHost: evil.example\r\n\r\n"),
                &[403],
            ),
            ("no host", format!("{method} {path} HTTP/1.1\r\n\r\n"), &[400]),
            (
                "two hosts",
                format!("{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n"),
                &[400],
            ),
            (
                "a NUL in a header",
                format!("{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX: a\0b\r\n\r\n"),
                &[400],
            ),
            (
                "two lengths",
                format!(
                    "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"
                ),
                &[400],
            ),
        ];
        for (what, request, statuses) in cases {
            let mut raw = Raw::connect(grid.addr()).await?;
            raw.send(&request).await.ok();
            // A connection that is cut without an answer is an answer to such a head, too.
            let Ok(reply) = raw.reply().await else { continue };
            ensure!(statuses.contains(&reply.status), "{method} {path}, {what}: {reply:?}");
        }
        let foreign = grid.http().header("origin", "https://evil.example");
        let reply = foreign.raw(method.clone(), &path, None, Bytes::new()).await?;
        let changes = !matches!(method, Method::GET);
        ensure!(
            !changes || reply.status == 403,
            "{method} {path}, foreign origin: {}",
            reply.status
        );
    }
    for path in [
        "/v1/sessions/..%2f..%2fkeys",
        "/v1/sessions/%00",
        "/v1/locks/..",
        "/v1/locks/%2e%2e%2f",
        "//v1//sessions",
        "/v1/sessions/../keys",
        "/v1/keys/%ff%fe",
        "/sessions/%c0%af",
    ] {
        let mut raw = Raw::connect(grid.addr()).await?;
        raw.send(format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"))
            .await?;
        let reply = raw.reply().await?;
        ensure!([400, 404, 405].contains(&reply.status), "{path}: {reply:?}");
    }
    is_whole(&grid, 1).await?;
    grid.finish().await
}
