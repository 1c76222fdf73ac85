//! Reading JSON bodies: bounded in size and time, and precise about what is wrong.
//!
//! Its own file because every route that takes a body must refuse the same things in the same words: too large, too
//! slow, not JSON, wrong shape.

use std::{ops::RangeInclusive, time::Duration};

use axum::body::Body;
use http::{HeaderMap, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use wharf_core::ErrorCode;

use crate::{CoordinatorConfig, Refusal};

/// The body as any JSON; `None` if there is none.
pub(super) async fn value(
    config: &CoordinatorConfig,
    headers: &HeaderMap,
    body: Body,
) -> Result<Option<serde_json::Value>, Refusal> {
    match read(config, headers, body).await? {
        Some(bytes) => parse(&bytes).map(Some),
        None => Ok(None),
    }
}

/// The body as a JSON object; `None` if there is none.
pub(super) async fn object<T: DeserializeOwned>(
    config: &CoordinatorConfig,
    headers: &HeaderMap,
    body: Body,
) -> Result<Option<T>, Refusal> {
    let Some(bytes) = read(config, headers, body).await? else {
        return Ok(None);
    };
    // serde would also take the fields in a row, as an array.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        let _any: serde::de::IgnoredAny = parse(&bytes)?;
        return Err(Refusal::invalid("the body is not valid: expected a JSON object"));
    }
    parse(&bytes).map(Some)
}

/// The body, bounded in size and time, if it says that it is JSON; `None` if it is empty.
async fn read(config: &CoordinatorConfig, headers: &HeaderMap, body: Body) -> Result<Option<bytes::Bytes>, Refusal> {
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
    Ok(Some(bytes))
}

/// JSON, with the field named that is wrong.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let (path, cause) = (error.path().to_string(), error.inner());
        match path.as_str() {
            "." => Refusal::invalid(format!("the body is not valid: {cause}")),
            _ => Refusal::invalid(format!("the body is not valid: `{path}`: {cause}")),
        }
    })?;
    json.end()
        .map_err(|error| Refusal::invalid(format!("the body is not valid: {error}")))?;
    Ok(value)
}

/// The body as JSON, which must be there.
pub(super) async fn required<T: DeserializeOwned>(
    config: &CoordinatorConfig,
    headers: &HeaderMap,
    body: Body,
) -> Result<T, Refusal> {
    object(config, headers, body)
        .await?
        .ok_or_else(|| Refusal::invalid("the body is missing: expected a JSON object"))
}

/// A text for people: so many characters, and none that would spoil a terminal.
pub(super) fn text(what: &str, text: String, length: RangeInclusive<usize>) -> Result<String, Refusal> {
    let count = text.chars().count();
    if !length.contains(&count) {
        let (least, most) = (length.start(), length.end());
        return Err(Refusal::invalid(format!(
            "`{what}`: expected {least} to {most} characters, got {count}"
        )));
    }
    if text.chars().any(char::is_control) {
        return Err(Refusal::invalid(format!(
            "`{what}`: control characters are not allowed"
        )));
    }
    Ok(text)
}

/// A count of sessions that makes sense.
pub(super) fn within(what: &str, count: u64) -> Result<u64, Refusal> {
    match count {
        0..=1_000_000 => Ok(count),
        _ => Err(Refusal::invalid(format!(
            "`{what}`: expected 0 to 1000000, got {count}"
        ))),
    }
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
