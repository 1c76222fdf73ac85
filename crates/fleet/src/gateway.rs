//! The gateway: the only way into a worker's host. It serves the worker's own link over HTTP, to whoever shows its key.
//!
//! Its own file because it is a surface towards the network. Browsers stay on loopback; a socket to one is a plain pipe of
//! bytes from here on, so whatever the coordinator's relay guarantees (frames unchanged, back-pressure, no limit of size)
//! holds over both hops. A coordinator that hangs up withdraws its wish, as in one process.

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    body::Body,
    extract::{Path, Query, Request, State},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use http::{StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use subtle::ConstantTimeEq as _;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    sync::watch,
};
use tokio_util::task::TaskTracker;
use wharf_coordinator::{BrowserIo, DialTarget, Driven, Fault, LeaseWish, LinkError, WorkerLink, server::ClientIo};
use wharf_core::{Epoch, Phase, Seat, SessionId, WorkerId};
use wharf_relay::{Side, handshake};
use wharf_wire::internal::{
    Closed, FaultBody, GATEWAY, GatewayError, GatewayErrorKind, Hello, LeaseBody, Leased, NewPage,
};

/// Room of a pipe in each direction.
const PIPE: usize = 64 << 10;
/// The longest pause of a browser on purpose.
const SLOWEST: u64 = 600_000;

/// What the gateway is built from.
#[derive(Clone)]
pub struct Gateway {
    /// Whose it is.
    pub worker: WorkerId,
    /// What callers must show.
    pub key: Arc<str>,
    /// The worker's own link.
    pub link: Arc<dyn WorkerLink>,
    /// Where in its life the worker is, for probes.
    pub phase: watch::Receiver<Phase>,
    /// Pipes in use.
    pub pipes: TaskTracker,
    /// The metrics' text, for scrapers that show the key.
    pub metrics: Arc<dyn Fn() -> String + Send + Sync>,
}

#[derive(Deserialize)]
struct DialQuery {
    epoch: u32,
    page: Option<String>,
}

#[derive(Deserialize)]
struct EpochQuery {
    epoch: u32,
}

#[derive(Deserialize)]
struct LookQuery {
    epoch: u32,
    limit_ms: u64,
}

/// Why the worker could not, as an answer.
struct Refused(LinkError);

// === impl Gateway ===

impl Gateway {
    /// Its routes, ready to be served.
    pub fn router(self) -> Router {
        let inside = Router::new()
            .route("/hello", get(hello))
            .route("/lease", post(lease))
            .route("/protocol", get(protocol))
            .route("/orphans", get(orphans))
            .route("/sessions/{id}/close", post(close))
            .route("/sessions/{id}/dial", get(dial))
            .route("/sessions/{id}/look", get(look))
            .route("/sessions/{id}/pages", get(pages).post(open_page))
            .route("/sessions/{id}/disturb", post(disturb))
            .layer(middleware::from_fn_with_state(self.clone(), admit));
        let metrics = Router::new()
            .route("/metrics", get(metrics))
            .layer(middleware::from_fn_with_state(self.clone(), admit));
        Router::new()
            .route("/livez", get(async || "ok\n"))
            .route("/readyz", get(readyz))
            .nest(GATEWAY, inside)
            .merge(metrics)
            .with_state(self)
    }

    fn seat(&self, epoch: u32) -> Seat {
        Seat {
            worker: self.worker,
            epoch: Epoch(epoch),
        }
    }
}

async fn admit(State(gateway): State<Gateway>, request: Request, next: Next) -> Response {
    let shown = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    let shown = shown.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or("");
    match bool::from(shown.as_bytes().ct_eq(gateway.key.as_bytes())) {
        true => next.run(request).await,
        false => {
            let text = "this gateway serves its grid's coordinators only, which have its key from its registration\n";
            (StatusCode::UNAUTHORIZED, text).into_response()
        }
    }
}

async fn readyz(State(gateway): State<Gateway>) -> Response {
    let phase = *gateway.phase.borrow();
    match phase {
        Phase::Ready => "ready\n".into_response(),
        phase => (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", phase.as_str())).into_response(),
    }
}

async fn metrics(State(gateway): State<Gateway>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], (gateway.metrics)()).into_response()
}

async fn hello(State(gateway): State<Gateway>) -> Json<Hello<Driven>> {
    Json(Hello {
        worker: gateway.worker,
        driven: gateway.link.driven().await,
    })
}

async fn lease(State(gateway): State<Gateway>, Json(body): Json<LeaseBody>) -> Result<Json<Leased>, Refused> {
    let wish = LeaseWish {
        session: body.session,
        seat: gateway.seat(body.epoch.0),
        options: body.options,
        data: body.data,
    };
    // The coordinator has checked them by its own list; this host's is the one that counts here.
    gateway
        .link
        .check_options(&wish.options)
        .map_err(|text| Refused(LinkError::LaunchFailed(text)))?;
    let answer = gateway.link.lease(wish).await.map_err(Refused)?;
    Ok(Json(Leased { answer }))
}

async fn close(
    State(gateway): State<Gateway>,
    Path(session): Path<SessionId>,
    Query(query): Query<EpochQuery>,
) -> Json<Closed> {
    let was_held = gateway.link.close(session, gateway.seat(query.epoch)).await;
    Json(Closed { was_held })
}

async fn look(
    State(gateway): State<Gateway>,
    Path(session): Path<SessionId>,
    Query(query): Query<LookQuery>,
) -> Result<Json<serde_json::Value>, Refused> {
    let limit = Duration::from_millis(query.limit_ms);
    let answer = gateway.link.look(session, gateway.seat(query.epoch), limit).await;
    answer.map(Json).map_err(Refused)
}

async fn pages(
    State(gateway): State<Gateway>,
    Path(session): Path<SessionId>,
    Query(query): Query<EpochQuery>,
) -> Result<Response, Refused> {
    let pages = gateway.link.pages(session, gateway.seat(query.epoch)).await;
    pages.map(|pages| Json(pages).into_response()).map_err(Refused)
}

async fn open_page(
    State(gateway): State<Gateway>,
    Path(session): Path<SessionId>,
    Query(query): Query<EpochQuery>,
    Json(page): Json<NewPage>,
) -> Result<Response, Refused> {
    let page = gateway
        .link
        .open_page(session, gateway.seat(query.epoch), &page.url)
        .await;
    page.map(|page| Json(page).into_response()).map_err(Refused)
}

async fn protocol(State(gateway): State<Gateway>) -> Result<Vec<u8>, Refused> {
    gateway.link.protocol().await.map_err(Refused)
}

async fn orphans(State(gateway): State<Gateway>) -> Json<u64> {
    Json(gateway.link.orphans().await)
}

async fn disturb(
    State(gateway): State<Gateway>,
    Path(session): Path<SessionId>,
    Query(query): Query<EpochQuery>,
    Json(fault): Json<FaultBody>,
) -> Result<StatusCode, Refused> {
    let fault = match fault {
        FaultBody::Crash => Fault::Crash,
        FaultBody::Hang => Fault::Hang,
        FaultBody::Slow(millis) => Fault::Slow(Duration::from_millis(millis.min(SLOWEST))),
    };
    let done = gateway.link.disturb(session, gateway.seat(query.epoch), fault).await;
    done.map(|()| StatusCode::NO_CONTENT).map_err(Refused)
}

/// A WebSocket to a session's browser: the browser is dialled first, so that a refusal is a plain answer.
async fn dial(
    State(gateway): State<Gateway>,
    Path(session): Path<SessionId>,
    Query(query): Query<DialQuery>,
    request: Request,
) -> Response {
    let (mut parts, _) = request.into_parts();
    let accepted = match handshake::accept(&parts) {
        Ok(accepted) => accepted,
        Err(refused) => return refused.response().into_response(),
    };
    let target = query.page.map_or(DialTarget::Browser, DialTarget::Page);
    let browser = match gateway.link.dial(session, gateway.seat(query.epoch), target).await {
        Ok(browser) => browser,
        Err(error) => return Refused(error).into_response(),
    };
    let Some(upgrade) = parts.extensions.remove::<hyper::upgrade::OnUpgrade>() else {
        return StatusCode::UPGRADE_REQUIRED.into_response();
    };
    gateway.pipes.spawn(async move {
        // A coordinator that has left meanwhile needs no pipe.
        let Ok(upgraded) = upgrade.await else { return };
        let Ok(parts) = upgraded.downcast::<TokioIo<ClientIo>>() else {
            tracing::error!(%session, "an upgraded connection is not one of ours");
            return;
        };
        let coordinator = Side {
            io: parts.io.into_inner(),
            leftover: parts.read_buf,
        };
        pipe(coordinator, browser).await;
    });
    accepted.map(|()| Body::empty()).into_response()
}

/// Bytes both ways until either side ends; then neither is worth anything.
async fn pipe<C: AsyncRead + AsyncWrite + Unpin>(coordinator: Side<C>, browser: Side<Box<dyn BrowserIo>>) {
    let (mut from_coordinator, mut to_coordinator) = tokio::io::split(coordinator.io);
    let (mut from_browser, mut to_browser) = tokio::io::split(browser.io);
    let up = async {
        to_browser.write_all(&coordinator.leftover).await?;
        copy(&mut from_coordinator, &mut to_browser).await
    };
    let down = async {
        to_coordinator.write_all(&browser.leftover).await?;
        copy(&mut from_browser, &mut to_coordinator).await
    };
    // A socket that breaks is how sessions end; the supervisor and the relay know why.
    let _: std::io::Result<()> = tokio::select! {
        ended = up => ended,
        ended = down => ended,
    };
}

async fn copy<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(from: &mut R, to: &mut W) -> std::io::Result<()> {
    let mut from = tokio::io::BufReader::with_capacity(PIPE, from);
    tokio::io::copy_buf(&mut from, to).await?;
    to.shutdown().await
}

// === impl Refused ===

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        use GatewayErrorKind as Kind;
        let (status, error) = match &self.0 {
            LinkError::LaunchFailed(_) => (StatusCode::BAD_GATEWAY, Kind::LaunchFailed),
            LinkError::Withdrawn => (StatusCode::CONFLICT, Kind::Withdrawn),
            LinkError::Draining => (StatusCode::SERVICE_UNAVAILABLE, Kind::Draining),
            LinkError::Unreachable(_) => (StatusCode::SERVICE_UNAVAILABLE, Kind::Unreachable),
            LinkError::BrowserUnreachable(_) => (StatusCode::BAD_GATEWAY, Kind::BrowserUnreachable),
            LinkError::BrowserHung(_) => (StatusCode::GATEWAY_TIMEOUT, Kind::BrowserHung),
            LinkError::NotHeld => (StatusCode::NOT_FOUND, Kind::NotHeld),
            LinkError::NoSuchTarget(_) => (StatusCode::GONE, Kind::NoSuchTarget),
        };
        let message = match self.0 {
            // The text alone: the other side builds the same error around it.
            LinkError::LaunchFailed(text)
            | LinkError::Unreachable(text)
            | LinkError::BrowserUnreachable(text)
            | LinkError::BrowserHung(text)
            | LinkError::NoSuchTarget(text) => text,
            other => other.to_string(),
        };
        (status, Json(GatewayError { error, message })).into_response()
    }
}
