//! `/internal/workers/…`: where workers elsewhere register, report and leave. Any coordinator takes any worker's word.
//!
//! Its own file because it is the other half of the worker's uplink. Not part of the API that others may call: it needs
//! the worker token and is not in the OpenAPI document. A worker is registered only after it was called back at the
//! address it advertises: one that cannot be reached would get sessions that nobody could use.

use std::time::Duration;

use axum::{Json, Router, body::Body, extract::State, routing::post};
use http::{HeaderMap, StatusCode};
use wharf_core::{Epoch, ErrorCode, SessionId};
use wharf_store::{Heartbeat, HeartbeatReply, Registration};
use wharf_wire::internal::{BrowserEnded, DEREGISTER, ENDED, Goodbye, HEARTBEAT, REGISTER, SlotVacated, VACATED};

use super::{Front, body};
use crate::Refusal;

/// A report is answered within this, with or without the store, and before the worker takes our silence for absence (3 s).
const NOTED_WITHIN: Duration = Duration::from_secs(2);

pub(super) fn routes() -> Router<Front> {
    Router::new()
        .route(REGISTER, post(register))
        .route(HEARTBEAT, post(heartbeat))
        .route(DEREGISTER, post(deregister))
        .route(ENDED, post(ended))
        .route(VACATED, post(vacated))
}

async fn register(State(front): State<Front>, headers: HeaderMap, body: Body) -> Result<StatusCode, Refusal> {
    let registration: Registration = body::required(front.service.config(), &headers, body).await?;
    let (worker, inner) = (registration.worker, front.service.inner());
    if let Err(cause) = inner.link.call_back(worker, &registration.address).await {
        let message = format!("the worker {worker} cannot be called back: {cause}");
        tracing::warn!(%worker, cause, "refused a worker that cannot be called back");
        return Err(Refusal::new(ErrorCode::WorkerUnreachable, message));
    }
    let (pool, slots) = (registration.pool.clone(), registration.slots);
    inner.store.register(registration).await?;
    tracing::info!(%worker, %pool, slots, "worker registered");
    Ok(StatusCode::NO_CONTENT)
}

async fn heartbeat(
    State(front): State<Front>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<HeartbeatReply>, Refusal> {
    let heartbeat: Heartbeat = body::required(front.service.config(), &headers, body).await?;
    let noted = front.service.inner().store.heartbeat(heartbeat);
    match tokio::time::timeout(NOTED_WITHIN, noted).await {
        Ok(reply) => Ok(Json(reply?)),
        Err(_) => {
            let message = format!("the store did not answer within {NOTED_WITHIN:?}");
            Err(Refusal::new(ErrorCode::StoreUnavailable, message))
        }
    }
}

async fn deregister(State(front): State<Front>, headers: HeaderMap, body: Body) -> Result<StatusCode, Refusal> {
    let Goodbye { worker } = body::required(front.service.config(), &headers, body).await?;
    front.service.inner().store.deregister(worker).await?;
    tracing::info!(%worker, "worker deregistered");
    Ok(StatusCode::NO_CONTENT)
}

async fn ended(State(front): State<Front>, headers: HeaderMap, body: Body) -> Result<StatusCode, Refusal> {
    let said: BrowserEnded = body::required(front.service.config(), &headers, body).await?;
    if front.is_present(said.session, said.epoch).await? {
        front
            .service
            .inner()
            .store
            .end(said.session, said.reason, said.detail)
            .await?;
    }
    Ok(StatusCode::NO_CONTENT)
}

async fn vacated(State(front): State<Front>, headers: HeaderMap, body: Body) -> Result<StatusCode, Refusal> {
    let said: SlotVacated = body::required(front.service.config(), &headers, body).await?;
    front.service.inner().store.vacate(said.session, said.epoch).await?;
    Ok(StatusCode::NO_CONTENT)
}

// === impl Front ===

impl Front {
    /// A report about an earlier placement says nothing about the present one.
    async fn is_present(&self, session: SessionId, epoch: Epoch) -> Result<bool, Refusal> {
        let record = self.service.inner().store.session(session).await?;
        Ok(record.is_some_and(|record| record.epoch == epoch))
    }
}
