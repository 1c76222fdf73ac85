//! What the roles share: the runtime, signals, the accept loop's socket, what settings mean for a front door.
//!
//! Its own file because every role starts and stops alike (DESIGN.md §10): the first signal drains, the second forces, and
//! the process says what it is doing.

use std::{net::SocketAddr, process::ExitCode, time::Duration};

use anyhow::Context;
use tokio::{
    net::{TcpListener, TcpSocket},
    signal::unix::{Signal, SignalKind, signal},
    time::Instant,
};
use wharf_coordinator::{CoordinatorConfig, KeyRule, server::ServerConfig};
use wharf_core::CoordinatorId;

use crate::{
    EXIT_FAILED,
    config::{Role, Settings},
    coordinator, logging,
    places::write_whole,
    up, worker,
};

/// Ten thousand clients may come at once; the kernel caps it at its own `somaxconn`.
const BACKLOG: u32 = 4096;
/// How often the number of sessions is said while they drain.
const DRAIN_BEAT: Duration = Duration::from_millis(500);
/// How long clean-up may take after the drain.
pub const CLEAN_UP: Duration = Duration::from_secs(10);

/// The signals that end a process.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

/// What is to become of a process that has stopped.
pub enum After {
    /// It ends.
    Exit,
    /// It begins anew, under the same process id.
    BeginAnew,
}

/// Runs a role until it is told to stop.
pub fn run(role: Role, settings: Settings) -> ExitCode {
    logging::start(&settings);
    raise_file_limit();
    // Two threads do for a grid on small machines; more cores bring more relays.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("wharf")
        .build();
    let (outcome, what) = match runtime {
        Ok(runtime) => runtime.block_on(async {
            match role {
                Role::Up => (up::run(settings).await, "the grid"),
                Role::Coordinator => (coordinator::run(settings).await, "the coordinator"),
                Role::Worker => (worker::run(settings).await, "the worker"),
            }
        }),
        Err(error) => (Err(error.into()), "the runtime"),
    };
    match outcome {
        Ok(After::Exit) => ExitCode::SUCCESS,
        Ok(After::BeginAnew) => begin_anew(),
        Err(error) => {
            eprintln!("wharf: could not run {what}: {error:#}");
            ExitCode::from(EXIT_FAILED)
        }
    }
}

/// The same program with the same arguments takes this one's place: whatever it had grown is gone.
fn begin_anew() -> ExitCode {
    use std::os::unix::process::CommandExt as _;
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| "wharf".into());
    // The file behind the name may have been replaced by an upgrade: that one is wanted then.
    let program = std::env::current_exe().unwrap_or_else(|_| name.clone().into());
    tracing::info!("beginning anew");
    let error = std::process::Command::new(program).arg0(name).args(arguments).exec();
    eprintln!("wharf: could not begin anew: {error}");
    ExitCode::from(EXIT_FAILED)
}

/// Waits until nothing is left or the drain's time is up, saying the number.
pub async fn drained(limit: Duration, what: &str, left: impl AsyncFn() -> u64) {
    let deadline = Instant::now() + limit;
    loop {
        let count = left().await;
        if count == 0 {
            tracing::info!("all {what} have finished");
            return;
        }
        if Instant::now() >= deadline {
            tracing::warn!(left = count, "drain timeout: ending the remaining {what}");
            return;
        }
        tracing::info!(left = count, "waiting for {what} to finish");
        tokio::time::sleep(DRAIN_BEAT.min(deadline.saturating_duration_since(Instant::now()))).await;
    }
}

// === impl Signals ===

impl Signals {
    /// From here on signals are heard, not obeyed by the kernel.
    pub fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// The next one.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// A listening socket; `key` is the setting that names it.
pub fn bind(address: SocketAddr, key: &str) -> anyhow::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    }?;
    socket.set_reuseaddr(true)?;
    let bound = socket.bind(address).and_then(|()| socket.listen(BACKLOG));
    bound.with_context(|| {
        format!("could not listen on {address}: is another grid running? Choose another port with --{key}")
    })
}

/// A session holds half a dozen descriptors, and the usual soft limit of 1,024 would end at 170 sessions. The hard
/// limit is the operator's word.
pub fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!(%error, "could not raise the limit of open files; about 170 sessions will fit");
        }
    }
}

pub fn coordinator_config(settings: &Settings, id: CoordinatorId) -> CoordinatorConfig {
    CoordinatorConfig {
        id,
        queue_limit: settings.queue,
        pool: settings.pool.clone(),
        browser: settings.driver,
        timeouts: settings.timeouts,
        longest: settings.longest,
        starting_limit: settings.rules.starting_grace,
        dial_limit: settings.dial_limit,
        forward_timeout: settings.forward_timeout,
        relay: settings.relay,
        sweep_interval: Duration::from_secs(1),
        touch_interval: Duration::from_secs(1),
        ticket_renewal: settings.ticket_renewal,
        body_limit: settings.body_limit,
        body_timeout: settings.body_timeout,
        // Whoever can be reached from elsewhere asks for a key, whether one was made or not.
        keys: match settings.keys {
            KeyRule::OnceMade if !settings.listen.ip().is_loopback() => KeyRule::Always,
            rule => rule,
        },
        worker_token: settings.worker_token.clone(),
        faults: settings.faults,
        allow_hosts: settings.allow_hosts.clone(),
        external_url: settings.external_url.clone(),
        trusted_proxies: settings.trusted_proxies.clone(),
    }
}

pub fn server_config(settings: &Settings) -> ServerConfig {
    ServerConfig {
        connections: settings.connections,
        header_timeout: settings.header_timeout,
        header_limit: settings.header_limit,
    }
}

/// Tells scripts that it serves.
pub fn announce(settings: &Settings, address: SocketAddr) -> anyhow::Result<()> {
    if let Some(path) = &settings.ready_file {
        let ready = serde_json::json!({"pid": std::process::id(), "listen": address.to_string()});
        write_whole(path, &format!("{ready}\n"))?;
    }
    Ok(())
}
