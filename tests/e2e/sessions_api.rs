//! `/v1/sessions` and `/sessions`: create, get, list, history, delete, idempotency, options.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use futures_util::future::try_join_all;
use serde_json::{Value, json};
use wharf_testkit::{BrowserUnderTest, Grid, eventually};

use crate::support::{
    attach_path, becomes_active, count_is, create, create_async, end_of, ends_as, get, id, last_ended, listed, release,
};

#[tokio::test]
async fn session_created_is_found_listed_released_and_remembered() -> Result<()> {
    let grid = Grid::builder().start().await?;
    let wish = json!({
        "data": {"nested": [1, null, "ü"]}, "operation": "test_run", "description": "a line", "priority": 7,
        "idle_timeout": "90s", "max_duration": 600, "connect_timeout": null, "isolation": "browser",
    });
    let reply = grid.http().post("/v1/sessions", &wish).await?;
    let session = reply.expect(201)?;
    let id = id(&session);
    ensure!(reply.header("location") == Some(format!("/v1/sessions/{id}").as_str()));
    for (field, expected) in [
        ("status", json!("active")),
        ("data", wish["data"].clone()),
        ("operation", json!("test_run")),
        ("description", json!("a line")),
        ("priority", json!(7)),
        ("pool", json!("default")),
        ("browser", json!("chromium")),
        ("idle_timeout", json!(90.0)),
        ("max_duration", json!(600.0)),
        ("connect_timeout", Value::Null),
        ("keep_alive", json!(true)),
    ] {
        ensure!(session[field] == expected, "{field} is {}", session[field]);
    }
    ensure!(session["connect"]["cdp"] == format!("{}/devtools/browser/{id}", grid.ws_url()));
    let found = get(&grid, &id).await?;
    ensure!(found["id"] == session["id"] && found["started_at"].is_string() && found["ended_at"].is_null());
    ensure!(count_is(&grid, "active", 1).await?[0]["id"] == session["id"]);

    release(&grid, &id).await?;
    let message = ends_as(&grid, &id, "released").await?;
    ensure!(message.contains(&id), "{message}");
    release(&grid, &id).await?;
    let record = last_ended(&grid).await?;
    ensure!(record["id"] == session["id"] && record["reason"] == "released" && record["status"] == "ended");
    ensure!(record["queued_at"].is_string() && record["started_at"].is_string() && record["ended_at"].is_string());
    ensure!(record["wait_time"].as_f64().is_some_and(|seconds| seconds >= 0.0));
    ensure!(record["run_time"].as_f64().is_some_and(|seconds| seconds >= 0.0));
    ensure!(record["connect"].is_null(), "an ended session offers a connection");
    grid.finish().await
}

#[tokio::test]
async fn session_unknown_is_not_found() -> Result<()> {
    let grid = Grid::builder().start().await?;
    let path = "/v1/sessions/ses_00000000000070008000000000000000";
    for reply in [grid.http().get(path).await?, grid.http().delete(path).await?] {
        ensure!(
            reply.status == 404 && reply.error_code().as_deref() == Some("session_not_found"),
            "{}",
            reply.text()
        );
        let error = &reply.json()?["error"];
        ensure!(error["request_id"].as_str() == reply.header("x-request-id"), "{error}");
        ensure!(error["advice"].is_string() && error["retry"] == "as_new" && error["source"] == "caller");
    }
    grid.finish().await
}

#[tokio::test]
async fn sessions_list_filters_and_pages_cover_everything_once() -> Result<()> {
    let grid = Grid::builder().slots(3).start().await?;
    let mut ids = Vec::new();
    for n in 0..7 {
        let operation = if n % 2 == 0 { "scrape" } else { "agent" };
        ids.push(id(
            &create_async(&grid, json!({"operation": operation, "data": n})).await?
        ));
    }
    count_is(&grid, "active", 3).await?;
    ensure!(listed(&grid, "/v1/sessions").await?.len() == 7);
    ensure!(listed(&grid, "/v1/sessions?status=queued").await?.len() == 4);
    ensure!(
        listed(&grid, "/v1/sessions?status=queued,active&operation=agent")
            .await?
            .len()
            == 3
    );
    ensure!(listed(&grid, "/v1/sessions?pool=default").await?.len() == 7);
    ensure!(listed(&grid, "/v1/sessions?pool=other").await?.is_empty());
    for bad in [
        "status=sleeping",
        "order=up",
        "limit=0",
        "limit=1001",
        "after=x",
        "reason=x",
        "colour=red",
    ] {
        let reply = grid.http().get(&format!("/v1/sessions?{bad}")).await?;
        ensure!(reply.status == 400, "{bad}: {}", reply.text());
    }
    for order in ["asc", "desc"] {
        let mut seen = pages(&grid, &format!("/v1/sessions?limit=2&order={order}")).await?;
        if order == "desc" {
            seen.reverse();
        }
        ensure!(seen == ids, "{order}: {seen:?} is not {ids:?}");
    }
    for session in &ids {
        release(&grid, session).await?;
    }
    let history = pages(&grid, "/v1/sessions/history?limit=3").await?;
    ensure!(
        history.len() == 7 && history.iter().collect::<BTreeSet<_>>().len() == 7,
        "{history:?}"
    );
    ensure!(listed(&grid, "/v1/sessions/history?operation=agent").await?.len() == 3);
    ensure!(
        listed(&grid, "/v1/sessions/history?reason=browser_crashed")
            .await?
            .is_empty()
    );
    grid.finish().await
}

/// Every id of a listing, page after page.
async fn pages(grid: &Grid, path: &str) -> Result<Vec<String>> {
    let (mut ids, mut after) = (Vec::new(), String::new());
    loop {
        let page = grid.http().get(&format!("{path}{after}")).await?.expect(200)?;
        ids.extend(page["sessions"].as_array().into_iter().flatten().map(id));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return Ok(ids),
        }
    }
}

#[tokio::test]
async fn idempotency_key_concurrent_retries_make_one_session() -> Result<()> {
    let grid = Grid::builder()
        .slots(4)
        .fault("slow_start:300ms")
        .min(0)
        .start()
        .await?;
    let http = grid.http().header("idempotency-key", "order 66");
    let body = json!({"data": 1});
    let replies = try_join_all((0..8).map(|_| http.post("/v1/sessions", &body))).await?;
    let ids: BTreeSet<_> = replies
        .iter()
        .map(|reply| reply.expect(201).map(|body| id(&body)))
        .collect::<Result<_>>()?;
    ensure!(ids.len() == 1, "{ids:?}");
    ensure!(listed(&grid, "/v1/sessions").await?.len() == 1);
    let again = http.post("/v1/sessions", &body).await?.expect(201)?;
    ensure!(ids.contains(&id(&again)));
    let other = http.post("/v1/sessions", &json!({"data": 2})).await?;
    ensure!(
        other.status == 409 && other.error_code().as_deref() == Some("idempotency_key_reused"),
        "{}",
        other.text()
    );
    release(&grid, &id(&again)).await?;
    let late = http.post("/v1/sessions", &body).await?;
    ensure!(
        late.status == 404 && late.error_code().as_deref() == Some("session_ended"),
        "{}",
        late.text()
    );
    grid.finish().await
}

#[tokio::test]
async fn respond_async_gives_ticket_and_position_at_once() -> Result<()> {
    let grid = Grid::builder().slots(1).start().await?;
    let holder = create(&grid, json!({})).await?;
    let http = grid.http().header("prefer", "respond-async, wait=1");
    let reply = http.post("/v1/sessions", &json!({})).await?;
    let waiter = reply.expect(202)?;
    ensure!(reply.header("location") == Some(format!("/v1/sessions/{}", id(&waiter)).as_str()));
    ensure!(reply.header("preference-applied") == Some("respond-async"));
    ensure!(
        waiter["status"] == "queued" && waiter["position"] == 1 && waiter["connect"].is_null(),
        "{waiter}"
    );
    ensure!(
        waiter["estimated_wait"].as_f64().is_some_and(|seconds| seconds > 0.0),
        "{waiter}"
    );
    let early = grid.cdp(&attach_path(&waiter)).await;
    ensure!(
        early.is_err_and(|error| error.to_string().contains("409")),
        "a waiting session could be attached to"
    );
    release(&grid, &id(&holder)).await?;
    let active = becomes_active(&grid, &id(&waiter)).await?;
    ensure!(active["position"].is_null() && active["connect"]["cdp"].is_string());
    release(&grid, &id(&waiter)).await?;
    grid.finish().await
}

#[tokio::test]
async fn connect_timeout_ends_a_session_nobody_attached_to() -> Result<()> {
    let grid = Grid::builder().start().await?;
    let session = create(&grid, json!({"connect_timeout": 0.2})).await?;
    ends_as(&grid, &id(&session), "connect_timeout").await?;
    let session = create(&grid, json!({"max_duration": 0.5})).await?;
    let mut cdp = grid.cdp(&attach_path(&session)).await?;
    let end = cdp.closed().await?;
    ensure!(
        end.code == Some(4408) && end.reason.starts_with("max_duration"),
        "{end:?}"
    );
    ends_as(&grid, &id(&session), "max_duration").await?;
    grid.finish().await
}

#[tokio::test]
async fn seed_form_body_is_data_get_keeps_alive_and_idle_ends() -> Result<()> {
    let grid = Grid::builder()
        .arg("--idle-timeout", "2s")
        .arg("--connect-timeout", "1s")
        .start()
        .await?;
    let data = json!({"isolation": "context", "any": ["thing", 1]});
    let session = grid.http().post("/sessions", &data).await?.expect(201)?;
    ensure!(
        session["data"] == data && session["created_at"].is_string(),
        "{session}"
    );
    let path = format!("/sessions/{}", id(&session));
    // Looking at it for longer than its idle timeout keeps it.
    let started = std::time::Instant::now();
    while started.elapsed() < std::time::Duration::from_secs(5) {
        let seen = grid.http().get(&path).await?.expect(200)?;
        ensure!(seen["id"] == session["id"] && seen["data"] == data);
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    ensure!(
        grid.http()
            .get("/sessions")
            .await?
            .expect(200)?
            .as_array()
            .is_some_and(|list| list.len() == 1)
    );
    // Nobody looks at it any more; the history is no look.
    let ended = eventually("the idle timeout", async || {
        let record = last_ended(&grid).await?;
        ensure!(record["id"] == session["id"]);
        Ok(record)
    })
    .await?;
    ensure!(ended["reason"] == "idle_timeout", "{ended}");
    let gone = grid.http().get(&path).await?;
    ensure!(
        gone.status == 404 && gone.json()?["error"]["reason"] == "idle_timeout",
        "{}",
        gone.text()
    );
    ensure!(grid.http().get("/sessions/nonsense").await?.status == 404);

    let second = grid.http().post("/sessions", &json!([1, 2])).await?.expect(201)?;
    let path = format!("/sessions/{}", id(&second));
    ensure!(grid.http().delete(&path).await?.status == 204);
    ensure!(grid.http().get(&path).await?.status == 404);
    grid.finish().await
}

#[tokio::test]
async fn create_refuses_what_it_does_not_know_or_allow() -> Result<()> {
    let grid = Grid::builder().start().await?;
    let refused = [
        (json!({"idle_timout": 5}), "invalid_request", "idle_timeout"),
        (json!({"isolation": "context"}), "invalid_request", "isolation"),
        (json!({"isolation": "planet"}), "invalid_request", "planet"),
        (json!({"priority": 101}), "invalid_request", "-100 to 100"),
        (json!({"idle_timeout": -1}), "invalid_request", "time span"),
        (json!({"browser": "lynx"}), "invalid_request", "lynx"),
        (
            json!({"description": "x".repeat(1001)}),
            "invalid_request",
            "description",
        ),
        (json!({"operation": "no spaces"}), "invalid_request", "no spaces"),
        (
            json!({"launch": {"args": ["--no-sandbox"]}}),
            "option_refused",
            "no-sandbox",
        ),
        (
            json!({"launch": {"args": ["--remote-debugging-port=1"]}}),
            "option_refused",
            "remote-debugging-port",
        ),
        (
            json!({"launch": {"user_data_dir": "/"}}),
            "option_refused",
            "user_data_dir",
        ),
        (
            json!({"launch": {"user_agent": "a\nb"}}),
            "option_refused",
            "user_agent",
        ),
        (
            json!({"launch": {"window_size": {"width": 0, "height": 1}}}),
            "option_refused",
            "window_size",
        ),
    ];
    for (body, code, named) in refused {
        let reply = grid.http().post("/v1/sessions", &body).await?;
        ensure!(
            reply.status == 400 && reply.error_code().as_deref() == Some(code),
            "{body}: {}",
            reply.text()
        );
        ensure!(
            reply.text().contains(named),
            "{body}: {} does not name {named}",
            reply.text()
        );
    }
    for body in [json!({"pool": "other"}), json!({"browser": "firefox"})] {
        let reply = grid.http().post("/v1/sessions", &body).await?;
        ensure!(
            reply.status == 404 && reply.error_code().as_deref() == Some("pool_not_found"),
            "{}",
            reply.text()
        );
    }
    ensure!(
        listed(&grid, "/v1/sessions/history").await?.is_empty(),
        "a refused request left a record"
    );
    grid.finish().await
}

#[tokio::test]
async fn launch_options_are_visible_in_headless_shell() -> Result<()> {
    let grid = Grid::builder()
        .browser(BrowserUnderTest::HeadlessShell)
        .min(0)
        .start()
        .await?;
    let launch = json!({
        "user_agent": "WharfTest/1.0", "lang": "de-DE", "timezone": "Asia/Tokyo",
        "window_size": {"width": 801, "height": 602}, "args": ["--force-prefers-reduced-motion"],
    });
    let session = create(&grid, json!({"launch": launch})).await?;
    ensure!(session["launch"] == launch, "{session}");
    let mut cdp = grid.cdp(&attach_path(&session)).await?;
    ensure!(cdp.call("Browser.getVersion", json!({})).await?["userAgent"] == "WharfTest/1.0");
    let page = cdp.new_page("about:blank").await?;
    let script = "JSON.stringify([navigator.userAgent, navigator.language, \
                  Intl.DateTimeFormat().resolvedOptions().timeZone, \
                  matchMedia('(prefers-reduced-motion: reduce)').matches])";
    let seen = cdp
        .call_in(&page, "Runtime.evaluate", json!({"expression": script}))
        .await?;
    ensure!(
        seen["result"]["value"] == r#"["WharfTest/1.0","de-DE","Asia/Tokyo",true]"#,
        "{seen}"
    );
    cdp.close().await;
    release(&grid, &id(&session)).await?;
    ensure!(end_of(&grid, &id(&session)).await?.0 == "released");
    grid.finish().await
}
