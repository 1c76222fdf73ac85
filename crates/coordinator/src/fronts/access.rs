//! Who may call what: the table of routes, and who is calling.
//!
//! Its own file because both are rules that a new route must not be able to forget: the table lists every route of the
//! OpenAPI document (a test compares them), and what it does not list is an admin's. Keys are compared in constant
//! time; a key in the query is taken out before anybody else sees the address.

use std::{convert::Infallible, time::Duration};

use axum::extract::{FromRequestParts, MatchedPath, Request};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderMap, Method, Uri, header, request::Parts, uri::PathAndQuery};
use tokio::time::Instant;
use wharf_core::{ErrorCode, KeyId, KeyToken};
use wharf_store::KeyRole;

use super::Front;
pub use crate::Caller;
use crate::{Refusal, Service, config::KeyRule};

/// Who may call a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Everybody, for probes and documentation.
    Public,
    /// Whoever has a key; it sees what is its own.
    Client,
    /// Admin keys.
    Admin,
    /// Workers, by their token.
    Worker,
}

use Access::{Admin, Client, Public, Worker};

/// Every route. Spellings that are not in the OpenAPI document come last.
pub const ROUTES: &[(&str, &str, Access)] = &[
    ("POST", "/v1/sessions", Client),
    ("GET", "/v1/sessions", Client),
    ("GET", "/v1/sessions/history", Client),
    ("GET", "/v1/sessions/{id}", Client),
    ("DELETE", "/v1/sessions/{id}", Client),
    ("POST", "/sessions", Client),
    ("GET", "/sessions", Client),
    ("GET", "/sessions/{id}", Client),
    ("DELETE", "/sessions/{id}", Client),
    ("GET", "/", Client),
    ("GET", "/chromium", Client),
    ("GET", "/devtools/browser/{id}", Client),
    ("GET", "/devtools/page/{target}", Client),
    ("GET", "/json/version", Client),
    ("GET", "/json/list", Client),
    ("GET", "/json/protocol", Client),
    ("PUT", "/json/new", Client),
    ("GET", "/v1/pool", Client),
    ("GET", "/v1/pool/recent", Client),
    ("PUT", "/v1/pool/limits", Admin),
    ("POST", "/v1/pool/cleanup", Admin),
    ("GET", "/v1/queue", Client),
    ("DELETE", "/v1/queue", Client),
    ("GET", "/v1/locks", Client),
    ("GET", "/v1/locks/{name}", Client),
    ("POST", "/v1/locks/{name}", Admin),
    ("PUT", "/v1/locks/{name}", Admin),
    ("DELETE", "/v1/locks/{name}", Admin),
    ("POST", "/v1/locks/{name}/force-unlock", Admin),
    ("GET", "/v1/keys", Admin),
    ("POST", "/v1/keys", Admin),
    ("PATCH", "/v1/keys/{id}", Admin),
    ("DELETE", "/v1/keys/{id}", Admin),
    ("GET", "/v1/workers", Client),
    ("GET", "/v1/workers/{id}", Client),
    ("POST", "/v1/workers/{id}/drain", Admin),
    ("DELETE", "/v1/workers/{id}", Admin),
    ("GET", "/v1/events", Client),
    ("POST", "/debug/crash-worker", Client),
    ("POST", "/debug/hang-worker", Client),
    ("POST", "/debug/slow-worker", Client),
    ("GET", "/metrics", Client),
    ("GET", "/livez", Public),
    ("GET", "/readyz", Public),
    ("GET", "/openapi.json", Public),
    ("POST", "/internal/workers/register", Worker),
    ("POST", "/internal/workers/heartbeat", Worker),
    ("POST", "/internal/workers/deregister", Worker),
    ("POST", "/internal/workers/ended", Worker),
    ("POST", "/internal/workers/vacated", Worker),
    ("GET", "/json/version/", Client),
    ("GET", "/json", Client),
    ("GET", "/json/", Client),
    ("GET", "/json/list/", Client),
    ("GET", "/json/protocol/", Client),
    ("GET", "/chromium/", Client),
];

/// How often a key's use is told to the store, which writes it to the minute.
const USE_TOLD: Duration = Duration::from_secs(60);

/// The key as the query had it, for the URLs that are handed out in the answer.
#[derive(Debug, Clone)]
pub(super) struct QueryToken(pub(super) String);

impl FromRequestParts<Front> for Caller {
    type Rejection = Infallible;

    /// `admit` has put it there; a request that has not passed it is nobody's, and sees nothing.
    async fn from_request_parts(parts: &mut Parts, _: &Front) -> Result<Self, Infallible> {
        let nobody = Self::Key {
            id: KeyId::from_uuid(uuid::Uuid::nil()),
            role: KeyRole::Client,
        };
        Ok(parts.extensions.get::<Self>().copied().unwrap_or(nobody))
    }
}

/// Lets a request in, or says why not. Takes a key out of its query.
pub(super) async fn admit(front: &Front, request: &mut Request) -> Result<(), Refusal> {
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let access = access(request.method(), path);
    let in_query = take_query_token(request.uri_mut());
    let shown = match (in_header(request.headers()), in_query) {
        (Some(token), _) => Some(token),
        (None, Some(token)) => {
            request.extensions_mut().insert(QueryToken(token.clone()));
            Some(token)
        }
        (None, None) => None,
    };
    let caller = if access == Public {
        Caller::Anyone
    } else if access == Worker {
        front.service.admit_worker(shown.as_deref())?;
        Caller::Anyone
    } else {
        front.service.identify(shown.as_deref()).await?
    };
    if access == Admin && caller.sees_only().is_some() {
        let message = format!("{} {} needs an admin key", request.method(), request.uri().path());
        return Err(Refusal::new(ErrorCode::Forbidden, message));
    }
    request.extensions_mut().insert(caller);
    Ok(())
}

/// Who may call this. A path that exists with another method, or not at all, tells strangers nothing.
fn access(method: &Method, path: Option<&str>) -> Access {
    let method = if *method == Method::HEAD { &Method::GET } else { method };
    let Some(path) = path else { return Client };
    let mut routes = ROUTES.iter().filter(|(_, route, _)| *route == path).peekable();
    if routes.peek().is_none() {
        return Admin;
    }
    routes
        .find(|(name, _, _)| *name == method.as_str())
        .map_or(Client, |(_, _, access)| *access)
}

/// `Authorization: Bearer`, `Authorization: Basic` (as the password, or as the name without one), or `X-API-Key`.
fn in_header(headers: &HeaderMap) -> Option<String> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("").to_owned());
    if let Some(value) = text(header::AUTHORIZATION.as_str()) {
        let (scheme, rest) = value.split_once(' ').unwrap_or((&value, ""));
        if scheme.eq_ignore_ascii_case("bearer") {
            return Some(rest.trim().to_owned());
        }
        if scheme.eq_ignore_ascii_case("basic") {
            let plain = STANDARD.decode(rest.trim()).unwrap_or_default();
            let plain = String::from_utf8(plain).unwrap_or_default();
            let (name, password) = plain.split_once(':').unwrap_or((&plain, ""));
            return Some(if password.is_empty() { name } else { password }.to_owned());
        }
    }
    text("x-api-key")
}

/// The `token` of the query, which is there no more afterwards.
fn take_query_token(uri: &mut Uri) -> Option<String> {
    let query = uri.query()?;
    let is_token = |pair: &&str| pair.split_once('=').is_some_and(|(name, _)| name == "token");
    let token = query.split('&').find(is_token)?.split_once('=')?.1.to_owned();
    let rest: Vec<_> = query.split('&').filter(|pair| !is_token(pair)).collect();
    let path = match rest.is_empty() {
        true => uri.path().to_owned(),
        false => format!("{}?{}", uri.path(), rest.join("&")),
    };
    let mut parts = uri.clone().into_parts();
    // Parts of a valid address are valid: should they not be, the token must go all the same.
    parts.path_and_query = path.parse::<PathAndQuery>().ok();
    *uri = Uri::from_parts(parts).unwrap_or_default();
    Some(token)
}

// === impl Service ===

impl Service {
    /// Whose this key is. Without one, anybody's request is an open grid's.
    pub(super) async fn identify(&self, shown: Option<&str>) -> Result<Caller, Refusal> {
        let refused = |message: &str| Refusal::new(ErrorCode::Unauthorized, message);
        if !self.needs_key().await? {
            return Ok(Caller::Anyone);
        }
        let Some(shown) = shown else {
            return Err(refused("this grid needs a key and none was sent"));
        };
        let wrong = || refused("the key is not known, or it was revoked");
        let token: KeyToken = shown.parse().map_err(|_| wrong())?;
        let record = self.inner().store.key(token.id()).await?;
        // An unknown id is compared too, so that it takes as long as a wrong secret.
        let hash = record.as_ref().map_or([0; 32], |record| record.hash);
        match record {
            Some(record) if token.matches(&hash) && record.revoked_at.is_none() => {
                self.note_use(record.id);
                Ok(Caller::Key {
                    id: record.id,
                    role: record.role,
                })
            }
            _ => Err(wrong()),
        }
    }

    /// Workers show their token; where no workers from elsewhere are taken, the route is not there.
    fn admit_worker(&self, shown: Option<&str>) -> Result<(), Refusal> {
        let Some(token) = &self.config().worker_token else {
            return Err(Refusal::new(
                ErrorCode::RouteNotFound,
                "this grid takes no workers from elsewhere; `wharf coordinator` does",
            ));
        };
        match shown {
            Some(shown) if token.matches(shown) => Ok(()),
            Some(_) => Err(Refusal::new(
                ErrorCode::Unauthorized,
                "the worker token is not this grid's: both roles need the same WHARF_WORKER_TOKEN",
            )),
            None => Err(Refusal::new(
                ErrorCode::Unauthorized,
                "workers must show the worker token",
            )),
        }
    }

    /// Whether a key must be shown. The first key closes an open grid, for good: revoking it must not open it again.
    async fn needs_key(&self) -> Result<bool, Refusal> {
        match self.config().keys {
            KeyRule::Always => Ok(true),
            KeyRule::Never => Ok(false),
            KeyRule::OnceMade => {
                let known = *self.inner().keys_made.lock();
                if known.is_some_and(|(made, at)| made || at.elapsed() < Duration::from_secs(1)) {
                    return Ok(known.is_some_and(|(made, _)| made));
                }
                let made = !self.inner().store.keys().await?.is_empty();
                *self.inner().keys_made.lock() = Some((made, Instant::now()));
                Ok(made)
            }
        }
    }

    /// A key was made here: from now on one is needed.
    pub(super) fn key_made(&self) {
        *self.inner().keys_made.lock() = Some((true, Instant::now()));
    }

    fn note_use(&self, key: KeyId) {
        let now = Instant::now();
        let mut told = self.inner().keys_used.lock();
        if told.get(&key).is_some_and(|at| now - *at < USE_TOLD) {
            return;
        }
        told.insert(key, now);
        drop(told);
        let service = self.clone();
        self.inner().tasks.spawn(async move {
            if let Err(error) = service.inner().store.key_used(key).await {
                tracing::debug!(%key, %error, "could not note that the key was used");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn table_lists_every_documented_route_once() {
        let document: serde_json::Value = serde_json::from_str(&crate::fronts::openapi()).unwrap();
        let mut documented = BTreeSet::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for method in methods.as_object().unwrap().keys() {
                documented.insert((method.to_uppercase(), path.clone()));
            }
        }
        let listed: BTreeSet<_> = ROUTES
            .iter()
            .map(|(method, path, _)| ((*method).to_owned(), (*path).to_owned()))
            .collect();
        assert_eq!(listed.len(), ROUTES.len(), "a route is listed twice");
        let missing: Vec<_> = documented.difference(&listed).collect();
        assert!(missing.is_empty(), "not in ROUTES: {missing:?}");
        // What is listed and not documented is another spelling of something that is.
        for (method, path) in listed.difference(&documented) {
            // Between our own processes: no contract with anybody else.
            if path.starts_with("/internal/") {
                continue;
            }
            let plain = if path == "/json" || path == "/json/" {
                "/json/list"
            } else {
                path.trim_end_matches('/')
            };
            assert!(
                documented.contains(&(method.clone(), plain.to_owned())),
                "{method} {path}"
            );
        }
    }

    #[test]
    fn what_is_not_listed_is_an_admins() {
        assert_eq!(access(&Method::GET, Some("/v1/forgotten")), Admin);
        assert_eq!(access(&Method::GET, None), Client);
        assert_eq!(access(&Method::PATCH, Some("/livez")), Client);
        assert_eq!(access(&Method::HEAD, Some("/livez")), Public);
    }

    #[test]
    fn key_is_found_in_every_place_and_leaves_the_query() {
        let headers = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            headers
        };
        assert_eq!(in_header(&headers("authorization", "Bearer abc")).unwrap(), "abc");
        assert_eq!(in_header(&headers("authorization", "bearer  abc ")).unwrap(), "abc");
        assert_eq!(in_header(&headers("x-api-key", "abc")).unwrap(), "abc");
        let basic = |text: &str| format!("Basic {}", STANDARD.encode(text));
        assert_eq!(in_header(&headers("authorization", &basic("me:abc"))).unwrap(), "abc");
        assert_eq!(in_header(&headers("authorization", &basic("abc:"))).unwrap(), "abc");
        assert_eq!(in_header(&headers("authorization", "Basic ???")).unwrap(), "");
        for (before, after) in [
            ("/?token=abc", "/"),
            ("/a?x=1&token=abc&y=2", "/a?x=1&y=2"),
            ("/a?token=abc&token=def", "/a"),
        ] {
            let mut uri: Uri = before.parse().unwrap();
            assert_eq!(take_query_token(&mut uri).as_deref(), Some("abc"), "{before}");
            assert_eq!(uri.to_string(), after);
        }
        let mut uri: Uri = "/a?tokens=1".parse().unwrap();
        assert_eq!(take_query_token(&mut uri), None);
    }
}
