//! WebSocket clients that break the protocol, stop reading, or fall silent.

use std::{fs, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use wharf_testkit::{Grid, eventually};

use crate::support::{Raw, end_of, ends_as, is_gone, is_whole, metric_is, only_active, only_browser, upgrade};

/// An upgraded raw socket and its session.
async fn upgraded(grid: &Grid) -> Result<(Raw, String)> {
    let mut raw = Raw::connect(grid.addr()).await?;
    raw.send(upgrade("/")).await?;
    let reply = raw.reply().await?;
    ensure!(reply.status == 101, "{reply:?}");
    Ok((raw, only_active(grid).await?))
}

/// The code of the close frame at the end of what a server sent; pings before it are passed over.
fn close_code(bytes: &[u8]) -> Option<u16> {
    let mut rest = bytes;
    loop {
        let [first, length, tail @ ..] = rest else { return None };
        let body = tail.get(..usize::from(*length))?;
        if first & 0x0f == 8 {
            return Some(u16::from_be_bytes([*body.first()?, *body.get(1)?]));
        }
        rest = &tail[usize::from(*length)..];
    }
}

/// A masked frame; the mask is zero, so the payload stays readable here.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first, 0x80 | u8::try_from(payload.len()).unwrap_or(125), 0, 0, 0, 0];
    bytes.extend_from_slice(payload);
    bytes
}

#[tokio::test]
async fn frames_against_the_protocol_are_closed_with_1002() -> Result<()> {
    let grid = Grid::builder().slots(1).start().await?;
    let mut oversized_ping = vec![0x89, 0xfe, 0, 126, 0, 0, 0, 0];
    oversized_ping.extend([0; 126]);
    let cases: [(&str, Vec<u8>); 7] = [
        ("unmasked", vec![0x81, 2, b'{', b'}']),
        ("reserved bit", frame(0xc1, b"{}")),
        ("reserved opcode", frame(0x83, b"{}")),
        ("reserved control opcode", frame(0x8b, b"")),
        ("fragmented ping", frame(0x09, b"")),
        ("oversized ping", oversized_ping),
        ("continuation of nothing", frame(0x80, b"{}")),
    ];
    for (what, bytes) in cases {
        let (mut raw, session) = upgraded(&grid).await?;
        raw.send(&bytes).await?;
        let answer = raw.rest().await.with_context(|| what.to_owned())?;
        ensure!(close_code(&answer) == Some(1002), "{what}: {answer:?}");
        ends_as(&grid, &session, "client_disconnected")
            .await
            .with_context(|| what.to_owned())?;
    }
    is_whole(&grid, 1).await?;
    grid.finish().await
}

#[tokio::test]
async fn close_codes_that_may_not_be_sent_are_refused() -> Result<()> {
    let grid = Grid::builder().slots(1).start().await?;
    for code in [1005u16, 1006, 999] {
        let (mut raw, session) = upgraded(&grid).await?;
        raw.send(frame(0x88, &code.to_be_bytes())).await?;
        let answer = raw.rest().await?;
        ensure!(
            close_code(&answer).is_none_or(|answered| answered == 1002),
            "{code}: {answer:?}"
        );
        let (reason, _) = end_of(&grid, &session).await?;
        ensure!(
            ["client_disconnected", "released"].contains(&reason.as_str()),
            "{reason}"
        );
    }
    is_whole(&grid, 1).await?;
    grid.finish().await
}

#[tokio::test]
async fn ping_is_answered_at_the_edge_with_its_payload() -> Result<()> {
    let grid = Grid::builder().slots(1).start().await?;
    let (mut raw, session) = upgraded(&grid).await?;
    raw.send(frame(0x89, b"ahoy")).await?;
    raw.send(frame(0x88, &1000u16.to_be_bytes())).await?;
    let answer = raw.rest().await?;
    ensure!(answer.starts_with(b"\x8a\x04ahoy"), "{answer:?}");
    ensure!(close_code(&answer) == Some(1000), "{answer:?}");
    ends_as(&grid, &session, "released").await?;
    grid.finish().await
}

#[tokio::test]
async fn client_that_breaks_off_inside_a_frame_leaves_nothing() -> Result<()> {
    let grid = Grid::builder().slots(1).start().await?;
    for cut in [1, 2, 5, 7] {
        let (mut raw, session) = upgraded(&grid).await?;
        let whole = frame(0x81, br#"{"id":1,"method":"Browser.getVersion"}"#);
        raw.send(&whole[..cut]).await?;
        drop(raw);
        ends_as(&grid, &session, "client_disconnected").await?;
    }
    is_whole(&grid, 1).await?;
    grid.finish().await
}

#[tokio::test]
async fn silent_client_is_dropped_as_client_disconnected() -> Result<()> {
    let grid = Grid::builder()
        .slots(1)
        .arg("--ping-interval", "200ms")
        .arg("--dead-after", "1s")
        .arg("--idle-timeout", "5m")
        .start()
        .await?;
    // It never answers a ping.
    let (mut raw, session) = upgraded(&grid).await?;
    let answer = raw.rest().await?;
    ensure!(answer.starts_with(&[0x89]), "it was never pinged: {answer:?}");
    ends_as(&grid, &session, "client_disconnected").await?;
    // One that answers stays, though it asks for nothing.
    let mut cdp = grid.cdp("/").await?;
    let session = only_active(&grid).await?;
    cdp.set_limit(Duration::from_secs(3));
    ensure!(cdp.closed().await.is_err(), "a client that answers pings was dropped");
    cdp.set_limit(wharf_testkit::patience());
    cdp.call("Browser.getVersion", json!({})).await?;
    cdp.close().await;
    ends_as(&grid, &session, "released").await?;
    grid.finish().await
}

fn resident_megabytes(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM"))
        .context("no VmHWM")?;
    let kilobytes: u64 = line.split_whitespace().nth(1).context("no number")?.parse()?;
    Ok(kilobytes / 1024)
}

#[tokio::test]
async fn client_that_stops_reading_a_flood_costs_no_memory() -> Result<()> {
    let grid = Grid::builder().slots(2).start().await?;
    let before = resident_megabytes(grid.pid())?;
    let mut cdp = grid.cdp("/").await?;
    cdp.call("Browser.getVersion", json!({})).await?;
    let (session, browser) = (only_active(&grid).await?, only_browser(&grid).await);
    // 400 MB, none of which is read.
    cdp.send("", "Fake.flood", json!({"messages": 4000, "bytes": 100_000}))
        .await?;
    let relayed = "wharf_relay_bytes_total{direction=\"to_client\"}";
    let mut last = -1.0;
    eventually("the flood to be held back", async || {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let now = grid.metric(relayed).await?;
        let was = std::mem::replace(&mut last, now);
        ensure!(now > 100_000.0 && now == was, "{was} and then {now} bytes were relayed");
        Ok(())
    })
    .await?;
    ensure!(last < 100e6, "{last} bytes went to a client that does not read");
    let peak = resident_megabytes(grid.pid())?;
    ensure!(peak < before + 64, "wharf grew from {before} to {peak} MB");
    // Others are not held up by it.
    let mut other = grid.cdp("/").await?;
    other.call("Browser.getVersion", json!({})).await?;
    other.close().await;
    cdp.abandon();
    ends_as(&grid, &session, "client_disconnected").await?;
    if let Ok(browser) = browser {
        is_gone(browser).await?;
    }
    metric_is(&grid, "wharf_relays_active", 0.0).await?;
    is_whole(&grid, 2).await?;
    grid.finish().await
}

#[tokio::test]
async fn client_that_never_reads_is_dropped_after_dead_after() -> Result<()> {
    let builder = Grid::builder()
        .slots(1)
        .arg("--ping-interval", "300ms")
        .arg("--dead-after", "2s");
    let grid = builder.start().await?;
    let mut cdp = grid.cdp("/").await?;
    let session = only_active(&grid).await?;
    cdp.send("", "Fake.flood", json!({"messages": 4000, "bytes": 100_000}))
        .await?;
    ends_as(&grid, &session, "client_disconnected").await?;
    cdp.abandon();
    is_whole(&grid, 1).await?;
    grid.finish().await
}
