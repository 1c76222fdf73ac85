//! What is common to all routes: a request id, one log line, the Origin rule, error bodies.
//!
//! Its own file because a handler returns a [`Refusal`] and nothing else; how it is worded on the wire (JSON for
//! programs, one sentence for a refused WebSocket, which Playwright prints) is decided here, once. The query is never
//! logged: it may hold a token.

use axum::{
    body::Body,
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version, header};
use tracing::Instrument;
use uuid::Uuid;
use wharf_core::{ErrorCode, RequestId};
use wharf_wire::rest::{ErrorBody, ErrorDetail};

use super::{Front, access, locks};
use crate::{CoordinatorConfig, KeyRule, Refusal, metrics::CodeLabel, server::Peer};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
/// Printed by Playwright in its call log, on accept and on reject.
pub(super) const PLAYWRIGHT_LOG: HeaderName = HeaderName::from_static("x-playwright-debug-log");

impl IntoResponse for Refusal {
    /// Only the status and the refusal itself; `wrap` writes the body, because it knows the request.
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

pub(super) async fn wrap(State(front): State<Front>, mut request: Request, next: Next) -> Response {
    let id = RequestId::from_uuid(Uuid::now_v7());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let is_upgrade = request.headers().contains_key(header::UPGRADE);
    let span = tracing::info_span!("request", request_id = %id);
    let started = tokio::time::Instant::now();
    let answer = async {
        let refused = foreign_host(front.service.config(), &request)
            .or_else(|| foreign_origin(&method, is_upgrade, request.headers()));
        let admitted = match refused {
            Some(refusal) => Err(refusal),
            None => access::admit(&front, &mut request).await,
        };
        match admitted {
            Ok(()) => next.run(request).await,
            Err(refusal) => refusal.into_response(),
        }
    };
    let mut response = answer.instrument(span.clone()).await;
    if let Some(refusal) = response.extensions_mut().remove::<Refusal>() {
        front
            .service
            .inner()
            .metrics
            .refused
            .get_or_create(&CodeLabel {
                code: refusal.code.as_str(),
            })
            .inc();
        span.in_scope(|| tracing::info!(%method, path, code = %refusal.code, message = refusal.message, "refused"));
        response = refused(&refusal, id, is_upgrade);
    }
    if let Ok(value) = HeaderValue::from_str(&id.to_string()) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    let (status, took) = (response.status().as_u16(), started.elapsed());
    span.in_scope(|| tracing::debug!(%method, path, status, ?took, "answered"));
    response
}

/// A name that somebody else's DNS points at us makes their pages "same origin" (DNS rebinding), so a name must be one
/// that we know. Addresses cannot be rebound. Proxies that are trusted vouch for their own. Where everybody must show a
/// key, a page of theirs has none and gains nothing.
fn foreign_host(config: &CoordinatorConfig, request: &Request) -> Option<Refusal> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let (first, second) = (hosts.next(), hosts.next());
    // RFC 9112 §3.2: exactly one; older clients have none.
    if second.is_some() || (first.is_none() && request.version() == Version::HTTP_11) {
        return Some(Refusal::invalid("expected exactly one Host header"));
    }
    let host = first?.to_str().unwrap_or("?");
    let name = host.rsplit_once(':').map_or(host, |(name, port)| {
        if port.bytes().all(|b| b.is_ascii_digit()) {
            name
        } else {
            host
        }
    });
    let bare = name.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    let external = config.external_url.as_deref().and_then(|url| url.split_once("://"));
    let is_external = external.is_some_and(|(_, rest)| {
        let authority = rest.split('/').next().unwrap_or("");
        authority
            .split(':')
            .next()
            .is_some_and(|own| own.eq_ignore_ascii_case(&bare))
    });
    let is_known = config.keys == KeyRule::Always
        || request.uri().path().starts_with("/internal/")
        || bare.parse::<std::net::IpAddr>().is_ok()
        || bare == "localhost"
        || bare.ends_with(".localhost")
        || is_external
        || config.allow_hosts.iter().any(|own| own.eq_ignore_ascii_case(&bare))
        || request
            .extensions()
            .get::<Peer>()
            .is_some_and(|peer| config.trusts(peer.0.ip()));
    (!is_known).then(|| Refusal::new(ErrorCode::HostRefused, format!("this grid is not called `{name}`")))
}

/// A page in somebody's browser may not drive the grid: whoever sends an Origin must be the grid's own.
fn foreign_origin(method: &Method, is_upgrade: bool, headers: &HeaderMap) -> Option<Refusal> {
    let changes_something = is_upgrade || !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    let origin = headers.get(header::ORIGIN)?.to_str().unwrap_or("?");
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok())
        .unwrap_or("");
    let is_own = origin
        .split_once("://")
        .is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(host));
    (changes_something && !is_own).then(|| {
        Refusal::new(
            ErrorCode::OriginRefused,
            format!("the origin `{origin}` may not drive this grid"),
        )
    })
}

fn refused(refusal: &Refusal, id: RequestId, is_upgrade: bool) -> Response {
    let status = StatusCode::from_u16(refusal.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut headers = HeaderMap::new();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(span) = refusal.retry_after {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(span.as_secs().max(1)));
        headers.insert(
            RETRY_AFTER_MS,
            HeaderValue::from(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)),
        );
    }
    if let Some(allow) = refusal.allow {
        headers.insert(header::ALLOW, HeaderValue::from_static(allow));
    }
    if refusal.code == ErrorCode::Unauthorized {
        headers.append(
            header::WWW_AUTHENTICATE,
            HeaderValue::from_static("Bearer realm=\"wharf\""),
        );
        headers.append(
            header::WWW_AUTHENTICATE,
            HeaderValue::from_static("Basic realm=\"wharf\""),
        );
    }
    if refusal.code == ErrorCode::UpgradeRequired {
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
    }
    let (content_type, body) = if is_upgrade {
        // Playwright prints the body of a refused upgrade; other clients show the status at best.
        let text = format!(
            "{}: {} {} ({id})\n",
            refusal.code,
            refusal.message,
            refusal.code.advice()
        );
        if let Ok(line) = HeaderValue::from_str(&format!("{}: {}", refusal.code, refusal.message)) {
            headers.insert(PLAYWRIGHT_LOG, line);
        }
        ("text/plain; charset=utf-8", text)
    } else {
        let text = serde_json::to_string(&detail(refusal, id)).unwrap_or_default();
        ("application/json", text)
    };
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

fn detail(refusal: &Refusal, id: RequestId) -> ErrorBody {
    ErrorBody {
        error: ErrorDetail {
            code: refusal.code,
            message: refusal.message.to_string(),
            advice: refusal.code.advice(),
            source: refusal.code.source(),
            retry: refusal.code.retry(),
            request_id: id.to_string(),
            session: refusal.session,
            reason: refusal.reason,
            limit: refusal.limit.map(|(limit, _)| limit),
            current: refusal.limit.map(|(_, current)| current),
            position: refusal.position,
            lock: refusal.lock.as_ref().map(|lock| Box::new(locks::shape(lock, None))),
            retry_after_ms: refusal
                .retry_after
                .map(|span| u64::try_from(span.as_millis()).unwrap_or(u64::MAX)),
        },
    }
}

pub(super) async fn no_route(request: Request) -> Refusal {
    Refusal::new(
        ErrorCode::RouteNotFound,
        format!("there is nothing at {}", request.uri().path()),
    )
}

pub(super) async fn no_method(request: Request) -> Refusal {
    let message = format!("{} does not apply to {}", request.method(), request.uri().path());
    Refusal::new(ErrorCode::MethodNotAllowed, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host_refused_for(host: &'static str) -> bool {
        let config = CoordinatorConfig {
            external_url: Some("https://grid.example:8443/wharf".to_owned()),
            allow_hosts: vec!["wharf.internal".to_owned()],
            ..crate::config::tests::config()
        };
        let request = Request::builder()
            .header(header::HOST, host)
            .body(Body::empty())
            .unwrap();
        foreign_host(&config, &request).is_some()
    }

    #[test]
    fn rebound_names_are_refused_and_known_ones_are_not() {
        for host in [
            "evil.example",
            "evil.example:8080",
            "127.0.0.1.evil.example",
            "localhost.evil.example:1",
        ] {
            assert!(host_refused_for(host), "{host}");
        }
        for host in [
            "127.0.0.1:8080",
            "[::1]:8080",
            "localhost:8080",
            "grid.example",
            "WHARF.internal:80",
            "10.0.0.7",
        ] {
            assert!(!host_refused_for(host), "{host}");
        }
    }

    fn refused_for(method: Method, is_upgrade: bool, origin: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static("127.0.0.1:8080"));
        headers.insert(header::ORIGIN, HeaderValue::from_str(origin).unwrap());
        foreign_origin(&method, is_upgrade, &headers).is_some()
    }

    #[test]
    fn foreign_origin_may_read_but_not_drive() {
        assert!(refused_for(Method::GET, true, "https://evil.example"));
        assert!(refused_for(Method::POST, false, "null"));
        assert!(refused_for(Method::DELETE, false, "http://127.0.0.1:8081"));
        assert!(!refused_for(Method::GET, false, "https://evil.example"));
        assert!(!refused_for(Method::POST, false, "http://127.0.0.1:8080"));
    }
}
