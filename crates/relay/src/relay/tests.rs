//! The relay between two in-memory streams under virtual time: every end it can come to, at every point it can come.

use std::future::pending;

use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{advance, sleep, timeout};
use wharf_wire::frame::{FrameHeader, Opcode, apply_mask, encode_close, encode_ping};

use super::*;

const KEY: [u8; 4] = [9, 8, 7, 6];
const MINUTE: Duration = Duration::from_secs(60);

/// A running relay and the far ends of its two streams.
struct Rig {
    client: DuplexStream,
    browser: DuplexStream,
    ending: Option<oneshot::Sender<CloseFrame>>,
    relay: JoinHandle<RelayEnd>,
    activity: Arc<Activity>,
}

#[expect(
    clippy::disallowed_methods,
    reason = "a test waits for what it spawns, or its runtime ends it"
)]
fn spawn<F: Future<Output: Send + 'static> + Send + 'static>(future: F) -> JoinHandle<F::Output> {
    tokio::spawn(future)
}

fn rig(capacity: usize) -> Rig {
    let (client, client_side) = duplex(capacity);
    let (browser, browser_side) = duplex(capacity);
    let (sender, receiver) = oneshot::channel();
    let ending = async {
        match receiver.await {
            Ok(close) => close,
            Err(_) => pending().await,
        }
    };
    let activity = Arc::new(Activity::new());
    let (client_side, browser_side) = (Side::new(client_side), Side::new(browser_side));
    let relay = spawn(relay(
        client_side,
        browser_side,
        RelayConfig::default(),
        activity.clone(),
        ending,
    ));
    Rig {
        client,
        browser,
        ending: Some(sender),
        relay,
        activity,
    }
}

impl Rig {
    fn end(&mut self, code: u16, reason: &str) {
        self.ending.take().unwrap().send(CloseFrame::new(code, reason)).unwrap();
    }

    async fn result(self) -> RelayEnd {
        drop((self.client, self.browser));
        timeout(MINUTE, self.relay).await.expect("the relay ends").unwrap()
    }
}

fn frame(opcode: Opcode, payload: &[u8], sender: Sender) -> Vec<u8> {
    fragment(true, opcode, payload, sender)
}

fn fragment(fin: bool, opcode: Opcode, payload: &[u8], sender: Sender) -> Vec<u8> {
    let mask = (sender == Sender::Client).then_some(KEY);
    let mut out = Vec::new();
    FrameHeader {
        fin,
        opcode,
        mask,
        len: payload.len() as u64,
    }
    .encode(&mut out);
    let from = out.len();
    out.extend_from_slice(payload);
    if mask.is_some() {
        apply_mask(&mut out[from..], KEY);
    }
    out
}

/// Reads one frame as it is on the wire, and its opcode and plain payload; `None` at the end of the stream.
async fn read_raw(io: &mut DuplexStream, sender: Sender) -> Option<(Opcode, Vec<u8>, Vec<u8>)> {
    let mut raw = Vec::new();
    let header = loop {
        if let Some((header, _)) = FrameHeader::parse(&raw, sender).expect("only valid headers") {
            break header;
        }
        raw.push(io.read_u8().await.ok()?);
    };
    let mut payload = vec![0; header.len as usize];
    io.read_exact(&mut payload).await.ok()?;
    raw.extend_from_slice(&payload);
    if let Some(key) = header.mask {
        apply_mask(&mut payload, key);
    }
    Some((header.opcode, payload, raw))
}

/// What the client gets next.
async fn at_client(rig: &mut Rig) -> Option<(Opcode, Vec<u8>)> {
    read_raw(&mut rig.client, Sender::Server)
        .await
        .map(|(opcode, payload, _)| (opcode, payload))
}

/// What the browser gets next; it is checked to be masked.
async fn at_browser(rig: &mut Rig) -> Option<(Opcode, Vec<u8>)> {
    read_raw(&mut rig.browser, Sender::Client)
        .await
        .map(|(opcode, payload, _)| (opcode, payload))
}

fn close_payload(code: u16, reason: &str) -> Option<(Opcode, Vec<u8>)> {
    Some((Opcode::Close, [&code.to_be_bytes()[..], reason.as_bytes()].concat()))
}

async fn client_sends(rig: &mut Rig, opcode: Opcode, payload: &[u8]) {
    rig.client
        .write_all(&frame(opcode, payload, Sender::Client))
        .await
        .unwrap();
}

async fn browser_sends(rig: &mut Rig, opcode: Opcode, payload: &[u8]) {
    rig.browser
        .write_all(&frame(opcode, payload, Sender::Server))
        .await
        .unwrap();
}

// === passing on ===

#[tokio::test(start_paused = true)]
async fn data_passes_unchanged_both_ways_and_counts() {
    let mut rig = rig(7);
    advance(Duration::from_secs(5)).await;
    let sent = frame(Opcode::Text, b"to the browser", Sender::Client);
    rig.client.write_all(&sent).await.unwrap();
    assert_eq!(read_raw(&mut rig.browser, Sender::Client).await.unwrap().2, sent);
    assert_eq!(
        (rig.activity.to_browser(), rig.activity.to_client()),
        (sent.len() as u64, 0)
    );
    assert_eq!(
        (rig.activity.client_mark(), rig.activity.idle()),
        (5_000, Duration::ZERO)
    );

    advance(Duration::from_secs(3)).await;
    let sent = frame(Opcode::Binary, &[7; 300], Sender::Server);
    let (wrote, read) = tokio::join!(rig.browser.write_all(&sent), read_raw(&mut rig.client, Sender::Server));
    wrote.unwrap();
    assert_eq!(read.unwrap().2, sent);
    assert_eq!(rig.activity.to_client(), sent.len() as u64);
    client_sends(&mut rig, Opcode::Pong, b"").await;
    client_sends(&mut rig, Opcode::Ping, b"x").await;
    assert_eq!(at_client(&mut rig).await, Some((Opcode::Pong, b"x".to_vec())));
    assert_eq!(
        rig.activity.idle(),
        Duration::from_secs(3),
        "only the client's own data is activity"
    );
}

#[tokio::test(start_paused = true)]
async fn leftover_of_both_upgrades_comes_first() {
    let (mut client, client_io) = duplex(64);
    let (mut browser, browser_io) = duplex(64);
    let up = frame(Opcode::Text, b"early", Sender::Client);
    let down = frame(Opcode::Text, b"bird", Sender::Server);
    let client_side = Side {
        io: client_io,
        leftover: up[..3].to_vec().into(),
    };
    let browser_side = Side {
        io: browser_io,
        leftover: down.clone().into(),
    };
    let running = relay(
        client_side,
        browser_side,
        RelayConfig::default(),
        Arc::default(),
        pending(),
    );
    let task = spawn(running);
    client.write_all(&up[3..]).await.unwrap();
    assert_eq!(read_raw(&mut browser, Sender::Client).await.unwrap().2, up);
    assert_eq!(read_raw(&mut client, Sender::Server).await.unwrap().2, down);
    drop(client);
    assert_eq!(task.await.unwrap(), RelayEnd::ClientGone);
}

#[tokio::test(start_paused = true)]
async fn ping_is_answered_at_the_edge_and_not_forwarded() {
    let mut rig = rig(1024);
    client_sends(&mut rig, Opcode::Ping, b"from client").await;
    client_sends(&mut rig, Opcode::Text, b"a").await;
    assert_eq!(at_client(&mut rig).await, Some((Opcode::Pong, b"from client".to_vec())));
    assert_eq!(at_browser(&mut rig).await, Some((Opcode::Text, b"a".to_vec())));
    browser_sends(&mut rig, Opcode::Ping, b"from browser").await;
    browser_sends(&mut rig, Opcode::Text, b"b").await;
    assert_eq!(
        at_browser(&mut rig).await,
        Some((Opcode::Pong, b"from browser".to_vec()))
    );
    assert_eq!(at_client(&mut rig).await, Some((Opcode::Text, b"b".to_vec())));
}

#[tokio::test(start_paused = true)]
async fn pong_waits_for_the_frame_in_progress_to_end() {
    let mut rig = rig(4096);
    let big = frame(Opcode::Binary, &[1; 1000], Sender::Server);
    rig.browser.write_all(&big[..500]).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    client_sends(&mut rig, Opcode::Ping, b"1").await;
    client_sends(&mut rig, Opcode::Ping, b"2").await;
    sleep(Duration::from_secs(1)).await;
    // The end of this frame and half of the next in one write: the gap is inside a read.
    rig.browser
        .write_all(&[&big[500..], &big[..500]].concat())
        .await
        .unwrap();
    assert_eq!(at_client(&mut rig).await.unwrap().0, Opcode::Binary);
    assert_eq!(
        at_client(&mut rig).await,
        Some((Opcode::Pong, b"2".to_vec())),
        "the latest ping's pong is enough"
    );
    rig.browser.write_all(&big[500..]).await.unwrap();
    assert_eq!(at_client(&mut rig).await.unwrap().0, Opcode::Binary);
}

#[derive(Clone, Debug)]
enum Piece {
    Data(Vec<usize>),
    Ping(Vec<u8>),
}

fn arb_pieces() -> impl Strategy<Value = Vec<Piece>> {
    let size = prop_oneof![6 => 0usize..300, 1 => 60_000usize..70_000];
    let piece = prop_oneof![
        3 => proptest::collection::vec(size, 1..4).prop_map(Piece::Data),
        1 => proptest::collection::vec(any::<u8>(), 0..=125).prop_map(Piece::Ping),
    ];
    proptest::collection::vec(piece, 0..8)
}

/// The stream to send and the part of it that must arrive.
fn encode(pieces: &[Piece], sender: Sender) -> (Vec<u8>, Vec<u8>) {
    let (mut stream, mut data) = (Vec::new(), Vec::new());
    for piece in pieces {
        match piece {
            Piece::Ping(payload) => stream.extend(frame(Opcode::Ping, payload, sender)),
            Piece::Data(sizes) => {
                for (i, &size) in sizes.iter().enumerate() {
                    let opcode = if i == 0 { Opcode::Binary } else { Opcode::Continuation };
                    let bytes = fragment(i + 1 == sizes.len(), opcode, &vec![i as u8; size], sender);
                    stream.extend_from_slice(&bytes);
                    data.extend(bytes);
                }
            }
        }
    }
    (stream, data)
}

/// Sends `stream`, and returns the data bytes that arrived besides pongs, and the stream's two halves, still in use.
async fn talk(io: DuplexStream, stream: Vec<u8>, expect: usize, sender: Sender) -> (Vec<u8>, impl Sized + Send) {
    let (mut read, mut write) = tokio::io::split(io);
    let writer = spawn(async move {
        write.write_all(&stream).await.unwrap();
        write
    });
    let mut scanner = wharf_wire::frame::HeaderScanner::new(sender);
    let (mut data, mut buf) = (Vec::new(), vec![0; 3000]);
    while data.len() < expect {
        let len = read.read(&mut buf).await.unwrap();
        assert!(len > 0, "ended early");
        let mut rest = &buf[..len];
        while !rest.is_empty() {
            let step = scanner.scan(rest).unwrap();
            data.extend_from_slice(&step.held);
            data.extend_from_slice(&rest[..step.data]);
            assert!(step.control.is_none_or(|control| control.opcode() == Opcode::Pong));
            rest = &rest[step.consumed..];
        }
    }
    // Keep reading so that the pongs to the rest of our own stream find room.
    let sink = spawn(async move { tokio::io::copy(&mut read, &mut tokio::io::sink()).await });
    (data, (writer.await.unwrap(), sink))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn random_streams_through_tiny_pipes_arrive_unchanged(
        up in arb_pieces(),
        down in arb_pieces(),
        pipe in 1usize..5000,
    ) {
        let (up, up_data) = encode(&up, Sender::Client);
        let (down, down_data) = encode(&down, Sender::Server);
        // Long streams through one-byte pipes take long and show nothing new.
        let pipe = pipe.max((up.len() + down.len()) / 2000);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let Rig { client, browser, relay, ending, .. } = rig(pipe);
            let client = spawn(talk(client, up, down_data.len(), Sender::Server));
            let browser = talk(browser, down, up_data.len(), Sender::Client);
            let (at_client, at_browser) = tokio::join!(client, browser);
            let (at_client, at_browser) = (at_client.unwrap(), at_browser);
            assert!(at_client.0 == down_data, "to the client");
            assert!(at_browser.0 == up_data, "to the browser");
            relay.abort();
            drop(ending);
        });
    }

    #[test]
    fn garbage_from_either_end_ends_the_relay(
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
        from_client in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut rig = rig(16);
            let io = if from_client { &mut rig.client } else { &mut rig.browser };
            let _ = timeout(Duration::from_secs(1), io.write_all(&bytes)).await;
            rig.result().await;
        });
    }
}

// === time ===

#[tokio::test(start_paused = true)]
async fn own_pings_go_to_both_ends_every_interval() {
    let mut rig = rig(1024);
    let start = Instant::now();
    for round in 1..=5 {
        assert_eq!(at_client(&mut rig).await, Some((Opcode::Ping, vec![])));
        assert_eq!(at_browser(&mut rig).await, Some((Opcode::Ping, vec![])));
        assert_eq!(start.elapsed().as_secs(), 20 * round);
        client_sends(&mut rig, Opcode::Pong, b"").await;
        browser_sends(&mut rig, Opcode::Pong, b"").await;
    }
}

/// Answers every ping until the stream ends; returns the other frames that came.
async fn answer_pings(mut io: DuplexStream, we_are: Sender) -> Vec<(Opcode, Vec<u8>)> {
    let they_are = if we_are == Sender::Client {
        Sender::Server
    } else {
        Sender::Client
    };
    let mut others = Vec::new();
    while let Some((opcode, payload, _)) = read_raw(&mut io, they_are).await {
        if opcode == Opcode::Ping {
            io.write_all(&frame(Opcode::Pong, &payload, we_are)).await.unwrap();
        } else {
            others.push((opcode, payload));
        }
    }
    others
}

#[tokio::test(start_paused = true)]
async fn silent_client_is_dead_after_a_minute() {
    let Rig {
        mut client,
        browser,
        relay,
        ending,
        ..
    } = rig(1024);
    let start = Instant::now();
    let browser = spawn(answer_pings(browser, Sender::Server));
    assert_eq!(relay.await.unwrap(), RelayEnd::ClientSilent);
    assert_eq!(start.elapsed().as_secs(), 60);
    assert_eq!(
        browser.await.unwrap(),
        vec![close_payload(1001, "client gone").unwrap()]
    );
    let mut got = Vec::new();
    client.read_to_end(&mut got).await.unwrap();
    assert!(
        got.starts_with(&[0x89, 0, 0x89, 0, 0x88]),
        "two pings, then the close frame: {got:02x?}"
    );
    drop(ending);
}

#[tokio::test(start_paused = true)]
async fn silent_browser_is_dead_after_a_minute_and_the_reason_is_awaited() {
    for reason in [None, Some("browser_hung")] {
        let Rig {
            client,
            browser,
            relay,
            ending,
            ..
        } = rig(1024);
        let start = Instant::now();
        let client = spawn(answer_pings(client, Sender::Client));
        sleep(Duration::from_secs(61)).await;
        let (end, close, seconds) = match reason {
            None => (
                RelayEnd::BrowserSilent,
                close_payload(1011, &connection_lost().reason),
                64,
            ),
            Some(reason) => {
                ending.unwrap().send(CloseFrame::new(1011, reason)).unwrap();
                (
                    RelayEnd::Ended(CloseFrame::new(1011, reason)),
                    close_payload(1011, reason),
                    63,
                )
            }
        };
        // `answer_pings` does not answer the close frame, so its grace passes too.
        assert_eq!(relay.await.unwrap(), end);
        assert_eq!(start.elapsed().as_secs(), seconds);
        assert_eq!(client.await.unwrap(), vec![close.unwrap()]);
        drop(browser);
    }
}

#[tokio::test(start_paused = true)]
async fn client_that_takes_nothing_is_dead_and_costs_one_read() {
    let (client, client_io) = duplex(100);
    let (mut browser, browser_io) = duplex(1 << 20);
    let mut relay = Relay::new(
        Side::new(client_io),
        Side::new(browser_io),
        RelayConfig::default(),
        Arc::default(),
    );
    let mut ending = pin!(pending());
    let mut timer = pin!(sleep_until(relay.next_ping));
    let start = Instant::now();
    browser
        .write_all(&frame(Opcode::Binary, &vec![1; 900_000], Sender::Server))
        .await
        .unwrap();
    // The client talks all the while; it is its reading that has stopped.
    let (_unread, mut write) = tokio::io::split(client);
    let talking = spawn(async move {
        while write.write_all(&frame(Opcode::Pong, b"", Sender::Client)).await.is_ok() {
            sleep(Duration::from_secs(7)).await;
        }
    });
    let mut most = 0;
    let end = poll_fn(|cx| {
        let polled = relay.poll(cx, ending.as_mut(), timer.as_mut());
        most = most.max(relay.client.output.kept());
        polled
    })
    .await;
    assert_eq!(end, RelayEnd::ClientSilent);
    assert_eq!(start.elapsed().as_secs(), 60);
    assert!(most > 1000 && most <= BROWSER_READ, "kept {most}");
    drop(relay);
    talking.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn slow_but_reading_client_is_not_dead() {
    let mut rig = rig(1000);
    let big = frame(Opcode::Binary, &[1; 20_000], Sender::Server);
    let (mut read, mut write) = tokio::io::split(rig.browser);
    let browser = spawn(async move { write.write_all(&big).await.map(|()| write) });
    let mut got = 0;
    while got < 20_000 {
        sleep(Duration::from_secs(10)).await;
        let mut buf = [0; 900];
        got += rig.client.read(&mut buf).await.unwrap();
        assert!(!rig.relay.is_finished(), "{got} bytes in");
    }
    drop((browser.await.unwrap().unwrap(), rig.relay, rig.ending));
    let mut seen = Vec::new();
    read.read_buf(&mut seen).await.unwrap();
    assert!(!seen.is_empty(), "the browser was pinged meanwhile");
}

#[tokio::test(start_paused = true)]
async fn drained_relay_keeps_no_buffer() {
    let (mut client, client_io) = duplex(100);
    let (mut browser, browser_io) = duplex(1 << 20);
    let mut relay = Relay::new(
        Side::new(client_io),
        Side::new(browser_io),
        RelayConfig::default(),
        Arc::default(),
    );
    let big = frame(Opcode::Binary, &[1; 50_000], Sender::Server);
    browser.write_all(&big).await.unwrap();
    let mut ending = pin!(pending());
    let mut timer = pin!(sleep_until(relay.next_ping));
    let mut got = 0;
    poll_fn(|cx| {
        assert!(relay.poll(cx, ending.as_mut(), timer.as_mut()).is_pending());
        let mut buf = [0; 512];
        let mut buf = tokio::io::ReadBuf::new(&mut buf);
        if Pin::new(&mut client).poll_read(cx, &mut buf).is_ready() {
            got += buf.filled().len();
            cx.waker().wake_by_ref();
        }
        if got == big.len() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    poll_fn(|cx| Poll::Ready(relay.poll(cx, ending.as_mut(), timer.as_mut()).is_pending())).await;
    assert_eq!(relay.client.output.kept_capacity(), 0);
}

#[test]
fn relay_future_is_small() {
    let future = size_of_relay::<TcpStream, TcpStream>();
    assert!(future < 2048, "{future} bytes");
    println!("relay future with two TcpStreams: {future} bytes");
}

/// The size of the future without a stream to make it from.
fn size_of_relay<C: AsyncRead + AsyncWrite + Unpin, B: AsyncRead + AsyncWrite + Unpin>() -> usize {
    fn output_size<A1, A2, F>(_: impl FnOnce(A1, A2) -> F) -> usize {
        size_of::<F>()
    }
    output_size(|client: Side<C>, browser: Side<B>| {
        relay(
            client,
            browser,
            RelayConfig::default(),
            Arc::default(),
            pending::<CloseFrame>(),
        )
    })
}

// === ends ===

#[tokio::test(start_paused = true)]
async fn client_close_is_echoed_and_the_browser_told() {
    for (close, end) in [
        (
            Some(CloseFrame::new(1000, "done")),
            RelayEnd::ClientClosed {
                code: Some(1000),
                reason: "done".into(),
            },
        ),
        (
            Some(CloseFrame::new(4321, "")),
            RelayEnd::ClientClosed {
                code: Some(4321),
                reason: String::new(),
            },
        ),
        (
            None,
            RelayEnd::ClientClosed {
                code: None,
                reason: String::new(),
            },
        ),
    ] {
        let mut rig = rig(256);
        let start = Instant::now();
        let mut bytes = frame(Opcode::Text, b"last", Sender::Client);
        encode_close(close.as_ref(), Some(KEY), &mut bytes);
        rig.client.write_all(&bytes).await.unwrap();
        let payload = close
            .as_ref()
            .and_then(|c| close_payload(c.code, &c.reason))
            .map_or(vec![], |(_, p)| p);
        assert_eq!(at_client(&mut rig).await, Some((Opcode::Close, payload.clone())));
        assert_eq!(at_client(&mut rig).await, None, "nothing after the close frame");
        assert_eq!(at_browser(&mut rig).await, Some((Opcode::Text, b"last".to_vec())));
        assert_eq!(at_browser(&mut rig).await, Some((Opcode::Close, payload)));
        assert_eq!(at_browser(&mut rig).await, None);
        assert_eq!(rig.result().await, end);
        assert_eq!(start.elapsed(), Duration::ZERO, "nobody is waited for");
    }
}

#[tokio::test(start_paused = true)]
async fn browser_close_reaches_the_client_after_the_reason_grace() {
    for (sent, code, shown) in [
        (
            Some(CloseFrame::new(1000, "bye")),
            Some(1000),
            CloseFrame::new(1000, "bye"),
        ),
        (
            Some(CloseFrame::new(3001, "own")),
            Some(3001),
            CloseFrame::new(3001, "own"),
        ),
        (None, None, connection_lost()),
    ] {
        let mut rig = rig(256);
        let start = Instant::now();
        let mut bytes = Vec::new();
        encode_close(sent.as_ref(), None, &mut bytes);
        rig.browser.write_all(&bytes).await.unwrap();
        let (opcode, echo) = at_browser(&mut rig).await.unwrap();
        assert_eq!(
            (opcode, CloseFrame::parse(&echo).unwrap()),
            (Opcode::Close, sent.clone()),
            "echoed at once"
        );
        assert_eq!(at_client(&mut rig).await, close_payload(shown.code, &shown.reason));
        assert_eq!(start.elapsed().as_secs(), 2);
        client_sends(&mut rig, Opcode::Close, b"").await;
        assert_eq!(at_client(&mut rig).await, None);
        let reason = sent.map_or(String::new(), |close| close.reason);
        assert_eq!(rig.result().await, RelayEnd::BrowserClosed { code, reason });
        assert_eq!(start.elapsed().as_secs(), 2, "the client's answer ends it");
    }
}

#[tokio::test(start_paused = true)]
async fn browser_gone_waits_for_the_reason() {
    let mut rig = rig(256);
    browser_sends(&mut rig, Opcode::Text, b"last words").await;
    rig.browser.shutdown().await.unwrap();
    assert_eq!(at_client(&mut rig).await, Some((Opcode::Text, b"last words".to_vec())));
    sleep(Duration::from_secs(1)).await;
    client_sends(&mut rig, Opcode::Text, b"into the void").await;
    client_sends(&mut rig, Opcode::Ping, b"?").await;
    assert_eq!(at_client(&mut rig).await, Some((Opcode::Pong, b"?".to_vec())));
    rig.end(1011, "browser_crashed: signal 11");
    assert_eq!(
        at_client(&mut rig).await,
        close_payload(1011, "browser_crashed: signal 11")
    );
    client_sends(&mut rig, Opcode::Close, b"").await;
    assert_eq!(
        rig.result().await,
        RelayEnd::Ended(CloseFrame::new(1011, "browser_crashed: signal 11"))
    );
}

#[tokio::test(start_paused = true)]
async fn browser_gone_without_reason_says_connection_lost() {
    let mut rig = rig(256);
    let start = Instant::now();
    rig.browser.shutdown().await.unwrap();
    assert_eq!(
        at_client(&mut rig).await,
        close_payload(1011, &connection_lost().reason)
    );
    assert_eq!(start.elapsed().as_secs(), 2);
    assert_eq!(rig.result().await, RelayEnd::BrowserGone);
}

#[tokio::test(start_paused = true)]
async fn browser_gone_in_mid_frame_just_drops_the_client() {
    let mut rig = rig(256);
    let start = Instant::now();
    rig.browser
        .write_all(&frame(Opcode::Text, b"truncated", Sender::Server)[..5])
        .await
        .unwrap();
    rig.browser.shutdown().await.unwrap();
    let mut got = Vec::new();
    rig.client.read_to_end(&mut got).await.unwrap();
    assert_eq!(
        (got.len(), start.elapsed()),
        (5, Duration::ZERO),
        "a close frame would be taken for payload"
    );
    assert_eq!(rig.result().await, RelayEnd::BrowserGone);
}

#[tokio::test(start_paused = true)]
async fn client_leaving_while_the_reason_is_awaited_ends_it() {
    let mut rig = rig(256);
    rig.browser.shutdown().await.unwrap();
    sleep(Duration::from_secs(1)).await;
    let start = Instant::now();
    client_sends(&mut rig, Opcode::Close, b"\x03\xe8").await;
    assert_eq!(at_client(&mut rig).await, close_payload(1000, ""));
    assert_eq!(rig.result().await, RelayEnd::BrowserGone);
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn ending_closes_between_frames_and_waits_for_the_answer() {
    let mut rig = rig(256);
    let start = Instant::now();
    rig.end(4409, "idle_timeout");
    assert_eq!(at_client(&mut rig).await, close_payload(4409, "idle_timeout"));
    client_sends(&mut rig, Opcode::Text, b"too late").await;
    sleep(Duration::from_secs(1)).await;
    assert!(!rig.relay.is_finished());
    client_sends(&mut rig, Opcode::Close, b"\x11\x39").await;
    assert_eq!(at_client(&mut rig).await, None);
    assert_eq!(at_browser(&mut rig).await, close_payload(4409, "idle_timeout"));
    assert_eq!(at_browser(&mut rig).await, None);
    assert_eq!(
        rig.result().await,
        RelayEnd::Ended(CloseFrame::new(4409, "idle_timeout"))
    );
    assert_eq!(start.elapsed().as_secs(), 1);
}

#[tokio::test(start_paused = true)]
async fn ending_without_answer_takes_the_close_grace() {
    let mut rig = rig(256);
    let start = Instant::now();
    rig.end(1001, "worker_drained");
    assert_eq!(at_client(&mut rig).await, close_payload(1001, "worker_drained"));
    assert_eq!(at_client(&mut rig).await, None);
    assert_eq!(start.elapsed().as_secs(), 2);
    assert_eq!(
        rig.result().await,
        RelayEnd::Ended(CloseFrame::new(1001, "worker_drained"))
    );
}

#[tokio::test(start_paused = true)]
async fn ending_in_mid_frame_lets_the_frame_finish() {
    let mut rig = rig(4096);
    let big = frame(Opcode::Binary, &[3; 1000], Sender::Server);
    rig.browser.write_all(&big[..400]).await.unwrap();
    sleep(Duration::from_millis(100)).await;
    rig.end(1011, "browser_hung");
    sleep(Duration::from_secs(1)).await;
    // The rest of it, and a further frame that must not arrive.
    rig.browser.write_all(&[&big[400..], &big].concat()).await.unwrap();
    assert_eq!(at_client(&mut rig).await, Some((Opcode::Binary, vec![3; 1000])));
    assert_eq!(at_client(&mut rig).await, close_payload(1011, "browser_hung"));
    assert_eq!(at_client(&mut rig).await, None);
    assert_eq!(
        rig.result().await,
        RelayEnd::Ended(CloseFrame::new(1011, "browser_hung"))
    );
}

#[tokio::test(start_paused = true)]
async fn ending_in_a_frame_that_never_ends_drops_the_client_after_the_grace() {
    let mut rig = rig(4096);
    rig.browser
        .write_all(&frame(Opcode::Binary, &[3; 1000], Sender::Server)[..400])
        .await
        .unwrap();
    sleep(Duration::from_millis(100)).await;
    let start = Instant::now();
    rig.end(1011, "browser_hung");
    let mut got = Vec::new();
    rig.client.read_to_end(&mut got).await.unwrap();
    assert_eq!((got.len(), start.elapsed().as_secs()), (400, 2));
    assert_eq!(
        rig.result().await,
        RelayEnd::Ended(CloseFrame::new(1011, "browser_hung"))
    );
}

#[tokio::test(start_paused = true)]
async fn ending_with_a_client_that_does_not_read_takes_only_the_grace() {
    let mut rig = rig(64);
    let (_read, mut write) = tokio::io::split(rig.browser);
    let flood = spawn(async move {
        while write
            .write_all(&frame(Opcode::Binary, &[3; 1000], Sender::Server))
            .await
            .is_ok()
        {}
    });
    sleep(Duration::from_secs(1)).await;
    let start = Instant::now();
    rig.ending
        .take()
        .unwrap()
        .send(CloseFrame::new(1001, "released"))
        .unwrap();
    assert_eq!(
        rig.relay.await.unwrap(),
        RelayEnd::Ended(CloseFrame::new(1001, "released"))
    );
    assert_eq!(start.elapsed().as_secs(), 2);
    flood.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn client_protocol_error_is_told_to_it_with_1002() {
    let mut rig = rig(256);
    client_sends(&mut rig, Opcode::Text, b"fine").await;
    // Unmasked, and followed by more than the pipe holds: all of it must be taken, or the close frame is lost.
    rig.client
        .write_all(&frame(Opcode::Text, b"bad", Sender::Server))
        .await
        .unwrap();
    rig.client.write_all(&[0; 1000]).await.unwrap();
    assert_eq!(
        at_client(&mut rig).await,
        close_payload(1002, "unmasked frame from a client")
    );
    assert_eq!(at_client(&mut rig).await, None);
    assert_eq!(at_browser(&mut rig).await, Some((Opcode::Text, b"fine".to_vec())));
    drop(rig.client);
    let end = rig.relay.await.unwrap();
    assert_eq!(
        end,
        RelayEnd::ProtocolError {
            side: Which::Client,
            error: ProtocolError::Unmasked
        }
    );
    assert_eq!(
        read_raw(&mut rig.browser, Sender::Client).await.unwrap().0,
        Opcode::Close
    );
}

#[tokio::test(start_paused = true)]
async fn browser_protocol_error_closes_the_client_with_1011() {
    let mut rig = rig(256);
    rig.browser.write_all(&[0xff]).await.unwrap();
    assert_eq!(
        at_browser(&mut rig).await,
        close_payload(1002, "reserved bits set without an extension")
    );
    let (opcode, payload) = at_client(&mut rig).await.unwrap();
    assert_eq!((opcode, &payload[..2]), (Opcode::Close, &1011u16.to_be_bytes()[..]));
    let error = ProtocolError::ReservedBits;
    assert_eq!(
        rig.result().await,
        RelayEnd::ProtocolError {
            side: Which::Browser,
            error
        }
    );
}

#[tokio::test(start_paused = true)]
async fn client_vanishing_at_any_point_is_noticed_at_once() {
    let mut stream = frame(Opcode::Text, b"hello", Sender::Client);
    encode_ping(b"hi", Some(KEY), &mut stream);
    stream.extend(frame(Opcode::Binary, &[1; 200], Sender::Client));
    for len in 0..=stream.len() {
        let mut rig = rig(4096);
        let start = Instant::now();
        rig.client.write_all(&stream[..len]).await.unwrap();
        drop(rig.client);
        let mut got = Vec::new();
        rig.browser.read_to_end(&mut got).await.unwrap();
        assert_eq!(rig.relay.await.unwrap(), RelayEnd::ClientGone, "after {len} bytes");
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn client_vanishing_while_data_flows_to_it_is_noticed_at_once() {
    let rig = rig(64);
    let (mut read, mut write) = tokio::io::split(rig.browser);
    let flood = spawn(async move {
        while write
            .write_all(&frame(Opcode::Binary, &[3; 1000], Sender::Server))
            .await
            .is_ok()
        {}
    });
    sleep(Duration::from_secs(1)).await;
    let start = Instant::now();
    drop(rig.client);
    assert_eq!(rig.relay.await.unwrap(), RelayEnd::ClientGone);
    assert_eq!(start.elapsed(), Duration::ZERO);
    flood.await.unwrap();
    let mut got = Vec::new();
    read.read_to_end(&mut got).await.unwrap();
    drop(rig.ending);
}

/// A stream that refuses every write, and has nothing to read before it has refused one: what a reset looks like from
/// the writing side.
struct Deaf {
    io: DuplexStream,
    refused: bool,
}

impl AsyncRead for Deaf {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        if self.refused {
            Pin::new(&mut self.io).poll_read(cx, buf)
        } else {
            Poll::Pending
        }
    }
}

impl AsyncWrite for Deaf {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<std::io::Result<usize>> {
        self.refused = true;
        Poll::Ready(Err(std::io::ErrorKind::ConnectionReset.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test(start_paused = true)]
async fn failed_write_to_the_client_ends_it_but_its_last_words_are_heard() {
    let mut close = Vec::new();
    encode_close(Some(&CloseFrame::new(1000, "")), Some(KEY), &mut close);
    let closed = RelayEnd::ClientClosed {
        code: Some(1000),
        reason: String::new(),
    };
    for (words, expected) in [(close, closed), (Vec::new(), RelayEnd::ClientGone)] {
        let ((mut client, io), (mut browser, browser_io)) = (duplex(4096), duplex(4096));
        let start = Instant::now();
        client.write_all(&words).await.unwrap();
        browser
            .write_all(&frame(Opcode::Text, b"x", Sender::Server))
            .await
            .unwrap();
        let sides = (Side::new(Deaf { io, refused: false }), Side::new(browser_io));
        let end = relay(sides.0, sides.1, RelayConfig::default(), Arc::default(), pending()).await;
        assert_eq!((end, start.elapsed()), (expected, Duration::ZERO));
    }
}

#[tokio::test(start_paused = true)]
async fn failed_write_to_the_browser_is_its_end() {
    let ((mut client, client_io), (_browser, io)) = (duplex(4096), duplex(4096));
    let start = Instant::now();
    client
        .write_all(&frame(Opcode::Text, b"x", Sender::Client))
        .await
        .unwrap();
    let sides = (Side::new(client_io), Side::new(Deaf { io, refused: false }));
    let end = relay(sides.0, sides.1, RelayConfig::default(), Arc::default(), pending()).await;
    assert_eq!(
        (end, start.elapsed().as_secs()),
        (RelayEnd::BrowserGone, 4),
        "reason grace, then close grace"
    );
}

#[tokio::test(start_paused = true)]
async fn client_that_could_not_be_pinged_is_not_silent() {
    let mut rig = rig(4096);
    let big = frame(Opcode::Binary, &[1; 1000], Sender::Server);
    sleep(Duration::from_secs(19)).await;
    rig.browser.write_all(&big[..500]).await.unwrap();
    sleep(Duration::from_secs(51)).await;
    rig.browser.write_all(&big[500..]).await.unwrap();
    sleep(Duration::from_secs(5)).await;
    assert!(!rig.relay.is_finished(), "it was asked 5 s ago, for the first time");
    assert_eq!(at_client(&mut rig).await.unwrap().0, Opcode::Binary);
    assert_eq!(at_client(&mut rig).await, Some((Opcode::Ping, vec![])));
}

#[tokio::test(start_paused = true)]
async fn dropping_the_relay_closes_both_streams() {
    let mut rig = rig(64);
    tokio::task::yield_now().await;
    rig.relay.abort();
    assert_eq!((at_client(&mut rig).await, at_browser(&mut rig).await), (None, None));
}
