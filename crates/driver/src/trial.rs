//! The trial launch of [`Driver::check`]: once, timed, and nothing left.
//!
//! Its own file because every driver's check is the same here; what they make of a failure differs.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use wharf_core::BrowserId;

use crate::{BrowserVersion, Driver, LaunchError, LaunchOptions, LaunchSpec, Urgency};

/// A trial launch on a busy or cold host may take longer than a session's would be allowed to.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(20);

/// Launches one, asks what it is, and ends it with its files.
pub(crate) async fn launch_once(driver: &dyn Driver) -> Result<(BrowserVersion, Duration), LaunchError> {
    let begun = Instant::now();
    let spec = LaunchSpec {
        id: BrowserId::from_uuid(Uuid::now_v7()),
        options: LaunchOptions::default(),
        timeout: TRIAL_TIMEOUT,
        urgency: Urgency::Refill,
        cancel: CancellationToken::new(),
    };
    let browser = driver.launch(spec).await?;
    let launch_time = begun.elapsed();
    let version = browser.version().clone();
    browser.kill().await;
    browser.files_removed().await;
    Ok((version, launch_time))
}
