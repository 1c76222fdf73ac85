//! `/metrics`, `/livez`, `/readyz`, `/openapi.json`: for operators and their machines.

use std::time::Duration;

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, StatusCode, header};
use wharf_core::Phase;

use super::Front;
use crate::Refusal;

/// Below the limit of the probes in `deploy/` (3 s).
const READY_WITHIN: Duration = Duration::from_secs(2);

/// Prometheus text.
#[utoipa::path(
    get, path = "/metrics", tag = "operations",
    responses((status = 200, description = "Prometheus text (OpenMetrics)", content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8"))
)]
pub async fn metrics(State(front): State<Front>) -> Result<Response, Refusal> {
    let inner = front.service.inner();
    // A store that does not answer must not hide the other numbers.
    if let Ok(stats) = inner.store.stats().await {
        let set = |gauge: &prometheus_client::metrics::gauge::Gauge, value: u64| {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        };
        set(&inner.metrics.sessions_active, stats.active);
        set(&inner.metrics.sessions_starting, stats.starting);
        set(&inner.metrics.queue_depth, stats.queued);
        set(&inner.metrics.slots, stats.slots);
        set(&inner.metrics.slots_busy, stats.busy);
        set(&inner.metrics.workers, stats.workers);
    }
    if let Err(error) = front.service.measure_scaling().await {
        tracing::debug!(%error, "could not tell how many workers there should be");
    }
    let orphans = inner.link.orphans().await;
    inner.metrics.orphans.set(i64::try_from(orphans).unwrap_or(i64::MAX));
    let mut text = String::with_capacity(8 * 1024);
    prometheus_client::encoding::text::encode(&mut text, &front.registry.lock())
        .map_err(|error| Refusal::new(wharf_core::ErrorCode::Internal, error.to_string()))?;
    let kind = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

/// The process answers.
#[utoipa::path(get, path = "/livez", tag = "operations", responses((status = 200, description = "Alive")))]
pub async fn livez() -> &'static str {
    "ok\n"
}

/// New sessions are taken.
#[utoipa::path(
    get, path = "/readyz", tag = "operations",
    responses((status = 200, description = "Ready"), (status = 503, description = "Starting, draining, or without store or worker"))
)]
pub async fn readyz(State(front): State<Front>) -> Response {
    let phase = front.service.phase();
    if phase != Phase::Ready {
        return (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", phase.as_str())).into_response();
    }
    // Probes have limits of their own, and a probe that got no answer knows less than one that was told why.
    let Ok(stats) = tokio::time::timeout(READY_WITHIN, front.service.inner().store.stats()).await else {
        let text = format!("the store did not answer within {READY_WITHIN:?}\n");
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    };
    match stats {
        // Workers of a fleet come through us: we must be ready before them.
        Ok(stats) if stats.slots > 0 || front.service.config().worker_token.is_some() => "ready\n".into_response(),
        Ok(_) => (StatusCode::SERVICE_UNAVAILABLE, "no worker\n").into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    }
}

/// This document.
#[utoipa::path(
    get, path = "/openapi.json", tag = "operations",
    responses((status = 200, description = "OpenAPI 3.1", content_type = "application/json"))
)]
pub async fn document(State(front): State<Front>) -> Response {
    let kind = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, kind)], front.openapi.as_str().to_owned()).into_response()
}
