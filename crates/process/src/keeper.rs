//! The two threads that live as long as the process: one forks, one reaps.
//!
//! Their own file because both must be immortal and neither may depend on a caller's runtime. `PR_SET_PDEATHSIG` fires
//! when the *thread* that forked ends (prctl(2)), so forking from a tokio worker would kill browsers at random; and a
//! tree that is dropped while its runtime shuts down must still be killed and reaped. The invariant: once started,
//! neither thread ever returns.

use std::{
    io,
    sync::{OnceLock, mpsc},
    thread,
};

use rustix::process::{getpid, set_child_subreaper};
use tokio::{
    runtime::{Builder, Handle},
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
};

type Job = Box<dyn FnOnce() + Send>;

/// Handles to the two threads.
pub(crate) struct Keeper {
    forks: mpsc::Sender<Job>,
    reaper: Handle,
    sigchld: watch::Receiver<u64>,
}

static KEEPER: OnceLock<Result<Keeper, String>> = OnceLock::new();

/// Starts the threads at the first call; the error text says which part of the system refused.
pub(crate) fn keeper() -> Result<&'static Keeper, &'static str> {
    KEEPER
        .get_or_init(|| Keeper::start().map_err(|e| e.to_string()))
        .as_ref()
        .map_err(String::as_str)
}

// === impl Keeper ===

impl Keeper {
    fn start() -> io::Result<Self> {
        // Orphaned grandchildren come to us instead of PID 1, so we can see them gone; in a container we *are* PID 1.
        set_child_subreaper(Some(getpid()))?;
        let (forks, jobs) = mpsc::channel::<Job>();
        thread::Builder::new().name("wharf-forker".into()).spawn(move || {
            for job in jobs {
                job();
            }
            // Unreachable while the static holds the sender; parking keeps the promise in any case.
            loop {
                thread::park();
            }
        })?;
        let (tell, told) = mpsc::sync_channel(1);
        thread::Builder::new()
            .name("wharf-reaper".into())
            .spawn(move || reaper_main(&tell))?;
        let (reaper, sigchld) = told.recv().map_err(io::Error::other)??;
        Ok(Self { forks, reaper, sigchld })
    }

    /// Runs `job` on the thread whose death would kill the children it forks.
    pub(crate) fn on_forker(&self, job: impl FnOnce() + Send + 'static) {
        // Cannot fail: the forker never drops its receiver.
        let _sent = self.forks.send(Box::new(job));
    }

    /// The reaper's runtime: for what must go on when the caller's runtime is gone.
    pub(crate) fn reaper(&self) -> &Handle {
        &self.reaper
    }

    /// Counts the SIGCHLDs; a change means "look again".
    pub(crate) fn sigchld(&self) -> watch::Receiver<u64> {
        self.sigchld.clone()
    }
}

type Told = io::Result<(Handle, watch::Receiver<u64>)>;

fn reaper_main(tell: &mpsc::SyncSender<Told>) {
    // Blocking threads remove directories and scan /proc; enough of them that a slow disk does not hold up a scan.
    // Idle ones end after ten seconds.
    let runtime = match Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(32)
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            let _told = tell.send(Err(error));
            return;
        }
    };
    runtime.block_on(async {
        match signal(SignalKind::child()) {
            Ok(children) => count_sigchld(children, tell).await,
            Err(error) => {
                let _told = tell.send(Err(error));
            }
        }
    });
}

async fn count_sigchld(mut children: Signal, tell: &mpsc::SyncSender<Told>) {
    let (bump, seen) = watch::channel(0_u64);
    let _told = tell.send(Ok((Handle::current(), seen)));
    while children.recv().await.is_some() {
        bump.send_modify(|count| *count += 1);
    }
    std::future::pending::<()>().await;
}
