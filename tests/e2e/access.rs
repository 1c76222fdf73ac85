//! Keys: who may call what, who sees what, and that no key is ever written down.
//!
//! The routes are read from the server's own document, so a new one is tested the day it appears.

use anyhow::{Context, Result, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use wharf_testkit::{
    BrowserUnderTest, Cdp, CdpError, Grid, Http, Script, binaries::built_binary, eventually, node_script,
};

use crate::support::{attach_path, becomes_active, count_is, create, end_of, id, listed};

/// A grid with an admin key, which its own client uses from now on.
async fn locked() -> Result<(Grid, String)> {
    let mut grid = Grid::builder().slots(2).flag("--enable-faults").start().await?;
    let key = make(&grid.http(), json!({"name": "ops", "role": "admin"})).await?;
    grid.set_header("authorization", &format!("Bearer {}", token(&key)));
    Ok((grid, token(&key)))
}

async fn make(http: &Http, body: Value) -> Result<Value> {
    http.post("/v1/keys", &body).await?.expect(201)
}

fn token(key: &Value) -> String {
    key["token"].as_str().unwrap_or_default().to_owned()
}

fn with(grid: &Grid, token: &str) -> Http {
    Http::new(grid.addr()).header("authorization", &format!("Bearer {token}"))
}

/// Method, path with something in its placeholders, and whether anybody may call it.
async fn routes(grid: &Grid) -> Result<Vec<(Method, String, bool)>> {
    let document = Http::new(grid.addr()).get("/openapi.json").await?.expect(200)?;
    let mut routes = Vec::new();
    for (path, methods) in document["paths"].as_object().context("no paths")? {
        let path = path
            .replace("{id}", "ses_00000000000070008000000000000000")
            .replace("{name}", "nightly")
            .replace("{target}", "ABC");
        for (method, operation) in methods.as_object().context("no methods")? {
            let method: Method = method.to_uppercase().parse()?;
            routes.push((method, path.clone(), operation["security"].is_null()));
        }
    }
    for alias in [
        "/json",
        "/json/",
        "/json/version/",
        "/json/list/",
        "/json/protocol/",
        "/chromium/",
        "/nowhere",
    ] {
        routes.push((Method::GET, alias.to_owned(), false));
    }
    ensure!(routes.len() > 40, "only {} routes", routes.len());
    Ok(routes)
}

#[tokio::test]
async fn every_route_refuses_missing_wrong_and_revoked_keys() -> Result<()> {
    let (grid, admin) = locked().await?;
    let revoked = make(&grid.http(), json!({"name": "gone"})).await?;
    let path = format!("/v1/keys/{}", id(&revoked));
    grid.http().delete(&path).await?.expect(204)?;
    grid.http().delete(&path).await?.expect(204)?;
    let wrong = format!(
        "{}{}",
        &admin[..admin.len() - 1],
        if admin.ends_with('0') { '1' } else { '0' }
    );
    let unknown = format!("whf_{}_{}", "0".repeat(32), "0".repeat(64));
    let bearer = |token: &str| ("authorization", format!("Bearer {token}"));
    let basic = |text: &str| ("authorization", format!("Basic {}", STANDARD.encode(text)));
    let shown: Vec<(&str, (&str, String))> = vec![
        ("none", ("x-nothing", String::new())),
        ("empty", bearer("")),
        ("nonsense", bearer("letmein")),
        ("wrong secret", bearer(&wrong)),
        ("unknown id", bearer(&unknown)),
        ("revoked", bearer(&token(&revoked))),
        ("another scheme", ("authorization", format!("Digest {admin}"))),
        ("basic, wrong", basic(&format!("user:{wrong}"))),
        ("basic, broken", ("authorization", "Basic !!!".to_owned())),
        ("in a header of its own, wrong", ("x-api-key", wrong.clone())),
    ];
    for (method, path, is_public) in routes(&grid).await? {
        for (what, (name, value)) in &shown {
            let http = Http::new(grid.addr()).header(name, value);
            let reply = http.raw(method.clone(), &path, None, Bytes::new()).await?;
            if is_public {
                ensure!(reply.status == 200, "{method} {path} with {what}: {}", reply.status);
                continue;
            }
            ensure!(
                reply.status == 401 && reply.error_code().as_deref() == Some("unauthorized"),
                "{method} {path} with {what}: {} {}",
                reply.status,
                reply.text()
            );
            ensure!(
                reply
                    .header("www-authenticate")
                    .is_some_and(|value| value.contains("realm"))
            );
        }
        let http = Http::new(grid.addr());
        let reply = http
            .raw(method.clone(), &format!("{path}?token={wrong}"), None, Bytes::new())
            .await?;
        ensure!(
            is_public || reply.status == 401,
            "{method} {path}?token=wrong: {}",
            reply.status
        );
    }
    // The same for WebSockets: refused before anything is reserved.
    for path in ["/", "/chromium", "/devtools/browser/new"] {
        let refused = Cdp::connect(&format!("{}{path}?token={wrong}", grid.ws_url())).await;
        ensure!(
            matches!(&refused, Err(CdpError::Refused(reply)) if reply.status == 401),
            "{path}: {refused:?}"
        );
    }
    ensure!(
        listed(&grid, "/v1/sessions/history").await?.is_empty(),
        "a refused request made a session"
    );
    let log = grid.log();
    for secret in [&admin, &wrong, &unknown, &token(&revoked)] {
        let part = secret.rsplit('_').next().unwrap_or_default();
        ensure!(!log.contains(part), "a key is in the log");
    }
    ensure!(!log.contains("panicked"), "a panic is in the log");
    grid.finish().await
}

#[tokio::test]
async fn every_way_to_show_a_key_opens_the_door_and_what_is_an_admins_is_not_a_clients() -> Result<()> {
    let (grid, admin) = locked().await?;
    let client = token(&make(&grid.http(), json!({"name": "ci"})).await?);
    let plain = Http::new(grid.addr());
    for http in [
        plain.clone().header("authorization", &format!("bearer {client}")),
        plain.clone().header(
            "authorization",
            &format!("Basic {}", STANDARD.encode(format!("ci:{client}"))),
        ),
        plain.clone().header(
            "authorization",
            &format!("Basic {}", STANDARD.encode(format!("{client}:"))),
        ),
        plain.clone().header("x-api-key", &client),
    ] {
        http.get("/v1/sessions").await?.expect(200)?;
    }
    plain
        .get(&format!("/v1/sessions?limit=5&token={client}"))
        .await?
        .expect(200)?;

    let refused = with(&grid, &client);
    for (method, path) in [
        (Method::PUT, "/v1/pool/limits"),
        (Method::POST, "/v1/pool/cleanup"),
        (Method::POST, "/v1/locks/nightly"),
        (Method::PUT, "/v1/locks/nightly"),
        (Method::DELETE, "/v1/locks/nightly"),
        (Method::POST, "/v1/locks/nightly/force-unlock"),
        (Method::GET, "/v1/keys"),
        (Method::POST, "/v1/keys"),
        (Method::PATCH, "/v1/keys/key_00000000000070008000000000000000"),
        (Method::DELETE, "/v1/keys/key_00000000000070008000000000000000"),
    ] {
        let reply = refused.raw(method.clone(), path, None, Bytes::new()).await?;
        ensure!(
            reply.status == 403,
            "{method} {path}: {} {}",
            reply.status,
            reply.text()
        );
        ensure!(reply.error_code().as_deref() == Some("forbidden"), "{}", reply.text());
    }
    // A key is shown once: neither the list nor anything else has it.
    let keys = with(&grid, &admin).get("/v1/keys").await?;
    ensure!(!keys.text().contains("whf_"), "{}", keys.text());
    let used = eventually("the use of the key to be noted", async || {
        let keys = grid.http().get("/v1/keys").await?.expect(200)?;
        let key = keys["keys"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|key| key["name"] == "ci")
            .cloned();
        key.filter(|key| key["used_at"].is_string()).context("not yet")
    });
    used.await?;
    grid.finish().await
}

#[tokio::test]
async fn key_sees_and_drives_its_own_sessions_only() -> Result<()> {
    let (grid, _) = locked().await?;
    let (a, b) = (
        token(&make(&grid.http(), json!({"name": "a"})).await?),
        token(&make(&grid.http(), json!({"name": "b"})).await?),
    );
    let (mine, theirs) = (with(&grid, &a), with(&grid, &b));
    let session = mine
        .post("/v1/sessions", &json!({"operation": "agent"}))
        .await?
        .expect(201)?;
    let path = format!("/v1/sessions/{}", id(&session));
    mine.get(&path).await?.expect(200)?;
    for (method, path) in [
        (Method::GET, path.clone()),
        (Method::DELETE, path.clone()),
        (Method::GET, format!("/sessions/{}", id(&session))),
        (Method::DELETE, format!("/sessions/{}", id(&session))),
        (Method::POST, format!("/debug/crash-worker?session_id={}", id(&session))),
    ] {
        let reply = theirs.raw(method.clone(), &path, None, Bytes::new()).await?;
        ensure!(
            reply.status == 404,
            "{method} {path}: {} {}",
            reply.status,
            reply.text()
        );
        ensure!(
            reply.error_code().as_deref() == Some("session_not_found"),
            "{}",
            reply.text()
        );
    }
    for path in ["/v1/sessions", "/v1/sessions/history"] {
        let list = theirs.get(path).await?.expect(200)?;
        ensure!(list["sessions"].as_array().is_some_and(Vec::is_empty), "{path}: {list}");
    }
    ensure!(theirs.get("/sessions").await?.expect(200)? == json!([]));
    ensure!(theirs.get("/json/list").await?.expect(200)? == json!([]));
    let pool = theirs.get("/v1/pool").await?.expect(200)?;
    ensure!(pool["running"] == 1 && pool["holders"] == json!([]), "{pool}");
    let pool = mine.get("/v1/pool").await?.expect(200)?;
    ensure!(pool["holders"][0]["session"] == session["id"], "{pool}");
    let attach = format!("{}{}", grid.ws_url(), attach_path(&session));
    let refused = Cdp::connect(&format!("{attach}?token={b}")).await;
    ensure!(
        matches!(&refused, Err(CdpError::Refused(reply)) if reply.status == 404),
        "{refused:?}"
    );
    let mut cdp = Cdp::connect(&format!("{attach}?token={a}")).await?;
    cdp.call("Browser.getVersion", json!({})).await?;
    cdp.close().await;
    // Two keys, one idempotency key: two sessions.
    let twice = |http: &Http| http.clone().header("idempotency-key", "same");
    let first = twice(&mine).post("/v1/sessions", &json!({})).await?.expect(201)?;
    mine.delete(&format!("/v1/sessions/{}", id(&session)))
        .await?
        .expect(204)?;
    let second = twice(&theirs).post("/v1/sessions", &json!({})).await?.expect(201)?;
    ensure!(first["id"] != second["id"] && first["key"] != second["key"]);
    ensure!(twice(&mine).post("/v1/sessions", &json!({})).await?.expect(201)?["id"] == first["id"]);
    // An admin sees all, and what it ends was killed.
    count_is(&grid, "active", 2).await?;
    grid.http()
        .delete(&format!("/v1/sessions/{}", id(&first)))
        .await?
        .expect(204)?;
    ensure!(end_of(&grid, &id(&first)).await?.0 == "killed");
    theirs
        .delete(&format!("/v1/sessions/{}", id(&second)))
        .await?
        .expect(204)?;
    ensure!(end_of(&grid, &id(&second)).await?.0 == "released");
    grid.finish().await
}

#[tokio::test]
async fn quota_of_a_key_holds_and_revoking_it_ends_what_it_has() -> Result<()> {
    let (grid, _) = locked().await?;
    let key = make(&grid.http(), json!({"name": "small", "max_sessions": 2})).await?;
    let mine = with(&grid, &token(&key));
    let active = mine.post("/v1/sessions", &json!({})).await?.expect(201)?;
    let others = [create(&grid, json!({})).await?];
    let waiting = mine
        .clone()
        .header("prefer", "respond-async")
        .post("/v1/sessions", &json!({}))
        .await?
        .expect(202)?;
    ensure!(waiting["status"] == "queued", "{waiting}");
    let reply = mine.post("/v1/sessions", &json!({})).await?;
    ensure!(
        reply.status == 429 && reply.error_code().as_deref() == Some("quota_reached"),
        "{}",
        reply.text()
    );
    let error = &reply.json()?["error"];
    ensure!(error["limit"] == 2 && error["current"] == 2, "{error}");
    // Raised, it holds three; lifted, any number.
    let path = format!("/v1/keys/{}", id(&key));
    let body = Bytes::from(json!({"max_sessions": 3}).to_string());
    grid.http()
        .raw(Method::PATCH, &path, Some("application/json"), body)
        .await?
        .expect(200)?;
    let third = mine
        .clone()
        .header("prefer", "respond-async")
        .post("/v1/sessions", &json!({}))
        .await?
        .expect(202)?;
    ensure!(mine.post("/v1/sessions", &json!({})).await?.status == 429);
    grid.http().delete(&path).await?.expect(204)?;
    for session in [&active, &waiting, &third] {
        let (reason, _) = end_of(&grid, &id(session)).await?;
        ensure!(reason == "policy", "{reason}");
    }
    ensure!(
        mine.get("/v1/sessions").await?.status == 401,
        "a revoked key opens the door"
    );
    for session in others {
        crate::support::release(&grid, &id(&session)).await?;
    }
    grid.finish().await
}

#[tokio::test]
async fn waiting_request_of_a_revoked_key_is_told() -> Result<()> {
    let (grid, _) = locked().await?;
    let key = make(&grid.http(), json!({"name": "soon gone"})).await?;
    let holders = [create(&grid, json!({})).await?, create(&grid, json!({})).await?];
    let http = with(&grid, &token(&key));
    let mut waiter = JoinSet::new();
    waiter.spawn(async move { http.post("/v1/sessions", &json!({})).await });
    count_is(&grid, "queued", 1).await?;
    grid.http()
        .delete(&format!("/v1/keys/{}", id(&key)))
        .await?
        .expect(204)?;
    let reply = waiter.join_next().await.context("no waiter")???;
    ensure!(reply.status == 401, "{} {}", reply.status, reply.text());
    count_is(&grid, "queued", 0).await?;
    for session in holders {
        crate::support::release(&grid, &id(&session)).await?;
    }
    grid.finish().await
}

#[tokio::test]
async fn first_key_is_an_admins_and_closes_the_grid_for_good() -> Result<()> {
    let mut grid = Grid::builder().start().await?;
    let reply = grid.http().post("/v1/keys", &json!({"name": "ci"})).await?;
    ensure!(
        reply.status == 400 && reply.text().contains("admin"),
        "{}",
        reply.text()
    );
    grid.http().get("/v1/sessions").await?.expect(200)?;
    let key = make(&grid.http(), json!({"name": "ops", "role": "admin"})).await?;
    ensure!(
        grid.http().get("/v1/sessions").await?.status == 401,
        "the grid is still open"
    );
    grid.set_header("authorization", &format!("Bearer {}", token(&key)));
    grid.http().get("/v1/sessions").await?.expect(200)?;
    // It survives a restart.
    grid.terminate().await?;
    grid.restart().await?;
    ensure!(Http::new(grid.addr()).get("/v1/sessions").await?.status == 401);
    grid.http().get("/v1/sessions").await?.expect(200)?;
    grid.finish().await
}

#[tokio::test]
async fn beyond_loopback_a_key_is_needed_before_any_exists() -> Result<()> {
    // Bound to all addresses, reached by loopback: what counts is where it listens.
    let mut grid = Grid::builder().listen("0.0.0.0:0").start().await?;
    ensure!(grid.http().get("/v1/sessions").await?.status == 401);
    ensure!(grid.http().get("/readyz").await?.status == 200);
    // The first key is made on the store, while no grid uses it.
    grid.terminate().await?;
    let mut wharf = tokio::process::Command::new(built_binary("wharf")?);
    wharf
        .args(["key", "create", "ops", "--admin", "--data-dir"])
        .arg(grid.data_dir());
    let made = wharf.output().await?;
    ensure!(made.status.success(), "{made:?}");
    grid.set_header("x-api-key", String::from_utf8(made.stdout)?.trim());
    grid.restart().await?;
    grid.http().get("/v1/sessions").await?.expect(200)?;
    ensure!(Http::new(grid.addr()).get("/v1/sessions").await?.status == 401);
    grid.finish().await
}

#[tokio::test]
async fn puppeteer_connects_with_its_key_in_the_url_with_headless_shell() -> Result<()> {
    let mut grid = Grid::builder().browser(BrowserUnderTest::HeadlessShell).start().await?;
    let key = make(&grid.http(), json!({"name": "ops", "role": "admin"})).await?;
    grid.set_header("authorization", &format!("Bearer {}", token(&key)));
    let script = r#"
        import puppeteer from 'puppeteer-core';
        const browser = await puppeteer.connect({ browserWSEndpoint: process.env.ENDPOINT });
        const page = await browser.newPage();
        await page.goto('data:text/html,<title>keyed</title>');
        console.log(JSON.stringify(await page.title()));
        await browser.disconnect();
    "#;
    let endpoint = format!("{}/?token={}", grid.ws_url(), token(&key));
    let seen = node_script(Script::Source(script), &[("ENDPOINT", &endpoint)])
        .await?
        .json()?;
    ensure!(seen == "keyed", "{seen}");
    // The URLs of discovery carry the key if the question did, so that a client can follow them.
    let version = Http::new(grid.addr())
        .get(&format!("/json/version?token={}", token(&key)))
        .await?
        .expect(200)?;
    let url = version["webSocketDebuggerUrl"].as_str().context("no URL")?.to_owned();
    let mut cdp = Cdp::connect(&url).await?;
    cdp.call("Browser.getVersion", json!({})).await?;
    cdp.close().await;
    let session = create(&grid, json!({})).await?;
    ensure!(
        !session["connect"]["cdp"].as_str().unwrap_or_default().contains("token"),
        "{session}"
    );
    becomes_active(&grid, &id(&session)).await?;
    crate::support::release(&grid, &id(&session)).await?;
    ensure!(!grid.log().contains(&token(&key)[40..]), "the key is in the log");
    grid.finish().await
}
