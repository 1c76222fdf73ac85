//! A real PostgreSQL server for a test: started in a third of a second, paused, crashed, restarted, and gone afterwards.
//!
//! Its own file because several packages test against the same server. Every test has its own: tests are processes of
//! their own under nextest and must not share state. What is slow, `initdb`, is done once and its result copied.
//!
//! PostgreSQL refuses to run as root; when we are, it runs as `postgres` or `nobody`. Invariant: a server that is dropped
//! leaves no process and no file; one whose test was killed is removed by the next one that starts.

use std::{
    ffi::OsString,
    fs::{self, File, Permissions},
    io::Read as _,
    net::TcpListener,
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _, chown},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;

use crate::{patience, processes};

/// The superuser's password: there is one so that tests can look for it where it must not be.
pub const PASSWORD: &str = "geheim-4711";
const PREFIX: &str = "wharf-postgres-";
/// Locked while the server's test lives; the kernel unlocks it however the test ends.
const OWNER: &str = "owner.lock";
/// Another process may take the port between our choosing it and the server's binding it.
const STARTS: usize = 5;

/// What makes a throw-away server fast. Nothing here changes the meaning of SQL.
const TUNED: &[(&str, &str)] = &[
    ("listen_addresses", "127.0.0.1"),
    ("fsync", "off"),
    ("full_page_writes", "off"),
    ("autovacuum", "off"),
    ("shared_buffers", "16MB"),
    ("max_connections", "100"),
    ("wal_level", "minimal"),
    ("max_wal_senders", "0"),
];

/// A running server.
#[derive(Debug)]
pub struct Server {
    dir: TempDir,
    bin: PathBuf,
    user: Option<User>,
    port: u16,
    settings: Vec<(String, String)>,
    child: Option<Child>,
    _owner: File,
}

/// Settings for a server to be started.
#[derive(Debug, Default)]
pub struct ServerBuilder {
    settings: Vec<(String, String)>,
}

/// Whom the server runs as, when we are root.
#[derive(Debug, Clone, Copy)]
struct User {
    uid: u32,
    gid: u32,
}

// === impl ServerBuilder ===

impl ServerBuilder {
    /// A setting of `postgresql.conf`; the last one wins.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts it; returns when it takes connections.
    ///
    /// # Errors
    /// When PostgreSQL is not installed (the message says what to do) or does not start (with its log).
    pub fn start(self) -> Result<Server> {
        let bin = bin_dir()?;
        let user = run_as()?;
        remove_abandoned();
        let template = template(&bin, user)?;
        let dir = private_dir(user)?;
        let owner = own(dir.path())?;
        let copied = Command::new("cp")
            .arg("-a")
            .arg(&template)
            .arg(dir.path().join("data"))
            .status()?;
        anyhow::ensure!(
            copied.success(),
            "could not copy {} to {}",
            template.display(),
            dir.path().display()
        );
        let mut server = Server {
            dir,
            bin,
            user,
            port: 0,
            settings: self.settings,
            child: None,
            _owner: owner,
        };
        let mut last = anyhow::anyhow!("never tried");
        for _ in 0..STARTS {
            server.port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
            match server.launch() {
                Ok(()) => return Ok(server),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

// === impl Server ===

impl Server {
    /// Starts a server with the default settings.
    ///
    /// # Errors
    /// As [`ServerBuilder::start`].
    pub fn start() -> Result<Self> {
        Self::builder().start()
    }

    /// To set something first.
    #[must_use]
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// The superuser's URL of the database `postgres`.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_at(self.port)
    }

    /// The same through another port of this machine, such as a proxy's.
    #[must_use]
    pub fn url_at(&self, port: u16) -> String {
        format!("postgres://postgres:{PASSWORD}@127.0.0.1:{port}/postgres")
    }

    /// Where it listens, also after a restart.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// A setting that holds from the next start on.
    pub fn set(&mut self, name: &str, value: &str) {
        self.settings.push((name.to_owned(), value.to_owned()));
    }

    /// Starts it again on the same port, after [`Self::stop`] or [`Self::crash`].
    ///
    /// # Errors
    /// When it does not start; with its log.
    pub fn start_again(&mut self) -> Result<()> {
        self.launch()
    }

    /// Ends it properly ("fast": connections are cut, nothing is lost).
    pub fn stop(&mut self) {
        self.end(Signal::INT);
    }

    /// Ends it as a crash does ("immediate": recovery on the next start).
    pub fn crash(&mut self) {
        self.end(Signal::QUIT);
    }

    /// [`Self::stop`] and [`Self::start_again`].
    ///
    /// # Errors
    /// When it does not start again; with its log.
    pub fn restart(&mut self) -> Result<()> {
        self.stop();
        self.start_again()
    }

    /// Stops all its processes where they are: connections stay open, nobody answers.
    pub fn pause(&self) {
        self.signal_all(Signal::STOP);
    }

    /// Undoes [`Self::pause`].
    pub fn resume(&self) {
        self.signal_all(Signal::CONT);
    }

    /// What it wrote to its log.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn launch(&mut self) -> Result<()> {
        let data = self.dir.path().join("data");
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.dir.path().join("log"))?;
        let mut command = self.user.map_or_else(
            || Command::new(self.bin.join("postgres")),
            |user| {
                let mut command = Command::new(self.bin.join("postgres"));
                command.uid(user.uid).gid(user.gid);
                command
            },
        );
        command.arg("-D").arg(&data).arg("-p").arg(self.port.to_string());
        // Out of the way of the test's own group, so that Ctrl-C reaches the test first.
        command.current_dir(self.dir.path()).process_group(0);
        let socket = (
            "unix_socket_directories".to_owned(),
            self.dir.path().display().to_string(),
        );
        let tuned = TUNED
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        for (name, value) in tuned.chain([socket]).chain(self.settings.iter().cloned()) {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().context("could not start postgres")?;
        self.child = Some(child);
        self.wait_until_ready(&data)
    }

    /// The server writes `ready` into the eighth line of its pid file.
    fn wait_until_ready(&mut self, data: &Path) -> Result<()> {
        let started = Instant::now();
        while started.elapsed() < patience() {
            let Some(child) = self.child.as_mut() else { break };
            if let Some(status) = child.try_wait()? {
                self.child = None;
                bail!("postgres ended at once ({status}):\n{}", self.log());
            }
            let lines = fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
            let is_own = lines.lines().next() == Some(child.id().to_string().as_str());
            if is_own && lines.lines().nth(7).is_some_and(|line| line.trim() == "ready") {
                return Ok(());
            }
            sleep(Duration::from_millis(10));
        }
        bail!("postgres is not ready after {:?}:\n{}", patience(), self.log())
    }

    fn end(&mut self, signal: Signal) {
        self.resume();
        let Some(mut child) = self.child.take() else { return };
        let started = Instant::now();
        send(child.id(), signal);
        while started.elapsed() < Duration::from_secs(10) {
            if !matches!(child.try_wait(), Ok(None)) {
                return;
            }
            sleep(Duration::from_millis(5));
        }
        // Its children notice its death and end by themselves.
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Its child processes are in groups of their own: one by one, the parent first so that it starts no more.
    fn signal_all(&self, signal: Signal) {
        let Some(postmaster) = self.child.as_ref().map(Child::id) else {
            return;
        };
        send(postmaster, signal);
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        for pid in pids.filter(|pid| *pid != postmaster && processes::descends_from(*pid, postmaster)) {
            send(pid, signal);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end(Signal::QUIT);
        if std::thread::panicking() {
            let log = self.log();
            let skipped = log.lines().count().saturating_sub(40);
            eprintln!("the server's last words:");
            log.lines().skip(skipped).for_each(|line| eprintln!("  {line}"));
        }
    }
}

fn send(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Where `initdb` and `postgres` are: on the PATH (resolved: the libraries are found from there), else where Debian puts
/// them, the newest version first.
fn bin_dir() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut candidates: Vec<PathBuf> = std::env::split_paths(&path)
        .filter_map(|dir| fs::canonicalize(dir.join("initdb")).ok()?.parent().map(Path::to_owned))
        .collect();
    let debian = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut versions: Vec<PathBuf> = debian.map(|entry| entry.path().join("bin")).collect();
    versions.sort_by_key(|path| std::cmp::Reverse(path.parent().and_then(Path::file_name).map(version_of)));
    candidates.extend(versions);
    let found = candidates
        .into_iter()
        .find(|dir| dir.join("initdb").is_file() && dir.join("postgres").is_file());
    found.context(
        "no PostgreSQL server on the PATH or in /usr/lib/postgresql; run `cargo xtask setup` (package postgresql)",
    )
}

fn version_of(name: &std::ffi::OsStr) -> u32 {
    name.to_str().and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn run_as() -> Result<Option<User>> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let passwd = fs::read_to_string("/etc/passwd").context("could not read /etc/passwd")?;
    let entry = |wanted: &str| {
        let line = passwd.lines().find(|line| line.split(':').next() == Some(wanted))?;
        let mut fields = line.split(':').skip(2);
        Some(User {
            uid: fields.next()?.parse().ok()?,
            gid: fields.next()?.parse().ok()?,
        })
    };
    let user = entry("postgres").or_else(|| entry("nobody"));
    Ok(Some(user.context(
        "we are root, as which PostgreSQL refuses to run, and there is no user postgres or nobody",
    )?))
}

/// An empty directory that only the server's user (and root) can enter.
fn private_dir(user: Option<User>) -> Result<TempDir> {
    let dir = tempfile::Builder::new()
        .prefix(PREFIX)
        .permissions(Permissions::from_mode(0o700))
        .tempdir()?;
    if let Some(user) = user {
        chown(dir.path(), Some(user.uid), Some(user.gid))?;
    }
    Ok(dir)
}

/// Locks the directory's owner file before it gets its name: nobody ever sees it unlocked while we live.
fn own(dir: &Path) -> Result<File> {
    let fresh = dir.join("owner.new");
    let owner = File::create(&fresh)?;
    owner.lock()?;
    fs::rename(&fresh, dir.join(OWNER))?;
    Ok(owner)
}

/// Servers whose test was killed.
fn remove_abandoned() {
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let dir = entry.path();
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let Ok(owner) = File::open(dir.join(OWNER)) else {
            continue;
        };
        if owner.try_lock().is_err() {
            continue;
        }
        let pid_file = fs::read_to_string(dir.join("data/postmaster.pid")).unwrap_or_default();
        let pid = pid_file.lines().next().and_then(|line| line.parse::<u32>().ok());
        // The pid may have been given to somebody else since.
        if let Some(pid) = pid.filter(|pid| processes::command_line(*pid).contains(&*dir.to_string_lossy())) {
            send(pid, Signal::CONT);
            send(pid, Signal::QUIT);
            let started = Instant::now();
            while processes::is_alive(pid) && started.elapsed() < Duration::from_secs(2) {
                sleep(Duration::from_millis(10));
            }
        }
        let _ = fs::remove_dir_all(&dir);
    }
}

/// The result of `initdb`, made by whoever comes first and kept in the target directory.
fn template(bin: &Path, user: Option<User>) -> Result<PathBuf> {
    let home = target_dir().join("tmp");
    fs::create_dir_all(&home)?;
    let uid = user.map_or_else(|| geteuid().as_raw(), |user| user.uid);
    // Another version of PostgreSQL, or of these settings, gets another template.
    let stamp = fs::metadata(bin.join("postgres"))?;
    let name = format!("postgres-template-1-{}-{}-{uid}", stamp.mtime(), stamp.size());
    let place = home.join(&name);
    let lock = File::create(home.join(format!("{name}.lock")))?;
    lock.lock()?;
    if place.is_dir() {
        return Ok(place);
    }
    let dir = private_dir(user)?;
    let password = dir.path().join("password");
    fs::write(&password, PASSWORD)?;
    if let Some(user) = user {
        chown(&password, Some(user.uid), Some(user.gid))?;
    }
    let mut command = Command::new(bin.join("initdb"));
    command.args([
        "--no-sync",
        "--encoding=UTF8",
        "--locale=C",
        "--username=postgres",
        "--wal-segsize=1",
    ]);
    command
        .args(["--auth-local=trust", "--auth-host=password", "--pwfile"])
        .arg(&password);
    command.arg("-D").arg(dir.path().join("data")).current_dir(dir.path());
    if let Some(user) = user {
        command.uid(user.uid).gid(user.gid);
    }
    run(command)?;
    // By a name of its own first: a copy that is cut short is never taken for the template.
    let mut partial = OsString::from(&place);
    partial.push(".partial");
    let _ = fs::remove_dir_all(&partial);
    let mut copy = Command::new("cp");
    copy.arg("-a").arg(dir.path().join("data")).arg(&partial);
    run(copy)?;
    fs::rename(&partial, &place)?;
    Ok(place)
}

fn run(mut command: Command) -> Result<()> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut told = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut told)?;
    }
    let status = child.wait()?;
    anyhow::ensure!(status.success(), "{command:?} failed ({status}): {told}");
    Ok(())
}

/// From the running test's own path, `target/<profile>/deps/…` or `target/<profile>/examples/…`.
fn target_dir() -> PathBuf {
    let exe = std::env::current_exe().unwrap_or_default();
    let found = exe.ancestors().find(|dir| dir.join("CACHEDIR.TAG").is_file());
    found.map_or_else(std::env::temp_dir, Path::to_owned)
}
