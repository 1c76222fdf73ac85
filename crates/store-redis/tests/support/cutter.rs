//! A TCP proxy that cuts connections after a random number of bytes, in either direction.
//!
//! Its own file because it is what makes answers get lost: after the server has done the work, before we have heard.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    task::JoinSet,
};

/// Ends with its last reference.
pub struct Cutter {
    pub port: u16,
    /// How many connections were cut.
    pub cuts: Arc<AtomicU64>,
    /// Whether it cuts at all.
    pub is_sharp: Arc<AtomicBool>,
    _tasks: JoinSet<()>,
}

impl Cutter {
    /// Before a server on 127.0.0.1.
    pub async fn before(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let (cuts, is_sharp) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let mut tasks = JoinSet::new();
        let (counted, sharp) = (Arc::clone(&cuts), Arc::clone(&is_sharp));
        tasks.spawn(async move {
            let mut pairs = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (counted, sharp) = (Arc::clone(&counted), Arc::clone(&sharp));
                pairs.spawn(async move {
                    let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else {
                        return;
                    };
                    let _ = (client.set_nodelay(true), server.set_nodelay(true));
                    let (from_client, to_client) = client.into_split();
                    let (from_server, to_server) = server.into_split();
                    // Whichever ends first ends both: a cut connection is cut for both sides.
                    tokio::select! {
                        () = pump(from_client, to_server, length(), &sharp) => {}
                        () = pump(from_server, to_client, length(), &sharp) => {}
                    }
                    if sharp.load(Ordering::Relaxed) {
                        counted.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        Self {
            port: own,
            cuts,
            is_sharp,
            _tasks: tasks,
        }
    }
}

/// How many bytes pass before the cut: as often 1 to 10 as 10 000 to 100 000. Short enough to hit every byte of a call,
/// long enough at times to let a long answer through.
fn length() -> u64 {
    10_f64.powf(rand::random_range(0.0..5.3)) as u64
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut left: u64, is_sharp: &AtomicBool) {
    let mut buffer = vec![0; 4096];
    loop {
        let Ok(count @ 1..) = from.read(&mut buffer).await else {
            return;
        };
        let passed = if is_sharp.load(Ordering::Relaxed) {
            count.min(usize::try_from(left).unwrap())
        } else {
            count
        };
        left = left.saturating_sub(count as u64);
        if to.write_all(&buffer[..passed]).await.is_err() || passed < count {
            return;
        }
    }
}
