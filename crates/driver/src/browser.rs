//! The two traits and the words they use.
//!
//! Their own file because every other part of Wharf sees only this. The invariant: nothing here names a kind of
//! browser's protocol or flags; a new kind is a new implementation, not a new word.

use std::{fmt, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use wharf_core::{BrowserId, BrowserKind};
use wharf_process::{ExitStatus, SpawnError};

use crate::{ControlError, LaunchOptions, OptionRefused};

/// How one kind of browser is launched.
#[async_trait]
pub trait Driver: Send + Sync + 'static {
    /// Its kind.
    fn kind(&self) -> BrowserKind;

    /// At start: finds the binary, runs it once and says what it is; the problem says what is wrong and how to mend it.
    async fn check(&self) -> Result<DriverReport, DriverProblem>;

    /// Launches one browser; for the warm pool also brings up its first page. On an error the tree is already dead and its
    /// directory removed; dropping the future has the same effect, in the background.
    async fn launch(&self, spec: LaunchSpec) -> Result<Arc<dyn Browser>, LaunchError>;
}

/// One running browser. Dropping the last handle kills it.
#[async_trait]
pub trait Browser: Send + Sync + 'static {
    /// Its id.
    fn id(&self) -> BrowserId;

    /// Its main process.
    fn pid(&self) -> u32;

    /// What it says it is.
    fn version(&self) -> &BrowserVersion;

    /// Where clients' WebSockets go.
    fn endpoint(&self) -> &Endpoint;

    /// Asks for a sign of life on the private control channel.
    async fn probe(&self, limit: Duration) -> Result<(), ProbeFailed>;

    /// Waits for its end. Cancel-safe, any number of callers.
    async fn exited(&self) -> Exit;

    /// Kills the whole tree, never through the browser; returns when it is gone. Idempotent. Files are removed
    /// afterwards, in the background.
    async fn kill(&self);

    /// Resolves when its directory is gone too.
    async fn files_removed(&self);

    /// Proportional memory of the tree; a walk of milliseconds, so not on an async thread's hot path.
    fn pss_bytes(&self) -> Option<u64>;

    /// Its pages.
    async fn pages(&self, limit: Duration) -> Result<Vec<PageTarget>, ControlError>;

    /// Opens a page.
    async fn open_page(&self, url: &str, limit: Duration) -> Result<PageTarget, ControlError>;

    /// A session uses it now: normal priority.
    fn promote(&self);

    /// The part of it that wants to be told of its session; browsers that are driven over a WebSocket have none.
    fn program(&self) -> Option<&dyn Program> {
        None
    }
}

/// A browser that is told of its session over HTTP and answers for it: the driver `command`.
#[async_trait]
pub trait Program: Send + Sync {
    /// `POST /sessions` with the client's data. The answer is the program's own, an object.
    async fn begin(&self, data: &serde_json::Value, limit: Duration) -> Result<serde_json::Value, CallFailed>;

    /// `GET /sessions/<the program's own id>`.
    async fn look(&self, limit: Duration) -> Result<serde_json::Value, CallFailed>;

    /// `DELETE /sessions/<the program's own id>`: the session is over, whatever the answer.
    async fn finish(&self, limit: Duration) -> Result<(), CallFailed>;
}

/// A program did not answer as it should.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallFailed {
    /// It took too long.
    #[error("the program did not answer {call} within {limit:?}")]
    TimedOut {
        /// Method and path.
        call: String,
        /// The limit.
        limit: Duration,
    },
    /// It could not be reached, or hung up.
    #[error("the program could not be asked {call}: {cause}")]
    Unreachable {
        /// Method and path.
        call: String,
        /// The cause, in the transport's words.
        cause: String,
    },
    /// It answered something else.
    #[error("the program answered {call} with {answer}")]
    Refused {
        /// Method and path.
        call: String,
        /// Status, or what was wrong with the body.
        answer: String,
    },
}

/// What to launch.
#[derive(Debug, Clone)]
pub struct LaunchSpec {
    /// The new browser's id, which also names its directory.
    pub id: BrowserId,
    /// What the client chose.
    pub options: LaunchOptions,
    /// For each readiness gate.
    pub timeout: Duration,
    /// Whether somebody waits.
    pub urgency: Urgency,
    /// Calls the launch off. It then returns [`LaunchError::Cancelled`] when nothing of it is left.
    pub cancel: CancellationToken,
}

/// Whether somebody waits for the launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// A client waits: normal priority.
    Waiting,
    /// The warm pool is refilled: behind live sessions, until [`Browser::promote`].
    Refill,
}

/// What a browser says it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all(deserialize = "camelCase"))]
pub struct BrowserVersion {
    /// Name and version, `HeadlessChrome/156.0.8078.79`.
    pub product: String,
    /// Source revision.
    #[serde(default)]
    pub revision: String,
    /// Default user agent.
    #[serde(default)]
    pub user_agent: String,
    /// Script engine version.
    #[serde(default)]
    pub js_version: String,
    /// Version of the debugging protocol.
    #[serde(default)]
    pub protocol_version: String,
}

/// Where a browser listens for clients: always loopback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Address and port.
    pub addr: SocketAddr,
    /// Path of the WebSocket, with its leading slash.
    pub path: String,
}

/// A page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageTarget {
    /// The target id.
    #[serde(rename(deserialize = "targetId"))]
    pub id: String,
    /// Always `page`.
    pub r#type: String,
    /// Its title.
    #[serde(default)]
    pub title: String,
    /// Where it is.
    #[serde(default)]
    pub url: String,
}

/// How a browser ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with code 0: somebody closed it through the protocol.
    Clean,
    /// By itself, otherwise.
    Crashed {
        /// Code or signal.
        status: ExitStatus,
        /// Its last words.
        detail: String,
    },
    /// The kernel took it for want of memory.
    OutOfMemory {
        /// Bytes in use, if anybody measured.
        used: Option<u64>,
        /// The tree's limit, if it has one.
        limit: Option<u64>,
    },
    /// By us.
    Killed,
}

/// The browser gave no sign of life.
#[derive(Debug, Clone, thiserror::Error)]
#[error("browser did not answer its probe: {0}")]
pub struct ProbeFailed(#[from] pub ControlError);

/// How far a launch had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchGate {
    /// Waiting for the line that names the port.
    Endpoint,
    /// Waiting for the version on the control pipe.
    Version,
    /// Waiting for the first page's renderer.
    FirstPage,
    /// Waiting for a program's own listener on the port it was given.
    Port,
    /// Waiting for a program to answer `GET /health` with 200.
    Health,
}

/// Why a launch failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// No binary.
    #[error(transparent)]
    NotFound(#[from] Box<DriverProblem>),
    /// The options are not allowed.
    #[error("launch options refused: {}", list(.0))]
    Refused(Vec<OptionRefused>),
    /// The directory could not be made.
    #[error("could not make the browser's directory or pipes: {0}")]
    Disk(std::io::Error),
    /// The process could not be started.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// It started and left.
    #[error("browser exited during launch ({}){}", describe(.exit), tail(.stderr))]
    ExitedEarly {
        /// How.
        exit: ExitStatus,
        /// Its last words.
        stderr: String,
    },
    /// It was called off.
    #[error("launch was called off")]
    Cancelled,
    /// The kernel took it during the launch.
    #[error("browser ran out of memory during launch")]
    OutOfMemory,
    /// It stayed and did not answer.
    #[error("browser was not ready after {} ms: still waiting for {phase}{}", waited.as_millis(), tail(.stderr))]
    NotReady {
        /// Where it hung.
        phase: LaunchGate,
        /// How long in all.
        waited: Duration,
        /// Its last words.
        stderr: String,
    },
    /// A program stayed and did not become healthy.
    #[error("program was not ready after {} ms: still waiting for {phase} ({last}){}", waited.as_millis(), tail(.stderr))]
    Unhealthy {
        /// Where it hung.
        phase: LaunchGate,
        /// How long in all.
        waited: Duration,
        /// What was seen last.
        last: String,
        /// Its last words.
        stderr: String,
    },
    /// Every port that was chosen for a program was somebody else's by the time it could have listened.
    #[error("somebody else listens on every port that was chosen for the program ({}){}", ports(.taken), tail(.stderr))]
    PortTaken {
        /// The ports.
        taken: Vec<u16>,
        /// Its last words.
        stderr: String,
    },
    /// It answered something else.
    #[error("browser answered wrongly while waiting for {phase}: {source}{}", tail(.stderr))]
    Control {
        /// Where.
        phase: LaunchGate,
        /// What.
        source: ControlError,
        /// Its last words.
        stderr: String,
    },
}

/// What [`Driver::check`] found.
#[derive(Debug, Clone)]
pub struct DriverReport {
    /// The kind.
    pub kind: BrowserKind,
    /// The real binary, behind any wrapper script.
    pub binary: PathBuf,
    /// What it says it is.
    pub version: BrowserVersion,
    /// Whether pages run sandboxed.
    pub sandboxed: bool,
    /// Spawn until the first page answered.
    pub launch_time: Duration,
    /// What an operator should know.
    pub notes: Vec<String>,
}

/// Why a driver cannot work here, and how to mend it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriverProblem {
    /// Nothing found.
    #[error(
        "no Chromium found (looked for {}). Install Debian's `chromium-headless-shell` (default engine) or `chromium`, \
         or set the binary's path", searched.join(", ")
    )]
    NotFound {
        /// Where it was looked for.
        searched: Vec<String>,
    },
    /// The program of the driver `command` is nowhere.
    #[error("no program `{program}` found (looked in {}). Give its path (`--command ./{program}`), or install it somewhere in PATH", searched.join(", "))]
    ProgramNotFound {
        /// As configured.
        program: String,
        /// Where it was looked for.
        searched: Vec<String>,
    },
    /// The program of the driver `command` starts and never gets ready.
    #[error(
        "`{}` was started, but it did not get ready: {source}. It must listen on 127.0.0.1 at the port in its variable \
         PORT and answer `GET /health` with 200 within `launch_timeout`; try it by hand with \
         `PORT=9000 {} & curl -i http://127.0.0.1:9000/health`", path.display(), path.display()
    )]
    NotReady {
        /// Which program.
        path: PathBuf,
        /// Where it hung.
        source: Box<LaunchError>,
    },
    /// Found but cannot be executed.
    #[error("`{}` cannot be executed: {reason}. Check the path, its mode (`chmod +x`) and the mount's `noexec`", path.display())]
    NotExecutable {
        /// What.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A shared library is missing.
    #[error("`{}` needs the shared library `{library}`, which is not installed. `ldd` lists all that are missing; \
             `apt-get install --fix-broken` or the browser's package brings them", path.display())]
    MissingLibrary {
        /// Which binary.
        path: PathBuf,
        /// Which library.
        library: String,
    },
    /// The sandbox does not work here.
    #[error(
        "Chromium's sandbox cannot be used on this host. Allow unprivileged user namespaces \
             (`sysctl kernel.unprivileged_userns_clone=1`, `kernel.apparmor_restrict_unprivileged_userns=0`) or set \
             `sandbox = \"off\"` and rely on the container"
    )]
    SandboxUnusable,
    /// No room for profiles.
    #[error("only {free} bytes are free at `{}`; a browser's profile needs about 50 MB. Free some or move `run_dir`", path.display())]
    NoSpace {
        /// Where.
        path: PathBuf,
        /// How much is left.
        free: u64,
    },
    /// The trial launch failed for another reason.
    #[error("`{}` was found, but a trial launch failed: {source}", path.display())]
    Launch {
        /// Which binary.
        path: PathBuf,
        /// Why.
        source: Box<LaunchError>,
    },
}

impl fmt::Display for LaunchGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Endpoint => "its `DevTools listening` line",
            Self::Version => "its version on the control pipe",
            Self::FirstPage => "its first page",
            Self::Port => "it to listen on the port in PORT",
            Self::Health => "it to answer `GET /health` with 200",
        })
    }
}

fn describe(exit: &ExitStatus) -> String {
    match exit {
        ExitStatus::Code(code) => format!("code {code}"),
        ExitStatus::Signal(signal) => format!("signal {signal}"),
    }
}

fn tail(stderr: &str) -> String {
    if stderr.is_empty() {
        "; it said nothing".into()
    } else {
        format!("; its last words:\n{stderr}")
    }
}

fn ports(taken: &[u16]) -> String {
    taken.iter().map(u16::to_string).collect::<Vec<_>>().join(", ")
}

fn list(refused: &[OptionRefused]) -> String {
    refused.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
