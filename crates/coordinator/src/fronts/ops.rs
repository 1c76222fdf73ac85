//! `/metrics`, `/livez`, `/readyz`, `/openapi.json`: for operators and their machines.

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, StatusCode, header};
use wharf_core::Phase;

use super::Front;
use crate::Refusal;

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
    match front.service.inner().store.stats().await {
        Ok(stats) if stats.slots > 0 => "ready\n".into_response(),
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
