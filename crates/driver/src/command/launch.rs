//! Launching a program: a port, spawn, whose listener it is, `GET /health`, and the check at start.
//!
//! Its own file because the order is the contract. The program binds the port itself, so between the choice and the bind
//! somebody else may take it: an answer is believed only after the kernel has said that the listener is the tree's. A
//! port that was lost costs an attempt, not the launch. The invariant: between the spawn and the hand-over one value,
//! [`Process`], owns everything, so every way out cleans up; and no attempt uses a port that an earlier one had.

use std::{
    ffi::OsString,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::{net::TcpStream, time::Instant};
use tokio_util::sync::CancellationToken;
use wharf_process::{Cgroups, Exited, Listener, Output, RunDir, SpawnRequest, Spawner};

use super::{
    find::find,
    http::Client,
    port::{Ports, Reserved},
    running::CommandBrowser,
};
use crate::{
    Browser, BrowserKind, BrowserVersion, Driver, DriverProblem, DriverReport, Endpoint, LaunchError, LaunchGate,
    LaunchOptions, LaunchSpec, OptionRefused,
    process::{self, Process},
    trial,
};

/// Programs that are started for one launch, at most, each on a port of its own.
const ATTEMPTS: usize = 3;
/// Seed 000's pause between two looks. The first ones come sooner: a small program is ready in milliseconds.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// One `GET /health` during the launch: longer ones are given up and asked again.
const HEALTH_LIMIT: Duration = Duration::from_secs(1);

/// Which program, and what it is started with.
#[derive(Debug, Clone)]
pub struct CommandConfig {
    /// A path, or a name to be found in PATH.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// The variables it sees besides PORT and TMPDIR; see [`CommandConfig::host_env`].
    pub env: Vec<(OsString, OsString)>,
    /// Where it runs, and what relative paths are relative to.
    pub working_dir: PathBuf,
    /// Where programs' directories go.
    pub run_dir: Arc<RunDir>,
    /// One cgroup per program, if the host delegates.
    pub cgroups: Option<Cgroups>,
}

/// Launches a program.
#[derive(Debug)]
pub struct CommandDriver {
    config: CommandConfig,
    program: PathBuf,
    spawner: Spawner,
    ports: Ports,
}

/// Why one attempt came to nothing.
enum Lost {
    /// It left before it listened, perhaps because its port was taken.
    Left(Exited),
    /// Somebody else listens on its port.
    Stranger,
    /// Another port would not help.
    Failed(LaunchError),
}

// === impl CommandConfig ===

impl CommandConfig {
    /// The host's variables that the program sees: all but Wharf's own, which may hold secrets of the grid. It is the
    /// operator's program, and its settings come this way.
    pub fn host_env(vars: impl IntoIterator<Item = (OsString, OsString)>) -> Vec<(OsString, OsString)> {
        let is_ours = |name: &OsString| {
            let name = name.as_encoded_bytes();
            name.starts_with(b"WHARF_") || name.starts_with(b"_WHARF_")
        };
        vars.into_iter().filter(|(name, _)| !is_ours(name)).collect()
    }
}

// === impl CommandDriver ===

impl CommandDriver {
    /// Finds the program; starts nothing.
    pub fn new(config: CommandConfig) -> Result<Self, DriverProblem> {
        let search_path = config.env.iter().find(|(name, _)| name == "PATH");
        let search_path = search_path.map(|(_, value)| value.as_os_str());
        let program = find(&config.program, &config.working_dir, search_path)?;
        let spawner = Spawner::new().map_err(|e| DriverProblem::Launch {
            path: program.clone(),
            source: Box::new(LaunchError::Spawn(e)),
        })?;
        Ok(Self {
            config,
            program,
            spawner,
            ports: Ports::default(),
        })
    }

    /// The program, absolute.
    pub fn program(&self) -> &Path {
        &self.program
    }

    async fn start(&self, spec: &LaunchSpec, port: &Reserved) -> Result<Process, LaunchError> {
        let dir = process::make_dir(&self.config.run_dir, &spec.id.to_string()).await?;
        let ours: [(OsString, OsString); 2] = [
            ("PORT".into(), port.port().to_string().into()),
            ("TMPDIR".into(), dir.path().join("tmp").into()),
        ];
        let mut env = self.config.env.clone();
        env.retain(|(name, _)| ours.iter().all(|(own, _)| own != name));
        env.extend(ours);
        let request = SpawnRequest {
            args: self.config.args.iter().map(OsString::from).collect(),
            env,
            cwd: Some(self.config.working_dir.clone()),
            // Servers log to either; both are last words.
            stdout: Output::Piped,
            dir: Some(dir),
            ..process::request(&self.program, spec, &self.config.run_dir, self.config.cgroups.as_ref())
        };
        Process::start(self.spawner, request).await
    }

    fn ready(&self, spec: &LaunchSpec, process: Process, client: Client, port: Reserved) -> Arc<dyn Browser> {
        Arc::new(CommandBrowser {
            id: spec.id,
            version: self.version(),
            endpoint: Endpoint {
                addr: client.addr,
                path: "/".to_owned(),
            },
            client,
            process,
            session: Mutex::default(),
            _port: port,
        })
    }

    /// A program says nothing about itself: its name is its product.
    fn version(&self) -> BrowserVersion {
        let name = self.program.file_name().unwrap_or_default().to_string_lossy();
        BrowserVersion {
            product: name.into_owned(),
            revision: String::new(),
            user_agent: String::new(),
            js_version: String::new(),
            protocol_version: String::new(),
        }
    }

    /// Turns a failed trial into advice.
    fn diagnose(&self, error: LaunchError) -> DriverProblem {
        let path = self.program.clone();
        match &error {
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
            LaunchError::Unhealthy { .. } => DriverProblem::NotReady {
                path,
                source: Box::new(error),
            },
            _ => DriverProblem::Launch {
                path,
                source: Box::new(error),
            },
        }
    }
}

#[async_trait]
impl Driver for CommandDriver {
    fn kind(&self) -> BrowserKind {
        BrowserKind::Command
    }

    async fn check(&self) -> Result<DriverReport, DriverProblem> {
        process::check_space(&self.config.run_dir)?;
        let (version, launch_time) = trial::launch_once(self).await.map_err(|e| self.diagnose(e))?;
        Ok(DriverReport {
            kind: self.kind(),
            binary: self.program.clone(),
            version,
            sandboxed: false,
            launch_time,
            notes: Vec::new(),
        })
    }

    async fn launch(&self, spec: LaunchSpec) -> Result<Arc<dyn Browser>, LaunchError> {
        if spec.options != LaunchOptions::default() {
            return Err(LaunchError::Refused(vec![OptionRefused::Value {
                field: "launch",
                expected: "nothing for a program of the driver `command`: it gets the session's `data`",
                found: format!("{:?}", spec.options).chars().take(80).collect(),
            }]));
        }
        let begun = Instant::now();
        let deadline = begun + spec.timeout;
        let mut taken = Vec::new();
        // Kept, so that a later attempt cannot get an earlier one's port.
        let mut ports = Vec::new();
        loop {
            let port = self.ports.reserve().map_err(LaunchError::Disk)?;
            let process = self.start(&spec, &port).await?;
            let gates = Gates {
                process: &process,
                port: port.port(),
                begun,
                deadline,
                cancel: &spec.cancel,
                seen: Mutex::new((LaunchGate::Port, "nobody listens there yet".to_owned())),
            };
            let lost = match gates.pass().await {
                Ok(client) => {
                    let pid = process.tree.pid();
                    tracing::debug!(browser = %spec.id, pid, elapsed = ?begun.elapsed(), "program is ready");
                    return Ok(self.ready(&spec, process, client, port));
                }
                Err(lost) => lost,
            };
            let left_early = match &lost {
                Lost::Left(exited) => Some(process.left_early(*exited).await),
                _ => None,
            };
            let stderr = process.stderr.tail();
            process.undo().await;
            taken.push(port.port());
            ports.push(port);
            let may_try_again = taken.len() < ATTEMPTS && Instant::now() < deadline && !spec.cancel.is_cancelled();
            match lost {
                Lost::Failed(error) => return Err(error),
                Lost::Left(_) | Lost::Stranger if may_try_again => {
                    let port = taken.last();
                    tracing::warn!(browser = %spec.id, port, was_stranger = left_early.is_none(), "trying another port");
                }
                Lost::Left(_) | Lost::Stranger => {
                    return Err(left_early.unwrap_or(LaunchError::PortTaken { taken, stderr }));
                }
            }
        }
    }
}

/// The way from "spawned" to "ready".
struct Gates<'a> {
    process: &'a Process,
    port: u16,
    begun: Instant,
    deadline: Instant,
    cancel: &'a CancellationToken,
    /// How far it has come and what was seen last; for the message when time is up.
    seen: Mutex<(LaunchGate, String)>,
}

// === impl Gates ===

impl Gates<'_> {
    async fn pass(&self) -> Result<Client, Lost> {
        tokio::select! {
            // Biased: of an exit and the broken connection it causes, the exit is the cause.
            biased;
            // Cancel-safe: a watch.
            exited = self.process.tree.exited() => Err(self.left(exited).await),
            () = self.cancel.cancelled() => Err(Lost::Failed(LaunchError::Cancelled)),
            // Dropping a look or a request forgets it.
            ready = self.ready() => ready,
            () = tokio::time::sleep_until(self.deadline) => Err(Lost::Failed(self.not_ready())),
        }
    }

    async fn ready(&self) -> Result<Client, Lost> {
        let mut pause = FIRST_PAUSE;
        let client = loop {
            // Whose listener it is costs the kernel a walk of all its sockets (10 ms and more): asked once there is one.
            if !is_open(self.port).await {
                rest(&mut pause).await;
                continue;
            }
            match self.process.tree.listener(self.port).await {
                Listener::Ours(addr) => break Client { addr },
                Listener::Stranger => return Err(Lost::Stranger),
                Listener::Nobody => rest(&mut pause).await,
            }
        };
        *self.seen.lock() = (LaunchGate::Health, "it was not asked yet".to_owned());
        loop {
            match client.health(HEALTH_LIMIT).await {
                Ok(()) => return Ok(client),
                Err(failed) => *self.seen.lock() = (LaunchGate::Health, failed.to_string()),
            }
            rest(&mut pause).await;
        }
    }

    /// An exit before it listened may be the port's fault; afterwards it is its own.
    async fn left(&self, exited: Exited) -> Lost {
        let has_listened = self.seen.lock().0 != LaunchGate::Port;
        if exited.out_of_memory.is_some() || has_listened {
            return Lost::Failed(self.process.left_early(exited).await);
        }
        Lost::Left(exited)
    }

    fn not_ready(&self) -> LaunchError {
        let (phase, last) = self.seen.lock().clone();
        LaunchError::Unhealthy {
            phase,
            waited: self.begun.elapsed(),
            last: format!("port {}: {last}", self.port),
            stderr: self.process.stderr.tail(),
        }
    }
}

/// Whether anybody takes connections there. Says nothing about who.
async fn is_open(port: u16) -> bool {
    let loopbacks = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let candidates = loopbacks.map(|ip| SocketAddr::new(ip, port));
    let connect = TcpStream::connect(&candidates[..]);
    matches!(tokio::time::timeout(HEALTH_LIMIT, connect).await, Ok(Ok(_)))
}

async fn rest(pause: &mut Duration) {
    tokio::time::sleep(*pause).await;
    *pause = (*pause * 2).min(LONGEST_PAUSE);
}
