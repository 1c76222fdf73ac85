//! How a stand-in process misbehaves: crash, ignore signals, leave a child behind, count its launches.
//!
//! Its own file because the stand-ins (`fake-browser`, `fake-program`) fail in the same ways and are separate programs.
//! Plain std and system calls: a stand-in must stay small.
//!
//! Invariant: what is left behind on purpose ends by itself within ten minutes.

use std::{
    fs::OpenOptions,
    io::{self, Read, Seek, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use rustix::process::{Resource, Rlimit, Signal, getpid, kill_process, setrlimit, setsid};

/// A leaked child ends by itself at last, so that a broken test does not litter the machine for ever.
const LEAKED_CHILD_LIFE: Duration = Duration::from_secs(600);

/// Waits for ever: called by a thread that must not go on.
pub fn park() -> ! {
    loop {
        thread::park();
    }
}

/// Dies of SIGABRT.
pub fn abort() -> ! {
    no_core_dump();
    std::process::abort()
}

/// Dies of SIGSEGV, as browsers do.
pub fn crash() -> ! {
    no_core_dump();
    loop {
        // Twice or more: the first only makes std's stack-overflow handler restore the default action.
        let _ = kill_process(getpid(), Signal::SEGV);
        thread::sleep(Duration::from_millis(1));
    }
}

/// Thousands of deliberate crashes would fill the disk with core files.
fn no_core_dump() {
    let _ = setrlimit(
        Resource::Core,
        Rlimit {
            current: Some(0),
            maximum: Some(0),
        },
    );
}

/// Starts this program again, in the same process, with SIGTERM ignored and one more argument that says so. An ignored
/// signal stays ignored across exec, and the shell can ignore one without unsafe code. Returns only if that failed.
#[must_use]
pub fn restart_ignoring_sigterm(told_by: &str) -> io::Error {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return error,
    };
    Command::new("sh")
        .args(["-c", "trap '' TERM; exec \"$0\" \"$@\""])
        .arg(program)
        .args(std::env::args_os().skip(1))
        .arg(told_by)
        .exec()
}

/// Starts this program as a child that is told, by this argument, to call [`live_as_leaked_child`].
///
/// # Errors
/// When it cannot be started.
pub fn leak_child(told_by: &str) -> io::Result<u32> {
    // Chromium's children do not keep the control pipe open, and neither may this one: its end must stay visible.
    let child = Command::new("sh")
        .args(["-c", "exec \"$0\" \"$1\" 3<&- 4>&-"])
        .arg(std::env::current_exe()?)
        .arg(told_by)
        .spawn()?;
    Ok(child.id())
}

/// Lives in a session of its own: a kill of the parent's group does not reach it.
///
/// # Errors
/// When the kernel refuses.
pub fn live_as_leaked_child() -> io::Result<()> {
    setsid()?;
    thread::sleep(LEAKED_CHILD_LIFE);
    Ok(())
}

/// Counts one more launch in the shared file, under its lock, and returns the count.
///
/// # Errors
/// When the file cannot be written.
pub fn count_launch(counter: &Path) -> io::Result<u64> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(counter)?;
    file.lock()?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let count = text.trim().parse().unwrap_or(0) + 1;
    file.rewind()?;
    file.set_len(0)?;
    write!(file, "{count}")?;
    Ok(count)
}

/// `200ms`, `5s`, `2m`.
///
/// # Errors
/// When it is something else.
pub fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number
        .parse()
        .map_err(|_| format!("{text:?} is no duration, expected e.g. 200ms or 5s"))?;
    match unit {
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        "m" => Ok(Duration::from_secs(number * 60)),
        _ => Err(format!("{text:?} is no duration, expected e.g. 200ms or 5s")),
    }
}

/// `3@/path/of/the/counter`: the launches of one test share the count through a file.
///
/// # Errors
/// When it is something else.
pub fn counted(text: &str) -> Result<(u64, PathBuf), String> {
    let problem = || format!("{text:?} is no counted fault, expected e.g. 3@/path/of/counter");
    let (number, path) = text.split_once('@').ok_or_else(problem)?;
    let number = number.parse().ok().filter(|number| *number > 0).ok_or_else(problem)?;
    Ok((number, PathBuf::from(path)))
}
