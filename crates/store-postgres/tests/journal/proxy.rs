//! A TCP proxy that cuts: after a number of bytes in either direction, or right before the next answer.
//!
//! Its own file because an uncertain commit cannot be had otherwise: the server has done it, and the client never hears.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use anyhow::Result;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf, tcp::OwnedWriteHalf},
    task::JoinSet,
};

/// Where and how often it cuts.
#[derive(Debug, Default)]
pub struct Cuts {
    /// A connection lives for a random number of bytes up to this, in each direction; 0 for ever.
    pub bytes: AtomicU64,
    /// The next bytes from the server, of whatever connection, are swallowed and the connection is cut.
    pub next_answer: AtomicBool,
    /// How many connections were cut.
    pub count: AtomicU64,
}

pub struct Proxy {
    pub port: u16,
    pub cuts: Arc<Cuts>,
    /// Ends with the proxy.
    _tasks: JoinSet<()>,
}

impl Proxy {
    pub async fn start(server: u16) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let cuts = Arc::new(Cuts::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(
            listener,
            SocketAddr::from(([127, 0, 0, 1], server)),
            Arc::clone(&cuts),
        ));
        Ok(Self {
            port,
            cuts,
            _tasks: tasks,
        })
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, cuts: Arc<Cuts>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let cuts = Arc::clone(&cuts);
        connections.spawn(async move {
            let Ok(server) = TcpStream::connect(server).await else {
                return;
            };
            if client.set_nodelay(true).is_err() || server.set_nodelay(true).is_err() {
                return;
            }
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            // Whichever direction ends first ends both, at once.
            tokio::select! {
                () = pass(from_client, to_server, &cuts, false) => {}
                () = pass(from_server, to_client, &cuts, true) => {}
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, cuts: &Cuts, is_answer: bool) {
    let mut buffer = vec![0; 16 * 1024];
    let limit = cuts.bytes.load(Ordering::Relaxed);
    let mut left = if limit == 0 {
        u64::MAX
    } else {
        u64::from(uuid::Uuid::new_v4().as_u128() as u32) % limit
    };
    loop {
        let Ok(count) = from.read(&mut buffer).await else {
            return;
        };
        if count == 0 {
            return;
        }
        let is_swallowed = is_answer && cuts.next_answer.swap(false, Ordering::Relaxed);
        let passed = if is_swallowed {
            0
        } else {
            count.min(usize::try_from(left).unwrap_or(usize::MAX))
        };
        left = left.saturating_sub(count as u64);
        if to.write_all(&buffer[..passed]).await.is_err() {
            return;
        }
        if passed < count {
            cuts.count.fetch_add(1, Ordering::Relaxed);
            return;
        }
    }
}
