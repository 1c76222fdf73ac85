//! `/sessions`: seed 000's form. The whole request body is the `data`, defaults apply, GET keeps the session alive.
//!
//! Its own file because its rules differ in three points: there is no connect timeout (its clients may never attach, so
//! only the idle timeout counts), looking at a session is activity, and where a program serves the session (driver
//! `command`) the answers are the program's own objects, under our id.

use axum::{
    Json,
    body::Body,
    extract::{Path, State},
    response::{IntoResponse, Response},
};
use http::{HeaderMap, StatusCode};
use wharf_core::{BrowserKind, ErrorCode, SessionId, SessionState, SessionStatus};
use wharf_store::{SessionQuery, SessionRecord};
use wharf_wire::rest::{ErrorBody, SeedSession};

use super::{BaseUrl, Front, access::Caller, body, sessions};
use crate::{Refusal, service::Ask};

/// Create a session; the body, any JSON, is its data.
#[utoipa::path(
    post, path = "/sessions", tag = "seed",
    request_body(content = Option<serde_json::Value>, description = "Any JSON"),
    responses(
        (status = 201, description = "The session is active; from a program its own object, with our id", body = SeedSession),
        (status = 400, description = "Not JSON", body = ErrorBody),
        (status = 404, description = "No worker", body = ErrorBody),
        (status = 502, description = "No browser could be launched", body = ErrorBody),
        (status = 503, description = "The queue is full or the wait was too long", body = ErrorBody)
    )
)]
pub async fn create(
    State(front): State<Front>,
    base: BaseUrl,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let config = sessions::config(&front);
    let data = body::value(config, &headers, body).await?;
    let mut spec = config.defaults();
    spec.timeouts.connect = None;
    spec.data = data.unwrap_or(spec.data);
    let mut handover = front
        .service
        .open(Ask {
            spec,
            owner: caller.owner(),
            idempotency_key: None,
        })
        .await?;
    match handover.answer.take() {
        Some(answer) => {
            let body = under_our_id(answer, handover.record.id);
            Ok(sessions::hand_over(handover, &body))
        }
        None => {
            let body = shape(&base, &handover.record);
            Ok(sessions::hand_over(handover, &body))
        }
    }
}

/// One session; keeps it alive.
#[utoipa::path(
    get, path = "/sessions/{id}", tag = "seed",
    params(("id" = String, Path, description = "The session")),
    responses(
        (status = 200, description = "It is there; from a program its own object, with our id", body = SeedSession),
        (status = 404, description = "Unknown, or ended with the reason given", body = ErrorBody),
        (status = 503, description = "The store does not answer", body = ErrorBody)
    )
)]
pub async fn get(
    State(front): State<Front>,
    base: BaseUrl,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, Refusal> {
    let id = find(&id)?;
    let record = front.service.session_of(caller, id).await?;
    if let SessionState::Ended(reason) = record.state {
        return Err(Refusal::ended(record.id, reason, record.detail.as_deref()));
    }
    if let (BrowserKind::Command, SessionState::Active(seat)) = (record.spec.browser, record.state) {
        let answer = front.service.look(id, seat).await?;
        return Ok(Json(under_our_id(answer, id)).into_response());
    }
    front.service.touch(id).await?;
    Ok(Json(shape(&base, &record)).into_response())
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
pub async fn delete(State(front): State<Front>, caller: Caller, Path(id): Path<String>) -> Result<StatusCode, Refusal> {
    front.service.release(caller, find(&id)?).await?;
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
pub async fn list(
    State(front): State<Front>,
    base: BaseUrl,
    caller: Caller,
) -> Result<Json<Vec<SeedSession>>, Refusal> {
    let statuses = SessionStatus::ALL
        .into_iter()
        .filter(|status| *status != SessionStatus::Ended)
        .collect();
    let query = SessionQuery {
        statuses,
        owner: caller.sees_only(),
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

/// A program's own object. Its id means nothing to anybody else.
fn under_our_id(mut answer: serde_json::Value, session: SessionId) -> serde_json::Value {
    if let Some(object) = answer.as_object_mut() {
        object.insert("id".to_owned(), session.to_string().into());
    }
    answer
}

fn shape(base: &BaseUrl, record: &SessionRecord) -> SeedSession {
    let is_active = matches!(record.state, SessionState::Active(_));
    SeedSession {
        id: record.id,
        created_at: record.times.queued_at,
        data: record.spec.data.clone(),
        status: record.state.status(),
        connect: is_active.then(|| base.connect(record)),
    }
}
