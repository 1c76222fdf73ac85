//! Upgrade requests good and bad, and servers that answer ours in every wrong way.

use std::time::Duration;

use tokio::io::duplex;

use super::*;

fn request(change: impl FnOnce(http::request::Builder) -> http::request::Builder) -> request::Parts {
    let builder = http::Request::builder()
        .uri("/devtools/browser/1")
        .header("connection", "keep-alive, Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-extensions", "permessage-deflate")
        .header("sec-websocket-protocol", "chat");
    change(builder).body(()).unwrap().into_parts().0
}

fn with_key(builder: http::request::Builder) -> http::request::Builder {
    builder
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
}

#[test]
fn accept_rfc_example_answers_with_its_hash_and_nothing_negotiated() {
    let response = accept(&request(with_key)).unwrap();
    assert_eq!(response.status(), 101);
    assert_eq!(
        response.headers()["sec-websocket-accept"],
        "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    );
    assert_eq!(
        response.headers().len(),
        3,
        "upgrade, connection, accept: no extension, no subprotocol"
    );
}

#[test]
fn accept_refuses_each_fault_with_its_status() {
    use UpgradeRefused::*;
    let v13 = |b: http::request::Builder| b.header("sec-websocket-version", "13");
    let cases = [
        (request(|b| with_key(b).method("POST")), Method, 405),
        (request(|b| with_key(b).version(Version::HTTP_10)), HttpVersion, 400),
        (
            request(|b| b.header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")),
            WebSocketVersion,
            426,
        ),
        (
            request(|b| b.header("sec-websocket-version", "8")),
            WebSocketVersion,
            426,
        ),
        (request(v13), Key, 400),
        (request(|b| v13(b).header("sec-websocket-key", "c2hvcnQ=")), Key, 400),
        (
            request(|b| with_key(b).header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")),
            Key,
            400,
        ),
        (http::Request::new(()).into_parts().0, NotAnUpgrade, 426),
    ];
    for (parts, refusal, status) in cases {
        assert_eq!(accept(&parts).unwrap_err(), refusal);
        assert_eq!(refusal.response().status(), status);
    }
    assert_eq!(WebSocketVersion.response().headers()["sec-websocket-version"], "13");
}

/// Dials a server that reads the request and answers with what `answer` makes of its key.
async fn dial_to(answer: impl FnOnce(&str) -> String) -> (Result<Side<tokio::io::DuplexStream>, DialError>, String) {
    let (ours, mut theirs) = duplex(256);
    let server = async {
        let mut seen = Vec::new();
        while !seen.ends_with(b"\r\n\r\n") {
            assert!(theirs.read_buf(&mut seen).await.unwrap() > 0);
        }
        let seen = String::from_utf8(seen).unwrap();
        let key = seen
            .split("Sec-WebSocket-Key: ")
            .nth(1)
            .unwrap()
            .lines()
            .next()
            .unwrap();
        // The dialler may hang up in the middle of a bad answer.
        let _ = theirs.write_all(answer(key).as_bytes()).await;
        drop(theirs);
        seen
    };
    let deadline = Instant::now() + Duration::from_secs(5);
    tokio::join!(connect(ours, "127.0.0.1:9222", "/devtools/browser/1", deadline), server)
}

fn good(key: &str) -> String {
    let hash = accept_hash(key.as_bytes());
    format!(
        "HTTP/1.1 101 Switching\r\nupgrade: WebSocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {hash}\r\n\r\n"
    )
}

#[tokio::test(start_paused = true)]
async fn connect_good_answer_keeps_what_came_behind_the_header() {
    let (side, request) = dial_to(|key| good(key) + "\u{1}frames").await;
    let mut side = side.unwrap();
    let mut all = side.leftover.to_vec();
    side.io.read_to_end(&mut all).await.unwrap();
    assert_eq!(all, b"\x01frames");
    assert!(request.starts_with("GET /devtools/browser/1 HTTP/1.1\r\nHost: 127.0.0.1:9222\r\n"));
    assert!(!request.contains("Origin") && !request.contains("Extensions"));
}

#[tokio::test(start_paused = true)]
async fn connect_bad_answers_are_told_apart() {
    let error = |result: Result<_, DialError>| result.unwrap_err();
    assert!(matches!(
        error(dial_to(|_| "HTTP/1.1 404 No\r\n\r\n".into()).await.0),
        DialError::Refused(404)
    ));
    assert!(matches!(
        error(dial_to(|_| "SSH-2.0-x\r\n\r\n".into()).await.0),
        DialError::NotHttp
    ));
    assert!(matches!(
        error(dial_to(|_| "HTTP/1.1 101".into()).await.0),
        DialError::Closed
    ));
    assert!(matches!(
        error(dial_to(|_| good("other")).await.0),
        DialError::Header("sec-websocket-accept")
    ));
    let long = "HTTP/1.1 101 x\r\na: ".to_owned() + &"b".repeat(MAX_RESPONSE);
    assert!(matches!(error(dial_to(|_| long).await.0), DialError::TooLarge));
    for (extra, name) in [
        (
            "Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n",
            "sec-websocket-extensions",
        ),
        ("Sec-WebSocket-Protocol: chat\r\n\r\n", "sec-websocket-protocol"),
    ] {
        let result = dial_to(|key| good(key).trim_end().to_owned() + "\r\n" + extra).await.0;
        assert!(matches!(error(result), DialError::Header(found) if found == name));
    }
}

#[tokio::test(start_paused = true)]
async fn connect_silent_server_times_out_and_bad_target_is_never_sent() {
    let (ours, _theirs) = duplex(4096);
    let deadline = Instant::now() + Duration::from_secs(3);
    assert!(matches!(
        connect(ours, "127.0.0.1:1", "/", deadline).await,
        Err(DialError::Timeout)
    ));
    assert_eq!(Instant::now(), deadline);
    for (host, path) in [("h\r\nx: y", "/"), ("h", "/a b"), ("h", "a"), ("", "/")] {
        let (ours, _theirs) = duplex(4096);
        let deadline = Instant::now() + Duration::from_secs(3);
        assert!(matches!(
            connect(ours, host, path, deadline).await,
            Err(DialError::Target)
        ));
    }
}
