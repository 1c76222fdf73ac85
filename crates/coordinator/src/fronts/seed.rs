//! `/sessions`: seed 000's form. The whole request body is the `data`, defaults apply, GET keeps the session alive.
//!
//! Its own file because its rules differ in two points: there is no connect timeout (its clients may never attach, so
//! only the idle timeout counts), and looking at a session is activity.

use axum::{
    Json,
    body::Body,
    extract::{Path, State},
    response::Response,
};
use http::{HeaderMap, StatusCode};
use wharf_core::{ErrorCode, SessionId, SessionState, SessionStatus};
use wharf_store::{SessionQuery, SessionRecord};
use wharf_wire::rest::{Connect, ErrorBody, SeedSession};

use super::{BaseUrl, Front, body, sessions};
use crate::{Refusal, service::Ask};

/// Create a session; the body, any JSON, is its data.
#[utoipa::path(
    post, path = "/sessions", tag = "seed",
    request_body(content = Option<Object>, description = "Any JSON"),
    responses(
        (status = 201, description = "The session is active", body = SeedSession),
        (status = 400, description = "Not JSON", body = ErrorBody),
        (status = 404, description = "No worker", body = ErrorBody),
        (status = 408, description = "The body was too slow", body = ErrorBody),
        (status = 413, description = "Too large", body = ErrorBody),
        (status = 415, description = "Not JSON", body = ErrorBody),
        (status = 502, description = "No browser could be launched", body = ErrorBody),
        (status = 503, description = "The queue is full or the wait was too long", body = ErrorBody)
    )
)]
pub async fn create(
    State(front): State<Front>,
    base: BaseUrl,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let config = sessions::config(&front);
    let data: Option<serde_json::Value> = body::read(config, &headers, body).await?;
    let mut spec = config.defaults();
    spec.timeouts.connect = None;
    spec.data = data.unwrap_or(spec.data);
    let handover = front
        .service
        .open(Ask {
            spec,
            idempotency_key: None,
        })
        .await?;
    let body = shape(&base, &handover.record);
    Ok(sessions::hand_over(handover, &body))
}

/// One session; keeps it alive.
#[utoipa::path(
    get, path = "/sessions/{id}", tag = "seed",
    params(("id" = String, Path, description = "The session")),
    responses(
        (status = 200, description = "It is there", body = SeedSession),
        (status = 404, description = "Unknown, or ended with the reason given", body = ErrorBody),
        (status = 503, description = "The store does not answer", body = ErrorBody)
    )
)]
pub async fn get(
    State(front): State<Front>,
    base: BaseUrl,
    Path(id): Path<String>,
) -> Result<Json<SeedSession>, Refusal> {
    let id = find(&id)?;
    let record = front.service.session(id).await?;
    if let SessionState::Ended(reason) = record.state {
        return Err(Refusal::ended(record.id, reason, record.detail.as_deref()));
    }
    front.service.touch(id).await?;
    Ok(Json(shape(&base, &record)))
}

/// End a session.
#[utoipa::path(
    delete, path = "/sessions/{id}", tag = "seed",
    params(("id" = String, Path, description = "The session")),
    responses(
        (status = 204, description = "It is over"),
        (status = 404, description = "Unknown", body = ErrorBody),
        (status = 503, description = "The store does not answer", body = ErrorBody)
    )
)]
pub async fn delete(State(front): State<Front>, Path(id): Path<String>) -> Result<StatusCode, Refusal> {
    front.service.release(find(&id)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The sessions that have not ended, the first thousand.
#[utoipa::path(
    get, path = "/sessions", tag = "seed",
    responses(
        (status = 200, description = "The sessions", body = Vec<SeedSession>),
        (status = 503, description = "The store does not answer", body = ErrorBody)
    )
)]
pub async fn list(State(front): State<Front>, base: BaseUrl) -> Result<Json<Vec<SeedSession>>, Refusal> {
    let statuses = SessionStatus::ALL
        .into_iter()
        .filter(|status| *status != SessionStatus::Ended)
        .collect();
    let query = SessionQuery {
        statuses,
        limit: 1000,
        ..SessionQuery::default()
    };
    let records = front.service.inner().store.sessions(&query).await?;
    Ok(Json(records.iter().map(|record| shape(&base, record)).collect()))
}

/// Its clients may ask for any text; an id that is not one is simply not there.
fn find(id: &str) -> Result<SessionId, Refusal> {
    id.parse().map_err(|_| {
        let message = format!("there is no session `{}`", id.chars().take(64).collect::<String>());
        Refusal::new(ErrorCode::SessionNotFound, message)
    })
}

fn shape(base: &BaseUrl, record: &SessionRecord) -> SeedSession {
    let is_active = matches!(record.state, SessionState::Active(_));
    SeedSession {
        id: record.id,
        created_at: record.times.queued_at,
        data: record.spec.data.clone(),
        status: record.state.status(),
        connect: is_active.then(|| Connect {
            cdp: base.session(record.id),
        }),
    }
}
