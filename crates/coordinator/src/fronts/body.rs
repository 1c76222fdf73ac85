//! Reading JSON bodies: bounded in size and time, and precise about what is wrong.
//!
//! Its own file because every route that takes a body must refuse the same things in the same words: too large, too
//! slow, not JSON, wrong shape.

use std::time::Duration;

use axum::body::Body;
use http::{HeaderMap, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use wharf_core::ErrorCode;

use crate::{CoordinatorConfig, Refusal};

/// The body as JSON; `None` if there is none.
pub(super) async fn read<T: DeserializeOwned>(
    config: &CoordinatorConfig,
    headers: &HeaderMap,
    body: Body,
) -> Result<Option<T>, Refusal> {
    let bytes = collect(body, config.body_limit, config.body_timeout).await?;
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    if let Some(kind) = headers.get(header::CONTENT_TYPE) {
        let kind = kind.to_str().unwrap_or("?").to_ascii_lowercase();
        let is_json = kind.split(';').next().is_some_and(|kind| {
            let kind = kind.trim();
            kind == "application/json" || kind.ends_with("+json") || kind == "text/json"
        });
        // What curl sends for `-d` when nobody thought of a content type.
        let is_curl = kind.starts_with("application/x-www-form-urlencoded");
        if !is_json && !is_curl {
            let message = format!(
                "expected a JSON body, got `{}`",
                kind.chars().take(80).collect::<String>()
            );
            return Err(Refusal::new(ErrorCode::UnsupportedMediaType, message));
        }
    }
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|error| Refusal::invalid(format!("the body is not valid: {error}")))
}

async fn collect(body: Body, limit: usize, time: Duration) -> Result<bytes::Bytes, Refusal> {
    match tokio::time::timeout(time, Limited::new(body, limit).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Refusal::new(
            ErrorCode::BodyTooLarge,
            format!("the body is larger than {limit} bytes"),
        )),
        Ok(Err(error)) => Err(Refusal::invalid(format!("the body could not be read: {error}"))),
        Err(_) => Err(Refusal::new(
            ErrorCode::RequestTimeout,
            format!("the body did not arrive within {time:?}"),
        )),
    }
}
