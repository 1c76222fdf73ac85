//! What it takes to run browsers on this host: directories, the guard, the driver, and leaving nothing behind.
//!
//! Its own file because `wharf up` and `wharf worker` need exactly the same.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use wharf_coordinator::Driven;
use wharf_core::{BrowserKind, warm::WarmRules};
use wharf_driver::{AllowList, Driver, DriverReport};
use wharf_process::{Cgroups, RunDir, guard};
use wharf_worker::{Recycling, WorkerConfig};

use crate::{
    config::Settings,
    drivers::{self, Ground},
    local::LocalLink,
    places::Places,
    serving::CLEAN_UP,
};

/// A host that is ready to run browsers.
pub struct Host {
    pub run_dir: Arc<RunDir>,
    guard: Option<guard::Guard>,
    /// Whether the run directory is ours by name, and to be removed.
    is_run_dir_ours: bool,
    pub driver: Arc<dyn Driver>,
    pub report: DriverReport,
    /// What clients may choose about their browser; none where a program takes no launch options.
    pub allow_list: Option<AllowList>,
}

// === impl Host ===

impl Host {
    /// Ends what a past life left, and tries the browser.
    pub async fn open(settings: &Settings, places: &Places) -> anyhow::Result<Self> {
        let run_dir = Arc::new(RunDir::open(&places.run_dir)?);
        say_swept(&run_dir);
        let guard = start_guard(run_dir.path());
        let allow_list = allow_list(settings)?;
        let (driver, report) = open_driver(settings, &run_dir, allow_list.clone()).await?;
        Ok(Self {
            run_dir,
            guard,
            is_run_dir_ours: settings.run_dir.is_none(),
            driver,
            report,
            allow_list: (settings.driver != BrowserKind::Command).then_some(allow_list),
        })
    }

    /// The link to the worker on this host; its handle is set when it is there.
    pub fn link(&self) -> Arc<LocalLink> {
        Arc::new(LocalLink {
            worker: std::sync::OnceLock::new(),
            driven: driven(&self.report),
            allow_list: self.allow_list.clone(),
            run_dir: self.run_dir.clone(),
        })
    }

    /// Waits until no process and no file of a browser is left.
    pub async fn is_empty(&self) {
        if tokio::time::timeout(CLEAN_UP, nothing_is_left(&self.run_dir))
            .await
            .is_err()
        {
            tracing::error!(directories = ?self.run_dir.session_ids(), "browsers were still there after the stop");
        }
    }

    /// The last step of a stop.
    pub fn leave(self) -> anyhow::Result<()> {
        if let Some(guard) = self.guard {
            guard.dismiss().context("could not dismiss the guard")?;
        }
        if self.is_run_dir_ours {
            // Ours by name and empty by now; a given one is the operator's to keep.
            let _ = std::fs::remove_dir_all(self.run_dir.path());
        }
        Ok(())
    }
}

/// The process must outlive every tree it started: one that failed at the very stop is killed in the background.
pub async fn nothing_is_left(run_dir: &RunDir) {
    while !(wharf_process::live_roots().is_empty() && run_dir.session_ids().is_empty()) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub fn say_swept(run_dir: &RunDir) {
    let swept = run_dir.swept();
    if !swept.killed.is_empty() {
        tracing::warn!(processes = swept.killed.len(), "ended browsers of a past life");
    }
}

/// Without a guard everything works, except that a SIGKILL of Wharf may leave a stopped helper process behind until
/// the next start.
pub fn start_guard(run_dir: &std::path::Path) -> Option<guard::Guard> {
    let exe = std::env::current_exe().ok()?;
    match guard::spawn(&exe, &["guard".as_ref()], run_dir) {
        Ok(guard) => Some(guard),
        Err(error) => {
            tracing::warn!(%error, "could not start the guard process");
            None
        }
    }
}

pub fn allow_list(settings: &Settings) -> anyhow::Result<AllowList> {
    AllowList::default().with(&settings.allow_flags).map_err(|forbidden| {
        anyhow::anyhow!(
            "allow_flag: --{} can never be allowed: it would give a client the host",
            forbidden.join(", --")
        )
    })
}

pub async fn open_driver(
    settings: &Settings,
    run_dir: &Arc<RunDir>,
    allow_list: AllowList,
) -> anyhow::Result<(Arc<dyn Driver>, DriverReport)> {
    let ground = Ground {
        run_dir: run_dir.clone(),
        cgroups: useful_cgroups(),
        allow_list,
    };
    let driver = drivers::open(settings, ground)?;
    let report = driver.check().await?;
    for note in &report.notes {
        tracing::warn!("{note}");
    }
    Ok((driver, report))
}

/// Groups that count memory, or none.
pub fn useful_cgroups() -> Option<Cgroups> {
    let cgroups = Cgroups::detect()?;
    if cgroups.counts_memory() {
        return Some(cgroups);
    }
    cgroups.remove();
    None
}

pub fn driven(report: &DriverReport) -> Driven {
    let version = report.version.clone();
    Driven {
        product: version.product,
        protocol_version: version.protocol_version,
        user_agent: version.user_agent,
        js_version: version.js_version,
        revision: version.revision,
    }
}

pub fn worker_config(settings: &Settings, places: &Places) -> anyhow::Result<WorkerConfig> {
    Ok(WorkerConfig {
        id: places.worker_id()?,
        pool: settings.pool.clone(),
        browser: settings.driver,
        warm: WarmRules {
            min: settings.min,
            max: settings.max,
            spare: settings.spare,
            parallel_launches: std::thread::available_parallelism().map_or(2, std::num::NonZero::get),
            memory_budget: settings.memory_budget,
        },
        launch_timeout: settings.launch_timeout,
        forward_timeout: settings.forward_timeout,
        probe_interval: settings.probe_interval,
        probe_limit: settings.probe_limit,
        probe_misses: settings.probe_misses,
        tick: settings.tick,
        heartbeat_interval: settings.heartbeat_interval,
        memory_limit: settings.memory_limit,
        // Of a worker apart only; `wharf worker` says so.
        address: String::new(),
        recycling: Recycling::default(),
        fence_after: None,
    })
}
