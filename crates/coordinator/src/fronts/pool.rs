//! `/v1/pool` and `/v1/queue`: what runs and waits, who holds what since when, limits, forced release.
//!
//! Its own file because it is the operator's view; sessions themselves are in `sessions`. A key that is not an admin's
//! sees the counts of all and the rows of its own.

use std::time::Duration;

use axum::{
    Json,
    body::Body,
    extract::{Query, State, rejection::QueryRejection},
};
use http::HeaderMap;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use wharf_core::{LimitScope, Operation, PoolName, SessionStatus, Timestamp};
use wharf_store::{OperationReport, QueueFilter, SessionQuery, SessionRecord};
use wharf_wire::{
    pool::{Cleaned, Cleanup, HolderBody, OperationBody, PoolBody, QueueBody, SetLimit, WaiterBody},
    rest::SessionList,
    span::Span,
};

use super::{BaseUrl, Front, access::Caller, body, locks, sessions};
use crate::{Refusal, Service};

/// Rows of a listing, at most and by default.
const PAGE: u32 = 1000;
const RECENT_DEFAULT: u32 = 50;
const QUEUE_DEFAULT: u32 = 100;
/// Sessions older than this are stale unless the operator says otherwise.
const STALE: Duration = Duration::from_secs(60 * 60);

/// Which pool.
#[derive(Debug, Deserialize, IntoParams, ToSchema)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PoolQuery {
    /// The pool; the grid's own if left out.
    pub pool: Option<String>,
}

/// How much of which pool.
#[derive(Debug, Deserialize, IntoParams, ToSchema)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PageQuery {
    /// The pool; the grid's own if left out.
    pub pool: Option<String>,
    /// At most this many, up to 1,000.
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
}

/// Whom to send away.
#[derive(Debug, Deserialize, IntoParams, ToSchema)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ClearQuery {
    /// Only this pool; all if left out.
    pub pool: Option<String>,
    /// Only this operation; all if left out.
    pub operation: Option<String>,
}

/// A pool: counts, limits, operations, holders, locks.
#[utoipa::path(
    get, path = "/v1/pool", tag = "pool", params(PoolQuery),
    responses((status = 200, description = "The pool", body = PoolBody))
)]
pub async fn get(
    State(front): State<Front>,
    caller: Caller,
    query: Result<Query<PoolQuery>, QueryRejection>,
) -> Result<Json<PoolBody>, Refusal> {
    let pool = pool_name(&front.service, asked(query)?.pool.as_deref())?;
    Ok(Json(describe(&front.service, &pool, caller).await?))
}

/// The sessions that ended last, newest first, with wait and run times.
#[utoipa::path(
    get, path = "/v1/pool/recent", tag = "pool", params(PageQuery),
    responses((status = 200, description = "At most `limit`, 50 by default", body = SessionList))
)]
pub async fn recent(
    State(front): State<Front>,
    base: BaseUrl,
    caller: Caller,
    query: Result<Query<PageQuery>, QueryRejection>,
) -> Result<Json<SessionList>, Refusal> {
    let asked = asked(query)?;
    let query = SessionQuery {
        pool: asked.pool.as_deref().map(|text| parse("pool", text)).transpose()?,
        statuses: vec![SessionStatus::Ended],
        owner: caller.sees_only(),
        newest_first: true,
        limit: bounded(asked.limit, RECENT_DEFAULT)?,
        ..SessionQuery::default()
    };
    Ok(Json(sessions::page(&front.service, &base, query).await?))
}

/// Set or lift a limit. Waiters that it held back are served at once.
#[utoipa::path(
    put, path = "/v1/pool/limits", tag = "pool", request_body = SetLimit,
    responses(
        (status = 200, description = "The pool as it is now", body = PoolBody)
    )
)]
pub async fn set_limit(
    State(front): State<Front>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<PoolBody>, Refusal> {
    let wanted: SetLimit = body::required(front.service.config(), &headers, body).await?;
    let pool = wanted.pool.unwrap_or_else(|| front.service.config().pool.clone());
    let scope = wanted.operation.map_or(LimitScope::Pool, LimitScope::Operation);
    let max = wanted.max.map(|max| body::within("max", max)).transpose()?;
    front.service.set_limit(&pool, scope, max).await?;
    Ok(Json(describe(&front.service, &pool, caller).await?))
}

/// Release, by force, sessions that are active for too long.
#[utoipa::path(
    post, path = "/v1/pool/cleanup", tag = "pool", request_body = inline(Option<Cleanup>),
    responses(
        (status = 200, description = "What was ended, as `killed`", body = Cleaned)
    )
)]
pub async fn cleanup(State(front): State<Front>, headers: HeaderMap, body: Body) -> Result<Json<Cleaned>, Refusal> {
    let wanted: Cleanup = body::object(front.service.config(), &headers, body)
        .await?
        .unwrap_or_default();
    let max_age = wanted.max_age.map_or(STALE, |Span(span)| span);
    let ended = front.service.release_stale(wanted.pool.as_ref(), max_age).await?;
    Ok(Json(Cleaned { ended }))
}

/// Who waits, in the order of service.
#[utoipa::path(
    get, path = "/v1/queue", tag = "pool", params(PageQuery),
    responses((status = 200, description = "At most `limit`, 100 by default", body = QueueBody))
)]
pub async fn queue(
    State(front): State<Front>,
    caller: Caller,
    query: Result<Query<PageQuery>, QueryRejection>,
) -> Result<Json<QueueBody>, Refusal> {
    let asked = asked(query)?;
    let pool = pool_name(&front.service, asked.pool.as_deref())?;
    let limit = bounded(asked.limit, QUEUE_DEFAULT)?;
    let waiting = front.service.waiting(&pool, limit).await?;
    let now = front.service.inner().store.now().await?;
    let queued = front.service.inner().store.pool(&pool).await?.queued;
    let rows = (1..).zip(&waiting).filter(|(_, record)| caller.sees(record));
    Ok(Json(QueueBody {
        queued,
        limit: front.service.config().queue_limit,
        waiting: rows.map(|(position, record)| waiter(position, record, now)).collect(),
        pool,
    }))
}

/// Send waiters away; they end as `killed`. A key that is not an admin's sends away its own.
#[utoipa::path(
    delete, path = "/v1/queue", tag = "pool", params(ClearQuery),
    responses((status = 200, description = "Who was sent away", body = Cleaned))
)]
pub async fn clear(
    State(front): State<Front>,
    caller: Caller,
    query: Result<Query<ClearQuery>, QueryRejection>,
) -> Result<Json<Cleaned>, Refusal> {
    let asked = asked(query)?;
    let operation = asked.operation.as_deref();
    let filter = QueueFilter {
        pool: asked.pool.as_deref().map(|text| parse("pool", text)).transpose()?,
        operation: operation
            .map(|text| parse::<Operation>("operation", text))
            .transpose()?,
        owner: caller.sees_only(),
    };
    let ended = front.service.clear_queue(filter).await?;
    Ok(Json(Cleaned { ended }))
}

/// The query as it should be, or what is wrong with it.
pub(super) fn asked<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, Refusal> {
    query
        .map(|Query(asked)| asked)
        .map_err(|error| Refusal::invalid(error.body_text()))
}

fn parse<T: std::str::FromStr<Err: std::fmt::Display>>(what: &str, text: &str) -> Result<T, Refusal> {
    text.parse()
        .map_err(|error| Refusal::invalid(format!("`{what}`: {error}")))
}

fn pool_name(service: &Service, text: Option<&str>) -> Result<PoolName, Refusal> {
    text.map_or_else(|| Ok(service.config().pool.clone()), |text| parse("pool", text))
}

fn bounded(limit: Option<u32>, default: u32) -> Result<u32, Refusal> {
    match limit {
        None => Ok(default),
        Some(limit @ 1..=PAGE) => Ok(limit),
        Some(limit) => Err(Refusal::invalid(format!("`limit`: expected 1 to {PAGE}, got {limit}"))),
    }
}

async fn describe(service: &Service, pool: &PoolName, caller: Caller) -> Result<PoolBody, Refusal> {
    let view = service.pool(pool, caller.sees_only()).await?;
    let now = service.inner().store.now().await?;
    let report = view.report;
    let scaling = service.scaling(pool, &report, &view.locks).await?;
    let effective_max = report.limit.map_or(report.slots, |limit| limit.min(report.slots));
    let is_locked = view.locks.iter().any(|view| view.lock.cover.operations.is_empty());
    let available = match is_locked {
        true => 0,
        false => effective_max.saturating_sub(report.running),
    };
    Ok(PoolBody {
        pool: pool.clone(),
        max: report.slots,
        limit: report.limit,
        effective_max,
        running: report.running,
        queued: report.queued,
        available,
        starting: report.starting,
        active: report.active,
        warm: report.warm,
        launching: report.launching,
        workers: report.workers,
        desired_workers: scaling.desired_workers,
        scale_down: scaling.scale_down,
        operations: report.operations.into_iter().map(operation).collect(),
        holders: view.holders.iter().map(|record| holder(record, now)).collect(),
        locks: view
            .locks
            .iter()
            .map(|view| locks::shape(&view.lock, Some(view.running)))
            .collect(),
    })
}

fn operation(report: OperationReport) -> OperationBody {
    OperationBody {
        operation: report.operation,
        running: report.running,
        queued: report.queued,
        limit: report.limit,
    }
}

fn holder(record: &SessionRecord, now: Timestamp) -> HolderBody {
    let since = record.times.placed_at;
    HolderBody {
        session: record.id,
        status: record.state.status(),
        operation: record.spec.operation.clone(),
        description: record.spec.description.clone(),
        key: record.owner,
        worker: record.worker,
        since,
        held_for: Span(since.map(|since| now.since(since)).unwrap_or_default()),
        max_duration: record.spec.timeouts.max_duration.map(Span),
    }
}

fn waiter(position: u64, record: &SessionRecord, now: Timestamp) -> WaiterBody {
    WaiterBody {
        position,
        session: record.id,
        operation: record.spec.operation.clone(),
        description: record.spec.description.clone(),
        browser: record.spec.browser,
        priority: record.spec.priority,
        key: record.owner,
        queued_at: record.times.queued_at,
        wait_time: Span(record.waited(now)),
        queue_timeout: Span(record.spec.timeouts.queue),
    }
}
