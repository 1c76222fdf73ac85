//! Launching Chromium: spawn, three readiness gates, and the check at start.
//!
//! Its own file because the order is the contract: directory, pipes, spawn, `DevTools listening`, version on the pipe,
//! first page. Every gate waits for an event, each against its own limit, the process's exit and a call-off. The invariant:
//! between the spawn and the hand-over one value, [`Controlled`], owns everything, so every way out cleans up.

use std::{future::Future, path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use wharf_process::{FdMapping, SessionDir, SpawnRequest, Spawner};

use crate::{
    Browser, BrowserKind, BrowserVersion, ControlError, Driver, DriverProblem, DriverReport, Endpoint, LaunchError,
    LaunchGate, LaunchSpec, Urgency,
    cdp::Cdp,
    chromium::{
        ChromiumConfig, Sandbox,
        find::{Found, find},
        flags::CommandLine,
        running::{ChromiumBrowser, Controlled},
    },
    process::{self, Process},
    trial,
};

/// Launches Chromium.
#[derive(Debug)]
pub struct ChromiumDriver {
    config: ChromiumConfig,
    found: Found,
    spawner: Spawner,
    sandboxed: bool,
    notes: Vec<String>,
}

// === impl ChromiumDriver ===

impl ChromiumDriver {
    /// Finds the binary and settles the sandbox; starts nothing.
    pub fn new(config: ChromiumConfig) -> Result<Self, DriverProblem> {
        let search_path = config
            .env
            .iter()
            .find(|(name, _)| name == "PATH")
            .map(|(_, value)| value.as_os_str());
        let found = find(config.binary.as_deref(), config.engine, search_path)?;
        let spawner = Spawner::new().map_err(|e| DriverProblem::Launch {
            path: found.path.clone(),
            source: Box::new(LaunchError::Spawn(e)),
        })?;
        let (sandboxed, note) = settle_sandbox(config.sandbox, &found.path);
        Ok(Self {
            config,
            found,
            spawner,
            sandboxed,
            notes: note.into_iter().collect(),
        })
    }

    /// Whether the binary is the headless shell.
    pub fn is_headless_shell(&self) -> bool {
        self.found.shell
    }

    /// The real binary.
    pub fn binary(&self) -> &Path {
        &self.found.path
    }

    async fn start(&self, spec: &LaunchSpec) -> Result<Controlled, LaunchError> {
        let dir = process::make_dir(&self.config.run_dir, &spec.id.to_string()).await?;
        let disk = |e: rustix::io::Errno| LaunchError::Disk(e.into());
        let (their_in, our_out) = pipe_with(PipeFlags::CLOEXEC).map_err(disk)?;
        let (our_in, their_out) = pipe_with(PipeFlags::CLOEXEC).map_err(disk)?;
        let mut request = self.request(spec, dir);
        request.fds = vec![
            FdMapping { fd: their_in, child: 3 },
            FdMapping {
                fd: their_out,
                child: 4,
            },
        ];
        let process = Process::start(self.spawner, request).await?;
        let cdp = Cdp::new(our_out, our_in).map_err(LaunchError::Disk)?;
        Ok(Controlled { process, cdp })
    }

    fn request(&self, spec: &LaunchSpec, dir: SessionDir) -> SpawnRequest {
        let line = CommandLine {
            config: &self.config,
            options: &spec.options,
            dir: &dir,
            shell: self.found.shell,
            sandboxed: self.sandboxed,
        };
        let (args, env, cwd) = (line.args(), line.env(), dir.path().join("tmp"));
        let usual = process::request(
            &self.found.path,
            spec,
            &self.config.run_dir,
            self.config.cgroups.as_ref(),
        );
        SpawnRequest {
            args,
            env,
            cwd: Some(cwd),
            dir: Some(dir),
            ..usual
        }
    }

    /// Turns a failed trial into advice.
    fn diagnose(&self, error: LaunchError) -> DriverProblem {
        let path = self.found.path.clone();
        match &error {
            LaunchError::ExitedEarly { stderr, .. } if stderr.contains("No usable sandbox") => {
                DriverProblem::SandboxUnusable
            }
            LaunchError::ExitedEarly { stderr, .. } => match process::missing_library(stderr) {
                Some(library) => DriverProblem::MissingLibrary { path, library },
                None => DriverProblem::Launch {
                    path,
                    source: Box::new(error),
                },
            },
            LaunchError::Spawn(wharf_process::SpawnError::Exec { source, .. }) => DriverProblem::NotExecutable {
                path,
                reason: source.to_string(),
            },
            _ => DriverProblem::Launch {
                path,
                source: Box::new(error),
            },
        }
    }
}

#[async_trait]
impl Driver for ChromiumDriver {
    fn kind(&self) -> BrowserKind {
        BrowserKind::Chromium
    }

    async fn check(&self) -> Result<DriverReport, DriverProblem> {
        process::check_space(&self.config.run_dir)?;
        let (version, launch_time) = trial::launch_once(self).await.map_err(|e| self.diagnose(e))?;
        Ok(DriverReport {
            kind: self.kind(),
            binary: self.found.path.clone(),
            version,
            sandboxed: self.sandboxed,
            launch_time,
            notes: self.notes.clone(),
        })
    }

    async fn launch(&self, spec: LaunchSpec) -> Result<Arc<dyn Browser>, LaunchError> {
        spec.options
            .validate(&self.config.allow_list)
            .map_err(LaunchError::Refused)?;
        let begun = Instant::now();
        let controlled = self.start(&spec).await?;
        let gates = Gates {
            controlled: &controlled,
            begun,
            limit: spec.timeout,
            urgency: spec.urgency,
            cancel: &spec.cancel,
        };
        match gates.pass().await {
            Ok((version, endpoint)) => {
                let pid = controlled.process.tree.pid();
                tracing::debug!(browser = %spec.id, pid, elapsed = ?begun.elapsed(), "browser is ready");
                Ok(Arc::new(ChromiumBrowser {
                    id: spec.id,
                    version,
                    endpoint,
                    controlled,
                }))
            }
            Err(error) => {
                controlled.process.undo().await;
                Err(error)
            }
        }
    }
}

/// The way from "spawned" to "ready".
struct Gates<'a> {
    controlled: &'a Controlled,
    begun: Instant,
    limit: Duration,
    urgency: Urgency,
    cancel: &'a CancellationToken,
}

// === impl Gates ===

impl Gates<'_> {
    async fn pass(&self) -> Result<(BrowserVersion, Endpoint), LaunchError> {
        let endpoint = async { Ok(self.controlled.process.stderr.endpoint().await) };
        let endpoint = self.gate(LaunchGate::Endpoint, endpoint).await?;
        let version = self
            .gate(LaunchGate::Version, self.controlled.version(self.limit))
            .await?;
        // Whoever waits is better served by a browser now than by a page in a moment; its renderer is on its way.
        if self.urgency == Urgency::Refill {
            self.gate(LaunchGate::FirstPage, self.controlled.first_page(self.limit))
                .await?;
        }
        Ok((version, endpoint))
    }

    /// One step, against its limit, the process's exit and the caller's change of mind.
    async fn gate<T>(
        &self,
        phase: LaunchGate,
        step: impl Future<Output = Result<T, ControlError>>,
    ) -> Result<T, LaunchError> {
        tokio::select! {
            // Biased: of an exit and the broken pipe it causes, the exit is the cause.
            biased;
            // Cancel-safe: a watch.
            exited = self.controlled.process.tree.exited() => Err(self.controlled.process.left_early(exited).await),
            () = self.cancel.cancelled() => Err(LaunchError::Cancelled),
            // Dropping a step forgets its call.
            done = tokio::time::timeout(self.limit, step) => match done {
                Ok(Ok(value)) => Ok(value),
                Err(_) | Ok(Err(ControlError::Timeout { .. })) => Err(self.not_ready(phase)),
                Ok(Err(source)) => Err(self.wrong(phase, source).await),
            },
        }
    }

    fn not_ready(&self, phase: LaunchGate) -> LaunchError {
        LaunchError::NotReady {
            phase,
            waited: self.begun.elapsed(),
            stderr: self.controlled.process.stderr.tail(),
        }
    }

    /// A closed pipe is usually an exit that the kernel has not told us yet.
    async fn wrong(&self, phase: LaunchGate, source: ControlError) -> LaunchError {
        let soon = tokio::time::timeout(Duration::from_millis(200), self.controlled.process.tree.exited()).await;
        match (soon, source) {
            (Ok(exited), ControlError::Closed) => self.controlled.process.left_early(exited).await,
            (_, source) => LaunchError::Control {
                phase,
                source,
                stderr: self.controlled.process.stderr.tail(),
            },
        }
    }
}

fn settle_sandbox(wanted: Sandbox, binary: &Path) -> (bool, Option<String>) {
    let root = rustix::process::geteuid().is_root();
    match wanted {
        Sandbox::On => (true, None),
        Sandbox::Off => (false, Some("the sandbox is switched off by configuration".into())),
        Sandbox::Auto if root => (
            false,
            Some("Wharf runs as root, where Chromium's sandbox refuses to work: run it as its own user".into()),
        ),
        Sandbox::Auto if namespaces_usable() || binary.with_file_name("chrome-sandbox").exists() => (true, None),
        Sandbox::Auto => {
            let note = "this host forbids unprivileged user namespaces, so pages run without Chromium's sandbox";
            (false, Some(note.into()))
        }
    }
}

fn namespaces_usable() -> bool {
    let setting = |path: &str| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let is = |path: &str, value: &str| setting(path).is_some_and(|found| found == value);
    !is("/proc/sys/kernel/unprivileged_userns_clone", "0")
        && !is("/proc/sys/user/max_user_namespaces", "0")
        && !is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1")
}
