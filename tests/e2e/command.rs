//! The driver `command`: any program that serves one session over HTTP, as in seed 000. CRUD, idle time, crashes, hangs,
//! the queue, and the seed's bugs that must be impossible here.

use std::{collections::HashSet, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use futures_util::future::{join_all, try_join_all};
use rustix::process::Signal;
use serde_json::{Value, json};
use wharf_testkit::{BrowserUnderTest, CdpError, Grid, GridBuilder, Reply, eventually, processes};

use crate::support::{create, ends_as, id, is_gone, metric_is, patient, signal};

/// A grid of fake programs; short limits, so that a hang costs half a second.
fn programs() -> GridBuilder {
    Grid::builder()
        .browser(BrowserUnderTest::Program)
        .arg("--forward-timeout", "500ms")
}

/// `POST /sessions`, as seed 000's clients do.
async fn begin(grid: &Grid, data: Value) -> Result<Value> {
    grid.http().post("/sessions", &data).await?.expect(201)
}

async fn look(grid: &Grid, session: &str) -> Result<Reply> {
    grid.http().get(&format!("/sessions/{session}")).await
}

async fn end(grid: &Grid, session: &str) -> Result<()> {
    let reply = grid.http().delete(&format!("/sessions/{session}")).await?;
    reply.expect(204).map(drop)
}

/// The programs' main processes: those without a parent among them.
fn roots(grid: &Grid) -> Vec<u32> {
    let all = grid.browser_pids();
    let is_program = |pid: &u32| processes::command_line(*pid).contains("fake-program");
    let is_child = |pid: &u32| processes::command_line(*pid).contains("--leaked-child");
    all.into_iter()
        .filter(|pid| is_program(pid) && !is_child(pid))
        .collect()
}

async fn warm_is(grid: &Grid, count: f64) -> Result<()> {
    metric_is(grid, "wharf_browsers{state=\"warm\"}", count).await
}

/// Every slot serves: as many sessions at once as there are slots, each answered by a program of its own.
async fn is_whole(grid: &Grid, slots: usize) -> Result<()> {
    let sessions = try_join_all((0..slots).map(|n| begin(grid, json!(n)))).await?;
    for session in &sessions {
        look(grid, &id(session)).await?.expect(200)?;
    }
    ensure!(
        roots(grid).len() >= slots,
        "{} programs for {slots} sessions",
        roots(grid).len()
    );
    for session in &sessions {
        end(grid, &id(session)).await?;
    }
    grid.leak_check().await
}

#[tokio::test]
async fn session_is_created_read_and_deleted_as_in_seed_000() -> Result<()> {
    let grid = programs().start().await?;
    let session = begin(&grid, json!({"job": 42, "nested": [1, null]})).await?;
    let session_id = id(&session);
    ensure!(session_id.starts_with("ses_"), "our id, not the program's: {session}");
    ensure!(session["data"] == json!({"job": 42, "nested": [1, null]}), "{session}");
    ensure!(session["created_at"].is_string(), "{session}");
    let again = look(&grid, &session_id).await?.expect(200)?;
    ensure!(again == session, "the same session: {again}");
    let listed = grid.http().get("/sessions").await?.expect(200)?;
    ensure!(listed[0]["id"] == session_id.as_str(), "{listed}");
    let url = format!("{}/sessions/{session_id}", grid.url());
    ensure!(listed[0]["connect"] == json!({"http": url}), "{listed}");
    end(&grid, &session_id).await?;
    let gone = look(&grid, &session_id).await?;
    let error = gone.expect(404)?;
    ensure!(error["error"]["reason"] == "released", "{error}");
    // Known and ended: still 204. Never known: 404, whatever it looks like.
    end(&grid, &session_id).await?;
    for never in ["ses_00000000000070008000000000000000", "nonsense"] {
        look(&grid, never).await?.expect(404)?;
        let reply = grid.http().delete(&format!("/sessions/{never}")).await?;
        ensure!(reply.status == 404, "{}", reply.text());
    }
    // Without a body the data is empty, as for every other browser.
    let bare = grid
        .http()
        .raw(http::Method::POST, "/sessions", None, bytes::Bytes::new())
        .await?
        .expect(201)?;
    ensure!(bare["data"] == json!({}), "{bare}");
    end(&grid, &id(&bare)).await?;
    grid.finish().await
}

#[tokio::test]
async fn full_api_serves_programs_too() -> Result<()> {
    let grid = programs().start().await?;
    let session = create(&grid, json!({"data": {"n": 1}, "operation": "agent"})).await?;
    ensure!(session["browser"] == "command", "the kind this grid serves: {session}");
    ensure!(
        session["connect_timeout"].is_null(),
        "nobody attaches to a program: {session}"
    );
    let url = session["connect"]["http"].as_str().context("no connect.http")?;
    ensure!(session["connect"]["cdp"].is_null(), "{session}");
    let path = url.strip_prefix(&grid.url()).context("a URL of this grid")?;
    let seen = grid.http().get(path).await?.expect(200)?;
    ensure!(seen["id"] == session["id"] && seen["data"] == json!({"n": 1}), "{seen}");
    // A WebSocket has no business here, and says so without harm to the session.
    for path in [
        format!("/devtools/browser/{}", id(&session)),
        "/".to_owned(),
        "/chromium".to_owned(),
    ] {
        match grid.cdp(&path).await {
            Err(CdpError::Refused(reply)) => {
                let text = reply.text();
                ensure!(
                    reply.status == 400 && text.contains("driver `command`"),
                    "{path}: {text}"
                );
            }
            other => bail!("{path}: {other:?}"),
        }
    }
    let page = grid.http().put("/json/new", &json!({})).await?;
    ensure!(
        page.status == 400 && page.text().contains("driver `command`"),
        "{}",
        page.text()
    );
    let options = json!({"launch": {"lang": "de"}});
    let refused = grid.http().post("/v1/sessions", &options).await?;
    ensure!(
        refused.error_code().as_deref() == Some("option_refused"),
        "{}",
        refused.text()
    );
    let other = grid
        .http()
        .post("/v1/sessions", &json!({"browser": "chromium"}))
        .await?;
    ensure!(
        other.error_code().as_deref() == Some("pool_not_found"),
        "{}",
        other.text()
    );
    look(&grid, &id(&session)).await?.expect(200)?;
    end(&grid, &id(&session)).await?;
    grid.finish().await
}

#[tokio::test]
async fn ten_parallel_creates_get_ten_programs() -> Result<()> {
    let grid = programs().slots(10).min(2).start().await?;
    let sessions = try_join_all((0..10).map(|n| begin(&grid, json!({"n": n})))).await?;
    let ids: HashSet<_> = sessions.iter().map(id).collect();
    ensure!(ids.len() == 10, "{ids:?}");
    for (n, session) in sessions.iter().enumerate() {
        let seen = look(&grid, &id(session)).await?.expect(200)?;
        ensure!(seen["data"] == json!({"n": n}), "each its own: {seen}");
    }
    ensure!(roots(&grid).len() == 10, "{:?}", roots(&grid));
    try_join_all(ids.iter().map(|session| end(&grid, session))).await?;
    grid.finish().await
}

#[tokio::test]
async fn looking_refreshes_the_idle_time_and_without_it_the_session_ends() -> Result<()> {
    let grid = programs().arg("--idle-timeout", "2s").start().await?;
    let (kept, left) = (id(&begin(&grid, json!(1)).await?), id(&begin(&grid, json!(2)).await?));
    ends_after_looks(&grid, &kept, &left).await?;
    ends_as(&grid, &kept, "idle_timeout").await?;
    let gone = look(&grid, &kept).await?.expect(404)?;
    ensure!(gone["error"]["reason"] == "idle_timeout", "{gone}");
    is_whole(&grid, 2).await?;
    grid.finish().await
}

/// Looks at one session until the other, begun later, has ended for want of looks.
async fn ends_after_looks(grid: &Grid, kept: &str, left: &str) -> Result<()> {
    eventually("the session nobody looks at to end", async || {
        look(grid, kept).await?.expect(200)?;
        let history = grid.http().get("/v1/sessions/history").await?.expect(200)?;
        let ended = history["sessions"].as_array().context("no list")?;
        ensure!(
            ended
                .iter()
                .any(|session| session["id"] == left && session["reason"] == "idle_timeout")
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn crashed_program_is_noticed_its_session_told_and_its_slot_back() -> Result<()> {
    let grid = programs().slots(1).start().await?;
    let session = id(&begin(&grid, json!({})).await?);
    let [victim] = roots(&grid)[..] else {
        bail!("one slot, one program: {:?}", roots(&grid))
    };
    signal(victim, Signal::KILL)?;
    let gone = look(&grid, &session).await?.expect(404)?;
    ensure!(
        gone["error"]["code"] == "session_ended" && gone["error"]["reason"] == "browser_crashed",
        "{gone}"
    );
    let message = ends_as(&grid, &session, "browser_crashed").await?;
    ensure!(message.contains("signal 9"), "{message}");
    is_gone(victim).await?;
    is_whole(&grid, 1).await?;
    grid.finish().await
}

#[tokio::test]
async fn program_that_fails_to_answer_for_its_session_loses_it() -> Result<()> {
    for (fault, reason, detail) in [
        ("hang_on_get", "browser_hung", "did not answer GET /sessions/"),
        ("forget", "browser_crashed", "404"),
        ("crash_after:1call", "browser_crashed", "signal 11"),
        ("hang_after:1call", "browser_hung", "did not answer"),
    ] {
        let grid = programs().slots(1).fault(fault).start().await?;
        let session = id(&begin(&grid, json!({})).await?);
        let program = roots(&grid);
        let gone = look(&grid, &session).await?.expect(404)?;
        ensure!(gone["error"]["reason"] == reason, "{fault}: {gone}");
        let message = gone["error"]["message"].as_str().unwrap_or_default();
        ensure!(message.contains(detail), "{fault}: {message}");
        for pid in program {
            is_gone(pid).await?;
        }
        let next = id(&begin(&grid, json!({})).await?);
        end(&grid, &next).await?;
        grid.finish().await?;
    }
    Ok(())
}

#[tokio::test]
async fn hung_create_is_tried_on_three_programs_and_then_told() -> Result<()> {
    let grid = programs().slots(1).fault("hang_on_create").start().await?;
    let reply = patient(&grid).post("/sessions", &json!({})).await?;
    let error = reply.expect(502)?["error"].take();
    ensure!(error["code"] == "launch_failed", "{error}");
    let message = error["message"].as_str().unwrap_or_default();
    ensure!(
        message.contains("3 attempts") && message.contains("did not answer POST /sessions within 500ms"),
        "{message}"
    );
    ensure!(grid.metric("wharf_leases_total{outcome=\"failed\"}").await? == 3.0);
    ensure!(
        grid.metric("wharf_sessions_ended_total{reason=\"launch_failed\"}")
            .await?
            == 1.0
    );
    warm_is(&grid, 1.0).await?;
    grid.finish().await
}

#[tokio::test]
async fn every_broken_create_is_retried_and_named() -> Result<()> {
    for (fault, cause) in [
        ("refuse_create", "500"),
        ("crash_on_create", "signal 11"),
        ("garbage:http", "not HTTP"),
        ("garbage:json", "not JSON"),
        ("garbage:no_id", "without an `id`"),
        ("garbage:huge", "more than 1048576 bytes"),
    ] {
        let grid = programs().slots(1).fault(fault).start().await?;
        let reply = patient(&grid).post("/sessions", &json!({})).await?;
        let text = reply.text();
        ensure!(
            reply.status == 502 && text.contains("3 attempts") && text.contains(cause),
            "{fault}: {text}"
        );
        grid.finish().await?;
    }
    Ok(())
}

#[tokio::test]
async fn create_that_hangs_once_succeeds_on_the_next_program() -> Result<()> {
    let grid = programs().slots(1).min(1).start().await?;
    warm_is(&grid, 1.0).await?;
    // The warm program is stopped: it takes the connection and never answers.
    let [warm] = roots(&grid)[..] else {
        bail!("one warm program: {:?}", roots(&grid))
    };
    signal(warm, Signal::STOP)?;
    let session = begin(&grid, json!({})).await?;
    ensure!(!roots(&grid).contains(&warm), "the stopped one is gone");
    end(&grid, &id(&session)).await?;
    grid.finish().await
}

#[tokio::test]
async fn delete_is_204_at_once_although_the_program_hangs_and_it_does_not_stay_in_the_pool() -> Result<()> {
    for fault in ["hang_on_delete", "hang_after:1call"] {
        let grid = programs().slots(1).fault(fault).start().await?;
        let session = id(&begin(&grid, json!({})).await?);
        let program = roots(&grid);
        let begun = std::time::Instant::now();
        end(&grid, &session).await?;
        ensure!(
            begun.elapsed() < Duration::from_millis(400),
            "{fault}: {:?}",
            begun.elapsed()
        );
        ends_as(&grid, &session, "released").await?;
        for pid in program {
            is_gone(pid).await?;
        }
        let next = id(&begin(&grid, json!({})).await?);
        ensure!(next != session);
        end(&grid, &next).await?;
        grid.finish().await?;
    }
    Ok(())
}

#[tokio::test]
async fn hung_program_is_found_by_its_probe() -> Result<()> {
    let grid = programs()
        .slots(1)
        .arg("--probe-interval", "500ms")
        .arg("--probe-limit", "200ms")
        .start()
        .await?;
    let session = id(&begin(&grid, json!({})).await?);
    let [program] = roots(&grid)[..] else {
        bail!("one program: {:?}", roots(&grid))
    };
    signal(program, Signal::STOP)?;
    let message = ends_as(&grid, &session, "browser_hung").await?;
    ensure!(message.contains("GET /health"), "{message}");
    is_gone(program).await?;
    is_whole(&grid, 1).await?;
    grid.finish().await
}

#[tokio::test]
async fn waiters_queue_while_all_programs_are_busy() -> Result<()> {
    let grid = programs().slots(1).queue(2).start().await?;
    let first = id(&begin(&grid, json!(0)).await?);
    let waiting = [1, 2].map(|n| {
        let http = patient(&grid);
        async move { http.post("/sessions", &json!(n)).await?.expect(201) }
    });
    let rest = async {
        metric_is(&grid, "wharf_queue_depth", 2.0).await?;
        let full = grid.http().post("/sessions", &json!(3)).await?;
        ensure!(
            full.status == 503 && full.error_code().as_deref() == Some("queue_full"),
            "{}",
            full.text()
        );
        ensure!(full.header("retry-after").is_some());
        end(&grid, &first).await?;
        // Each waiter's session is released as soon as it runs, so that the next one is served.
        for _ in 0..2 {
            let session = eventually("the next waiter to be served", async || {
                let listed = grid.http().get("/v1/sessions?status=active").await?.expect(200)?;
                listed["sessions"][0]["id"]
                    .as_str()
                    .map(str::to_owned)
                    .context("none is active")
            })
            .await?;
            end(&grid, &session).await?;
        }
        Ok(())
    };
    let (served, rest) = tokio::join!(join_all(waiting), rest);
    rest?;
    for session in served {
        session?;
    }
    grid.finish().await
}

#[tokio::test]
async fn killed_idle_program_is_not_handed_out_twice() -> Result<()> {
    // Seed 000 queued a restarted worker twice, so that two sessions shared it.
    let grid = programs().slots(2).min(2).start().await?;
    for _ in 0..5 {
        warm_is(&grid, 2.0).await?;
        let victim = *roots(&grid).first().context("two warm programs")?;
        signal(victim, Signal::KILL)?;
        let (one, two) = tokio::try_join!(begin(&grid, json!(1)), begin(&grid, json!(2)))?;
        ensure!(id(&one) != id(&two));
        let pids = roots(&grid);
        ensure!(
            pids.len() == 2 && !pids.contains(&victim),
            "{pids:?} after the end of {victim}"
        );
        for (session, data) in [(&one, 1), (&two, 2)] {
            let seen = look(&grid, &id(session)).await?.expect(200)?;
            ensure!(seen["data"] == data, "each its own program: {seen}");
        }
        end(&grid, &id(&one)).await?;
        look(&grid, &id(&two)).await?.expect(200)?;
        end(&grid, &id(&two)).await?;
    }
    grid.finish().await
}

#[tokio::test]
async fn replacement_never_takes_the_port_of_the_dead() -> Result<()> {
    // Seed 000 restarted a worker on its old port, which somebody else may have by then.
    let grid = programs().slots(1).min(1).start().await?;
    let mut ports = HashSet::new();
    let mut thieves = Vec::new();
    for _ in 0..5 {
        warm_is(&grid, 1.0).await?;
        let [program] = roots(&grid)[..] else {
            bail!("one warm program: {:?}", roots(&grid))
        };
        let port = processes::variable(program, "PORT").context("no PORT")?;
        let port: u16 = port.to_str().unwrap_or_default().parse()?;
        ensure!(ports.insert(port), "{port} was used again");
        signal(program, Signal::KILL)?;
        is_gone(program).await?;
        thieves.push(tokio::net::TcpListener::bind(("127.0.0.1", port)).await?);
        let session = id(&begin(&grid, json!({})).await?);
        end(&grid, &session).await?;
    }
    grid.finish().await
}

#[tokio::test]
async fn stubborn_programs_and_their_children_go_with_the_grid() -> Result<()> {
    let mut grid = programs()
        .slots(2)
        .min(2)
        .fault("ignore_sigterm")
        .fault("leak_child")
        .start()
        .await?;
    warm_is(&grid, 2.0).await?;
    begin(&grid, json!({})).await?;
    // A second signal ends the session that is still there.
    grid.signal(Signal::TERM)?;
    grid.signal(Signal::INT)?;
    grid.wait_stopped().await?;
    grid.finish().await
}

#[tokio::test]
async fn program_that_cannot_serve_is_told_at_start() -> Result<()> {
    for (grid, part) in [
        (programs().fault("exit_code:42"), "code 42"),
        (programs().binary("./no/such/program"), "No such file"),
        (
            programs().binary("no-such-program"),
            "no program `no-such-program` found",
        ),
        (programs().binary("/etc/passwd"), "chmod +x"),
    ] {
        let text = format!("{:#}", grid.start().await.err().context("it started")?);
        ensure!(text.contains(part), "`{part}` is not in: {text}");
    }
    Ok(())
}
