//! The document that describes the API, against its checked-in copy and against the live routes.

use std::fs;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::Method;
use serde_json::Value;
use wharf_testkit::{Grid, binaries::workspace_root};

#[tokio::test]
async fn openapi_served_document_equals_the_checked_in_one() -> Result<()> {
    let grid = Grid::builder().start().await?;
    let served = grid.http().get("/openapi.json").await?;
    let served = served.expect(200)?;
    let path = workspace_root().join("api/openapi.json");
    let how = "regenerate it with `wharf openapi > api/openapi.json`";
    let text = fs::read(&path).with_context(|| format!("{} is missing; {how}", path.display()))?;
    let kept: Value =
        serde_json::from_slice(&text).with_context(|| format!("{} is not JSON; {how}", path.display()))?;
    ensure!(served == kept, "api/openapi.json is stale; {how}");
    grid.finish().await
}

#[tokio::test]
async fn openapi_every_documented_path_is_routed() -> Result<()> {
    let grid = Grid::builder().flag("--enable-faults").start().await?;
    let document = grid.http().get("/openapi.json").await?.expect(200)?;
    let paths = document["paths"].as_object().context("the document has no paths")?;
    ensure!(paths.len() >= 14, "only {} paths are documented", paths.len());
    for (path, methods) in paths {
        for method in methods.as_object().context("a path without methods")?.keys() {
            let made_up = path
                .replace("{id}", "ses_00000000000070008000000000000000")
                .replace("{target}", "AB12");
            let documented = &methods[method]["responses"];
            if documented["200"]["content"].get("text/event-stream").is_some() {
                // It has no end; that it begins is enough.
                grid.http().events(&made_up).await?;
                continue;
            }
            let method = Method::from_bytes(method.to_uppercase().as_bytes())?;
            let reply = grid.http().raw(method.clone(), &made_up, None, Bytes::new()).await?;
            let code = reply.error_code().unwrap_or_default();
            ensure!(code != "route_not_found", "{method} {path} is documented but not there");
            ensure!(
                code != "method_not_allowed",
                "{method} {path}: the method is documented but not there"
            );
            ensure!(reply.status != 500, "{method} {path}: {}", reply.text());
            let status = reply.status.as_u16().to_string();
            ensure!(
                documented.get(&status).is_some(),
                "{method} {path} answered {status}, which is not documented"
            );
        }
    }
    // What POST and PUT made.
    let made = grid.http().get("/sessions").await?.expect(200)?;
    for session in made.as_array().context("no list")? {
        super::support::release(&grid, &super::support::id(session)).await?;
    }
    grid.finish().await
}

#[tokio::test]
async fn openapi_document_names_the_error_codes_schema() -> Result<()> {
    let grid = Grid::builder().start().await?;
    let document = grid.http().get("/openapi.json").await?.expect(200)?;
    ensure!(
        document["openapi"]
            .as_str()
            .is_some_and(|version| version.starts_with("3.1"))
    );
    for schema in ["SessionBody", "SessionList", "SeedSession", "ErrorBody"] {
        ensure!(
            document["components"]["schemas"][schema].is_object(),
            "the schema {schema} is missing"
        );
    }
    grid.finish().await
}
