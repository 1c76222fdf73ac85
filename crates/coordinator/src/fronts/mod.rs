//! The fronts: what clients speak, on one port.
//!
//! - [`sessions`] serves `/v1/sessions`.
//! - [`seed`] serves `/sessions`, seed 000's form of it.
//! - [`cdp`] serves the WebSockets at `/`, `/chromium`, `/devtools/browser/…`, `/devtools/page/…`.
//! - [`discovery`] serves `/json/…`.
//! - [`ops`] serves `/metrics`, `/livez`, `/readyz`, `/openapi.json`.
//! - `envelope`: what is common to all: request ids, log lines, error bodies, the Origin rule.
//! - `address`: what the client calls us, behind proxies too.
//! - `body`: reading JSON bodies with limits.

mod address;
mod body;
pub mod cdp;
pub mod discovery;
mod envelope;
pub mod ops;
pub mod seed;
pub mod sessions;

use std::sync::Arc;

use axum::{Router, middleware};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use utoipa::OpenApi;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::Service;
pub use address::BaseUrl;

/// What every handler needs.
#[derive(Clone)]
pub struct Front {
    pub(crate) service: Service,
    pub(crate) registry: Arc<Mutex<Registry>>,
    pub(crate) openapi: Arc<String>,
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Wharf",
        description = "A browser grid: sessions, CDP discovery and operations on one port.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    tags(
        (name = "sessions", description = "Create, look at and end sessions"),
        (name = "seed", description = "The short form: the whole request body is the data"),
        (name = "cdp", description = "WebSockets and discovery for puppeteer, Playwright and other CDP clients"),
        (name = "operations", description = "Health, metrics and this document")
    )
)]
struct Document;

/// The document that describes every route, as text.
pub fn openapi() -> String {
    let (_, document) = described().split_for_parts();
    let mut text = document
        .to_pretty_json()
        .unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"));
    text.push('\n');
    text
}

fn described() -> OpenApiRouter<Front> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(sessions::create, sessions::list))
        .routes(routes!(sessions::history))
        .routes(routes!(sessions::get, sessions::delete))
        .routes(routes!(seed::create, seed::list))
        .routes(routes!(seed::get, seed::delete))
        .routes(routes!(cdp::root))
        .routes(routes!(cdp::chromium))
        .routes(routes!(cdp::browser))
        .routes(routes!(cdp::page))
        .routes(routes!(discovery::version))
        .routes(routes!(discovery::list))
        .routes(routes!(discovery::protocol))
        .routes(routes!(discovery::new))
        .routes(routes!(ops::metrics))
        .routes(routes!(ops::livez))
        .routes(routes!(ops::readyz))
        .routes(routes!(ops::document))
}

/// Every route, ready to be served.
pub fn router(service: Service, registry: Arc<Mutex<Registry>>) -> Router {
    let front = Front {
        service,
        registry,
        openapi: Arc::new(openapi()),
    };
    let (routes, _) = described().split_for_parts();
    routes
        // Spellings that clients use besides the documented ones.
        .route("/json/version/", axum::routing::get(discovery::version))
        .route("/json", axum::routing::get(discovery::list))
        .route("/json/", axum::routing::get(discovery::list))
        .route("/json/list/", axum::routing::get(discovery::list))
        .route("/json/protocol/", axum::routing::get(discovery::protocol))
        .route("/chromium/", axum::routing::get(cdp::chromium))
        .fallback(envelope::no_route)
        .method_not_allowed_fallback(envelope::no_method)
        .layer(middleware::from_fn_with_state(front.clone(), envelope::wrap))
        .with_state(front)
}
