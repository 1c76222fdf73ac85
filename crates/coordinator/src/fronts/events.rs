//! `/v1/events`: what happens in the grid, as server-sent events that can be resumed.
//!
//! Its own file because an answer without an end has rules that no other answer has: how many there may be, what a client
//! that does not read costs, how it goes on elsewhere. Numbers come from the store, so a stream resumes on any coordinator.
//!
//! - `choice`: which events a stream tells, and how they are written.
//! - `tail`: the newest events, read once for all streams.
//! - `stream`: one stream: reading, telling, keeping alive, ending.

mod choice;
mod stream;
mod tail;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use axum::{
    Extension,
    body::Body,
    extract::{Query, State, rejection::QueryRejection},
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use serde::Deserialize;
use tokio::sync::Semaphore;
use utoipa::{IntoParams, ToSchema};
use wharf_core::{ErrorCode, Phase};

use self::{
    choice::Choice,
    stream::{Open, Pump},
    tail::Tail,
};
use super::{Front, access::Caller, pool::asked};
use crate::{Refusal, Service, server::Cut};

/// Streams of one coordinator at once: each may hold one chunk and a connection.
const STREAMS: usize = 1000;
/// A client that takes nothing for this long is not reading.
const SLOW: Duration = Duration::from_secs(30);
const BUSY_RETRY: Duration = Duration::from_secs(5);
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// nginx would otherwise keep events to itself until it has a buffer full.
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// The streams of this coordinator.
pub(crate) struct Streams {
    open: Arc<Semaphore>,
    tail: Arc<Tail>,
    slow: Duration,
}

/// Which events.
#[derive(Debug, Default, Deserialize, IntoParams, ToSchema)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EventsQuery {
    /// Go on after this number; 0 begins with the oldest event that is kept. Without it, and without `Last-Event-ID`,
    /// only what comes from now on is told.
    #[param(minimum = 0)]
    pub after: Option<u64>,
    /// Only events whose type begins with one of these, separated by commas, e.g. `session.,worker.lost`.
    pub r#type: Option<String>,
    /// Only this session.
    #[param(pattern = "^ses_[0-9a-f]{32}$")]
    pub session: Option<String>,
    /// Only this pool.
    #[param(pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")]
    pub pool: Option<String>,
}

/// Where a stream begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    /// With what comes.
    Now,
    /// With the oldest that is kept.
    Oldest,
    /// After this number.
    After(u64),
}

/// Follow what happens: sessions, workers, locks, the queue.
///
/// Each event has its number as `id`, its type as `event`, and one line of JSON (`EventBody`) as `data`. Coming back with
/// `Last-Event-ID` goes on exactly after it, at any coordinator. The stream's own words have `StreamNote` as `data`: `gap`
/// (some events are no longer kept), `slow` (the client took nothing for 30 s), `end` (this coordinator is stopping). A key
/// that is not an admin's sees its own sessions, and how many wait.
#[utoipa::path(
    get, path = "/v1/events", tag = "events",
    params(
        EventsQuery,
        ("Last-Event-ID" = Option<u64>, Header, description = "Go on after this number; comes before `after`"),
    ),
    responses((
        status = 200, description = "A stream without an end; a comment every 15 s keeps it open",
        body = String, content_type = "text/event-stream"
    ))
)]
pub async fn follow(
    State(front): State<Front>,
    caller: Caller,
    method: Method,
    headers: HeaderMap,
    cut: Option<Extension<Cut>>,
    query: Result<Query<EventsQuery>, QueryRejection>,
) -> Result<Response, Refusal> {
    let wanted = asked(query)?;
    accepts_events(&headers)?;
    let from = from(&headers, wanted.after)?;
    let choice = choice(&wanted, caller)?;
    let service = &front.service;
    if service.phase() >= Phase::Draining {
        let message = "the grid is shutting down and tells no more events here";
        return Err(Refusal {
            message: message.into(),
            ..Refusal::draining()
        });
    }
    let kind = HeaderValue::from_static("text/event-stream");
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (ACCEL_BUFFERING, HeaderValue::from_static("no")),
    ];
    if method == Method::HEAD {
        return Ok(headers.into_response());
    }
    let pump = front.streams.open(service, caller, choice, from).await?;
    let chunks = Pump {
        cut: cut.map(|Extension(cut)| cut),
        ..pump
    }
    .start();
    Ok((headers, Body::new(chunks)).into_response())
}

// === impl Streams ===

impl Streams {
    pub(crate) fn new() -> Self {
        Self {
            open: Arc::new(Semaphore::new(STREAMS)),
            tail: Arc::new(Tail::new()),
            slow: SLOW,
        }
    }

    async fn open(&self, service: &Service, caller: Caller, choice: Choice, from: Start) -> Result<Pump, Refusal> {
        let Ok(permit) = self.open.clone().try_acquire_owned() else {
            let message = format!("{STREAMS} clients follow the events here already");
            return Err(Refusal::new(ErrorCode::TooManyStreams, message).retry_in(BUSY_RETRY));
        };
        let gauge = service.inner().metrics.event_streams.clone();
        gauge.inc();
        let open = Open { gauge, _permit: permit };
        // Before the answer begins: whoever has its head misses nothing that comes after.
        let cursor = match from {
            Start::After(number) => number,
            Start::Now => service.inner().store.events(0, 1).await?.newest,
            Start::Oldest => service.inner().store.events(0, 1).await?.oldest.saturating_sub(1),
        };
        Ok(Pump {
            set_back: self.tail.set_back(),
            head: self.tail.follow(service),
            tail: self.tail.clone(),
            service: service.clone(),
            caller,
            choice,
            cursor,
            slow: self.slow,
            cut: None,
            _open: open,
        })
    }
}

fn choice(wanted: &EventsQuery, caller: Caller) -> Result<Choice, Refusal> {
    let invalid = |what: &str, error: &dyn std::fmt::Display| Refusal::invalid(format!("`{what}`: {error}"));
    Ok(Choice {
        only: caller.sees_only(),
        types: match &wanted.r#type {
            Some(text) => choice::types(text).map_err(Refusal::invalid)?,
            None => Vec::new(),
        },
        session: match &wanted.session {
            Some(text) => Some(text.parse().map_err(|error| invalid("session", &error))?),
            None => None,
        },
        pool: match &wanted.pool {
            Some(text) => Some(text.parse().map_err(|error| invalid("pool", &error))?),
            None => None,
        },
    })
}

/// The header comes first: an EventSource comes back with the address it was made with, `after` and all.
fn from(headers: &HeaderMap, after: Option<u64>) -> Result<Start, Refusal> {
    let header = headers.get(LAST_EVENT_ID).map(HeaderValue::to_str);
    match header {
        // What it said last was heard by this client: should 0 be gone, a gap is told.
        Some(Ok(text)) if !text.is_empty() => match number(text) {
            Some(number) => Ok(Start::After(number)),
            None => Err(Refusal::invalid(format!(
                "`Last-Event-ID`: expected the number of an event, got `{}`",
                text.chars().take(40).collect::<String>()
            ))),
        },
        Some(Err(_)) => Err(Refusal::invalid("`Last-Event-ID`: expected the number of an event")),
        _ => match after {
            None => Ok(Start::Now),
            Some(0) => Ok(Start::Oldest),
            Some(number) if number <= LARGEST => Ok(Start::After(number)),
            Some(number) => Err(Refusal::invalid(format!(
                "`after`: expected the number of an event, got {number}"
            ))),
        },
    }
}

/// Stores count with signed numbers.
const LARGEST: u64 = i64::MAX as u64;

fn number(text: &str) -> Option<u64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| is_plain && *number <= LARGEST)
}

/// Whoever asks for something else in so many words would wait for the end of an answer that has none.
fn accepts_events(headers: &HeaderMap) -> Result<(), Refusal> {
    let mut asked = headers.get_all(header::ACCEPT).iter().peekable();
    let takes = |value: &HeaderValue| {
        value.to_str().unwrap_or("*/*").split(',').any(|range| {
            let mut parts = range.split(';').map(|part| part.trim().to_ascii_lowercase());
            let kind = parts.next().unwrap_or_default();
            let is_refused = parts.any(|part| {
                part.strip_prefix("q=")
                    .is_some_and(|weight| weight.parse::<f32>().is_ok_and(|weight| weight <= 0.0))
            });
            !is_refused && ["text/event-stream", "text/*", "*/*", "*", ""].contains(&kind.as_str())
        })
    };
    match asked.peek().is_none() || asked.any(takes) {
        true => Ok(()),
        false => Err(Refusal::invalid(
            "this is a stream of events: send `Accept: text/event-stream`, or no Accept at all",
        )),
    }
}
