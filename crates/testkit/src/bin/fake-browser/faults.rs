//! Everything that goes wrong on purpose, and the gate that makes a hang complete.
//!
//! Its own file so that the rest of the program reads like a browser. Faults at start act before the ready line;
//! timed ones run on a thread of their own; those asked for over CDP are called from the connection that asked.
//!
//! Invariant: after [`hang`] no thread of this process answers anything, while the process stays alive.

use std::{
    fs::{self, File},
    io::{self, Write},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use wharf_testkit::misbehave::{self, count_launch};
pub use wharf_testkit::misbehave::{abort, crash, live_as_leaked_child, park};

use crate::options::{Fault, LEAKED_CHILD, Options, SIGTERM_IGNORED};

/// Exit status of a launch that `fail_first` or `fail_every` made fail.
const FAILED_LAUNCH: i32 = 21;
/// No WebSocket frame starts like this: reserved bits set, reserved opcode.
pub const GARBAGE: &[u8] = b"\xff\xff\xff\xffthis is not a WebSocket frame\r\n";

static HUNG: AtomicBool = AtomicBool::new(false);
static HOARD: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// Faults that act before the browser is ready.
pub fn before_ready(options: &Options) -> io::Result<()> {
    if options.faults.contains(&Fault::IgnoreSigterm) && !options.sigterm_is_ignored {
        return Err(misbehave::restart_ignoring_sigterm(SIGTERM_IGNORED));
    }
    for fault in &options.faults {
        match fault {
            Fault::CrashAtStart => crash(),
            Fault::ExitCode(code) => exit(*code),
            Fault::HangAtStart => park(),
            Fault::SlowStart(delay) => thread::sleep(*delay),
            Fault::FailFirst { n, counter } if count_launch(counter)? <= *n => fail_launch("fail_first"),
            Fault::FailEvery { n, counter } if count_launch(counter)?.is_multiple_of(*n) => fail_launch("fail_every"),
            Fault::FillProfile { megabytes } => fill_profile(options, *megabytes)?,
            _ => {}
        }
    }
    Ok(())
}

/// Faults that act, or start their clock, once the browser is ready.
pub fn after_ready(options: &Options) {
    for fault in &options.faults {
        let started = match fault {
            Fault::LeakChild => leak_child().map(drop),
            Fault::CrashAfter(delay) => after(*delay, || crash()),
            Fault::HangAfter(delay) => after(*delay, hang),
            _ => Ok(()),
        };
        if let Err(error) = started {
            eprintln!("fake-browser: could not start {fault:?}: {error}");
        }
    }
}

fn after(delay: Duration, act: impl FnOnce() + Send + 'static) -> io::Result<()> {
    crate::spawn("fault", move || {
        thread::sleep(delay);
        act();
    })
}

/// Every thread passes here before it answers; after a hang, none comes out.
pub fn gate() {
    if HUNG.load(Ordering::SeqCst) {
        park();
    }
}

pub fn hang() {
    HUNG.store(true, Ordering::SeqCst);
}

pub fn exit(code: i32) -> ! {
    std::process::exit(code)
}

/// Takes memory and touches it, so that it counts.
pub fn allocate(megabytes: u64) {
    let bytes = usize::try_from(megabytes << 20).unwrap_or(usize::MAX);
    HOARD
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(vec![0xA5; bytes]);
}

/// Starts a child in a session of its own: a kill of this process's group does not reach it.
pub fn leak_child() -> io::Result<u32> {
    misbehave::leak_child(LEAKED_CHILD)
}

fn fail_launch(name: &str) -> ! {
    eprintln!("fake-browser: this launch fails ({name})");
    exit(FAILED_LAUNCH)
}

fn fill_profile(options: &Options, megabytes: u64) -> io::Result<()> {
    let Some(dir) = &options.user_data_dir else {
        return Ok(());
    };
    fs::create_dir_all(dir)?;
    let mut file = File::create(dir.join("Fake Cache"))?;
    let block = vec![0x5A; 1 << 20];
    for _ in 0..megabytes {
        file.write_all(&block)?;
    }
    Ok(())
}
