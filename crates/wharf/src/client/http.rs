//! Calling a grid: one request, one answer, and precise words for everything that can go wrong on the way.
//!
//! Its own file because every command does exactly this. The key never appears in an error or in a URL that is printed.

use std::{fmt, time::Duration};

use serde_json::Value;

/// Longer than a person waits for an answer that is not a wait in itself.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// A stream says something every 15 s; after three times nothing the connection is dead.
const SILENCE: Duration = Duration::from_secs(45);

/// A grid, as its clients reach it.
pub struct Grid {
    agent: ureq::Agent,
    url: String,
    token: Option<String>,
}

/// Why a call came to nothing.
#[derive(Debug)]
pub enum CallError {
    /// Nobody answers there.
    Unreachable {
        /// The grid.
        url: String,
        /// In the transport's words.
        cause: String,
    },
    /// The grid said no.
    Refused {
        /// The HTTP status.
        status: u16,
        /// The stable code, if it is a Wharf that answered.
        code: String,
        /// What is wrong.
        message: String,
        /// What to do.
        advice: String,
    },
    /// What came back is not an answer of a Wharf.
    Strange(String),
}

/// A method, and whether it has a body.
#[derive(Debug, Clone)]
pub enum Call<'a> {
    Get,
    Delete,
    Post(Option<&'a Value>),
    Put(&'a Value),
    Patch(&'a Value),
}

// === impl Grid ===

impl Grid {
    pub fn new(url: &str, token: Option<String>) -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .user_agent(concat!("wharf/", env!("CARGO_PKG_VERSION")))
            .build();
        Self {
            agent: config.into(),
            url: url.trim_end_matches('/').to_owned(),
            token,
        }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// One call; `Null` for an answer without a body.
    pub fn call(&self, call: &Call<'_>, path: &str) -> Result<Value, CallError> {
        self.call_within(call, path, ANSWER_LIMIT)
    }

    /// The same for calls that wait for something themselves.
    pub fn call_within(&self, call: &Call<'_>, path: &str, limit: Duration) -> Result<Value, CallError> {
        let url = format!("{}{path}", self.url);
        let bearer = self.token.as_ref().map(|token| format!("Bearer {token}"));
        macro_rules! ready {
            ($request:expr) => {{
                let request = $request.config().timeout_global(Some(limit)).build();
                match &bearer {
                    Some(bearer) => request.header("authorization", bearer),
                    None => request,
                }
            }};
        }
        let json = "application/json";
        let sent = match call {
            Call::Get => ready!(self.agent.get(&url)).call(),
            Call::Delete => ready!(self.agent.delete(&url)).call(),
            Call::Post(None) => ready!(self.agent.post(&url)).send_empty(),
            Call::Post(Some(body)) => ready!(self.agent.post(&url)).content_type(json).send(body.to_string()),
            Call::Put(body) => ready!(self.agent.put(&url)).content_type(json).send(body.to_string()),
            Call::Patch(body) => ready!(self.agent.patch(&url)).content_type(json).send(body.to_string()),
        };
        let mut response = sent.map_err(|error| CallError::Unreachable {
            url: self.url.clone(),
            cause: error.to_string(),
        })?;
        let status = response.status().as_u16();
        let text = response
            .body_mut()
            .read_to_string()
            .map_err(|error| CallError::Strange(format!("the answer of {} broke off: {error}", self.url)))?;
        if (200..300).contains(&status) {
            if text.is_empty() {
                return Ok(Value::Null);
            }
            return serde_json::from_str(&text).map_err(|error| {
                CallError::Strange(format!("{} answered something that is not JSON: {error}", self.url))
            });
        }
        Err(self.refusal(status, &text))
    }

    /// Opens a stream of events, after the one with this number. It has no end of its own.
    pub fn stream(&self, path: &str, last_event_id: Option<&str>) -> Result<impl std::io::Read + use<>, CallError> {
        let mut request = self
            .agent
            .get(format!("{}{path}", self.url))
            .header("accept", "text/event-stream")
            .config()
            .timeout_connect(Some(ANSWER_LIMIT))
            .timeout_recv_response(Some(ANSWER_LIMIT))
            .timeout_per_read(Some(SILENCE))
            .build();
        if let Some(id) = last_event_id {
            request = request.header("last-event-id", id);
        }
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let mut response = request.call().map_err(|error| CallError::Unreachable {
            url: self.url.clone(),
            cause: error.to_string(),
        })?;
        let status = response.status().as_u16();
        if status != 200 {
            let text = response.body_mut().read_to_string().unwrap_or_default();
            return Err(self.refusal(status, &text));
        }
        Ok(response.into_body().into_reader())
    }

    /// What an answer that is no success says.
    fn refusal(&self, status: u16, text: &str) -> CallError {
        let error = serde_json::from_str::<Value>(text).unwrap_or_default();
        let word = |name: &str| error["error"][name].as_str().unwrap_or_default().to_owned();
        if word("code").is_empty() {
            let start: String = text.chars().take(200).collect();
            return CallError::Strange(format!(
                "{} answered {status}, but not as a Wharf does: {start}",
                self.url
            ));
        }
        CallError::Refused {
            status,
            code: word("code"),
            message: word("message"),
            advice: word("advice"),
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable { url, cause } => write!(
                f,
                "no grid can be reached at {url} ({cause}). Start one with `wharf up`, or say where it is with --url or \
                 WHARF_URL"
            ),
            Self::Refused {
                status,
                code,
                message,
                advice,
            } => write!(f, "{message} ({code}, {status}). {advice}"),
            Self::Strange(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for CallError {}

/// A query string of what is there, percent-encoded.
pub fn query(pairs: &[(&str, Option<&str>)]) -> String {
    let mut text = String::new();
    for (name, value) in pairs.iter().filter_map(|(name, value)| Some((name, (*value)?))) {
        text.push(if text.is_empty() { '?' } else { '&' });
        text.push_str(name);
        text.push('=');
        text.push_str(&encoded(value));
    }
    text
}

/// One part of a path or query, percent-encoded (RFC 3986 §2.3).
pub fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_holds_what_is_given() {
        assert_eq!(query(&[("a", None), ("b", None)]), "");
        assert_eq!(
            query(&[("a", Some("x y")), ("b", None), ("c", Some("1&2"))]),
            "?a=x%20y&c=1%262"
        );
    }

    #[test]
    fn refusal_says_what_and_what_to_do() {
        let refused = CallError::Refused {
            status: 409,
            code: "lock_held".into(),
            message: "the lock `x` is held by me".into(),
            advice: "Wait.".into(),
        };
        assert_eq!(
            refused.to_string(),
            "the lock `x` is held by me (lock_held, 409). Wait."
        );
    }
}
