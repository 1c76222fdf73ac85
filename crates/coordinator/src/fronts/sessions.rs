//! `/v1/sessions`: create, get, list, history, delete.
//!
//! Its own file because it is the API in full; `/sessions` is a short form of it and the CDP front uses the same
//! service underneath.

use axum::{
    Json,
    body::Body,
    extract::{Path, Query, State},
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use wharf_core::{BrowserKind, ErrorCode, Isolation, SessionId, SessionSpec, SessionState, SessionStatus};
use wharf_store::{SessionQuery, SessionRecord};
use wharf_wire::{
    rest::{CreateSession, ErrorBody, SessionBody, SessionList},
    span::Span,
};

use super::{BaseUrl, Front, access::Caller, body, pool, sent::Sent};
use crate::{
    CoordinatorConfig, Refusal, Service,
    service::{Ask, Handover},
};

/// Descriptions are for people, not for files.
const DESCRIPTION_LIMIT: usize = 1000;
/// A page of a listing, at most and by default.
const PAGE: u32 = 1000;
const PAGE_DEFAULT: u32 = 100;

/// Filters of a listing.
#[derive(Debug, Deserialize, IntoParams, ToSchema)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    /// Only these states, separated by commas. By default all that have not ended.
    pub status: Option<String>,
    /// Only this operation.
    pub operation: Option<String>,
    /// Only this pool.
    pub pool: Option<String>,
    /// Only those that ended with this reason.
    pub reason: Option<String>,
    /// Only what comes after this session in the listing's order.
    pub after: Option<String>,
    /// `asc` (oldest first, the default) or `desc`.
    pub order: Option<String>,
    /// At most this many, up to 1,000. Default 100.
    pub limit: Option<u32>,
}

/// Create a session. Waits in the queue up to its deadline; with `Prefer: respond-async` answers at once.
#[utoipa::path(
    post, path = "/v1/sessions", tag = "sessions",
    params(
        ("Idempotency-Key" = Option<String>, Header, description = "A retried create with the same key never makes two sessions"),
        ("Prefer" = Option<String>, Header, description = "`respond-async`: answer 202 with the place in the queue at once")
    ),
    request_body = inline(Option<CreateSession>),
    responses(
        (status = 201, description = "The session is active", body = SessionBody),
        (status = 202, description = "Accepted; look at Location until it is active", body = SessionBody),
        (status = 400, description = "The request makes no sense", body = ErrorBody),
        (status = 404, description = "No such pool", body = ErrorBody),
        (status = 409, description = "The key was used for a different request", body = ErrorBody),
        (status = 502, description = "No browser could be launched", body = ErrorBody),
        (status = 503, description = "The queue is full, the wait was too long, or the grid is shutting down", body = ErrorBody)
    )
)]
pub async fn create(
    State(front): State<Front>,
    base: BaseUrl,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let config = front.service.config();
    let wanted: CreateSession = body::object(config, &headers, body).await?.unwrap_or_default();
    let ask = Ask {
        spec: specify(&front.service, wanted)?,
        owner: caller.owner(),
        idempotency_key: idempotency_key(&headers)?,
    };
    if prefers_async(&headers) {
        let record = front.service.open_async(ask).await?;
        let body = describe(&front.service, &base, &record).await?;
        let location = format!("/v1/sessions/{}", record.id);
        let headers = [
            (header::LOCATION, location),
            (
                header::HeaderName::from_static("preference-applied"),
                "respond-async".into(),
            ),
        ];
        return Ok((StatusCode::ACCEPTED, headers, Json(body)).into_response());
    }
    let handover = front.service.open(ask).await?;
    let body = match handover.as_of {
        // It has just begun: no need to ask the store for the time.
        Some(now) => sketch(&base, &handover.record, now),
        None => describe(&front.service, &base, &handover.record).await?,
    };
    Ok(hand_over(handover, &body))
}

/// One session; 404 with the reason once it has ended.
#[utoipa::path(
    get, path = "/v1/sessions/{id}", tag = "sessions",
    params(("id" = String, Path, description = "The session", pattern = "^ses_[0-9a-f]{32}$")),
    responses(
        (status = 200, description = "It waits, starts or runs", body = SessionBody),
        (status = 400, description = "Not an id", body = ErrorBody),
        (status = 404, description = "Unknown, or ended with the reason given", body = ErrorBody),
        (status = 503, description = "The store does not answer", body = ErrorBody)
    )
)]
pub async fn get(
    State(front): State<Front>,
    base: BaseUrl,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<SessionBody>, Refusal> {
    let record = front.service.session_of(caller, parse_id(&id)?).await?;
    if let SessionState::Ended(reason) = record.state {
        return Err(Refusal::ended(record.id, reason, record.detail.as_deref()));
    }
    Ok(Json(describe(&front.service, &base, &record).await?))
}

/// End a session. Idempotent: also 204 when it had ended before.
#[utoipa::path(
    delete, path = "/v1/sessions/{id}", tag = "sessions",
    params(("id" = String, Path, description = "The session", pattern = "^ses_[0-9a-f]{32}$")),
    responses(
        (status = 204, description = "It is over"),
        (status = 400, description = "Not an id", body = ErrorBody),
        (status = 404, description = "Unknown", body = ErrorBody),
        (status = 503, description = "The store does not answer", body = ErrorBody)
    )
)]
pub async fn delete(State(front): State<Front>, caller: Caller, Path(id): Path<String>) -> Result<StatusCode, Refusal> {
    front.service.release(caller, parse_id(&id)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List sessions by filter, page by page.
#[utoipa::path(
    get, path = "/v1/sessions", tag = "sessions", params(ListQuery),
    responses(
        (status = 200, description = "A page", body = SessionList),
        (status = 400, description = "A filter makes no sense", body = ErrorBody),
        (status = 503, description = "The store does not answer", body = ErrorBody)
    )
)]
pub async fn list(
    State(front): State<Front>,
    base: BaseUrl,
    caller: Caller,
    query: Result<Query<ListQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<SessionList>, Refusal> {
    let live = [
        SessionStatus::Queued,
        SessionStatus::Placed,
        SessionStatus::Starting,
        SessionStatus::Active,
    ];
    let query = translate(pool::asked(query)?, caller, &live, Order::OldestFirst)?;
    Ok(Json(page(&front.service, &base, query).await?))
}

/// Sessions that have ended, newest first, with wait and run times.
#[utoipa::path(
    get, path = "/v1/sessions/history", tag = "sessions", params(ListQuery),
    responses(
        (status = 200, description = "A page", body = SessionList),
        (status = 400, description = "A filter makes no sense", body = ErrorBody),
        (status = 503, description = "The store does not answer", body = ErrorBody)
    )
)]
pub async fn history(
    State(front): State<Front>,
    base: BaseUrl,
    caller: Caller,
    query: Result<Query<ListQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<SessionList>, Refusal> {
    let query = translate(pool::asked(query)?, caller, &[SessionStatus::Ended], Order::NewestFirst)?;
    Ok(Json(page(&front.service, &base, query).await?))
}

/// The order of a listing that names none.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    OldestFirst,
    NewestFirst,
}

/// One page of sessions, and where the next one begins.
pub(super) async fn page(service: &Service, base: &BaseUrl, mut query: SessionQuery) -> Result<SessionList, Refusal> {
    let limit = query.limit as usize;
    // One more than asked for tells whether there is a next page.
    query.limit += 1;
    let mut records = service.inner().store.sessions(&query).await?;
    let more = records.len() > limit;
    records.truncate(limit);
    let next = records.last().map(|record| record.id).filter(|_| more);
    let now = service.inner().store.now().await?;
    let sessions = records.iter().map(|record| sketch(base, record, now)).collect();
    Ok(SessionList { sessions, next })
}

fn translate(
    asked: ListQuery,
    caller: Caller,
    statuses: &[SessionStatus],
    order: Order,
) -> Result<SessionQuery, Refusal> {
    let bad = |what: &str, error: &dyn std::fmt::Display| Refusal::invalid(format!("`{what}`: {error}"));
    let statuses = match asked.status.as_deref() {
        None => statuses.to_vec(),
        Some(list) => list
            .split(',')
            .map(str::parse)
            .collect::<Result<_, _>>()
            .map_err(|e| bad("status", &e))?,
    };
    let newest_first = match asked.order.as_deref() {
        None => order == Order::NewestFirst,
        Some("asc") => false,
        Some("desc") => true,
        Some(other) => return Err(bad("order", &format!("expected `asc` or `desc`, got `{other}`"))),
    };
    let limit = match asked.limit {
        None => PAGE_DEFAULT,
        Some(limit @ 1..=PAGE) => limit,
        Some(limit) => return Err(bad("limit", &format!("expected 1 to {PAGE}, got {limit}"))),
    };
    Ok(SessionQuery {
        pool: asked
            .pool
            .map(|text| text.parse())
            .transpose()
            .map_err(|e| bad("pool", &e))?,
        statuses,
        operation: asked
            .operation
            .map(|text| text.parse())
            .transpose()
            .map_err(|e| bad("operation", &e))?,
        reason: asked
            .reason
            .map(|text| text.parse())
            .transpose()
            .map_err(|e| bad("reason", &e))?,
        after: asked
            .after
            .map(|text| text.parse())
            .transpose()
            .map_err(|e| bad("after", &e))?,
        newest_first,
        owner: caller.sees_only(),
        limit,
    })
}

/// The request with defaults filled in and limits applied.
pub(super) fn specify(service: &Service, wanted: CreateSession) -> Result<SessionSpec, Refusal> {
    let config = service.config();
    let mut spec = config.defaults();
    if let Some(description) = wanted.description {
        if description.chars().count() > DESCRIPTION_LIMIT {
            return Err(Refusal::invalid(format!(
                "`description` is longer than {DESCRIPTION_LIMIT} characters"
            )));
        }
        spec.description = description;
    }
    if let Some(Isolation::Context) = wanted.isolation {
        let message = "`isolation`: `context` is not offered for CDP sessions: a browser-level connection would see \
                       the other sessions of a shared browser; use `browser`";
        return Err(Refusal::invalid(message));
    }
    spec.data = wanted.data.unwrap_or(spec.data);
    spec.operation = wanted.operation.unwrap_or(spec.operation);
    spec.pool = wanted.pool.unwrap_or(spec.pool);
    spec.browser = wanted.browser.unwrap_or(spec.browser);
    spec.priority = wanted.priority.unwrap_or(spec.priority);
    spec.keep_alive = wanted.keep_alive.unwrap_or(spec.keep_alive);
    if let Some(options) = wanted.launch {
        service
            .inner()
            .link
            .check_options(&options)
            .map_err(|text| Refusal::new(ErrorCode::OptionRefused, format!("`launch`: {text}")))?;
        spec.options = options;
    }
    if let Some(Span(queue)) = wanted.queue_timeout {
        spec.timeouts.queue = within("queue_timeout", queue, config.longest.queue)?;
    }
    if spec.browser == BrowserKind::Command {
        // Nobody attaches to a program: only its idle timeout counts, unless asked otherwise.
        spec.timeouts.connect = None;
    }
    if let Some(connect) = wanted.connect_timeout {
        spec.timeouts.connect = connect.map(|Span(span)| span);
    }
    if let Some(idle) = wanted.idle_timeout {
        spec.timeouts.idle = bounded("idle_timeout", idle, config.longest.idle)?;
    }
    if let Some(longest) = wanted.max_duration {
        spec.timeouts.max_duration = bounded("max_duration", longest, config.longest.max_duration)?;
    }
    Ok(spec)
}

fn within(
    what: &str,
    span: std::time::Duration,
    limit: Option<std::time::Duration>,
) -> Result<std::time::Duration, Refusal> {
    match limit {
        Some(limit) if span > limit => Err(Refusal::invalid(format!(
            "`{what}` is {span:?}, but this grid allows at most {limit:?}"
        ))),
        _ => Ok(span),
    }
}

fn bounded(
    what: &str,
    span: Option<Span>,
    limit: Option<std::time::Duration>,
) -> Result<Option<std::time::Duration>, Refusal> {
    match (span, limit) {
        (Some(Span(span)), limit) => within(what, span, limit).map(Some),
        (None, None) => Ok(None),
        (None, Some(limit)) => Err(Refusal::invalid(format!(
            "`{what}` may not be unlimited: this grid allows at most {limit:?}"
        ))),
    }
}

pub(super) fn parse_id(text: &str) -> Result<SessionId, Refusal> {
    text.parse()
        .map_err(|error| Refusal::new(ErrorCode::InvalidId, format!("{error}")))
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let Some(value) = headers.get("idempotency-key") else {
        return Ok(None);
    };
    match value.to_str() {
        Ok(key) if (1..=255).contains(&key.len()) => Ok(Some(key.to_owned())),
        _ => Err(Refusal::invalid(
            "`Idempotency-Key` must be 1 to 255 visible ASCII characters",
        )),
    }
}

fn prefers_async(headers: &HeaderMap) -> bool {
    let values = headers.get_all("prefer");
    values
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|preference| preference.trim().eq_ignore_ascii_case("respond-async"))
}

/// A record as the API shows it, with its place if it waits.
pub(super) async fn describe(
    service: &Service,
    base: &BaseUrl,
    record: &SessionRecord,
) -> Result<SessionBody, Refusal> {
    let now = service.inner().store.now().await?;
    let mut body = sketch(base, record, now);
    if let Some((position, wait)) = service.place(record).await? {
        body.position = Some(position);
        body.estimated_wait = Some(Span(wait));
    }
    Ok(body)
}

fn sketch(base: &BaseUrl, record: &SessionRecord, now: wharf_core::Timestamp) -> SessionBody {
    let is_active = matches!(record.state, SessionState::Active(_));
    SessionBody {
        id: record.id,
        status: record.state.status(),
        created_at: record.times.queued_at,
        data: record.spec.data.clone(),
        connect: is_active.then(|| base.connect(record)),
        operation: record.spec.operation.clone(),
        description: record.spec.description.clone(),
        pool: record.spec.pool.clone(),
        browser: record.spec.browser,
        priority: record.spec.priority,
        isolation: record.spec.isolation,
        keep_alive: record.spec.keep_alive,
        launch: record.spec.options.clone(),
        queue_timeout: Span(record.spec.timeouts.queue),
        connect_timeout: record.spec.timeouts.connect.map(Span),
        idle_timeout: record.spec.timeouts.idle.map(Span),
        max_duration: record.spec.timeouts.max_duration.map(Span),
        worker: record.worker,
        key: record.owner,
        position: None,
        estimated_wait: None,
        queued_at: record.times.queued_at,
        started_at: record.times.started_at,
        ended_at: record.ended_at,
        wait_time: Span(record.waited(now)),
        run_time: record.ran(now).map(Span),
        reason: record.reason(),
        detail: record.detail.clone(),
    }
}

/// 201 with a body that, if it is dropped before it was sent, ends the session.
pub(super) fn hand_over<T: serde::Serialize>(handover: Handover, body: &T) -> Response {
    let location = format!("/v1/sessions/{}", handover.record.id);
    let mut response = Sent::json(StatusCode::CREATED, body, move || {
        handover.delivered();
    });
    if let Ok(location) = HeaderValue::from_str(&location) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

/// The configuration a front needs, for the other modules.
pub(super) fn config(front: &Front) -> &CoordinatorConfig {
    front.service.config()
}
