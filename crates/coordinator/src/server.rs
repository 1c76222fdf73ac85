//! The accept loop: one port, HTTP/1.1 with upgrades, with the limits that hyper leaves to its user.
//!
//! Its own file because of what it guards: a silent client may not hold a socket for ever (first-byte deadline, header
//! deadline), connections are capped before they are accepted, and some clients send `GET ?token=… HTTP/1.1` without a
//! path, which is mended before the parser sees it. Upgraded sockets leave this loop; the service tracks their relays.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::Router;
use http::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::metrics::gauge::Gauge;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::Service as _;

/// How connections are treated.
#[derive(Debug, Clone, Copy)]
pub struct ServerConfig {
    /// Open connections, at most; more wait in the kernel's backlog.
    pub connections: usize,
    /// Longest time to a request's first byte and to the end of its headers.
    pub header_timeout: Duration,
    /// Longest request head, in bytes.
    pub header_limit: usize,
}

/// The address of the peer, as a request extension.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub SocketAddr);

/// Ends the connection, whatever is still to be sent, as a request extension. For answers without an end, whose client
/// takes nothing any more: hyper waits for it as long as the socket stands.
#[derive(Debug, Clone)]
pub struct Cut(pub CancellationToken);

/// A client's socket as hyper sees it: TCP, with the first request line mended where it has no path.
pub struct ClientIo {
    stream: TcpStream,
    mend: Mend,
    _counted: Counted,
}

/// One open connection, counted for as long as its socket lives, upgraded or not.
struct Counted {
    open: Gauge,
    _permit: OwnedSemaphorePermit,
}

/// Where the mending of the first request line stands.
enum Mend {
    /// Looking at the first bytes.
    Looking,
    /// The rest of what was read, with the slash put in, to be handed out first.
    Handing(Vec<u8>, usize),
    /// Nothing more to do.
    Done,
}

/// Serves until cancelled; then open connections finish what they have begun. `open` counts them.
pub async fn serve(listener: TcpListener, router: Router, config: ServerConfig, open: Gauge, stop: CancellationToken) {
    let connections = TaskTracker::new();
    let permits = Arc::new(Semaphore::new(config.connections));
    loop {
        let permit = tokio::select! {
            permit = permits.clone().acquire_owned() => permit,
            () = stop.cancelled() => break,
        };
        let Ok(permit) = permit else { break };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let counted = Counted::new(open.clone(), permit);
                let (router, stop) = (router.clone(), stop.clone());
                connections.spawn(async move {
                    let io = ClientIo {
                        stream,
                        mend: Mend::Looking,
                        _counted: counted,
                    };
                    connection(io, peer, router, config, stop).await;
                });
            }
            Err(error) => {
                // Out of file descriptors, mostly: the permit is returned, and a pause lets others close.
                tracing::warn!(%error, "could not accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    connections.close();
    connections.wait().await;
}

async fn connection(io: ClientIo, peer: SocketAddr, router: Router, config: ServerConfig, stop: CancellationToken) {
    // Small messages both ways: waiting for more would cost 40 ms each.
    if io.stream.set_nodelay(true).is_err() {
        return;
    }
    let mut ready = [0u8; 1];
    match tokio::time::timeout(config.header_timeout, io.stream.peek(&mut ready)).await {
        Ok(Ok(count)) if count > 0 => {}
        _ => return,
    }
    let cut = Cut(CancellationToken::new());
    let given = cut.clone();
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        request.extensions_mut().insert(given.clone());
        let mut router = router.clone();
        async move { router.call(request.map(axum::body::Body::new)).await }
    });
    let io = TokioIo::new(io);
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(config.header_timeout)
        .max_buf_size(config.header_limit)
        .serve_connection(io, service)
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let served = async {
        tokio::select! {
            result = connection.as_mut() => result,
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    let result = tokio::select! {
        result = served => result,
        () = cut.0.cancelled() => return,
    };
    if let Err(error) = result {
        tracing::debug!(%peer, %error, "connection ended badly");
    }
}

// === impl Counted ===

impl Counted {
    fn new(open: Gauge, permit: OwnedSemaphorePermit) -> Self {
        open.inc();
        Self { open, _permit: permit }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.open.dec();
    }
}

// === impl ClientIo ===

impl AsyncRead for ClientIo {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            match &mut self.mend {
                Mend::Done => return Pin::new(&mut self.stream).poll_read(cx, buf),
                Mend::Looking => {
                    let mut first = [0u8; 1024];
                    let mut read = ReadBuf::new(&mut first);
                    ready!(Pin::new(&mut self.stream).poll_read(cx, &mut read))?;
                    self.mend = Mend::Handing(mended(read.filled()), 0);
                }
                Mend::Handing(bytes, at) => {
                    let count = buf.remaining().min(bytes.len() - *at);
                    buf.put_slice(&bytes[*at..*at + count]);
                    *at += count;
                    if *at == bytes.len() {
                        self.mend = Mend::Done;
                    }
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// `GET ?token=… HTTP/1.1` becomes `GET /?token=… HTTP/1.1`; everything else stays as it is. A request line that
/// arrives in pieces of less than five bytes is not mended: no client does that.
fn mended(first: &[u8]) -> Vec<u8> {
    match first.strip_prefix(b"GET ?") {
        Some(rest) => [b"GET /?", rest].concat(),
        None => first.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_path_is_mended() {
        assert_eq!(mended(b"GET ?token=x HTTP/1.1\r\n"), b"GET /?token=x HTTP/1.1\r\n");
        for whole in [&b"GET / HTTP/1.1\r\n"[..], b"GET /?a HTTP/1.1", b"POST ?a", b"GET", b""] {
            assert_eq!(mended(whole), whole);
        }
    }
}
