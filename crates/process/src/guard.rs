//! The guard: a helper process that outlives a `SIGKILL` of Wharf and cleans up after it.
//!
//! Its own file because it is another process's `main`. The parent-death signal ends each browser's main process; what
//! escaped it (helpers, daemons, stopped processes) and the files are the guard's. It blocks in one `read` on a pipe
//! whose only other end is Wharf's: the end of file is the death of Wharf, told by the kernel, at no cost while
//! waiting. The invariant: it touches nothing while another Wharf holds the run directory's lock.

use std::{
    ffi::OsStr,
    io::{self, Read as _, Write as _},
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    time::{Duration, Instant},
};

use crate::{RunDirError, SweepReport, run_dir};

/// Written on a clean shutdown: nothing to do, leave.
const DISMISS: u8 = b'q';
/// A process's death takes milliseconds, a core dump on a slow disk seconds.
const LOCK_PATIENCE: Duration = Duration::from_secs(30);

/// Wharf's end of the guard. Dropping it without [`Guard::dismiss`] means "Wharf is dead".
#[derive(Debug)]
pub struct Guard {
    child: Child,
    line: Option<ChildStdin>,
}

/// Starts `exe args… run_dir`, whose main must call [`run`].
pub fn spawn(exe: &Path, args: &[&OsStr], run_dir: &Path) -> io::Result<Guard> {
    let mut command = Command::new(exe);
    command.args(args).arg(run_dir).env_clear().current_dir("/");
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit());
    #[expect(unsafe_code, reason = "pre_exec is the only way to run code between fork and exec")]
    // SAFETY: one system call, `setsid`, which signal-safety(7) allows in a forked child; nothing is allocated.
    unsafe {
        // A session of its own, so that a Ctrl-C at Wharf's terminal does not reach it.
        command.pre_exec(|| rustix::process::setsid().map(drop).map_err(Into::into));
    }
    let mut child = command.spawn()?;
    let line = child.stdin.take();
    Ok(Guard { child, line })
}

// === impl Guard ===

impl Guard {
    /// The guard's pid.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// After a clean shutdown: sends the guard away and reaps it. Blocks for its exit, a few milliseconds.
    pub fn dismiss(mut self) -> io::Result<()> {
        if let Some(mut line) = self.line.take() {
            line.write_all(&[DISMISS])?;
        }
        self.child.wait().map(drop)
    }
}

/// The guard's main: waits for Wharf's death, then ends its processes and removes its files. `None`: was dismissed, or
/// another Wharf has taken over and cleans up itself.
pub fn run(run_dir: &Path) -> io::Result<Option<SweepReport>> {
    ignore_polite_signals();
    let run_dir = std::fs::canonicalize(run_dir)?;
    let wharf = run_dir::lock_holder(&run_dir);
    let mut told = [0_u8; 1];
    loop {
        match io::stdin().read(&mut told) {
            Ok(0) => break,
            Ok(_) => return Ok(None),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    let Some(_lock) = lock_after(&run_dir, &wharf) else {
        return Ok(None);
    };
    run_dir::clean_up(&run_dir).map(Some)
}

/// Takes the lock over from the dead Wharf. The kernel closes a dying process's descriptors one by one, so the end of
/// file may come before the lock is free: as long as the lock names the old holder, it is worth waiting. A new Wharf
/// that was faster has swept already; what carries the marker then is alive and not ours.
fn lock_after(run_dir: &Path, wharf: &str) -> Option<std::fs::File> {
    let limit = Instant::now() + LOCK_PATIENCE;
    loop {
        match run_dir::lock(run_dir, "guard", Duration::ZERO) {
            Ok(lock) => return Some(lock),
            Err(RunDirError::InUse { .. }) if Instant::now() < limit && run_dir::lock_holder(run_dir) == wharf => {
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(_) => return None,
        }
    }
}

/// A service manager's stop goes to every process of the service; the guard must be the last to leave.
fn ignore_polite_signals() {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        #[expect(unsafe_code, reason = "neither std nor rustix can set a signal's disposition")]
        // SAFETY: `signal` with SIG_IGN installs no handler code and is called before the guard starts any thread.
        unsafe {
            libc::signal(signal, libc::SIG_IGN);
        }
    }
}
