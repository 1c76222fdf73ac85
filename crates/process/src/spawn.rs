//! Spawning: one request in, one watched [`Tree`] out.
//!
//! Its own file because everything between `fork` and `exec` is here, and nowhere else. The child leads its own
//! session, dies with us, and is more welcome to the out-of-memory killer than we are. The invariant: a child that was
//! forked is either owned by a `Tree` or already being killed, also when the caller of [`Spawner::spawn`] has left.

use std::{
    ffi::OsString,
    io,
    os::fd::{AsFd as _, OwnedFd},
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Command, Stdio},
};

use command_fds::CommandFdExt as _;
use rustix::{
    fs::{Mode, OFlags},
    process::{Pid, PidfdFlags, Resource, Signal, getpid, getppid, getrlimit, pidfd_open},
};
use tokio::sync::oneshot;

use crate::{
    Cgroups, Marker, SessionDir, Tree,
    cgroup::TreeCgroup,
    keeper::keeper,
    tree::{Newborn, kill_group},
};

/// Nice level while nobody waits for the browser: weighs a third of a normal process, and is not starved.
const BACKGROUND_NICE: i32 = 5;

/// How much of the CPU the tree may claim beside others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Priority {
    /// As every other process.
    #[default]
    Normal,
    /// Behind live sessions, until [`Tree::set_priority`] raises it.
    Background,
}

/// Where an output stream goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Output {
    /// Thrown away.
    #[default]
    Null,
    /// Handed to the caller, who must keep draining it.
    Piped,
}

/// A descriptor for the child: `fd` of ours becomes number `child` there. Ours is closed after the spawn.
#[derive(Debug)]
pub struct FdMapping {
    /// Our descriptor.
    pub fd: OwnedFd,
    /// Its number in the child.
    pub child: i32,
}

/// What to start. The environment is exactly `env` plus the marker's two variables.
#[derive(Debug)]
pub struct SpawnRequest {
    /// The binary, absolute.
    pub program: PathBuf,
    /// Its arguments, without the name.
    pub args: Vec<OsString>,
    /// The whole environment.
    pub env: Vec<(OsString, OsString)>,
    /// Working directory; the root if none.
    pub cwd: Option<PathBuf>,
    /// Descriptors beyond the standard three.
    pub fds: Vec<FdMapping>,
    /// Standard output.
    pub stdout: Output,
    /// Standard error.
    pub stderr: Output,
    /// Scheduling at the start.
    pub priority: Priority,
    /// Out-of-memory preference, -1000 to 1000; ours is usually 0.
    pub oom_score_adj: Option<i16>,
    /// By which every process of the tree is found again.
    pub marker: Marker,
    /// Removed when the tree is gone (or could not be started).
    pub dir: Option<SessionDir>,
    /// Where to make the tree's own cgroup, if at all.
    pub cgroups: Option<Cgroups>,
}

/// A started tree and the streams that were asked for.
#[derive(Debug)]
pub struct Spawned {
    /// The tree.
    pub tree: Tree,
    /// Standard output, if piped.
    pub stdout: Option<OwnedFd>,
    /// Standard error, if piped.
    pub stderr: Option<OwnedFd>,
}

/// Why nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The keeper threads did not start.
    #[error("could not start the threads that own child processes: {0}")]
    Keeper(&'static str),
    /// Two descriptors want the same number.
    #[error("two descriptors are mapped to one number in the child")]
    FdCollision,
    /// `fork` or `exec` failed.
    #[error("could not execute `{}`: {source}", program.display())]
    Exec {
        /// What was to be executed.
        program: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// The handle through which trees are started; free to copy.
#[derive(Debug, Clone, Copy)]
pub struct Spawner(());

// === impl Spawner ===

impl Spawner {
    /// Starts the keeper threads if this is the first use.
    pub fn new() -> Result<Self, SpawnError> {
        keeper().map_err(SpawnError::Keeper)?;
        Ok(Self(()))
    }

    /// Starts one tree. Dropping the future is safe at any point: what was forked by then is killed.
    pub async fn spawn(&self, request: SpawnRequest) -> Result<Spawned, SpawnError> {
        let (reply, answer) = oneshot::channel();
        keeper().map_err(SpawnError::Keeper)?.on_forker(move || {
            // If nobody listens any more the answer is dropped here, and with it the tree.
            let _unheard = reply.send(fork(request));
        });
        answer
            .await
            .unwrap_or(Err(SpawnError::Keeper("the forking thread did not answer")))
    }
}

/// Everything the child needs between fork and exec, prepared before so that nothing is allocated there.
struct ChildSetup {
    parent: Pid,
    nice: Option<i32>,
    autogroup: Option<Vec<u8>>,
    oom_score_adj: Option<Vec<u8>>,
    cgroup_procs: Option<OwnedFd>,
}

/// Runs on the forking thread only.
fn fork(mut request: SpawnRequest) -> Result<Spawned, SpawnError> {
    let result = try_fork(&mut request);
    // A directory whose tree never was must not outlive the error.
    if let (Err(_), Some(dir)) = (&result, request.dir.take()) {
        dir.remove_now();
    }
    result
}

fn try_fork(request: &mut SpawnRequest) -> Result<Spawned, SpawnError> {
    let failed = |source: io::Error, program: &PathBuf| SpawnError::Exec {
        program: program.clone(),
        source,
    };
    let cgroup = request
        .cgroups
        .as_ref()
        .and_then(|all| all.make(&request.marker.browser));
    let mut command = command(request)?;
    let setup = ChildSetup::new(request, cgroup.as_ref());
    #[expect(unsafe_code, reason = "pre_exec is the only way to run code between fork and exec")]
    // SAFETY: `ChildSetup::apply` only makes system calls on data prepared before the fork: it allocates nothing,
    // takes no lock and touches no state shared with other threads, as signal-safety(7) asks of a forked child.
    unsafe {
        command.pre_exec(move || setup.apply());
    }
    let mut child = command.spawn().map_err(|e| failed(e, &request.program))?;
    let pid = Pid::from_child(&child);
    let pidfd = match pidfd_open(pid, PidfdFlags::NONBLOCK) {
        Ok(pidfd) => pidfd,
        Err(error) => {
            kill_group(pid);
            let _reaped = child.wait();
            return Err(failed(error.into(), &request.program));
        }
    };
    let stdout = child.stdout.take().map(OwnedFd::from);
    let stderr = child.stderr.take().map(OwnedFd::from);
    let tree = Tree::adopt(Newborn {
        pid,
        pidfd,
        marker: request.marker.clone(),
        dir: request.dir.take(),
        cgroup,
    });
    Ok(Spawned { tree, stdout, stderr })
}

fn command(request: &mut SpawnRequest) -> Result<Command, SpawnError> {
    let stdio = |output: Output| match output {
        Output::Null => Stdio::null(),
        Output::Piped => Stdio::piped(),
    };
    let mut command = Command::new(&request.program);
    command
        .args(&request.args)
        .env_clear()
        .envs(request.env.iter().map(|(name, value)| (name, value)))
        .envs(request.marker.env())
        .current_dir(request.cwd.as_deref().unwrap_or("/".as_ref()))
        .stdin(Stdio::null())
        .stdout(stdio(request.stdout))
        .stderr(stdio(request.stderr));
    let mappings = request.fds.drain(..).map(|m| command_fds::FdMapping {
        parent_fd: m.fd,
        child_fd: m.child,
    });
    command
        .fd_mappings(mappings.collect())
        .map_err(|_| SpawnError::FdCollision)?;
    Ok(command)
}

// === impl ChildSetup ===

impl ChildSetup {
    fn new(request: &SpawnRequest, cgroup: Option<&TreeCgroup>) -> Self {
        let background = request.priority == Priority::Background;
        let autogroup = autogroup_enabled();
        Self {
            parent: getpid(),
            nice: (background && !autogroup && may_restore_nice()).then_some(BACKGROUND_NICE),
            autogroup: (background && autogroup).then(|| BACKGROUND_NICE.to_string().into_bytes()),
            oom_score_adj: request.oom_score_adj.map(|score| score.to_string().into_bytes()),
            cgroup_procs: cgroup.and_then(TreeCgroup::procs),
        }
    }

    /// Between fork and exec: system calls only.
    fn apply(&self) -> io::Result<()> {
        rustix::process::setsid()?;
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have died before the line above: then the signal never comes.
        if getppid() != Some(self.parent) {
            return Err(rustix::io::Errno::SRCH.into());
        }
        if let Some(cgroup) = &self.cgroup_procs {
            rustix::io::write(cgroup.as_fd(), b"0")?;
        }
        // The rest is a kindness, not a condition: a host that forbids it gets the browser all the same.
        if let Some(nice) = self.nice {
            let _kept = rustix::process::setpriority_process(None, nice);
        }
        if let Some(text) = &self.autogroup {
            write_file(c"/proc/self/autogroup", text);
        }
        if let Some(text) = &self.oom_score_adj {
            write_file(c"/proc/self/oom_score_adj", text);
        }
        Ok(())
    }
}

fn write_file(path: &std::ffi::CStr, text: &[u8]) {
    if let Ok(file) = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
        let _kept = rustix::io::write(file, text);
    }
}

/// With autogroups (sched(7)) every session is scheduled as one, and nice levels only count inside it: the session's
/// own level is what matters, and Chromium's carefully chosen thread levels stay as they are.
pub(crate) fn autogroup_enabled() -> bool {
    std::fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled").is_ok_and(|text| text.trim() == "1")
}

/// A nice level once raised can only be lowered with CAP_SYS_NICE or RLIMIT_NICE (setpriority(2)); else leave it.
fn may_restore_nice() -> bool {
    const CAP_SYS_NICE: u64 = 1 << 23;
    let capable = std::fs::read_to_string("/proc/self/status").ok().and_then(|status| {
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
        u64::from_str_radix(line.trim(), 16).ok()
    });
    // The limit is 20 minus the lowest nice level allowed.
    capable.is_some_and(|set| set & CAP_SYS_NICE != 0)
        || getrlimit(Resource::Nice).current.is_none_or(|limit| limit >= 20)
}
