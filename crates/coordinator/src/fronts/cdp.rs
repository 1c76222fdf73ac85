//! WebSockets for CDP clients: a session per connection at `/` and `/chromium`, attaching at `/devtools/…`.
//!
//! Its own file because the order matters: the upgrade is checked before anything is reserved, the session is opened
//! and the browser's side connected before the client is told 101, and from then on a value owns the session, so that
//! a client that leaves at any of these points takes it along.

use axum::{
    body::Body,
    extract::{Path, Query, Request, State},
    response::Response,
};
use http::{HeaderMap, HeaderValue, request::Parts};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use utoipa::IntoParams;
use wharf_core::{EndReason, ErrorCode};
use wharf_relay::{
    Side,
    handshake::{self, UpgradeRefused},
};
use wharf_wire::rest::ErrorBody;

use super::{Front, access::Caller, envelope::PLAYWRIGHT_LOG, sessions::parse_id};
use crate::{
    DialTarget, Refusal,
    server::ClientIo,
    service::{Ask, Attachment, OnLeave},
};

/// The id in the URL that discovery hands out: "a new session, please".
pub(super) const NEW: &str = "new";

/// A session per connection: connect, drive, close.
#[utoipa::path(
    get, path = "/", tag = "cdp",
    responses(
        (status = 101, description = "A browser of your own, until the connection closes"),
        (status = 400, description = "Not a proper upgrade", body = ErrorBody),
        (status = 426, description = "Connect with a WebSocket client", body = ErrorBody),
        (status = 502, description = "No browser could be launched", body = ErrorBody),
        (status = 503, description = "The queue is full or the wait was too long", body = ErrorBody)
    )
)]
pub async fn root(State(front): State<Front>, caller: Caller, request: Request) -> Result<Response, Refusal> {
    per_connection(&front, caller, request).await
}

/// The same, naming the browser.
#[utoipa::path(
    get, path = "/chromium", tag = "cdp",
    responses(
        (status = 101, description = "A browser of your own, until the connection closes"),
        (status = 400, description = "Not a proper upgrade", body = ErrorBody),
        (status = 426, description = "Connect with a WebSocket client", body = ErrorBody),
        (status = 502, description = "No browser could be launched", body = ErrorBody),
        (status = 503, description = "The queue is full or the wait was too long", body = ErrorBody)
    )
)]
pub async fn chromium(State(front): State<Front>, caller: Caller, request: Request) -> Result<Response, Refusal> {
    per_connection(&front, caller, request).await
}

/// Attach to a session. Closing leaves it alive until its idle timeout unless it was made otherwise.
#[utoipa::path(
    get, path = "/devtools/browser/{id}", tag = "cdp",
    params(("id" = String, Path, description = "The session, or `new`")),
    responses(
        (status = 101, description = "Attached"),
        (status = 400, description = "Not an id, or not a proper upgrade", body = ErrorBody),
        (status = 404, description = "Unknown, or ended with the reason given", body = ErrorBody),
        (status = 409, description = "Not active yet", body = ErrorBody),
        (status = 426, description = "Connect with a WebSocket client", body = ErrorBody),
        (status = 502, description = "The browser cannot be reached", body = ErrorBody)
    )
)]
pub async fn browser(
    State(front): State<Front>,
    caller: Caller,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, Refusal> {
    if id == NEW {
        return per_connection(&front, caller, request).await;
    }
    let (mut parts, _) = request.into_parts();
    let response = check(&parts)?;
    let attachment = front
        .service
        .attach(caller, parse_id(&id)?, DialTarget::Browser, OnLeave::AsMade)
        .await?;
    Ok(upgrade(&front, &mut parts, response, attachment))
}

/// Which session a page belongs to.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct PageQuery {
    /// The session.
    pub session: Option<String>,
}

/// Attach to one page of a session, as listed at `/json/list`.
#[utoipa::path(
    get, path = "/devtools/page/{target}", tag = "cdp",
    params(("target" = String, Path, description = "The page's target id"), PageQuery),
    responses(
        (status = 101, description = "Attached"),
        (status = 400, description = "Not an id, or not a proper upgrade", body = ErrorBody),
        (status = 404, description = "No such session or page", body = ErrorBody),
        (status = 426, description = "Connect with a WebSocket client", body = ErrorBody),
        (status = 502, description = "The browser cannot be reached", body = ErrorBody)
    )
)]
pub async fn page(
    State(front): State<Front>,
    caller: Caller,
    Path(target): Path<String>,
    Query(query): Query<PageQuery>,
    request: Request,
) -> Result<Response, Refusal> {
    let (mut parts, _) = request.into_parts();
    let response = check(&parts)?;
    let Some(session) = query.session else {
        return Err(Refusal::invalid(
            "the page's session is missing: use the URL from /json/list as it is",
        ));
    };
    if target.is_empty() || !target.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Err(Refusal::new(
            ErrorCode::InvalidId,
            "expected a target id of letters, digits and dashes",
        ));
    }
    let attachment = front
        .service
        .attach(caller, parse_id(&session)?, DialTarget::Page(target), OnLeave::AsMade)
        .await?;
    Ok(upgrade(&front, &mut parts, response, attachment))
}

async fn per_connection(front: &Front, caller: Caller, request: Request) -> Result<Response, Refusal> {
    let (mut parts, _) = request.into_parts();
    let response = check(&parts)?;
    let mut spec = front.service.config().defaults();
    front.service.check_is_driven(spec.browser, None)?;
    // Whoever connects is attached: no connect timeout.
    spec.timeouts.connect = None;
    spec.keep_alive = false;
    let handover = front
        .service
        .open(Ask {
            spec,
            owner: caller.owner(),
            idempotency_key: None,
        })
        .await?
        .otherwise(EndReason::ClientDisconnected);
    let session = handover.record.id;
    let attachment = match front
        .service
        .attach(caller, session, DialTarget::Browser, OnLeave::End)
        .await
    {
        Ok(attachment) => attachment,
        Err(refusal) => {
            // Nobody left: it is the browser that cannot be reached. The first reason wins, so a supervisor that knows
            // better has said so already.
            let detail = Some(refusal.message.to_string());
            front.service.end(session, EndReason::BrowserCrashed, detail).await?;
            handover.delivered();
            return Err(refusal);
        }
    };
    // From here on the attachment owns the session.
    handover.delivered();
    Ok(upgrade(front, &mut parts, response, attachment))
}

/// Checks the upgrade before anything is reserved.
fn check(parts: &Parts) -> Result<Response<()>, Refusal> {
    handshake::accept(parts).map_err(|refused| {
        let code = match refused {
            UpgradeRefused::Method => ErrorCode::MethodNotAllowed,
            UpgradeRefused::NotAnUpgrade | UpgradeRefused::WebSocketVersion => ErrorCode::UpgradeRequired,
            _ => ErrorCode::InvalidRequest,
        };
        Refusal::new(code, refused.to_string())
    })
}

/// Answers 101 and relays on a task of the service. The attachment travels with the task: should the socket be gone
/// by then, dropping it ends the session.
fn upgrade(front: &Front, parts: &mut Parts, accepted: Response<()>, attachment: Attachment) -> Response {
    let pending = parts.extensions.remove::<OnUpgrade>();
    front.service.inner().tasks.spawn(async move {
        let Some(pending) = pending else { return };
        match pending.await {
            Ok(upgraded) => match client_side(upgraded) {
                Some(client) => attachment.relay(client).await,
                None => tracing::error!("an upgraded connection was not one of ours"),
            },
            Err(error) => tracing::debug!(%error, "the client left at the hand-over"),
        }
    });
    let mut response = accepted.map(|()| Body::empty());
    log_line(response.headers_mut());
    response
}

fn log_line(headers: &mut HeaderMap) {
    headers.insert(PLAYWRIGHT_LOG, HeaderValue::from_static("wharf: session ready"));
}

/// Our own socket, so that nothing of hyper's stays in memory for the life of the session.
fn client_side(upgraded: Upgraded) -> Option<Side<ClientIo>> {
    let parts = upgraded.downcast::<TokioIo<ClientIo>>().ok()?;
    Some(Side {
        io: parts.io.into_inner(),
        leftover: parts.read_buf,
    })
}
