//! What the client calls us: scheme, host and prefix, behind proxies too.
//!
//! Its own file because the URLs we hand out are used verbatim by puppeteer, Playwright, chromedp and browser-use: a
//! wrong one is an unusable grid. Forwarding headers are believed only from trusted proxies.

use std::convert::Infallible;

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use http::{HeaderMap, header, request::Parts};
use wharf_core::{BrowserKind, SessionId};
use wharf_store::SessionRecord;
use wharf_wire::rest::Connect;

use super::{Front, access::QueryToken};
use crate::{CoordinatorConfig, server::Peer};

/// The base of every URL we hand out, without a trailing slash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseUrl {
    is_secure: bool,
    authority_and_prefix: String,
    /// The key, if the request had it in its query: the URLs in the answer then have it, too.
    token: Option<String>,
}

// === impl BaseUrl ===

impl BaseUrl {
    /// For WebSockets.
    pub fn ws(&self, path: &str) -> String {
        let scheme = if self.is_secure { "wss" } else { "ws" };
        format!("{scheme}://{}", self.bare(path))
    }

    /// For everything else.
    pub fn http(&self, path: &str) -> String {
        let scheme = if self.is_secure { "https" } else { "http" };
        format!("{scheme}://{}", self.bare(path))
    }

    /// Without a scheme, as the inspector wants it.
    pub fn bare(&self, path: &str) -> String {
        let token = self.token.as_deref().map_or_else(String::new, |token| {
            let mark = if path.contains('?') { '&' } else { '?' };
            format!("{mark}token={token}")
        });
        format!("{}{path}{token}", self.authority_and_prefix)
    }

    /// Where to attach to a session.
    pub fn session(&self, session: SessionId) -> String {
        self.ws(&format!("/devtools/browser/{session}"))
    }

    /// Where an active session is used: over the DevTools protocol, or over HTTP where a program serves it.
    pub fn connect(&self, record: &SessionRecord) -> Connect {
        match record.spec.browser {
            BrowserKind::Command => Connect {
                cdp: None,
                http: Some(self.http(&format!("/sessions/{}", record.id))),
            },
            _ => Connect {
                cdp: Some(self.session(record.id)),
                http: None,
            },
        }
    }

    /// Tells it from the configuration, the forwarding headers of a trusted proxy, or the Host header.
    pub fn tell(config: &CoordinatorConfig, peer: Option<Peer>, headers: &HeaderMap) -> Self {
        if let Some(url) = &config.external_url {
            let is_secure = url.starts_with("https://") || url.starts_with("wss://");
            let rest = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest);
            return Self {
                is_secure,
                authority_and_prefix: rest.trim_end_matches('/').to_owned(),
                token: None,
            };
        }
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let host = text(header::HOST.as_str()).unwrap_or("127.0.0.1").to_owned();
        let is_trusted = peer.is_some_and(|Peer(peer)| config.trusts(peer.ip()));
        if !is_trusted {
            return Self {
                is_secure: false,
                authority_and_prefix: host,
                token: None,
            };
        }
        // The first element is what the client's own request said; later ones are inner hops.
        let first = |value: &str| value.split(',').next().unwrap_or("").trim().to_owned();
        let forwarded = |key: &str| forwarded_element(text("forwarded")?, key);
        let proto = text("x-forwarded-proto")
            .map(first)
            .or_else(|| forwarded("proto"))
            .unwrap_or_default();
        let host = text("x-forwarded-host")
            .map(first)
            .or_else(|| forwarded("host"))
            .unwrap_or(host);
        let prefix = text("x-forwarded-prefix").map(first).unwrap_or_default();
        let prefix = prefix.trim_matches('/');
        let slash = if prefix.is_empty() { "" } else { "/" };
        Self {
            is_secure: matches!(proto.to_ascii_lowercase().as_str(), "https" | "wss"),
            authority_and_prefix: format!("{host}{slash}{prefix}"),
            token: None,
        }
    }
}

/// A parameter of the first element of `Forwarded` (RFC 7239 §4).
fn forwarded_element(value: &str, key: &str) -> Option<String> {
    let first = value.split(',').next()?;
    first.split(';').find_map(|pair| {
        let (name, value) = pair.trim().split_once('=')?;
        name.eq_ignore_ascii_case(key)
            .then(|| value.trim_matches('"').to_owned())
    })
}

impl FromRequestParts<Front> for BaseUrl {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, front: &Front) -> Result<Self, Infallible> {
        let peer = parts.extensions.get::<Peer>().copied();
        let token = parts
            .extensions
            .get::<QueryToken>()
            .map(|QueryToken(token)| token.clone());
        Ok(Self {
            token,
            ..Self::tell(front.service.config(), peer, &parts.headers)
        })
    }
}

impl OptionalFromRequestParts<Front> for BaseUrl {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, front: &Front) -> Result<Option<Self>, Infallible> {
        <Self as FromRequestParts<Front>>::from_request_parts(parts, front)
            .await
            .map(Some)
    }
}
