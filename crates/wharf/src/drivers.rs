//! Which driver runs the sessions, made from the settings.
//!
//! Its own file because it is the one place where a kind of browser becomes a type; everything after it knows the trait.

use std::sync::Arc;

use wharf_core::BrowserKind;
use wharf_driver::{AllowList, ChromiumConfig, ChromiumDriver, CommandConfig, CommandDriver, Driver, DriverProblem};
use wharf_process::{Cgroups, RunDir};

use crate::config::Settings;

/// What every driver needs besides the settings.
pub struct Ground {
    /// Where browsers' directories go.
    pub run_dir: Arc<RunDir>,
    /// One group per browser, if the host delegates.
    pub cgroups: Option<Cgroups>,
    /// What clients may set about Chromium.
    pub allow_list: AllowList,
}

/// The driver that the settings name. Finds its binary and starts nothing.
pub fn open(settings: &Settings, ground: Ground) -> Result<Arc<dyn Driver>, DriverProblem> {
    let Ground {
        run_dir,
        cgroups,
        allow_list,
    } = ground;
    if settings.driver != BrowserKind::Command {
        return Ok(Arc::new(ChromiumDriver::new(ChromiumConfig {
            engine: settings.engine,
            binary: settings.binary.clone(),
            allow_link_local: settings.allow_link_local,
            extra_args: settings.browser_args.clone(),
            allow_list,
            sandbox: settings.sandbox,
            run_dir,
            cgroups,
            env: ChromiumConfig::host_env(std::env::vars_os()),
        })?));
    }
    Ok(Arc::new(CommandDriver::new(CommandConfig {
        // Never missing: the settings were checked.
        program: settings.command.clone().unwrap_or_default(),
        args: settings.command_args.clone(),
        env: CommandConfig::host_env(std::env::vars_os()),
        // Without a working directory only absolute paths make sense, and those do not care.
        working_dir: std::env::current_dir().unwrap_or_else(|_| "/".into()),
        run_dir,
        cgroups,
    })?))
}
