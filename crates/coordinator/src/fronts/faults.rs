//! `/debug/…`: breaking a session's browser on purpose, so that users can see their own code survive it.
//!
//! Its own file because it must be easy to see that nothing here works unless the operator said `--enable-faults`:
//! every route passes `allowed` first, and without it there is nothing at these paths.

use std::time::Duration;

use axum::extract::{Query, State, rejection::QueryRejection};
use http::StatusCode;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use wharf_core::ErrorCode;
use wharf_wire::{rest::ErrorBody, span::Span};

use super::{Front, access::Caller, pool::asked, sessions::parse_id};
use crate::{Fault, LinkError, Refusal};

/// Longer than any probe's patience is a hang; that is another route.
const SLOW_DEFAULT: Duration = Duration::from_secs(2);
const SLOW_LONGEST: Duration = Duration::from_secs(60);

/// Whose browser.
#[derive(Debug, Deserialize, IntoParams, ToSchema)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct FaultQuery {
    /// The session whose browser is to suffer.
    pub session_id: Option<String>,
    /// For `slow-worker`: how long it does nothing, 2 s if left out, at most 60 s.
    pub r#for: Option<String>,
}

/// Kill the browser of a session, as a crash would.
#[utoipa::path(
    post, path = "/debug/crash-worker", tag = "faults", params(FaultQuery),
    responses(
        (status = 200, description = "Done"),
        (status = 404, description = "No such session, or faults are not enabled", body = ErrorBody),
        (status = 409, description = "It has no browser yet", body = ErrorBody),
        (status = 502, description = "Its worker cannot be reached", body = ErrorBody)
    )
)]
pub async fn crash(
    State(front): State<Front>,
    caller: Caller,
    query: Result<Query<FaultQuery>, QueryRejection>,
) -> Result<StatusCode, Refusal> {
    inject(&front, caller, query, |_| Ok(Fault::Crash)).await
}

/// Stop the browser of a session, as a hang would: probes notice and it is killed.
#[utoipa::path(
    post, path = "/debug/hang-worker", tag = "faults", params(FaultQuery),
    responses(
        (status = 200, description = "Done"),
        (status = 404, description = "No such session, or faults are not enabled", body = ErrorBody),
        (status = 409, description = "It has no browser yet", body = ErrorBody),
        (status = 502, description = "Its worker cannot be reached", body = ErrorBody)
    )
)]
pub async fn hang(
    State(front): State<Front>,
    caller: Caller,
    query: Result<Query<FaultQuery>, QueryRejection>,
) -> Result<StatusCode, Refusal> {
    inject(&front, caller, query, |_| Ok(Fault::Hang)).await
}

/// Stop the browser of a session for a while.
#[utoipa::path(
    post, path = "/debug/slow-worker", tag = "faults", params(FaultQuery),
    responses(
        (status = 200, description = "Done"),
        (status = 404, description = "No such session, or faults are not enabled", body = ErrorBody),
        (status = 409, description = "It has no browser yet", body = ErrorBody),
        (status = 502, description = "Its worker cannot be reached", body = ErrorBody)
    )
)]
pub async fn slow(
    State(front): State<Front>,
    caller: Caller,
    query: Result<Query<FaultQuery>, QueryRejection>,
) -> Result<StatusCode, Refusal> {
    inject(&front, caller, query, |asked| {
        let span = match asked.r#for.as_deref() {
            None => SLOW_DEFAULT,
            Some(text) => {
                let Span(span) = text
                    .parse()
                    .map_err(|error| Refusal::invalid(format!("`for`: {error}")))?;
                span
            }
        };
        match span <= SLOW_LONGEST {
            true => Ok(Fault::Slow(span)),
            false => Err(Refusal::invalid(format!("`for`: expected at most {SLOW_LONGEST:?}"))),
        }
    })
    .await
}

async fn inject(
    front: &Front,
    caller: Caller,
    query: Result<Query<FaultQuery>, QueryRejection>,
    fault: impl Fn(&FaultQuery) -> Result<Fault, Refusal>,
) -> Result<StatusCode, Refusal> {
    allowed(front)?;
    let asked = asked(query)?;
    let Some(session) = asked.session_id.as_deref() else {
        return Err(Refusal::invalid("`session_id` is missing: whose browser?"));
    };
    let fault = fault(&asked)?;
    let record = front.service.session_of(caller, parse_id(session)?).await?;
    if let Some(reason) = record.reason() {
        return Err(Refusal::ended(record.id, reason, record.detail.as_deref()));
    }
    tracing::warn!(session = %record.id, ?fault, "fault injected");
    let Some(seat) = record.state.seat() else {
        let message = format!("the session {} has no browser yet", record.id);
        return Err(Refusal::new(ErrorCode::SessionNotActive, message).about(record.id));
    };
    match front.service.inner().link.disturb(record.id, seat, fault).await {
        Ok(()) => Ok(StatusCode::OK),
        Err(error @ LinkError::NotHeld) => {
            Err(Refusal::new(ErrorCode::SessionNotActive, error.to_string()).about(record.id))
        }
        Err(error) => Err(Refusal::new(ErrorCode::WorkerUnreachable, error.to_string()).about(record.id)),
    }
}

fn allowed(front: &Front) -> Result<(), Refusal> {
    match front.service.config().faults {
        true => Ok(()),
        false => Err(Refusal::new(
            ErrorCode::RouteNotFound,
            "faults are not enabled here; the operator can start the grid with --enable-faults",
        )),
    }
}
