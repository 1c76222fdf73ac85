//! Connections: to the one server, or to the node of a cluster that owns our slot.
//!
//! Its own file because all that can go wrong between us and Redis is handled here, once: time limits, broken
//! connections, a server that is loading or busy, redirections and fail-overs of a cluster, scripts that were flushed.
//! The library's cluster client is not used: a grid lives in one slot, and a plain connection to that slot's primary can
//! also be blocked (`XREAD BLOCK`, `WAIT`), which its shared ones cannot.
//!
//! Invariant: a call ends within its time, and every call may be repeated (appends carry a number, the rest is
//! idempotent), so an attempt whose answer was lost is simply made again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, Pipeline, RedisError,
    ServerErrorKind, Value, aio::MultiplexedConnection,
};
use tokio::time::{Instant, sleep, timeout};
use wharf_journal::JournalError;

use crate::{
    scripts::ServerScript,
    url::{Target, sibling},
};

/// The first pause before another attempt; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// A fail-over is noticed this late at most.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Where the journal lives, and what is known about it now. Shared by all lanes.
pub(crate) struct Home {
    target: Target,
    slot: u16,
    connect_timeout: Duration,
    known: Mutex<Known>,
    /// Counts what made all open connections worthless: a primary that was demoted.
    upheavals: AtomicU64,
}

/// What is known about a cluster.
#[derive(Default)]
struct Known {
    /// Who owns our slot, as far as we know.
    primary: Option<ConnectionInfo>,
    /// Whoever may be asked, beside the seeds.
    nodes: Vec<ConnectionInfo>,
    /// Whom to ask next.
    turn: usize,
}

/// One connection, opened when needed and again when broken. Calls on one lane share it; what blocks has its own.
pub(crate) struct Lane {
    home: Arc<Home>,
    open: tokio::sync::Mutex<Option<Open>>,
}

#[derive(Clone)]
struct Open {
    connection: MultiplexedConnection,
    at: ConnectionInfo,
    upheavals: u64,
    id: u64,
}

/// One or more commands sent together; the answer to each comes back.
pub(crate) struct Ask {
    commands: Vec<Cmd>,
    script: Option<&'static ServerScript>,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("redis at {at} {what}")]
    Unavailable { at: String, what: String },
    #[error("redis at {at} refused: {error}")]
    Refused { at: String, error: RedisError },
}

/// What to do about an error.
enum Cure {
    /// The server is fine, but not now.
    Pause,
    /// This connection is of no more use.
    Reconnect,
    /// Ask who owns our slot.
    Rediscover,
    /// Somebody else owns our slot now.
    Follow(String),
    /// Somebody else will own our slot, and has the keys already.
    Ask(String),
    /// It does not know the script.
    Teach,
    /// None.
    Give,
}

// === impl Ask ===

impl Ask {
    pub(crate) fn script(script: &'static ServerScript, call: Cmd) -> Self {
        Self {
            commands: vec![call],
            script: Some(script),
        }
    }

    pub(crate) fn one(command: Cmd) -> Self {
        Self {
            commands: vec![command],
            script: None,
        }
    }

    #[must_use]
    pub(crate) fn and(mut self, command: Cmd) -> Self {
        self.commands.push(command);
        self
    }

    /// Sends the commands, some others before them; the answers to ours.
    async fn send(&self, connection: &mut MultiplexedConnection, before: &[Cmd]) -> Result<Vec<Value>, RedisError> {
        let values = match (&self.commands[..], before) {
            ([command], []) => vec![connection.send_packed_command(command).await?],
            _ => {
                let mut pipeline = Pipeline::new();
                for command in before.iter().chain(&self.commands) {
                    pipeline.add_command(command.clone());
                }
                connection
                    .send_packed_commands(&pipeline, before.len(), self.commands.len())
                    .await?
            }
        };
        // The first answer decides; what follows it (WAIT, a second setting) is judged by who asked.
        match values.first() {
            Some(Value::ServerError(error)) => Err(error.clone().into()),
            _ => Ok(values),
        }
    }
}

// === impl Home ===

impl Home {
    pub(crate) fn new(target: Target, slot: u16, connect_timeout: Duration) -> Self {
        Self {
            target,
            slot,
            connect_timeout,
            known: Mutex::default(),
            upheavals: AtomicU64::new(0),
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.target.is_cluster
    }

    /// The primary we speak to, or would speak to, for people.
    pub(crate) fn place(&self) -> String {
        if let Some(primary) = &self.known.lock().primary {
            return primary.addr().to_string();
        }
        let seeds: Vec<String> = self.target.seeds.iter().map(|seed| seed.addr().to_string()).collect();
        seeds.join(",")
    }

    async fn connect(&self, info: &ConnectionInfo) -> Result<MultiplexedConnection, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            // Each call has its own limit; the library's would cut blocking reads.
            .set_response_timeout(None);
        Client::open(info.clone())?
            .get_multiplexed_async_connection_with_config(&config)
            .await
    }

    /// Who owns our slot.
    async fn primary(&self) -> Result<ConnectionInfo, RedisError> {
        if !self.target.is_cluster {
            return Ok(self.target.seeds[0].clone());
        }
        if let Some(primary) = self.known.lock().primary.clone() {
            return Ok(primary);
        }
        let candidates = self.candidates();
        let mut last = None;
        for candidate in candidates {
            match self.discover(&candidate).await {
                Ok(primary) => return Ok(primary),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| (ErrorKind::ClusterConnectionNotFound, "no node is known").into()))
    }

    /// All nodes to ask, another one first each time: the one asked last may be cut off from the others.
    fn candidates(&self) -> Vec<ConnectionInfo> {
        let mut known = self.known.lock();
        let mut all = known.nodes.clone();
        for seed in &self.target.seeds {
            if !all.iter().any(|node| node.addr() == seed.addr()) {
                all.push(seed.clone());
            }
        }
        let turn = known.turn % all.len().max(1);
        known.turn = known.turn.wrapping_add(1);
        all.rotate_left(turn);
        all
    }

    /// Asks one node for the cluster's map.
    async fn discover(&self, node: &ConnectionInfo) -> Result<ConnectionInfo, RedisError> {
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let asked = async {
            let mut connection = self.connect(node).await?;
            command.query_async::<Vec<Vec<Value>>>(&mut connection).await
        };
        let map = timeout(self.connect_timeout, asked).await.map_err(|_| silent())??;
        let mut primary = None;
        let mut nodes = Vec::new();
        for range in &map {
            let [Value::Int(from), Value::Int(to), owners @ ..] = &range[..] else {
                continue;
            };
            let owners: Vec<_> = owners.iter().filter_map(|owner| owner_of(owner, node)).collect();
            if (*from..=*to).contains(&i64::from(self.slot)) {
                primary = owners.first().cloned();
            }
            nodes.extend(owners);
        }
        let primary = primary.ok_or_else(|| {
            let text = format!("slot {} has no owner yet, says {}", self.slot, node.addr());
            RedisError::from((ErrorKind::ClusterConnectionNotFound, "the cluster is incomplete", text))
        })?;
        let mut known = self.known.lock();
        known.nodes = nodes;
        known.primary = Some(primary.clone());
        Ok(primary)
    }

    /// Whoever we took for the primary is not, or cannot be reached.
    fn forget_primary(&self, at: &ConnectionInfo) {
        let mut known = self.known.lock();
        if known
            .primary
            .as_ref()
            .is_some_and(|primary| primary.addr() == at.addr())
        {
            known.primary = None;
        }
    }

    /// The node a redirection names; one without a host means the one that said it.
    fn redirected(&self, to: &str, by: &ConnectionInfo) -> Option<ConnectionInfo> {
        let (host, port) = to.rsplit_once(':')?;
        let port = port.parse().ok()?;
        let same = host_of(by);
        let host = if host.is_empty() { same.as_str() } else { host };
        Some(sibling(by, host.trim_matches(['[', ']']), port))
    }
}

fn host_of(info: &ConnectionInfo) -> String {
    match info.addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.clone(),
        _ => String::new(),
    }
}

/// A node in the answer to CLUSTER SLOTS: host (or nothing: the one asked), port, id, ….
fn owner_of(value: &Value, asked: &ConnectionInfo) -> Option<ConnectionInfo> {
    let Value::Array(fields) = value else { return None };
    let host = match fields.first()? {
        Value::BulkString(host) if !host.is_empty() && host != b"?" => String::from_utf8(host.clone()).ok()?,
        Value::SimpleString(host) if !host.is_empty() => host.clone(),
        _ => host_of(asked),
    };
    let Value::Int(port) = fields.get(1)? else { return None };
    Some(sibling(asked, &host, u16::try_from(*port).ok()?))
}

fn silent() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

// === impl Lane ===

impl Lane {
    pub(crate) fn new(home: Arc<Home>) -> Self {
        Self {
            home,
            open: tokio::sync::Mutex::new(None),
        }
    }

    /// Asks, again and again if that may help, for at most `budget`.
    pub(crate) async fn call(&self, ask: &Ask, budget: Duration) -> Result<Vec<Value>, LinkError> {
        let until = Instant::now() + budget;
        let mut pause = FIRST_PAUSE;
        let mut last: Option<(String, RedisError)> = None;
        // A redirection is followed at once, but two nodes may send us to and fro.
        let mut hops = 0;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            // Looked at as well as given to the timer: an attempt that is refused at once never waits for it.
            if let Some((at, error)) = last.take_if(|_| left.is_zero()) {
                return Err(LinkError::Unavailable {
                    at,
                    what: format!("cannot be used: {error}"),
                });
            }
            let (at, error) = match timeout(left, self.attempt(ask)).await {
                Ok(Ok(values)) => return Ok(values),
                Ok(Err(failed)) => failed,
                Err(_) => {
                    // Whatever is stuck behind this answer is stuck, too.
                    let at = self.abandon();
                    let before = last.map_or(String::new(), |(_, error)| format!(" (before that: {error})"));
                    return Err(LinkError::Unavailable {
                        at,
                        what: format!("did not answer within {budget:?}{before}"),
                    });
                }
            };
            let cure = cure(&error);
            if matches!(cure, Cure::Give) || (matches!(cure, Cure::Follow(_)) && !self.home.is_cluster()) {
                return Err(LinkError::Refused { at, error });
            }
            let at_once = matches!(cure, Cure::Follow(_) | Cure::Reconnect) && last.is_none() && hops < 3;
            hops += 1;
            last = Some((at, error));
            if !at_once {
                // Jitter: the coordinators must not all come back in the same moment.
                sleep(pause.mul_f64(rand::random_range(0.5..1.5))).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    /// Closes the connection; the next call opens another.
    pub(crate) async fn close(&self) {
        self.open.lock().await.take();
    }

    /// One attempt, with the consequences of its error drawn.
    async fn attempt(&self, ask: &Ask) -> Result<Vec<Value>, (String, RedisError)> {
        let open = match self.connection().await {
            Ok(open) => open,
            Err(error) => return Err((self.home.place(), error)),
        };
        let mut connection = open.connection.clone();
        let mut answer = ask.send(&mut connection, &[]).await;
        if let Err(error) = &answer {
            match (cure(error), ask.script) {
                (Cure::Teach, Some(script)) => answer = ask.send(&mut connection, &[script.load()]).await,
                (Cure::Ask(to), _) => answer = self.ask_elsewhere(ask, &to, &open.at).await,
                _ => {}
            }
        }
        match answer {
            Ok(values) => Ok(values),
            Err(error) => {
                self.conclude(&error, &open).await;
                Err((open.at.addr().to_string(), error))
            }
        }
    }

    /// The open connection, or a new one.
    async fn connection(&self) -> Result<Open, RedisError> {
        let mut open = self.open.lock().await;
        let upheavals = self.home.upheavals.load(Ordering::Acquire);
        if let Some(open) = open.as_ref().filter(|open| open.upheavals == upheavals) {
            return Ok(open.clone());
        }
        *open = None;
        let at = self.home.primary().await?;
        match self.home.connect(&at).await {
            Ok(connection) => {
                static IDS: AtomicU64 = AtomicU64::new(0);
                let id = IDS.fetch_add(1, Ordering::Relaxed);
                Ok(open
                    .insert(Open {
                        connection,
                        at,
                        upheavals,
                        id,
                    })
                    .clone())
            }
            Err(error) => {
                self.home.forget_primary(&at);
                Err(error)
            }
        }
    }

    /// Draws the consequences of an error on a connection.
    async fn conclude(&self, error: &RedisError, on: &Open) {
        match cure(error) {
            Cure::Pause | Cure::Teach | Cure::Ask(_) | Cure::Give => return,
            Cure::Reconnect => self.home.forget_primary(&on.at),
            Cure::Rediscover => {
                self.home.forget_primary(&on.at);
                self.home.upheavals.fetch_add(1, Ordering::AcqRel);
            }
            Cure::Follow(to) => {
                if self.home.is_cluster() {
                    self.home.known.lock().primary = self.home.redirected(&to, &on.at);
                    self.home.upheavals.fetch_add(1, Ordering::AcqRel);
                }
            }
        }
        let mut open = self.open.lock().await;
        if open.as_ref().is_some_and(|open| open.id == on.id) {
            *open = None;
        }
    }

    /// Follows an ASK: this once, and introduced by ASKING.
    async fn ask_elsewhere(&self, ask: &Ask, to: &str, by: &ConnectionInfo) -> Result<Vec<Value>, RedisError> {
        let node = self.home.redirected(to, by).ok_or_else(silent)?;
        let mut connection = self.home.connect(&node).await?;
        let mut before = vec![redis::cmd("ASKING")];
        if let Some(script) = ask.script {
            // ASKING holds for the next command only.
            before.insert(0, script.load());
        }
        ask.send(&mut connection, &before).await
    }

    /// Gives the connection up without waiting for anybody; where it led to.
    fn abandon(&self) -> String {
        let place = self.home.place();
        // Locked: somebody is opening another already.
        if let Ok(mut open) = self.open.try_lock()
            && let Some(open) = open.take()
        {
            self.home.forget_primary(&open.at);
            return open.at.addr().to_string();
        }
        place
    }
}

fn cure(error: &RedisError) -> Cure {
    let to = || error.redirect_node().map(|(to, _)| to.to_owned()).unwrap_or_default();
    match error.kind() {
        ErrorKind::Io | ErrorKind::Parse | ErrorKind::ClusterConnectionNotFound => Cure::Reconnect,
        ErrorKind::Server(kind) => match kind {
            ServerErrorKind::Moved => Cure::Follow(to()),
            ServerErrorKind::Ask => Cure::Ask(to()),
            ServerErrorKind::NoScript => Cure::Teach,
            ServerErrorKind::TryAgain | ServerErrorKind::BusyLoading => Cure::Pause,
            ServerErrorKind::ClusterDown | ServerErrorKind::MasterDown | ServerErrorKind::ReadOnly => Cure::Rediscover,
            _ => Cure::Give,
        },
        // BUSY: a script of somebody else's runs too long. UNBLOCKED: the primary was demoted under a blocking read.
        _ => match error.code() {
            Some("BUSY") => Cure::Pause,
            Some("UNBLOCKED") => Cure::Rediscover,
            _ => Cure::Give,
        },
    }
}

// === impl LinkError ===

impl LinkError {
    /// Whether the server did not take us for who we say we are.
    pub(crate) fn is_unauthorized(&self) -> bool {
        matches!(self, Self::Refused { error, .. }
            if error.kind() == ErrorKind::AuthenticationFailed || matches!(error.code(), Some("NOAUTH" | "WRONGPASS")))
    }

    pub(crate) fn is_moved(&self) -> bool {
        matches!(self, Self::Refused { error, .. } if error.kind() == ErrorKind::Server(ServerErrorKind::Moved))
    }
}

impl From<LinkError> for JournalError {
    fn from(error: LinkError) -> Self {
        let text = error.to_string();
        match error {
            // It understood us and says that what it holds is not what our scripts expect.
            LinkError::Refused { error, .. }
                if error.kind() == ErrorKind::Server(ServerErrorKind::ResponseError)
                    || error.code() == Some("WRONGTYPE") =>
            {
                Self::Corrupt(text)
            }
            _ => Self::Unavailable(text),
        }
    }
}
