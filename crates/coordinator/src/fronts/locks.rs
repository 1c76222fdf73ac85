//! `/v1/locks`: exclusive locks with holder, TTL, renewal, owner-checked release and forced unlock.
//!
//! Its own file because a lock's token is a small secret with one rule: it is in the answer to whoever took the lock and
//! in no other.

use std::time::Duration;

use axum::{
    Json,
    body::Body,
    extract::{Path, Query, State, rejection::QueryRejection},
    response::Response,
};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;
use wharf_core::{Cover, LockName, LockToken};
use wharf_store::{LockRecord, LockWish};
use wharf_wire::{
    pool::{LockBody, LockList, RenewLock, TakeLock},
    rest::ErrorBody,
    span::Span,
};

use super::{Front, access::Caller, body, pool::asked, sent::Sent};
use crate::Refusal;

/// Seed 003's lock for load tests lasts two hours.
const TTL: Duration = Duration::from_secs(2 * 60 * 60);
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
const HOLDER_LIMIT: usize = 200;
const DESCRIPTION_LIMIT: usize = 1000;
/// Pools or operations a lock may name; more is everything.
const NAMES_LIMIT: usize = 100;

/// Who gives it back.
#[derive(Debug, Deserialize, IntoParams, ToSchema)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ReleaseQuery {
    /// The token of whoever took it.
    pub lock_token: Option<String>,
}

/// The locks that are held.
#[utoipa::path(
    get, path = "/v1/locks", tag = "locks",
    responses((status = 200, description = "By name, without their tokens", body = LockList))
)]
pub async fn list(State(front): State<Front>) -> Result<Json<LockList>, Refusal> {
    let locks = front.service.locks().await?;
    let locks = locks.iter().map(|view| shape(&view.lock, Some(view.running))).collect();
    Ok(Json(LockList { locks }))
}

/// One lock: who holds it, since when, and what still runs under it.
#[utoipa::path(
    get, path = "/v1/locks/{name}", tag = "locks",
    params(("name" = String, Path, description = "The lock", pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")),
    responses(
        (status = 200, description = "It is held", body = LockBody),
        (status = 404, description = "Nobody holds it", body = ErrorBody)
    )
)]
pub async fn get(State(front): State<Front>, Path(name): Path<String>) -> Result<Json<LockBody>, Refusal> {
    let name = parse(&name)?;
    let locks = front.service.locks().await?;
    let view = locks
        .iter()
        .find(|view| view.lock.name == name)
        .ok_or_else(|| Refusal::no_lock(&name, "nobody holds it"))?;
    Ok(Json(shape(&view.lock, Some(view.running))))
}

/// Take a lock. While it is held, new work that it covers gets 409 and nothing that waits is placed.
#[utoipa::path(
    post, path = "/v1/locks/{name}", tag = "locks", request_body = TakeLock,
    params(("name" = String, Path, description = "The lock", pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")),
    responses(
        (status = 201, description = "It is yours; keep the token", body = LockBody),
        (status = 404, description = "It was taken away while it drained", body = ErrorBody),
        (status = 409, description = "Somebody holds it, or what runs did not end within `drain`", body = ErrorBody)
    )
)]
pub async fn take(
    State(front): State<Front>,
    caller: Caller,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let name = parse(&name)?;
    let wanted: TakeLock = body::required(front.service.config(), &headers, body).await?;
    let drain = wanted.drain.map(|Span(span)| span);
    if drain.is_some_and(|drain| drain > LONGEST) {
        return Err(Refusal::invalid("`drain`: expected at most 24 h"));
    }
    let wish = LockWish {
        name,
        token: LockToken::from_uuid(Uuid::new_v4()),
        holder: body::text("holder", wanted.holder, 1..=HOLDER_LIMIT)?,
        description: body::text(
            "description",
            wanted.description.unwrap_or_default(),
            0..=DESCRIPTION_LIMIT,
        )?,
        cover: cover(wanted.pools, wanted.operations)?,
        ttl: ttl(wanted.ttl)?,
        owner: caller.owner(),
    };
    let taken = front.service.lock(wish, drain).await?;
    let mut body = shape(&taken.view.lock, Some(taken.view.running));
    body.token = Some(taken.view.lock.token);
    Ok(Sent::json(StatusCode::CREATED, &body, move || taken.delivered()))
}

/// Make a lock last longer.
#[utoipa::path(
    put, path = "/v1/locks/{name}", tag = "locks", request_body = RenewLock,
    params(("name" = String, Path, description = "The lock", pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")),
    responses(
        (status = 200, description = "It holds until `until`", body = LockBody),
        (status = 404, description = "Nobody holds it", body = ErrorBody),
        (status = 409, description = "Somebody else holds it", body = ErrorBody)
    )
)]
pub async fn renew(
    State(front): State<Front>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<LockBody>, Refusal> {
    let name = parse(&name)?;
    let wanted: RenewLock = body::required(front.service.config(), &headers, body).await?;
    let view = front.service.renew(&name, wanted.token, ttl(wanted.ttl)?).await?;
    Ok(Json(shape(&view.lock, Some(view.running))))
}

/// Give a lock back; those whom it held back are served at once.
#[utoipa::path(
    delete, path = "/v1/locks/{name}", tag = "locks",
    params(("name" = String, Path, description = "The lock", pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$"), ReleaseQuery),
    responses(
        (status = 204, description = "It is free"),
        (status = 404, description = "Nobody holds it", body = ErrorBody),
        (status = 409, description = "Somebody else holds it", body = ErrorBody)
    )
)]
pub async fn release(
    State(front): State<Front>,
    Path(name): Path<String>,
    query: Result<Query<ReleaseQuery>, QueryRejection>,
) -> Result<StatusCode, Refusal> {
    let name = parse(&name)?;
    let Some(token) = asked(query)?.lock_token else {
        return Err(Refusal::invalid(
            "`lock_token` is missing: give the token that the lock was taken with, or use force-unlock",
        ));
    };
    let token = token
        .parse()
        .map_err(|error| Refusal::invalid(format!("`lock_token`: {error}")))?;
    front.service.unlock(&name, token).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Take a lock away from whoever holds it.
#[utoipa::path(
    post, path = "/v1/locks/{name}/force-unlock", tag = "locks",
    params(("name" = String, Path, description = "The lock", pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")),
    responses(
        (status = 200, description = "It is free; this is what it was", body = LockBody),
        (status = 404, description = "Nobody holds it", body = ErrorBody)
    )
)]
pub async fn force_unlock(State(front): State<Front>, Path(name): Path<String>) -> Result<Json<LockBody>, Refusal> {
    let lock = front.service.force_unlock(&parse(&name)?).await?;
    Ok(Json(shape(&lock, None)))
}

/// A lock as everybody may see it.
pub(super) fn shape(lock: &LockRecord, running: Option<u64>) -> LockBody {
    LockBody {
        name: lock.name.clone(),
        holder: lock.holder.clone(),
        description: lock.description.clone(),
        pools: lock.cover.pools.clone(),
        operations: lock.cover.operations.clone(),
        since: lock.taken_at,
        until: lock.until,
        running,
        token: None,
    }
}

fn parse(name: &str) -> Result<LockName, Refusal> {
    name.parse()
        .map_err(|error| Refusal::invalid(format!("the lock's name: {error}")))
}

fn ttl(wanted: Option<Span>) -> Result<Duration, Refusal> {
    let ttl = wanted.map_or(TTL, |Span(span)| span);
    match (SHORTEST..=LONGEST).contains(&ttl) {
        true => Ok(ttl),
        false => Err(Refusal::invalid(format!("`ttl`: expected 1 s to 24 h, got {ttl:?}"))),
    }
}

fn cover(mut pools: Vec<wharf_core::PoolName>, mut operations: Vec<wharf_core::Operation>) -> Result<Cover, Refusal> {
    if pools.len().max(operations.len()) > NAMES_LIMIT {
        return Err(Refusal::invalid(format!(
            "a lock names at most {NAMES_LIMIT} pools or operations; leave them out to cover all"
        )));
    }
    pools.sort();
    pools.dedup();
    operations.sort();
    operations.dedup();
    Ok(Cover { pools, operations })
}
