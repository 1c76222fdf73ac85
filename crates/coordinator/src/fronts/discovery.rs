//! `/json/…`: what puppeteer's `browserURL`, Playwright's `connectOverCDP` and browser-use ask before they connect.
//!
//! Its own file because the shapes are Chromium's, to the letter, and because nothing here may launch anything except
//! `PUT /json/new`, which is a wish for a page. `webSocketDebuggerUrl` says `/devtools/browser/new`: the session is made
//! when the client connects to it.

use axum::{
    Json,
    extract::{RawQuery, State},
    response::{IntoResponse, Response},
};
use http::{HeaderValue, header};
use serde::Serialize;
use utoipa::ToSchema;
use wharf_core::ErrorCode;
use wharf_wire::rest::ErrorBody;

use super::{BaseUrl, Front, access::Caller, cdp::NEW};
use crate::{LinkError, PageInfo, Refusal, service::Ask};

/// Sessions whose pages are listed, at most: the list is for people who debug, not for fleets.
const LISTED: usize = 100;

/// Chromium's answer at `/json/version`.
#[derive(Debug, Serialize, ToSchema)]
pub struct Version {
    /// Product and version.
    #[serde(rename = "Browser")]
    browser: String,
    /// The protocol's version.
    #[serde(rename = "Protocol-Version")]
    protocol_version: String,
    /// The user agent.
    #[serde(rename = "User-Agent")]
    user_agent: String,
    /// The script engine's version.
    #[serde(rename = "V8-Version")]
    v8_version: String,
    /// The rendering engine's version.
    #[serde(rename = "WebKit-Version")]
    webkit_version: String,
    /// Where to connect for a new session.
    #[serde(rename = "webSocketDebuggerUrl")]
    url: String,
}

/// A page as Chromium lists it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    description: String,
    devtools_frontend_url: String,
    id: String,
    title: String,
    r#type: &'static str,
    url: String,
    web_socket_debugger_url: String,
}

/// What is driven, and where to connect for a new session.
#[utoipa::path(
    get, path = "/json/version", tag = "cdp",
    responses((status = 200, description = "As Chromium answers it", body = Version))
)]
pub async fn version(State(front): State<Front>, base: BaseUrl) -> Json<Version> {
    let driven = front.service.inner().link.driven().await;
    Json(Version {
        browser: driven.product,
        protocol_version: driven.protocol_version,
        user_agent: driven.user_agent,
        v8_version: driven.js_version,
        webkit_version: format!("537.36 ({})", driven.revision),
        url: base.ws(&format!("/devtools/browser/{NEW}")),
    })
}

/// The pages of live sessions.
#[utoipa::path(
    get, path = "/json/list", tag = "cdp",
    responses((status = 200, description = "As Chromium answers it", body = Vec<Target>))
)]
pub async fn list(State(front): State<Front>, base: BaseUrl, caller: Caller) -> Json<Vec<Target>> {
    let mut targets = Vec::new();
    for (session, seat) in front.service.live_seats_of(caller).into_iter().take(LISTED) {
        // A session that ends meanwhile has no pages.
        let pages = front
            .service
            .inner()
            .link
            .pages(session, seat)
            .await
            .unwrap_or_default();
        targets.extend(pages.into_iter().map(|page| target(&base, &session.to_string(), page)));
    }
    Json(targets)
}

/// The protocol's description, from a browser that is up.
#[utoipa::path(
    get, path = "/json/protocol", tag = "cdp",
    responses(
        (status = 200, description = "As the browser answers it", content_type = "application/json"),
        (status = 502, description = "No browser is up", body = ErrorBody)
    )
)]
pub async fn protocol(State(front): State<Front>) -> Result<Response, Refusal> {
    let text = front
        .service
        .inner()
        .link
        .protocol()
        .await
        .map_err(|error| unreachable(&error))?;
    let kind = HeaderValue::from_static("application/json; charset=UTF-8");
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

/// A new session with this page; it lives until its idle timeout.
#[utoipa::path(
    put, path = "/json/new", tag = "cdp",
    responses(
        (status = 200, description = "As Chromium answers it", body = Target),
        (status = 400, description = "This grid runs programs, which have no pages", body = ErrorBody),
        (status = 502, description = "No browser could be launched", body = ErrorBody),
        (status = 503, description = "The queue is full or the wait was too long", body = ErrorBody)
    )
)]
pub async fn new(
    State(front): State<Front>,
    base: BaseUrl,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<Json<Target>, Refusal> {
    let url = decode(query.as_deref().unwrap_or("about:blank"));
    let spec = front.service.config().defaults();
    front.service.check_is_driven(spec.browser, None)?;
    let handover = front
        .service
        .open(Ask {
            spec,
            owner: caller.owner(),
            idempotency_key: None,
        })
        .await?;
    let session = handover.record.id;
    let Some(seat) = handover.record.state.seat() else {
        return Err(Refusal::new(ErrorCode::Internal, "an active session has no slot").about(session));
    };
    let page = front
        .service
        .inner()
        .link
        .open_page(session, seat, &url)
        .await
        .map_err(|error| unreachable(&error))?;
    handover.delivered();
    Ok(Json(target(&base, &session.to_string(), page)))
}

fn unreachable(error: &LinkError) -> Refusal {
    Refusal::new(ErrorCode::BrowserUnreachable, error.to_string())
}

fn target(base: &BaseUrl, session: &str, page: PageInfo) -> Target {
    let path = format!("/devtools/page/{}?session={session}", page.id);
    Target {
        description: String::new(),
        devtools_frontend_url: format!("/devtools/inspector.html?ws={}", base.bare(&path)),
        id: page.id,
        title: page.title,
        r#type: "page",
        url: page.url,
        web_socket_debugger_url: base.ws(&path),
    }
}

/// The address follows the question mark, possibly percent-encoded as a whole.
fn decode(query: &str) -> String {
    let mut bytes = Vec::with_capacity(query.len());
    let mut rest = query.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let code = tail
            .get(..2)
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match (first, code) {
            (b'%', Some(code)) => {
                bytes.push(code);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_taken_encoded_or_plain() {
        assert_eq!(decode("https%3A%2F%2Fa.example%2F%3Fq%3D1"), "https://a.example/?q=1");
        assert_eq!(decode("https://a.example/?q=100%"), "https://a.example/?q=100%");
        assert_eq!(decode("%e"), "%e");
    }
}
