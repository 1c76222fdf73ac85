//! Real Redis servers for tests: one, or a cluster of three primaries and three replicas.
//!
//! Its own file because several packages test against Redis and each needs the same: a server on a free port of
//! 127.0.0.1 with a directory of its own, that can be stopped, killed, paused, restarted and set back to an earlier
//! state. `redis-server` must be on the PATH (package `redis-server`; 7.0 or later for clusters).
//!
//! Invariant: a server or cluster that is dropped leaves no process and no file, also when the test panicked.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::timeout,
};

use crate::eventually;

const PROGRAM: &str = "redis-server";
const HOST: &str = "127.0.0.1";
/// Below the kernel's own choice for outgoing connections (32768 and up), so that none of those takes a port between our
/// look and the server's start; and low enough for the cluster bus, which is 10000 higher.
const PORTS: std::ops::Range<u16> = 12_000..22_000;
const BUS: u16 = 10_000;
/// Somebody else may take a port that was free a moment ago.
const ATTEMPTS: usize = 20;
const PRIMARIES: usize = 3;
const SLOTS: usize = 16_384;

/// A server.
pub struct Server {
    settings: Vec<String>,
    password: Option<String>,
    port: u16,
    child: Option<Child>,
    dir: TempDir,
}

/// How a server is to be started.
#[derive(Default)]
pub struct ServerBuilder {
    settings: Vec<String>,
    password: Option<String>,
}

/// What a server had on disk at some time.
pub struct Snapshot(TempDir);

/// Three primaries with a third of the slots each, and a replica of each.
pub struct Cluster {
    nodes: Vec<Server>,
}

// === impl ServerBuilder ===

impl ServerBuilder {
    /// Every write is on disk before it is answered; without this, a restart forgets everything.
    #[must_use]
    pub fn append_only(self) -> Self {
        self.set("appendonly", "yes").set("appendfsync", "always")
    }

    /// Clients must say this password.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self.set("requirepass", password)
    }

    /// Any setting of redis.conf.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.extend([format!("--{name}"), value.to_owned()]);
        self
    }

    /// Starts it, and waits until it answers.
    ///
    /// # Errors
    /// If `redis-server` is missing or will not start.
    pub async fn start(self) -> Result<Server> {
        let dir = tempfile::Builder::new().prefix("wharf-redis-").tempdir()?;
        let mut server = Server {
            settings: self.settings,
            password: self.password,
            port: 0,
            child: None,
            dir,
        };
        let mut last = anyhow!("no port was tried");
        for _ in 0..ATTEMPTS {
            server.port = free_port()?;
            match server.start_again().await {
                Ok(()) => return Ok(server),
                // Only a port that was taken meanwhile is worth another try.
                Err(error) if server.log().contains("Address already in use") => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }
}

// === impl Server ===

impl Server {
    /// A server without persistence.
    ///
    /// # Errors
    /// If `redis-server` is missing or will not start.
    pub async fn start() -> Result<Self> {
        Self::builder().start().await
    }

    /// A server with settings of its own.
    #[must_use]
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// Its address, with the password.
    #[must_use]
    pub fn url(&self) -> String {
        let user = self
            .password
            .as_ref()
            .map_or(String::new(), |password| format!(":{password}@"));
        format!("redis://{user}{HOST}:{}", self.port)
    }

    /// The address of its socket in the file system.
    #[must_use]
    pub fn socket_url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sends a command; the answer as text, lists one line per value.
    ///
    /// # Errors
    /// If it cannot be reached or answers with an error.
    pub async fn command(&self, command: &[&str]) -> Result<String> {
        let asked = async {
            let mut stream = BufReader::new(TcpStream::connect((HOST, self.port)).await?);
            if let Some(password) = &self.password {
                ask(&mut stream, &["AUTH", password]).await?;
            }
            ask(&mut stream, command).await
        };
        let limit = Duration::from_secs(5);
        let answer = timeout(limit, asked)
            .await
            .map_err(|_| anyhow!("no answer within {limit:?}"));
        answer
            .and_then(|answer| answer)
            .with_context(|| format!("redis on port {}: {command:?}", self.port))
    }

    /// Ends it in an orderly way (SIGTERM).
    ///
    /// # Errors
    /// If it does not end.
    pub fn stop(&mut self) -> Result<()> {
        self.end(Signal::TERM)
    }

    /// Ends it at once (SIGKILL).
    ///
    /// # Errors
    /// If it does not end.
    pub fn kill(&mut self) -> Result<()> {
        self.end(Signal::KILL)
    }

    /// Holds it: its connections stay, nothing is answered.
    ///
    /// # Errors
    /// If it does not run.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// If it does not run.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Starts it again on the same port, with what it has on disk. If it still runs, it is killed first.
    ///
    /// # Errors
    /// If it will not start.
    pub async fn restart(&mut self) -> Result<()> {
        if self.child.is_some() {
            self.kill()?;
        }
        self.start_again().await
    }

    /// What it has on disk now.
    ///
    /// # Errors
    /// If that cannot be copied.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let copy = tempfile::Builder::new().prefix("wharf-redis-snapshot-").tempdir()?;
        copy_files(&self.data(), copy.path())?;
        Ok(Snapshot(copy))
    }

    /// Kills it, and starts it with what it had on disk then: what came later is lost, as in a fail-over to a replica
    /// that had not heard of it.
    ///
    /// # Errors
    /// If it will not start.
    pub async fn restart_with(&mut self, snapshot: &Snapshot) -> Result<()> {
        if self.child.is_some() {
            self.kill()?;
        }
        fs::remove_dir_all(self.data())?;
        copy_files(snapshot.0.path(), &self.data())?;
        self.start_again().await
    }

    async fn start_again(&mut self) -> Result<()> {
        fs::create_dir_all(self.data())?;
        let log = fs::File::create(self.dir.path().join("log"))?;
        let mut command = Command::new(PROGRAM);
        command.args([
            "--port",
            &self.port.to_string(),
            "--bind",
            HOST,
            "--save",
            "",
            "--daemonize",
            "no",
        ]);
        command
            .arg("--dir")
            .arg(self.data())
            .arg("--unixsocket")
            .arg(self.socket());
        command.args(&self.settings);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| {
            format!("{PROGRAM} cannot be started: install the package redis-server, or put it on the PATH")
        })?;
        self.child = Some(child);
        let started = std::time::Instant::now();
        loop {
            if self.command(&["PING"]).await.is_ok_and(|answer| answer == "PONG") {
                return Ok(());
            }
            if let Some(child) = &mut self.child
                && let Some(status) = child.try_wait()?
            {
                self.child = None;
                bail!("{PROGRAM} ended at once ({status}); its log: {}", self.log());
            }
            ensure!(
                started.elapsed() < crate::patience(),
                "{PROGRAM} does not answer; its log: {}",
                self.log()
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    fn end(&mut self, signal: Signal) -> Result<()> {
        self.signal(signal)?;
        if let Some(mut child) = self.child.take() {
            child.wait()?;
        }
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let child = self.child.as_ref().context("the server does not run")?;
        let pid = Pid::from_raw(i32::try_from(child.id())?).context("no pid")?;
        kill_process(pid, signal)?;
        Ok(())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // SIGKILL also ends what is paused. An error means that it has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

// === impl Cluster ===

impl Cluster {
    /// Three primaries, three replicas, formed and in agreement; about two seconds.
    ///
    /// # Errors
    /// If `redis-server` is missing, will not start, or the nodes do not find each other.
    pub async fn start() -> Result<Self> {
        let mut nodes = Vec::new();
        for _ in 0..2 * PRIMARIES {
            let node = Server::builder()
                .set("cluster-enabled", "yes")
                .set("cluster-node-timeout", "1000")
                // A replica stands for election however long it has been cut off: tests kill quickly.
                .set("cluster-replica-validity-factor", "0")
                .set("cluster-allow-replica-migration", "no")
                .set("repl-diskless-sync-delay", "0");
            nodes.push(node.start().await?);
        }
        let cluster = Self { nodes };
        cluster.form().await?;
        Ok(cluster)
    }

    /// The address of it: all nodes.
    #[must_use]
    pub fn url(&self) -> String {
        let nodes: Vec<String> = self.nodes.iter().map(|node| format!("{HOST}:{}", node.port)).collect();
        format!("redis+cluster://{}", nodes.join(","))
    }

    /// A node.
    #[must_use]
    pub fn node(&self, index: usize) -> &Server {
        &self.nodes[index]
    }

    /// A node, to be stopped or started.
    pub fn node_mut(&mut self, index: usize) -> &mut Server {
        &mut self.nodes[index]
    }

    /// The node that owns the keys `{prefix}:…`, as the nodes that run agree.
    ///
    /// # Errors
    /// If nobody knows, or they do not agree.
    pub async fn primary_of(&self, prefix: &str) -> Result<usize> {
        let mut found = None;
        for node in self.nodes.iter().filter(|node| node.child.is_some()) {
            let slot: u64 = node
                .command(&["CLUSTER", "KEYSLOT", &format!("{{{prefix}}}:")])
                .await?
                .parse()?;
            let port = owner(&node.command(&["CLUSTER", "NODES"]).await?, slot)?;
            ensure!(
                found.is_none_or(|found| found == port),
                "the nodes do not agree on slot {slot}"
            );
            found = Some(port);
        }
        let port = found.context("no node runs")?;
        self.nodes
            .iter()
            .position(|node| node.port == port)
            .context("the owner is none of ours")
    }

    /// A replica of a node.
    ///
    /// # Errors
    /// If it has none.
    pub async fn replica_of(&self, primary: usize) -> Result<usize> {
        let port = self.nodes[primary].port.to_string();
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.child.is_some()) {
            let info = node.command(&["INFO", "replication"]).await?;
            if info.contains("role:slave") && info.contains(&format!("master_port:{port}\r")) {
                return Ok(index);
            }
        }
        bail!("node {primary} has no replica");
    }

    /// Kills the node that owns the keys of a prefix, and waits until its replica has taken over; old and new.
    ///
    /// # Errors
    /// If nobody takes over.
    pub async fn fail_over(&mut self, prefix: &str) -> Result<(usize, usize)> {
        let old = self.primary_of(prefix).await?;
        self.nodes[old].kill()?;
        let new = self.promoted(prefix, old).await?;
        Ok((old, new))
    }

    /// Waits until another node than this one owns the keys of a prefix and serves.
    ///
    /// # Errors
    /// If nobody takes over.
    pub async fn promoted(&self, prefix: &str, old: usize) -> Result<usize> {
        eventually("a replica to take over", async || {
            let new = self.primary_of(prefix).await?;
            ensure!(new != old, "node {old} still owns it");
            self.nodes[new].command(&["EXISTS", &format!("{{{prefix}}}:")]).await?;
            Ok(new)
        })
        .await
    }

    async fn form(&self) -> Result<()> {
        let first = self.nodes[0].port;
        for (index, node) in self.nodes.iter().enumerate() {
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()])
                .await?;
            if index < PRIMARIES {
                let (from, to) = (SLOTS * index / PRIMARIES, SLOTS * (index + 1) / PRIMARIES - 1);
                node.command(&["CLUSTER", "ADDSLOTSRANGE", &from.to_string(), &to.to_string()])
                    .await?;
            }
            if index > 0 {
                node.command(&["CLUSTER", "MEET", HOST, &first.to_string()]).await?;
            }
        }
        for (index, node) in self.nodes.iter().enumerate().skip(PRIMARIES) {
            let primary = self.nodes[index - PRIMARIES].command(&["CLUSTER", "MYID"]).await?;
            // Refused until the two have heard of each other.
            eventually("the nodes to meet", async || {
                node.command(&["CLUSTER", "REPLICATE", &primary]).await
            })
            .await?;
        }
        eventually("the cluster to form", async || self.check().await).await
    }

    /// All nodes know each other and all slots, and all replicas are in step.
    async fn check(&self) -> Result<()> {
        for (index, node) in self.nodes.iter().enumerate() {
            let info = node.command(&["CLUSTER", "INFO"]).await?;
            ensure!(
                info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:6"),
                "{info}"
            );
            let map = node.command(&["CLUSTER", "NODES"]).await?;
            ensure!(
                map.matches(" slave ").count() + map.matches(",slave ").count() == PRIMARIES,
                "{map}"
            );
            if index >= PRIMARIES {
                let info = node.command(&["INFO", "replication"]).await?;
                ensure!(info.contains("master_link_status:up"), "{info}");
            }
        }
        Ok(())
    }
}

/// The port of a slot's owner in an answer to CLUSTER NODES:
/// `id ip:port@bus flags master ping pong epoch link slot slot-slot …`.
fn owner(nodes: &str, slot: u64) -> Result<u16> {
    for line in nodes.lines() {
        let mut words = line.split(' ').skip(1);
        let address = words.next().unwrap_or_default();
        for range in words.skip(6) {
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            if let (Ok(from), Ok(to)) = (from.parse(), to.parse())
                && (from..=to).contains(&slot)
            {
                let port = address.split('@').next().and_then(|address| address.rsplit(':').next());
                return Ok(port.unwrap_or_default().parse()?);
            }
        }
    }
    bail!("nobody owns slot {slot}");
}

/// A port on which nobody listens, nor on that of its cluster bus.
fn free_port() -> Result<u16> {
    for _ in 0..1000 {
        let port = PORTS.start + random() % (PORTS.end - PORTS.start);
        if TcpListener::bind((HOST, port)).is_ok() && TcpListener::bind((HOST, port + BUS)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port between {} and {}", PORTS.start, PORTS.end);
}

/// Tests run in many processes at once: each must begin elsewhere.
fn random() -> u16 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let bytes = RandomState::new().build_hasher().finish().to_le_bytes();
    u16::from_le_bytes([bytes[0], bytes[1]])
}

fn copy_files(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_files(&entry.path(), &target)?;
        } else if entry.file_type()?.is_file() {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// Sends a command and reads one answer.
async fn ask(stream: &mut BufReader<TcpStream>, command: &[&str]) -> Result<String> {
    let mut text = format!("*{}\r\n", command.len());
    for part in command {
        text.push_str(&format!("${}\r\n{part}\r\n", part.len()));
    }
    stream.write_all(text.as_bytes()).await?;
    let mut answer = Vec::new();
    // Lists may hold lists: so many values are still to come.
    let mut left = 1_usize;
    while left > 0 {
        left -= 1;
        let mut line = String::new();
        ensure!(stream.read_line(&mut line).await? > 0, "the connection was closed");
        let line = line.trim_end();
        let (kind, rest) = line.split_at_checked(1).context("an empty answer")?;
        match kind {
            "+" | ":" => answer.push(rest.to_owned()),
            "-" => bail!("{rest}"),
            "*" => left += rest.parse::<usize>().unwrap_or(0),
            "$" if rest.starts_with('-') => answer.push(String::new()),
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>()? + 2];
                stream.read_exact(&mut bytes).await?;
                bytes.truncate(bytes.len() - 2);
                answer.push(String::from_utf8_lossy(&bytes).into_owned());
            }
            _ => bail!("an unknown answer {line:?}"),
        }
    }
    Ok(answer.join("\n"))
}
