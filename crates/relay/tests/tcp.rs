//! The relay over real sockets with tungstenite on both ends: the peers are a WebSocket library's idea of the protocol,
//! not ours.

#![expect(
    clippy::unwrap_used,
    reason = "clippy knows a test function but not the helpers beside it"
)]

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame as TheirClose, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Bytes, Error, Message};
use tokio_tungstenite::{WebSocketStream, accept_async_with_config, client_async_with_config};
use wharf_relay::{Activity, CloseFrame, RelayConfig, RelayEnd, Side, handshake, relay};

type Socket = WebSocketStream<TcpStream>;
const PATIENCE: Duration = Duration::from_secs(60);

struct Rig {
    client: Socket,
    browser: Socket,
    ending: oneshot::Sender<CloseFrame>,
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

async fn socket_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (near, far) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    let (near, far) = (near.unwrap(), far.unwrap().0);
    near.set_nodelay(true).unwrap();
    far.set_nodelay(true).unwrap();
    (near, far)
}

fn unlimited() -> Option<WebSocketConfig> {
    Some(WebSocketConfig::default().max_message_size(None).max_frame_size(None))
}

/// Accepts a client's upgrade with our own judge, on a socket.
async fn serve(mut io: TcpStream) -> Side<TcpStream> {
    let mut seen = Vec::new();
    while !seen.ends_with(b"\r\n\r\n") {
        assert!(io.read_buf(&mut seen).await.unwrap() > 0);
    }
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut parsed = httparse::Request::new(&mut headers);
    assert!(parsed.parse(&seen).unwrap().is_complete());
    let mut request = http::Request::builder()
        .method(parsed.method.unwrap())
        .uri(parsed.path.unwrap());
    for header in parsed.headers.iter() {
        request = request.header(header.name, header.value);
    }
    let response = handshake::accept(&request.body(()).unwrap().into_parts().0).unwrap();
    let mut text = format!("HTTP/1.1 {}\r\n", response.status());
    for (name, value) in response.headers() {
        text += &format!("{name}: {}\r\n", value.to_str().unwrap());
    }
    io.write_all((text + "\r\n").as_bytes()).await.unwrap();
    Side::new(io)
}

async fn rig() -> Rig {
    let (client_far, client_near) = socket_pair().await;
    let (browser_near, browser_far) = socket_pair().await;
    let soon = Instant::now() + PATIENCE;
    let (client, client_side, browser, browser_side) = tokio::join!(
        client_async_with_config("ws://127.0.0.1/", client_far, unlimited()),
        serve(client_near),
        accept_async_with_config(browser_far, unlimited()),
        handshake::connect(browser_near, "127.0.0.1:9222", "/devtools/browser/x", soon),
    );
    let (sender, receiver) = oneshot::channel();
    let ending = async {
        match receiver.await {
            Ok(close) => close,
            Err(_) => pending().await,
        }
    };
    let activity = Arc::new(Activity::new());
    let relay = spawn(relay(
        client_side,
        browser_side.unwrap(),
        RelayConfig::default(),
        activity.clone(),
        ending,
    ));
    Rig {
        client: client.unwrap().0,
        browser: browser.unwrap(),
        ending: sender,
        relay,
        activity,
    }
}

/// A browser that sends back what it gets, until it is closed.
async fn echo(mut browser: Socket) -> Option<Message> {
    while let Some(Ok(message)) = browser.next().await {
        if message.is_close() {
            return Some(message);
        }
        assert!(
            !message.is_ping() && !message.is_pong(),
            "control frames stay at the edge"
        );
        if browser.send(message).await.is_err() {
            break;
        }
    }
    None
}

async fn next(socket: &mut Socket) -> Option<Result<Message, Error>> {
    timeout(PATIENCE, socket.next()).await.expect("something comes")
}

fn close_message(code: u16, reason: &'static str) -> Message {
    Message::Close(Some(TheirClose {
        code: CloseCode::from(code),
        reason: reason.into(),
    }))
}

#[tokio::test]
async fn messages_of_all_sizes_come_back_unchanged() {
    let Rig {
        mut client,
        browser,
        relay,
        activity,
        ..
    } = rig().await;
    let browser = spawn(echo(browser));
    let mut messages = vec![Message::text("héllo"), Message::binary(vec![]), Message::text("")];
    messages.extend([125, 126, 65_535, 65_536, 200_000, 5 << 20].map(|len| Message::binary(vec![len as u8; len])));
    for message in messages {
        client.send(message.clone()).await.unwrap();
        assert!(next(&mut client).await.unwrap().unwrap() == message);
    }
    client.send(Message::Ping(Bytes::from_static(b"edge"))).await.unwrap();
    assert_eq!(
        next(&mut client).await.unwrap().unwrap(),
        Message::Pong(Bytes::from_static(b"edge"))
    );
    assert!(activity.to_browser() > 5 << 20 && activity.to_client() > 5 << 20);

    client
        .close(Some(TheirClose {
            code: CloseCode::Normal,
            reason: "done".into(),
        }))
        .await
        .unwrap();
    assert_eq!(next(&mut client).await.unwrap().unwrap(), close_message(1000, "done"));
    assert_eq!(
        relay.await.unwrap(),
        RelayEnd::ClientClosed {
            code: Some(1000),
            reason: "done".into()
        }
    );
    assert_eq!(browser.await.unwrap(), Some(close_message(1000, "done")));
}

#[tokio::test]
async fn sixty_four_mebibytes_in_one_frame_pass_both_ways() {
    let Rig {
        mut client,
        mut browser,
        relay,
        ending,
        ..
    } = rig().await;
    let message = Message::binary(vec![0x5a; 64 << 20]);
    for up in [true, false] {
        let (from, to) = if up {
            (&mut client, &mut browser)
        } else {
            (&mut browser, &mut client)
        };
        let (sent, got) = tokio::join!(from.send(message.clone()), next(to));
        sent.unwrap();
        assert!(got.unwrap().unwrap() == message);
    }
    drop((client, browser));
    relay.await.unwrap();
    drop(ending);
}

#[tokio::test]
async fn many_small_messages_keep_their_order() {
    let Rig {
        client, browser, relay, ..
    } = rig().await;
    let browser = spawn(echo(browser));
    let (mut sink, mut stream) = futures_util::StreamExt::split(client);
    let send = async {
        for i in 0..20_000 {
            sink.feed(Message::text(i.to_string())).await.unwrap();
        }
        sink.flush().await.unwrap();
    };
    let receive = async {
        for i in 0..20_000 {
            let message = timeout(PATIENCE, stream.next()).await.unwrap().unwrap().unwrap();
            assert_eq!(message, Message::text(i.to_string()));
        }
    };
    tokio::join!(send, receive);
    drop((sink, stream));
    assert_eq!(relay.await.unwrap(), RelayEnd::ClientGone);
    browser.await.unwrap();
}

#[tokio::test]
async fn a_reader_that_stops_holds_the_writer_back() {
    let Rig {
        client,
        mut browser,
        relay,
        ending,
        activity,
    } = rig().await;
    // The client reads nothing: sockets fill, then the browser has to wait.
    let flood = async {
        loop {
            browser.send(Message::binary(vec![0; 1 << 20])).await.unwrap();
        }
    };
    let stuck_at = async {
        let mut before = 0;
        loop {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let now = activity.to_client();
            if now == before && now > 0 {
                return now;
            }
            before = now;
        }
    };
    let taken = tokio::select! {
        () = flood => unreachable!("it writes for ever"),
        taken = stuck_at => taken,
    };
    assert!(taken < 64 << 20, "{taken} bytes are more than two sockets hold");
    assert!(!relay.is_finished());
    drop((client, ending));
    assert_eq!(timeout(PATIENCE, relay).await.unwrap().unwrap(), RelayEnd::ClientGone);
}

#[tokio::test]
async fn ending_reaches_the_client_as_its_close_frame() {
    let Rig {
        mut client,
        mut browser,
        relay,
        ending,
        ..
    } = rig().await;
    ending.send(CloseFrame::new(1011, "browser_crashed")).unwrap();
    assert_eq!(
        next(&mut client).await.unwrap().unwrap(),
        close_message(1011, "browser_crashed")
    );
    assert!(next(&mut client).await.is_none(), "a clean end of the stream");
    assert_eq!(
        relay.await.unwrap(),
        RelayEnd::Ended(CloseFrame::new(1011, "browser_crashed"))
    );
    assert_eq!(
        next(&mut browser).await.unwrap().unwrap(),
        close_message(1011, "browser_crashed")
    );
}

#[tokio::test]
async fn browser_reset_and_then_its_reason_reach_the_client() {
    let Rig {
        mut client,
        browser,
        relay,
        ending,
        ..
    } = rig().await;
    let raw = browser.into_inner();
    raw.set_zero_linger().unwrap();
    drop(raw);
    ending.send(CloseFrame::new(4413, "out_of_memory")).unwrap();
    assert_eq!(
        next(&mut client).await.unwrap().unwrap(),
        close_message(4413, "out_of_memory")
    );
    assert!(next(&mut client).await.is_none());
    assert_eq!(
        relay.await.unwrap(),
        RelayEnd::Ended(CloseFrame::new(4413, "out_of_memory"))
    );
}

#[tokio::test]
async fn browser_close_code_reaches_the_client() {
    let Rig {
        mut client,
        mut browser,
        relay,
        ending,
        ..
    } = rig().await;
    browser
        .close(Some(TheirClose {
            code: CloseCode::Away,
            reason: "browser closed".into(),
        }))
        .await
        .unwrap();
    assert_eq!(
        next(&mut browser).await.unwrap().unwrap(),
        close_message(1001, "browser closed")
    );
    assert_eq!(
        next(&mut client).await.unwrap().unwrap(),
        close_message(1001, "browser closed")
    );
    let end = RelayEnd::BrowserClosed {
        code: Some(1001),
        reason: "browser closed".into(),
    };
    drop(client);
    assert_eq!(relay.await.unwrap(), end);
    drop(ending);
}

#[tokio::test]
async fn client_reset_is_noticed_at_once() {
    let Rig {
        client, browser, relay, ..
    } = rig().await;
    let raw = client.into_inner();
    raw.set_zero_linger().unwrap();
    drop(raw);
    assert_eq!(timeout(PATIENCE, relay).await.unwrap().unwrap(), RelayEnd::ClientGone);
    drop(browser);
}
