//! Both halves of the WebSocket upgrade (RFC 6455 §4): accepting a client's, and asking a browser for one.
//!
//! Here and not in a WebSocket library because the relay needs the naked stream afterwards, with every byte that came
//! behind the header, and must not negotiate anything: an extension (permessage-deflate) that only one end speaks
//! would make the frames of the other unreadable.
//!
//! Invariant: a `Side` leaves this module positioned exactly behind the 101 response, with no extension and no
//! subprotocol agreed.

use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http::header::{
    ALLOW, CONNECTION, HeaderMap, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_EXTENSIONS,
    SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{Method, Response, StatusCode, Version, request};
use sha1::{Digest, Sha1};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout_at};

use crate::Side;

/// A browser's 101 takes some 150 bytes; this leaves room for a proxy's additions and bounds what a stranger can send.
const MAX_RESPONSE: usize = 8 * 1024;
const MAX_HEADERS: usize = 64;
/// RFC 6455 §1.3.
const ACCEPT_GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Why a request does not become a WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpgradeRefused {
    /// Only GET upgrades.
    #[error("a WebSocket begins with GET")]
    Method,
    /// HTTP/1.0 and HTTP/2 have no `Upgrade`.
    #[error("a WebSocket upgrade needs HTTP/1.1")]
    HttpVersion,
    /// It is an ordinary request to an address that speaks WebSocket only.
    #[error("this address speaks WebSocket: send `Connection: Upgrade` and `Upgrade: websocket`")]
    NotAnUpgrade,
    /// Only version 13 was ever standardised.
    #[error("only WebSocket version 13 is spoken here")]
    WebSocketVersion,
    /// The key is not 16 bytes in base64.
    #[error("`Sec-WebSocket-Key` must be 16 bytes in base64")]
    Key,
}

/// Why a browser's WebSocket could not be opened; completes "could not open the browser's WebSocket: …".
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// Host or path would break the request line.
    #[error("host or path holds a character that no request line may have")]
    Target,
    /// The stream failed.
    #[error("connection failed")]
    Io(#[from] io::Error),
    /// The stream ended before a response did.
    #[error("connection closed before the response was complete")]
    Closed,
    /// No whole response in time.
    #[error("no response in time")]
    Timeout,
    /// The response's header does not end.
    #[error("response header longer than {MAX_RESPONSE} bytes")]
    TooLarge,
    /// It does not answer in HTTP.
    #[error("response is not HTTP")]
    NotHttp,
    /// It answers in HTTP, but declines.
    #[error("upgrade refused with status {0}")]
    Refused(u16),
    /// It says 101 without meaning it: a header is missing, wrong, or agrees to what was not asked for.
    #[error("response header `{0}` is missing or wrong")]
    Header(&'static str),
}

// === accept ===

/// Judges a client's upgrade request; the answer is the complete 101 response.
pub fn accept(request: &request::Parts) -> Result<Response<()>, UpgradeRefused> {
    if request.method != Method::GET {
        return Err(UpgradeRefused::Method);
    }
    if !has_token(&request.headers, &CONNECTION, "upgrade") || !has_token(&request.headers, &UPGRADE, "websocket") {
        return Err(UpgradeRefused::NotAnUpgrade);
    }
    if request.version != Version::HTTP_11 {
        return Err(UpgradeRefused::HttpVersion);
    }
    if only_value(&request.headers, &SEC_WEBSOCKET_VERSION) != Some(b"13") {
        return Err(UpgradeRefused::WebSocketVersion);
    }
    let key = only_value(&request.headers, &SEC_WEBSOCKET_KEY).ok_or(UpgradeRefused::Key)?;
    if BASE64.decode(key).map_or(0, |bytes| bytes.len()) != 16 {
        return Err(UpgradeRefused::Key);
    }
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    // Base64 is always a legal header value.
    let hash = HeaderValue::from_str(&accept_hash(key)).map_err(|_| UpgradeRefused::Key)?;
    headers.insert(SEC_WEBSOCKET_ACCEPT, hash);
    Ok(response)
}

// === impl UpgradeRefused ===

impl UpgradeRefused {
    /// The refusal as a response; its body is the error's own sentence.
    pub fn response(self) -> Response<String> {
        let (status, headers): (_, &[(HeaderName, &'static str)]) = match self {
            UpgradeRefused::Method => (StatusCode::METHOD_NOT_ALLOWED, &[(ALLOW, "GET")]),
            UpgradeRefused::NotAnUpgrade => (
                StatusCode::UPGRADE_REQUIRED,
                &[(UPGRADE, "websocket"), (CONNECTION, "Upgrade")],
            ),
            UpgradeRefused::WebSocketVersion => (
                StatusCode::UPGRADE_REQUIRED,
                &[
                    (SEC_WEBSOCKET_VERSION, "13"),
                    (UPGRADE, "websocket"),
                    (CONNECTION, "Upgrade"),
                ],
            ),
            UpgradeRefused::HttpVersion | UpgradeRefused::Key => (StatusCode::BAD_REQUEST, &[]),
        };
        let mut response = Response::new(self.to_string());
        *response.status_mut() = status;
        for (name, value) in headers {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

// === connect ===

/// Asks for a WebSocket over an open stream. `host` is `ip:port`: Chromium refuses names other than localhost, and any
/// `Origin`, so none is sent.
///
/// Cancel safety: not resumable; dropping the future drops the stream.
pub async fn connect<S>(stream: S, host: &str, path: &str, deadline: Instant) -> Result<Side<S>, DialError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    timeout_at(deadline, dial(stream, host, path, None))
        .await
        .unwrap_or(Err(DialError::Timeout))
}

/// The same, showing a bearer token: for a gateway in front of the browser.
pub async fn connect_as<S>(
    stream: S,
    host: &str,
    path: &str,
    token: &str,
    deadline: Instant,
) -> Result<Side<S>, DialError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    timeout_at(deadline, dial(stream, host, path, Some(token)))
        .await
        .unwrap_or(Err(DialError::Timeout))
}

async fn dial<S>(mut stream: S, host: &str, path: &str, token: Option<&str>) -> Result<Side<S>, DialError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let legal = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    if !legal(host) || !legal(path) || !path.starts_with('/') || !token.is_none_or(legal) {
        return Err(DialError::Target);
    }
    let shown = token.map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
    let key = BASE64.encode(rand::random::<[u8; 16]>());
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n{shown}\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;

    let mut buf = Vec::with_capacity(1024);
    loop {
        if let Some(len) = check_response(&buf, &key)? {
            // A copy of just the rest, so that the session does not keep the header's buffer.
            return Ok(Side {
                io: stream,
                leftover: Bytes::copy_from_slice(&buf[len..]),
            });
        }
        if buf.len() >= MAX_RESPONSE {
            return Err(DialError::TooLarge);
        }
        let room = (MAX_RESPONSE - buf.len()) as u64;
        if (&mut stream).take(room).read_buf(&mut buf).await? == 0 {
            return Err(DialError::Closed);
        }
    }
}

/// The length of a complete and satisfactory response header; `None` while it is incomplete.
fn check_response(buf: &[u8], key: &str) -> Result<Option<usize>, DialError> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let len = match response.parse(buf) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(DialError::TooLarge),
        Err(_) => return Err(DialError::NotHttp),
    };
    match response.code {
        Some(101) => {}
        Some(status) => return Err(DialError::Refused(status)),
        None => return Err(DialError::NotHttp),
    }
    let mut map = HeaderMap::new();
    for header in response.headers.iter() {
        let name = HeaderName::from_bytes(header.name.as_bytes()).map_err(|_| DialError::NotHttp)?;
        map.append(
            name,
            HeaderValue::from_bytes(header.value).map_err(|_| DialError::NotHttp)?,
        );
    }
    let agreed = accept_hash(key.as_bytes());
    let checks = [
        ("upgrade", has_token(&map, &UPGRADE, "websocket")),
        ("connection", has_token(&map, &CONNECTION, "upgrade")),
        (
            "sec-websocket-accept",
            only_value(&map, &SEC_WEBSOCKET_ACCEPT) == Some(agreed.as_bytes()),
        ),
        ("sec-websocket-extensions", !map.contains_key(SEC_WEBSOCKET_EXTENSIONS)),
        ("sec-websocket-protocol", !map.contains_key(SEC_WEBSOCKET_PROTOCOL)),
    ];
    match checks.into_iter().find(|(_, fine)| !fine) {
        Some((name, _)) => Err(DialError::Header(name)),
        None => Ok(Some(len)),
    }
}

// === headers ===

fn accept_hash(key: &[u8]) -> String {
    BASE64.encode(Sha1::new().chain_update(key).chain_update(ACCEPT_GUID).finalize())
}

/// Whether a comma-separated list, possibly spread over several lines, names `token`; case does not matter.
fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .flat_map(|value| value.as_bytes().split(|&byte| byte == b','))
        .any(|item| item.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
}

/// The value of a header that must appear exactly once.
fn only_value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?;
    values.next().is_none().then(|| first.as_bytes().trim_ascii())
}

#[cfg(test)]
mod tests;
