//! `/v1/workers`: who offers slots, draining one, forgetting one.
//!
//! Its own file because these routes are the fleet operator's; what runs on the workers is in `pool`. The drain can be
//! waited for, so that a machine's own stop script (a preStop hook) is one line of curl.

use std::time::Duration;

use axum::{
    Json,
    extract::{Path, Query, State, rejection::QueryRejection},
};
use http::StatusCode;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use wharf_core::{ErrorCode, WorkerId};
use wharf_store::WorkerRecord;
use wharf_wire::{
    rest::ErrorBody,
    span::Span,
    workers::{LoadBody, RemovedWorker, WorkerBody, WorkerList, without_userinfo},
};

use super::{Front, pool::asked};
use crate::{Refusal, service::Removal};

/// Longer than any stop script waits; sessions without a limit of life would keep it for ever.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// Which workers.
#[derive(Debug, Deserialize, IntoParams, ToSchema)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WorkersQuery {
    /// Only this pool; all if left out.
    #[param(pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")]
    pub pool: Option<String>,
}

/// Whether to wait.
#[derive(Debug, Deserialize, IntoParams, ToSchema)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DrainQuery {
    /// Answer when the worker holds no session any more, or after this long: seconds, or text such as `40s`. At most 24 h.
    #[param(value_type = Option<f64>)]
    pub wait: Option<String>,
}

/// Whether to insist.
#[derive(Debug, Deserialize, IntoParams, ToSchema)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RemoveQuery {
    /// Remove it although it serves or holds sessions; those end as `worker_lost`.
    #[serde(default)]
    #[param(value_type = Option<bool>)]
    pub force: bool,
}

/// The workers.
#[utoipa::path(
    get, path = "/v1/workers", tag = "workers", params(WorkersQuery),
    responses((status = 200, description = "By id; given-up ones too, while their record is kept", body = WorkerList))
)]
pub async fn list(
    State(front): State<Front>,
    query: Result<Query<WorkersQuery>, QueryRejection>,
) -> Result<Json<WorkerList>, Refusal> {
    let pool = asked(query)?.pool;
    let pool = pool
        .map(|text| text.parse())
        .transpose()
        .map_err(|error| Refusal::invalid(format!("`pool`: {error}")))?;
    let workers = front.service.workers(pool.as_ref()).await?;
    let workers = workers.iter().map(shape).collect();
    Ok(Json(WorkerList { workers }))
}

/// One worker.
#[utoipa::path(
    get, path = "/v1/workers/{id}", tag = "workers",
    params(("id" = String, Path, description = "The worker", pattern = "^wrk_[0-9a-f]{32}$")),
    responses(
        (status = 200, description = "The worker", body = WorkerBody),
        (status = 404, description = "There is none", body = ErrorBody)
    )
)]
pub async fn get(State(front): State<Front>, Path(id): Path<String>) -> Result<Json<WorkerBody>, Refusal> {
    let record = front.service.worker(parse(&id)?).await?;
    Ok(Json(shape(&record)))
}

/// Drain a worker: it gets no more sessions, and those it has may finish. It learns of it with its next report.
#[utoipa::path(
    post, path = "/v1/workers/{id}/drain", tag = "workers",
    params(("id" = String, Path, description = "The worker", pattern = "^wrk_[0-9a-f]{32}$"), DrainQuery),
    responses(
        (status = 200, description = "It holds no session any more, or is gone", body = WorkerBody),
        (status = 202, description = "It drains", body = WorkerBody),
        (status = 404, description = "There is none", body = ErrorBody)
    )
)]
pub async fn drain(
    State(front): State<Front>,
    Path(id): Path<String>,
    query: Result<Query<DrainQuery>, QueryRejection>,
) -> Result<(StatusCode, Json<WorkerBody>), Refusal> {
    let worker = parse(&id)?;
    let wait = asked(query)?.wait.map(|text| span(&text)).transpose()?;
    let record = front.service.drain_worker(worker, wait).await?;
    let body = shape(&record);
    let status = match wait.is_some() && body.is_drained() {
        true => StatusCode::OK,
        false => StatusCode::ACCEPTED,
    };
    Ok((status, Json(body)))
}

/// Forget a worker. One that is alive registers again with its next report.
#[utoipa::path(
    delete, path = "/v1/workers/{id}", tag = "workers",
    params(("id" = String, Path, description = "The worker", pattern = "^wrk_[0-9a-f]{32}$"), RemoveQuery),
    responses(
        (status = 200, description = "It is forgotten; its sessions have ended as `worker_lost`", body = RemovedWorker),
        (status = 404, description = "There is none", body = ErrorBody),
        (status = 409, description = "It serves, or holds sessions: drain it first", body = ErrorBody)
    )
)]
pub async fn remove(
    State(front): State<Front>,
    Path(id): Path<String>,
    query: Result<Query<RemoveQuery>, QueryRejection>,
) -> Result<Json<RemovedWorker>, Refusal> {
    let worker = parse(&id)?;
    let how = match asked(query)?.force {
        true => Removal::ByForce,
        false => Removal::WhenDone,
    };
    let (record, freed) = front.service.remove_worker(worker, how).await?;
    Ok(Json(RemovedWorker {
        worker: shape(&record),
        ended: freed.ended.iter().map(|ended| ended.session).collect(),
    }))
}

/// A worker as everybody may see it.
fn shape(record: &WorkerRecord) -> WorkerBody {
    let share = |permille: u32| f64::from(permille) / 1000.0;
    WorkerBody {
        id: record.id,
        pool: record.pool.clone(),
        browsers: record.browsers.clone(),
        state: record.state,
        slots: record.slots,
        busy: record.busy,
        lifetime: record.lifetime,
        warm: record.warm,
        launching: record.launching,
        is_circuit_open: record.is_circuit_open,
        load: LoadBody {
            cpu: share(record.load.cpu_permille),
            memory_used: record.load.memory_used,
            memory_limit: record.load.memory_limit,
            pressure: share(record.load.pressure_permille),
        },
        address: without_userinfo(&record.address),
        registered_at: record.registered_at,
        heard_at: record.heard_at,
    }
}

fn parse(id: &str) -> Result<WorkerId, Refusal> {
    id.parse()
        .map_err(|error: wharf_core::ParseIdError| Refusal::new(ErrorCode::InvalidId, error.to_string()))
}

fn span(text: &str) -> Result<Duration, Refusal> {
    let Span(span) = text
        .parse()
        .map_err(|error| Refusal::invalid(format!("`wait`: {error}")))?;
    match span <= LONGEST_WAIT {
        true => Ok(span),
        false => Err(Refusal::invalid("`wait`: expected at most 24 h")),
    }
}
