//! `/v1/events`: order, resuming, filters, who sees what, clients that do not read, the end.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::Method;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    task::JoinSet,
};
use wharf_testkit::{EventStream, Grid, Http, eventually_within, patience};

use crate::support::{create, create_async, id, is_whole, metric_is, refuses, release};

/// More than the kernel's buffers take on loopback (about 3 MB): so many events of a kilobyte.
const FLOOD: usize = 5000;
/// When a client that takes nothing is closed.
const SLOW: Duration = Duration::from_secs(30);
/// Longer than any stop that waits for nothing.
const SOON: Duration = Duration::from_secs(8);

/// The next events, as JSON.
async fn take(stream: &mut EventStream, count: usize) -> Result<Vec<Value>> {
    let mut events = Vec::new();
    for _ in 0..count {
        let event = stream.next().await?;
        let data = event.json()?;
        ensure!(
            data["type"] == event.event.as_str() && data["id"].as_u64() == event.id.parse().ok(),
            "{event:?}"
        );
        events.push(data);
    }
    Ok(events)
}

/// Everything up to and with this number.
async fn up_to(stream: &mut EventStream, number: u64) -> Result<Vec<u64>> {
    let mut numbers = Vec::new();
    while numbers.last() != Some(&number) {
        numbers.push(stream.next().await?.id.parse()?);
    }
    Ok(numbers)
}

fn types(events: &[Value]) -> Vec<&str> {
    events
        .iter()
        .map(|event| event["type"].as_str().unwrap_or_default())
        .collect()
}

#[tokio::test]
async fn sessions_life_is_told_in_order_with_its_reason() -> Result<()> {
    let grid = Grid::builder().slots(1).start().await?;
    let mut stream = grid.http().events("/v1/events?type=session.").await?;
    metric_is(&grid, "wharf_event_streams", 1.0).await?;
    let first = create(&grid, json!({"operation": "agent"})).await?;
    let events = take(&mut stream, 2).await?;
    ensure!(types(&events) == ["session.placed", "session.active"], "{events:?}");
    ensure!(
        events
            .iter()
            .all(|event| event["session"] == first["id"] && event["operation"] == "agent"),
        "{events:?}"
    );
    ensure!(
        events[0]["worker"].is_string() && events[0]["reason"].is_null(),
        "{events:?}"
    );
    let second = create_async(&grid, json!({})).await?;
    ensure!(types(&take(&mut stream, 1).await?) == ["session.queued"]);
    release(&grid, &id(&first)).await?;
    let events = take(&mut stream, 3).await?;
    ensure!(
        types(&events) == ["session.ended", "session.placed", "session.active"],
        "{events:?}"
    );
    ensure!(
        events[0]["session"] == first["id"] && events[0]["reason"] == "released",
        "{events:?}"
    );
    ensure!(events[2]["session"] == second["id"], "{events:?}");
    // The same again from the log: only this session, from the beginning.
    let path = format!("/v1/events?after=0&session={}", id(&second));
    let events = take(&mut grid.http().events(&path).await?, 3).await?;
    ensure!(
        types(&events) == ["session.queued", "session.placed", "session.active"],
        "{events:?}"
    );
    let mut queue = grid
        .http()
        .events("/v1/events?after=0&type=queue.changed&pool=default")
        .await?;
    let waiting: Vec<_> = take(&mut queue, 2)
        .await?
        .iter()
        .map(|event| event["waiting"].clone())
        .collect();
    ensure!(waiting == [1, 0], "{waiting:?}");
    release(&grid, &id(&second)).await?;
    ensure!(take(&mut stream, 1).await?[0]["reason"] == "released");
    ensure!(grid.metric("wharf_events_sent_total").await? >= 12.0);
    drop((stream, queue));
    metric_is(&grid, "wharf_event_streams", 0.0).await?;
    grid.finish().await
}

#[tokio::test]
async fn stream_cut_after_every_event_resumes_without_loss_or_repeat() -> Result<()> {
    let mut grid = Grid::builder().slots(2).start().await?;
    for _ in 0..4 {
        release(&grid, &id(&create(&grid, json!({})).await?)).await?;
    }
    let mut whole = grid.http().events("/v1/events?after=0").await?;
    let mut ended = 0;
    let mut all: Vec<u64> = Vec::new();
    while ended < 4 {
        let event = whole.next().await?;
        ended += usize::from(event.event == "session.ended");
        all.push(event.id.parse()?);
    }
    let last = *all.last().context("no events")?;
    ensure!(all == (1..=last).collect::<Vec<_>>(), "{all:?}");
    for cut in 0..last {
        let expected: Vec<_> = (cut + 1..=last).collect();
        // The header comes first, as an EventSource has it that was made with `?after=`.
        let http = grid.http().header("last-event-id", &cut.to_string());
        let told = up_to(&mut http.events("/v1/events?after=1").await?, last).await?;
        ensure!(told == expected, "after {cut}: {told:?}");
    }
    // And across a restart, on the same store; what the stop itself did is in between.
    drop(whole);
    grid.restart().await?;
    let http = grid.http().header("last-event-id", &last.to_string());
    let mut resumed = http.events("/v1/events").await?;
    let next = resumed.next().await?;
    ensure!(next.id == (last + 1).to_string(), "{next:?}");
    let beyond = grid.http().events("/v1/events?after=1000000").await?.next().await?;
    ensure!(beyond.event == "gap" && beyond.data.contains("beyond"), "{beyond:?}");
    is_whole(&grid, 2).await?;
    grid.finish().await
}

#[tokio::test]
async fn keys_see_their_own_sessions_and_how_many_wait() -> Result<()> {
    let mut grid = Grid::builder().slots(2).start().await?;
    let make = async |http: &Http, body: Value| -> Result<Value> { http.post("/v1/keys", &body).await?.expect(201) };
    let admin = make(&grid.http(), json!({"name": "ops", "role": "admin"})).await?;
    let bearer = |key: &Value| format!("Bearer {}", key["token"].as_str().unwrap_or_default());
    grid.set_header("authorization", &bearer(&admin));
    let (a, b) = (
        make(&grid.http(), json!({"name": "a"})).await?,
        make(&grid.http(), json!({"name": "b"})).await?,
    );
    let client = |key: &Value| Http::new(grid.addr()).header("authorization", &bearer(key));
    let (mut of_a, mut of_b) = (
        client(&a).events("/v1/events").await?,
        client(&b).events("/v1/events").await?,
    );
    let mut of_all = grid.http().events("/v1/events").await?;
    let mine = client(&a).post("/v1/sessions", &json!({})).await?.expect(201)?;
    let theirs = client(&b).post("/v1/sessions", &json!({})).await?.expect(201)?;
    let lock = json!({"holder": "ops", "pools": ["elsewhere"]});
    grid.http().post("/v1/locks/quiet", &lock).await?.expect(201)?;
    let waiter = client(&a)
        .header("prefer", "respond-async")
        .post("/v1/sessions", &json!({}))
        .await?
        .expect(202)?;
    let mut seen = Vec::new();
    while types(&seen).last() != Some(&"queue.changed") {
        seen.extend(take(&mut of_a, 1).await?);
    }
    ensure!(
        types(&seen) == ["session.placed", "session.active", "session.queued", "queue.changed"],
        "{seen:?}"
    );
    ensure!(
        seen[0]["session"] == mine["id"] && seen[2]["session"] == waiter["id"],
        "{seen:?}"
    );
    let seen = take(&mut of_b, 3).await?;
    ensure!(
        types(&seen) == ["session.placed", "session.active", "queue.changed"],
        "{seen:?}"
    );
    ensure!(seen[0]["session"] == theirs["id"], "{seen:?}");
    let all = take(&mut of_all, 7).await?;
    ensure!(types(&all).contains(&"lock.acquired"), "{all:?}");
    // Somebody else's session does not exist, here either.
    let path = format!("/v1/events?after=0&type=session.&session={}", id(&mine));
    let foreign = client(&b)
        .events(&path)
        .await?
        .next_within(Duration::from_millis(300))
        .await?;
    ensure!(foreign.is_none(), "{foreign:?}");
    for session in [&waiter, &mine, &theirs] {
        grid.http()
            .delete(&format!("/v1/sessions/{}", id(session)))
            .await?
            .expect(204)?;
    }
    grid.http()
        .post("/v1/locks/quiet/force-unlock", &json!(null))
        .await?
        .expect(200)?;
    grid.finish().await
}

#[tokio::test]
async fn nonsense_is_refused_in_precise_words_and_heads_have_no_stream() -> Result<()> {
    let grid = Grid::builder().start().await?;
    let get = |path: &'static str, part: &'static str| (Method::GET, path, "", part);
    refuses(
        &grid,
        &[
            get("/v1/events?after=soon", "after"),
            get("/v1/events?after=-1", "after"),
            get("/v1/events?after=18446744073709551615", "`after`"),
            get("/v1/events?type=", "`type`"),
            get("/v1/events?type=session.,nonsense", "session.queued"),
            get("/v1/events?session=wrk_1", "`session`"),
            get("/v1/events?pool=NO", "`pool`"),
            get("/v1/events?typ=session.", "typ"),
        ],
    )
    .await?;
    for (name, value, part) in [
        ("last-event-id", "x", "Last-Event-ID"),
        ("accept", "application/json", "text/event-stream"),
    ] {
        let reply = grid.http().header(name, value).get("/v1/events").await?;
        ensure!(
            reply.status == 400 && reply.text().contains(part),
            "{name}: {}",
            reply.text()
        );
    }
    let head = grid.http().raw(Method::HEAD, "/v1/events", None, Bytes::new()).await?;
    ensure!(head.status == 200 && head.header("content-type") == Some("text/event-stream"));
    let reply = grid.http().get("/v1/events").await?;
    ensure!(
        reply.header("cache-control") == Some("no-store") && reply.header("x-accel-buffering") == Some("no"),
        "{:?}",
        reply.headers
    );
    let reply = grid.http().post("/v1/events", &json!({})).await?;
    ensure!(reply.status == 405, "{}", reply.status);
    metric_is(&grid, "wharf_event_streams", 0.0).await?;
    grid.finish().await
}

/// A client that asks for every event and reads none.
async fn stalled(grid: &Grid) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(4096)?;
    let mut stream = socket.connect(grid.addr()).await?;
    stream
        .write_all(b"GET /v1/events?after=0 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        .await?;
    Ok(stream)
}

/// Thousands of events of a kilobyte: somebody renews a lock all the time.
async fn flood(grid: &Grid) -> Result<()> {
    let wish = json!({"holder": "🔒".repeat(200), "pools": ["elsewhere"], "ttl": "10m"});
    let lock = grid.http().post("/v1/locks/flood", &wish).await?.expect(201)?;
    let mut clients = JoinSet::new();
    for _ in 0..8 {
        let (http, body) = (grid.http(), json!({"token": lock["token"], "ttl": "10m"}));
        clients.spawn(async move {
            for _ in 0..FLOOD / 8 {
                http.put("/v1/locks/flood", &body).await?.expect(200)?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(client) = clients.join_next().await {
        client??;
    }
    grid.http()
        .post("/v1/locks/flood/force-unlock", &json!(null))
        .await?
        .expect(200)
        .map(drop)
}

/// Memory of the process, in megabytes.
fn resident(grid: &Grid) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{}/status", grid.pid()))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .context("no VmRSS")?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kilobytes / 1024)
}

#[tokio::test]
async fn client_that_reads_nothing_is_bounded_and_closed_and_others_are_not_disturbed() -> Result<()> {
    let grid = Grid::builder().slots(2).start().await?;
    let mut good = grid.http().events("/v1/events?type=session.").await?;
    let before = resident(&grid)?;
    let mut clients = Vec::new();
    for _ in 0..10 {
        clients.push(stalled(&grid).await?);
    }
    metric_is(&grid, "wharf_event_streams", 11.0).await?;
    flood(&grid).await?;
    // Ten times what was told would be 50 MB; what the log itself keeps is here as well.
    let grown = resident(&grid)?.saturating_sub(before);
    ensure!(grown < 40, "the process grew by {grown} MB");
    let session = create(&grid, json!({})).await?;
    ensure!(types(&take(&mut good, 2).await?) == ["session.placed", "session.active"]);
    eventually_within(SLOW + patience(), "the streams to be closed", async || {
        let closed = grid.metric("wharf_event_streams_closed_slow_total").await?;
        ensure!(closed == 10.0, "{closed}");
        Ok(())
    })
    .await?;
    metric_is(&grid, "wharf_event_streams", 1.0).await?;
    // The connection is over, whatever was still to come.
    let mut client = clients.pop().context("a client")?;
    let mut bytes = Vec::new();
    match tokio::time::timeout(patience(), client.read_to_end(&mut bytes)).await? {
        Ok(_) => {}
        Err(error) => ensure!(error.kind() == std::io::ErrorKind::ConnectionReset, "{error}"),
    }
    ensure!(!bytes.is_empty(), "nothing was sent at all");
    release(&grid, &id(&session)).await?;
    ensure!(types(&take(&mut good, 1).await?) == ["session.ended"]);
    drop((good, clients));
    grid.finish().await
}

#[tokio::test]
async fn drain_ends_streams_with_a_word_and_no_reader_holds_it_up() -> Result<()> {
    let mut grid = Grid::builder().slots(1).start().await?;
    let mut stream = grid.http().events("/v1/events").await?;
    flood(&grid).await?;
    let client = stalled(&grid).await?;
    metric_is(&grid, "wharf_event_streams", 2.0).await?;
    let mut session = grid.cdp("/").await?;
    session.call("Browser.getVersion", json!({})).await?;
    grid.signal(Signal::TERM)?;
    let end = stream.next_named("end").await?;
    ensure!(end.json()?["reason"] == "draining" && !end.id.is_empty(), "{end:?}");
    ensure!(stream.next().await.is_err(), "the stream goes on after its end");
    // Whoever comes back here is sent elsewhere.
    let reply = grid.http().get("/v1/events").await?;
    ensure!(
        reply.status == 503 && reply.error_code().as_deref() == Some("draining"),
        "{} {}",
        reply.status,
        reply.text()
    );
    ensure!(reply.header("retry-after").is_some());
    session.close().await;
    let stopped = grid.wait_stopped().await?;
    ensure!(stopped.status.success() && stopped.took < SOON, "{stopped:?}");
    ensure!(
        !grid.log().contains("still open after the stop"),
        "a stalled client held up the stop"
    );
    drop(client);
    grid.finish().await
}
