//! The fronts: what clients speak, on one port.
//!
//! - [`access`]: who may call what, and who is calling.
//! - [`sessions`] serves `/v1/sessions`.
//! - [`seed`] serves `/sessions`, seed 000's form of it.
//! - [`cdp`] serves the WebSockets at `/`, `/chromium`, `/devtools/browser/…`, `/devtools/page/…`.
//! - [`discovery`] serves `/json/…`.
//! - [`pool`] serves `/v1/pool` and `/v1/queue`; [`locks`] `/v1/locks`; [`keys`] `/v1/keys`.
//! - [`events`] serves `/v1/events`; [`workers`] `/v1/workers`.
//! - [`faults`] serves `/debug/…`, where it is allowed.
//! - [`ops`] serves `/metrics`, `/livez`, `/readyz`, `/openapi.json`.
//! - `internal` serves `/internal/workers/…`, where workers elsewhere report.
//! - `envelope`: what is common to all: request ids, log lines, error bodies, the Origin rule.
//! - `address`: what the client calls us, behind proxies too.
//! - `body`: reading JSON bodies with limits; `sent`: answers that know whether they were sent.

pub mod access;
mod address;
mod body;
pub mod cdp;
pub mod discovery;
mod envelope;
pub mod events;
pub mod faults;
mod internal;
pub mod keys;
pub mod locks;
pub mod ops;
pub mod pool;
pub mod seed;
mod sent;
pub mod sessions;
pub mod workers;

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
    pub(crate) streams: Arc<events::Streams>,
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
        (name = "pool", description = "What runs and waits, limits, forced release"),
        (name = "locks", description = "Exclusive locks that keep work out"),
        (name = "keys", description = "API keys"),
        (name = "workers", description = "Who offers slots; draining and forgetting them"),
        (name = "events", description = "What happens, as a stream that can be resumed"),
        (name = "faults", description = "Fault injection, where the operator allows it"),
        (name = "operations", description = "Health, metrics and this document")
    ),
    components(schemas(wharf_wire::events::EventBody, wharf_wire::events::StreamNote))
)]
struct Document;

/// The document that describes every route, as text.
pub fn openapi() -> String {
    let (_, mut document) = described().split_for_parts();
    complete(&mut document);
    let mut text = document
        .to_pretty_json()
        .unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"));
    text.push('\n');
    text
}

/// The routes that open a session, and so may answer whatever opening one may.
const OPENS: &[(&str, &str)] = &[
    ("POST", "/v1/sessions"),
    ("POST", "/sessions"),
    ("PUT", "/json/new"),
    ("GET", "/"),
    ("GET", "/chromium"),
    ("GET", "/devtools/browser/{id}"),
];

/// What every route may answer besides its own, and what it asks of its caller: told by the table of routes.
fn complete(document: &mut utoipa::openapi::OpenApi) {
    use utoipa::openapi::{
        ContentBuilder, Ref, RefOr, ResponseBuilder,
        path::Operation,
        security::{ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityRequirement, SecurityScheme},
    };
    let refusal = |description: &str| {
        let body = ContentBuilder::new()
            .schema(Some(Ref::from_schema_name("ErrorBody")))
            .build();
        let response = ResponseBuilder::new().description(description);
        RefOr::T(response.content("application/json", body).build())
    };
    let schemes = [
        ("bearer", SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer))),
        ("basic", SecurityScheme::Http(Http::new(HttpAuthScheme::Basic))),
        (
            "header",
            SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::new("X-API-Key"))),
        ),
        (
            "token",
            SecurityScheme::ApiKey(ApiKey::Query(ApiKeyValue::new("token"))),
        ),
    ];
    for (method, path, access) in access::ROUTES {
        let Some(item) = document.paths.paths.get_mut(*path) else {
            continue;
        };
        let operation: Option<&mut Operation> = match *method {
            "GET" => item.get.as_mut(),
            "PUT" => item.put.as_mut(),
            "POST" => item.post.as_mut(),
            "PATCH" => item.patch.as_mut(),
            _ => item.delete.as_mut(),
        };
        let Some(operation) = operation else { continue };
        let answers = &mut operation.responses.responses;
        let mut also = |status: &str, description: &str| {
            answers.entry(status.to_owned()).or_insert_with(|| refusal(description));
        };
        if operation.request_body.is_some() {
            also("408", "The body was too slow");
            also("413", "The body is too large");
            also("415", "The body is not JSON");
        }
        also("403", "A foreign page or name, or the key may not do this");
        if OPENS.contains(&(*method, *path)) {
            also("404", "No worker serves such a pool or browser");
            also("409", "A lock covers it");
            also("429", "The key holds as many sessions as it may");
            also("502", "No browser could be launched");
        }
        if *access != access::Access::Public {
            also("400", "The request makes no sense");
            also("401", "A key is needed, or it is not known, or it was revoked");
            also("503", "The store does not answer, or the grid is shutting down");
            let asked = schemes
                .iter()
                .map(|(name, _)| SecurityRequirement::new(*name, Vec::<String>::new()));
            operation.security = Some(asked.collect());
        }
    }
    let components = document.components.get_or_insert_default();
    for (name, scheme) in schemes {
        components.add_security_scheme(name, scheme);
    }
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
        .routes(routes!(pool::get))
        .routes(routes!(pool::recent))
        .routes(routes!(pool::set_limit))
        .routes(routes!(pool::cleanup))
        .routes(routes!(pool::queue, pool::clear))
        .routes(routes!(locks::list))
        .routes(routes!(locks::get, locks::take, locks::renew, locks::release))
        .routes(routes!(locks::force_unlock))
        .routes(routes!(keys::list, keys::create))
        .routes(routes!(keys::change, keys::revoke))
        .routes(routes!(workers::list))
        .routes(routes!(workers::get, workers::remove))
        .routes(routes!(workers::drain))
        .routes(routes!(events::follow))
        .routes(routes!(faults::crash))
        .routes(routes!(faults::hang))
        .routes(routes!(faults::slow))
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
        streams: Arc::new(events::Streams::new()),
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
        .merge(internal::routes())
        .fallback(envelope::no_route)
        .method_not_allowed_fallback(envelope::no_method)
        .layer(middleware::from_fn_with_state(front.clone(), envelope::wrap))
        .with_state(front)
}
