//! One task per browser: notices its exit at once, its hang by probes, its greed by measuring.
//!
//! Its own file because it is the only part that looks at a browser after its launch. It never kills: it tells the
//! desk, which decides and kills the whole tree, never through the browser.

use std::{sync::Arc, time::Duration};

use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use wharf_core::BrowserId;
use wharf_driver::{Browser, Exit};

use crate::WorkerConfig;

/// What became of a browser.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The process is gone.
    Exited(Exit),
    /// Probes failed, the last one with this text.
    Hung(String),
    /// It uses more than its limit.
    Greedy { used: u64, limit: u64 },
}

/// After a miss the next probe comes sooner than the interval: a hang is noticed within interval + 2 limits + this.
const AFTER_A_MISS: Duration = Duration::from_secs(1);

pub(crate) struct Watch {
    pub browser: Arc<dyn Browser>,
    pub config: Arc<WorkerConfig>,
    pub stop: CancellationToken,
}

pub(crate) fn spawn<T: Send + 'static>(
    tasks: &TaskTracker,
    watch: Watch,
    tell: mpsc::Sender<T>,
    wrap: impl FnOnce(BrowserId, Trouble) -> T + Send + 'static,
) {
    tasks.spawn(async move {
        let id = watch.browser.id();
        let stop = watch.stop.clone();
        tokio::select! {
            // Dropping the other branch is safe: probes and measurements have no effect.
            () = stop.cancelled() => {}
            trouble = watch.trouble() => {
                // A desk that is gone has already killed the browser.
                let _ = tell.send(wrap(id, trouble)).await;
            }
        }
    });
}

// === impl Watch ===

impl Watch {
    async fn trouble(&self) -> Trouble {
        tokio::select! {
            exit = self.browser.exited() => Trouble::Exited(exit),
            trouble = self.probing() => trouble,
        }
    }

    async fn probing(&self) -> Trouble {
        let mut misses = 0;
        loop {
            let pause = if misses > 0 {
                AFTER_A_MISS.min(self.config.probe_interval)
            } else {
                self.config.probe_interval
            };
            tokio::time::sleep(pause).await;
            match self.browser.probe(self.config.probe_limit).await {
                Ok(()) => misses = 0,
                Err(failed) => {
                    misses += 1;
                    tracing::warn!(browser = %self.browser.id(), misses, %failed, "probe missed");
                    if misses >= self.config.probe_misses {
                        return Trouble::Hung(failed.to_string());
                    }
                }
            }
            if let Some(trouble) = self.measure().await {
                return trouble;
            }
        }
    }

    /// Reading a tree's memory costs milliseconds of kernel time, so only where a limit was set.
    async fn measure(&self) -> Option<Trouble> {
        let limit = self.config.memory_limit?;
        let browser = self.browser.clone();
        let used = tokio::task::spawn_blocking(move || browser.pss_bytes()).await.ok()??;
        (used > limit).then_some(Trouble::Greedy { used, limit })
    }
}
