//! The two ways to a browser, with the same steps behind both: launch it, or ask the grid for a session.
//!
//! Its own file because (a), (b), (e) and (i) differ only in how often and how many at once they take these steps.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use wharf_testkit::{Cdp, Http};

use crate::{
    direct::{DirectBrowser, Recipe},
    page_server::TITLE,
};

/// How to get a browser.
#[derive(Debug, Clone)]
pub enum Door {
    Direct(Arc<Recipe>),
    Wharf(Http),
}

/// A browser that is ours until released.
#[derive(Debug)]
pub struct Open {
    pub url: String,
    held: Held,
}

#[derive(Debug)]
enum Held {
    Direct(Box<DirectBrowser>),
    Session(Http, String),
}

/// The four steps of a short session.
#[derive(Debug, Clone, Copy)]
pub struct Steps {
    pub create: Duration,
    pub connect: Duration,
    pub goto: Duration,
    pub release: Duration,
}

// === impl Door ===

impl Door {
    /// Launches a browser, or creates a session through the API.
    pub async fn open(&self) -> Result<Open> {
        match self {
            Self::Direct(recipe) => {
                let browser = Box::new(recipe.launch().await?);
                Ok(Open {
                    url: browser.url.clone(),
                    held: Held::Direct(browser),
                })
            }
            Self::Wharf(http) => create(http, &json!({})).await,
        }
    }

    /// Create, connect, go to a page and read its title, release.
    pub async fn steps(&self, page: &str) -> Result<Steps> {
        let started = Instant::now();
        let open = self.open().await?;
        let create = started.elapsed();
        let used = use_page(&open.url, page).await;
        // Also after a failure: a slot that we keep would spoil everything after it.
        let releasing = Instant::now();
        open.release().await?;
        let release = releasing.elapsed();
        let (connect, goto) = used?;
        Ok(Steps {
            create,
            connect,
            goto,
            release,
        })
    }
}

/// Connects, and goes to a page; how long each took.
async fn use_page(url: &str, page: &str) -> Result<(Duration, Duration)> {
    let started = Instant::now();
    let mut cdp = Cdp::connect(url).await?;
    let connect = started.elapsed();
    let tab = first_page(&mut cdp).await.context("first page")?;
    goto(&mut cdp, &tab, page).await.context("goto")?;
    Ok((connect, started.elapsed() - connect))
}

/// Creates a session with these wishes.
pub async fn create(http: &Http, wishes: &Value) -> Result<Open> {
    let body = http.post("/v1/sessions", wishes).await?.expect(201)?;
    let text = |value: &Value| {
        value
            .as_str()
            .map(str::to_owned)
            .context("a session has an id and an address")
    };
    Ok(Open {
        url: text(&body["connect"]["cdp"])?,
        held: Held::Session(http.clone(), text(&body["id"])?),
    })
}

// === impl Open ===

impl Open {
    /// Ends the browser or the session; returns when that is done.
    pub async fn release(self) -> Result<()> {
        match self.held {
            Held::Direct(browser) => browser.release().await,
            Held::Session(http, id) => {
                http.delete(&format!("/v1/sessions/{id}")).await?.expect(204)?;
                Ok(())
            }
        }
    }
}

// === impl Steps ===

impl Steps {
    pub fn total(&self) -> Duration {
        self.create + self.connect + self.goto + self.release
    }
}

/// The first answer of a browser.
pub async fn first_reply(cdp: &mut Cdp) -> Result<()> {
    let version = cdp.call("Browser.getVersion", json!({})).await?;
    ensure!(version["product"].is_string(), "not a version: {version}");
    Ok(())
}

/// Attaches to the page a browser starts with; returns when it has evaluated something.
pub async fn first_page(cdp: &mut Cdp) -> Result<String> {
    let targets = cdp.call("Target.getTargets", json!({})).await?;
    let all = targets["targetInfos"].as_array().cloned().unwrap_or_default();
    let page = all.iter().find(|target| target["type"] == "page");
    let tab = match page {
        Some(page) => {
            let attach = json!({"targetId": page["targetId"], "flatten": true});
            let attached = cdp.call("Target.attachToTarget", attach).await?;
            attached["sessionId"].as_str().unwrap_or_default().to_owned()
        }
        // A directly launched browser may answer before its first page exists.
        None => cdp.new_page("about:blank").await?,
    };
    evaluate(cdp, &tab, "1").await?;
    Ok(tab)
}

pub async fn evaluate(cdp: &mut Cdp, tab: &str, expression: &str) -> Result<Value> {
    let wish = json!({"expression": expression, "returnByValue": true});
    let mut answer = cdp.call_in(tab, "Runtime.evaluate", wish).await?;
    Ok(answer["result"]["value"].take())
}

/// Navigates and reads the title.
async fn goto(cdp: &mut Cdp, tab: &str, page: &str) -> Result<()> {
    cdp.call_in(tab, "Page.enable", json!({})).await?;
    let went = cdp.call_in(tab, "Page.navigate", json!({"url": page})).await?;
    ensure!(went.get("errorText").is_none(), "could not load {page}: {went}");
    // The first event may still be that of the blank page.
    for _ in 0..3 {
        cdp.event("Page.loadEventFired").await?;
        if evaluate(cdp, tab, "document.title").await? == TITLE {
            return Ok(());
        }
    }
    anyhow::bail!("the page has another title")
}
