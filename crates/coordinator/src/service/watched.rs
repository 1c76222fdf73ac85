//! A browser's socket that says when it broke.
//!
//! Its own file because of what it is for: a socket to a browser on another host breaks when the browser, its worker or the
//! whole host is gone, and only asking the worker tells which. The relay itself waits for whoever knows why; this is how
//! somebody begins to find out at that very moment.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::oneshot,
};

/// A stream that tells, once, that it has ended.
pub(super) struct Watched<S> {
    io: S,
    broke: Option<oneshot::Sender<()>>,
}

// === impl Watched ===

impl<S> Watched<S> {
    /// The stream, and what resolves when it has ended; it resolves with an error when the stream was dropped before.
    pub(super) fn new(io: S) -> (Self, oneshot::Receiver<()>) {
        let (tell, broke) = oneshot::channel();
        let watched = Self { io, broke: Some(tell) };
        (watched, broke)
    }

    fn tell(&mut self) {
        if let Some(broke) = self.broke.take() {
            // Nobody asks any more.
            let _ = broke.send(());
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let had_room = buf.remaining() > 0;
        let read = ready!(Pin::new(&mut self.io).poll_read(cx, buf));
        if read.is_err() || (had_room && buf.filled().len() == before) {
            self.tell();
        }
        Poll::Ready(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn end_is_told_once_and_data_before_it_is_not() {
        let (ours, mut theirs) = tokio::io::duplex(64);
        let (mut watched, mut broke) = Watched::new(ours);
        theirs.write_all(b"hello").await.unwrap();
        let mut buf = [0; 5];
        watched.read_exact(&mut buf).await.unwrap();
        assert!(broke.try_recv().is_err());
        drop(theirs);
        assert_eq!(watched.read(&mut buf).await.unwrap(), 0);
        assert!(broke.await.is_ok());
    }

    #[tokio::test]
    async fn stream_that_is_dropped_tells_nothing() {
        let (ours, _theirs) = tokio::io::duplex(64);
        let (watched, broke) = Watched::new(ours);
        drop(watched);
        assert!(broke.await.is_err());
    }
}
