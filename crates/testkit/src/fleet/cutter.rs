//! A line that can be cut: a TCP proxy on loopback that closes everything, or keeps silent, when told.
//!
//! Its own file because a partition is what no signal to a process can bring about. It runs on a thread of its own, so
//! that a test which blocks its runtime cuts no line by accident.
//!
//! Invariant: what is forwarded is forwarded unchanged; a healed line takes new connections at once. Connections that were
//! held by [`Cutter::blackhole`] are broken by [`Cutter::heal`]: bytes sent into a black hole are lost.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context, Result};
use rustix::net::sockopt;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    runtime::{Handle, Runtime},
    sync::watch,
};

/// The thread on which all cutters of a fleet run.
#[derive(Debug)]
pub(super) struct Lines(Option<Runtime>);

/// What a line does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Whole,
    /// Connections are reset, new ones too.
    Cut,
    /// Connections stay open, nothing goes through.
    Silent,
}

/// One line. Whole unless told otherwise.
#[derive(Debug, Clone)]
pub struct Cutter {
    addr: SocketAddr,
    line: Arc<watch::Sender<State>>,
    targets: Arc<Mutex<Vec<SocketAddr>>>,
}

// === impl Lines ===

impl Lines {
    pub(super) fn new() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("cutters")
            .enable_all()
            .build()
            .context("could not start the cutters' thread")?;
        Ok(Self(Some(runtime)))
    }

    /// A line to the first of these that takes connections.
    pub(super) async fn cutter(&self, targets: Vec<SocketAddr>) -> Result<Cutter> {
        let runtime = self.0.as_ref().map(Runtime::handle).context("the cutters have ended")?;
        Cutter::open(runtime, targets).await
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // Not waited for: a runtime may not be waited for inside another one.
            runtime.shutdown_background();
        }
    }
}

// === impl Cutter ===

impl Cutter {
    async fn open(runtime: &Handle, targets: Vec<SocketAddr>) -> Result<Self> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").context("no port for a cutter")?;
        listener.set_nonblocking(true)?;
        let (line, changes) = watch::channel(State::Whole);
        let cutter = Self {
            addr: listener.local_addr()?,
            line: Arc::new(line),
            targets: Arc::new(Mutex::new(targets)),
        };
        let targets = cutter.targets.clone();
        let each = runtime.clone();
        runtime.spawn(async move {
            let Ok(listener) = TcpListener::from_std(listener) else {
                return;
            };
            while let Ok((client, _)) = listener.accept().await {
                each.spawn(carry(client, targets.clone(), changes.clone()));
            }
        });
        Ok(cutter)
    }

    /// Where to connect to instead of the target.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `http://127.0.0.1:PORT`
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Resets all connections, and new ones as soon as they are made.
    pub fn cut(&self) {
        self.line.send_replace(State::Cut);
    }

    /// Keeps all connections open, takes new ones, and forwards nothing: what a partition looks like.
    pub fn blackhole(&self) {
        self.line.send_replace(State::Silent);
    }

    /// Undoes either. Connections that were silent are reset.
    pub fn heal(&self) {
        self.line.send_replace(State::Whole);
    }

    /// Another target from the next connection on.
    pub fn retarget(&self, targets: Vec<SocketAddr>) {
        *self.targets.lock().unwrap_or_else(PoisonError::into_inner) = targets;
    }
}

async fn carry(mut client: TcpStream, targets: Arc<Mutex<Vec<SocketAddr>>>, mut changes: watch::Receiver<State>) {
    let line = *changes.borrow_and_update();
    match line {
        State::Cut => {}
        State::Silent => {
            // However it ends: nothing that was said here has arrived.
            let _ = changes.changed().await;
        }
        State::Whole => {
            let targets = targets.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some(mut server) = first_of(&targets).await {
                let _ = client.set_nodelay(true);
                let ended = tokio::select! {
                    _ = copy_bidirectional(&mut client, &mut server) => true,
                    _ = changes.changed() => false,
                };
                if ended {
                    return;
                }
                if *changes.borrow_and_update() == State::Silent {
                    let _ = changes.changed().await;
                }
                reset(&server);
            }
        }
    }
    reset(&client);
}

async fn first_of(targets: &[SocketAddr]) -> Option<TcpStream> {
    for target in targets {
        if let Ok(stream) = TcpStream::connect(target).await {
            let _ = stream.set_nodelay(true);
            return Some(stream);
        }
    }
    None
}

/// Its drop then sends RST and not FIN.
fn reset(stream: &TcpStream) {
    let _ = sockopt::set_socket_linger(stream, Some(std::time::Duration::ZERO));
}

#[cfg(test)]
mod tests {
    use anyhow::ensure;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        task::JoinSet,
    };

    use super::*;
    use crate::eventually;

    /// Sends back what it gets, to one connection after the other.
    async fn echo(tasks: &mut JoinSet<()>) -> Result<SocketAddr> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let addr = listener.local_addr()?;
        tasks.spawn(async move {
            let mut carried = JoinSet::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                carried.spawn(async move {
                    let (mut read, mut write) = stream.split();
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                });
            }
        });
        Ok(addr)
    }

    async fn says(stream: &mut TcpStream, text: &str) -> Result<()> {
        stream.write_all(text.as_bytes()).await?;
        let mut back = vec![0; text.len()];
        let read = stream.read_exact(&mut back);
        tokio::time::timeout(std::time::Duration::from_secs(1), read).await??;
        ensure!(back == text.as_bytes());
        Ok(())
    }

    #[tokio::test]
    async fn cutter_forwards_cuts_keeps_silent_and_heals() -> Result<()> {
        let lines = Lines::new()?;
        let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
        let mut tasks = JoinSet::new();
        let cutter = lines.cutter(vec![nobody, echo(&mut tasks).await?]).await?;
        let mut first = TcpStream::connect(cutter.addr()).await?;
        says(&mut first, "whole").await?;
        cutter.cut();
        eventually("the reset", async || match first.try_read(&mut [0; 8]) {
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Ok(()),
            other => anyhow::bail!("{other:?}"),
        })
        .await?;
        cutter.heal();
        let mut second = TcpStream::connect(cutter.addr()).await?;
        says(&mut second, "healed").await?;
        cutter.blackhole();
        let mut third = TcpStream::connect(cutter.addr()).await?;
        ensure!(says(&mut third, "into the dark").await.is_err());
        ensure!(says(&mut second, "into the dark").await.is_err());
        cutter.heal();
        ensure!(
            second.read(&mut [0; 8]).await.is_err(),
            "a line that lost bytes must break"
        );
        let mut fourth = TcpStream::connect(cutter.addr()).await?;
        says(&mut fourth, "healed again").await
    }
}
