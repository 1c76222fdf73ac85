//! A running Chromium: probe, pages, end.
//!
//! Its own file because launching is over when this begins. The invariant: every answer comes from the private pipe or
//! the kernel, never from the port that clients use, and every end has one cause.

use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};
use wharf_core::BrowserId;
use wharf_process::{ExitStatus, Exited, Priority, Tree};

use crate::{
    Browser, BrowserVersion, ControlError, Endpoint, Exit, PageTarget, ProbeFailed,
    cdp::{Call, Cdp},
    stderr::Stderr,
};

/// The process and our channels to it, ready or not. Dropping it kills the tree and removes its directory.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) tree: Tree,
    pub(crate) cdp: Cdp,
    pub(crate) stderr: Stderr,
}

/// A browser that is ready.
#[derive(Debug)]
pub(crate) struct ChromiumBrowser {
    pub(crate) id: BrowserId,
    pub(crate) version: BrowserVersion,
    pub(crate) endpoint: Endpoint,
    pub(crate) process: Process,
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

// === impl Process ===

impl Process {
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

    /// Its last words, once they are all here.
    pub(crate) async fn last_words(&self) -> String {
        self.stderr.settled().await;
        self.stderr.tail()
    }

    async fn describe(&self, exited: Exited) -> Exit {
        if exited.killed_by_us {
            return Exit::Killed;
        }
        if let Some(memory) = exited.out_of_memory {
            return Exit::OutOfMemory {
                used: memory.used,
                limit: memory.limit,
            };
        }
        match exited.status {
            ExitStatus::Code(0) => Exit::Clean,
            status => Exit::Crashed {
                status,
                detail: self.last_words().await,
            },
        }
    }
}

// === impl ChromiumBrowser ===

#[async_trait]
impl Browser for ChromiumBrowser {
    fn id(&self) -> BrowserId {
        self.id
    }

    fn pid(&self) -> u32 {
        self.process.tree.pid()
    }

    fn version(&self) -> &BrowserVersion {
        &self.version
    }

    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    async fn probe(&self, limit: Duration) -> Result<(), ProbeFailed> {
        self.process.version(limit).await.map(drop).map_err(ProbeFailed)
    }

    async fn exited(&self) -> Exit {
        let exited = self.process.tree.exited().await;
        self.process.describe(exited).await
    }

    async fn kill(&self) {
        self.process.tree.kill().await;
    }

    async fn files_removed(&self) {
        self.process.tree.files_removed().await;
    }

    fn pss_bytes(&self) -> Option<u64> {
        self.process.tree.pss_bytes()
    }

    async fn pages(&self, limit: Duration) -> Result<Vec<PageTarget>, ControlError> {
        self.process.pages(limit).await
    }

    async fn open_page(&self, url: &str, limit: Duration) -> Result<PageTarget, ControlError> {
        self.process.open_page(url, limit).await
    }

    fn promote(&self) {
        self.process.tree.set_priority(Priority::Normal);
    }
}
