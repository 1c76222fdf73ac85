//! A running Chromium: probe, pages, end.
//!
//! Its own file because launching is over when this begins. The invariant: every answer comes from the private pipe or
//! the kernel, never from the port that clients use, and every end has one cause.

use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};
use wharf_core::BrowserId;
use wharf_process::Priority;

use crate::{
    Browser, BrowserVersion, ControlError, Endpoint, Exit, PageTarget, ProbeFailed,
    cdp::{Call, Cdp},
    process::Process,
};

/// The process and our channel to it, ready or not. Dropping it kills the tree and removes its directory.
#[derive(Debug)]
pub(crate) struct Controlled {
    pub(crate) process: Process,
    pub(crate) cdp: Cdp,
}

/// A browser that is ready.
#[derive(Debug)]
pub(crate) struct ChromiumBrowser {
    pub(crate) id: BrowserId,
    pub(crate) version: BrowserVersion,
    pub(crate) endpoint: Endpoint,
    pub(crate) controlled: Controlled,
}

#[derive(Deserialize)]
struct Targets {
    #[serde(rename = "targetInfos")]
    infos: Vec<PageTarget>,
}

#[derive(Deserialize)]
struct Created {
    #[serde(rename = "targetId")]
    id: String,
}

#[derive(Deserialize)]
struct Attached {
    #[serde(rename = "sessionId")]
    session: String,
}

// === impl Controlled ===

impl Controlled {
    pub(crate) async fn version(&self, limit: Duration) -> Result<BrowserVersion, ControlError> {
        self.cdp
            .call(Call {
                method: "Browser.getVersion",
                params: json!({}),
                session: None,
                limit,
            })
            .await
    }

    pub(crate) async fn pages(&self, limit: Duration) -> Result<Vec<PageTarget>, ControlError> {
        let call = Call {
            method: "Target.getTargets",
            params: json!({}),
            session: None,
            limit,
        };
        let mut targets: Targets = self.cdp.call(call).await?;
        targets.infos.retain(|target| target.r#type == "page");
        Ok(targets.infos)
    }

    pub(crate) async fn open_page(&self, url: &str, limit: Duration) -> Result<PageTarget, ControlError> {
        let call = Call {
            method: "Target.createTarget",
            params: json!({ "url": url }),
            session: None,
            limit,
        };
        let created: Created = self.cdp.call(call).await?;
        Ok(PageTarget {
            id: created.id,
            r#type: "page".into(),
            title: String::new(),
            url: url.to_owned(),
        })
    }

    /// Brings up the first page's renderer, so that a warm browser's first command finds it running.
    pub(crate) async fn first_page(&self, limit: Duration) -> Result<(), ControlError> {
        let page = match self.pages(limit).await?.into_iter().next() {
            Some(page) => page,
            None => self.open_page("about:blank", limit).await?,
        };
        let params = json!({ "targetId": page.id, "flatten": true });
        let attach = Call {
            method: "Target.attachToTarget",
            params,
            session: None,
            limit,
        };
        let session = self.cdp.call::<_, Attached>(attach).await?.session;
        let params = json!({ "expression": "1" });
        let evaluate = Call {
            method: "Runtime.evaluate",
            params,
            session: Some(&session),
            limit,
        };
        self.cdp.call::<_, Value>(evaluate).await?;
        let params = json!({ "sessionId": session });
        let detach = Call {
            method: "Target.detachFromTarget",
            params,
            session: None,
            limit,
        };
        self.cdp.call::<_, Value>(detach).await.map(drop)
    }
}

// === impl ChromiumBrowser ===

#[async_trait]
impl Browser for ChromiumBrowser {
    fn id(&self) -> BrowserId {
        self.id
    }

    fn pid(&self) -> u32 {
        self.controlled.process.tree.pid()
    }

    fn version(&self) -> &BrowserVersion {
        &self.version
    }

    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    async fn probe(&self, limit: Duration) -> Result<(), ProbeFailed> {
        self.controlled.version(limit).await.map(drop).map_err(ProbeFailed)
    }

    async fn exited(&self) -> Exit {
        let exited = self.controlled.process.tree.exited().await;
        self.controlled.process.describe(exited).await
    }

    async fn kill(&self) {
        self.controlled.process.tree.kill().await;
    }

    async fn files_removed(&self) {
        self.controlled.process.tree.files_removed().await;
    }

    fn pss_bytes(&self) -> Option<u64> {
        self.controlled.process.tree.pss_bytes()
    }

    async fn pages(&self, limit: Duration) -> Result<Vec<PageTarget>, ControlError> {
        self.controlled.pages(limit).await
    }

    async fn open_page(&self, url: &str, limit: Duration) -> Result<PageTarget, ControlError> {
        self.controlled.open_page(url, limit).await
    }

    fn promote(&self) {
        self.controlled.process.tree.set_priority(Priority::Normal);
    }
}
