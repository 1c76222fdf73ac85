//! The in-process links: coordinator → worker and worker → coordinator, for `wharf up`.
//!
//! Its own file because a fleet replaces exactly these two by HTTP. The worker is built after the coordinator's service
//! (which it reports to), so the link learns of its handle late.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::Instant,
};
use wharf_coordinator::{BrowserIo, DialTarget, Driven, Fault, LeaseWish, LinkError, PageInfo, WorkerLink};
use wharf_core::{EndReason, Epoch, Seat, SessionId, WorkerId};
use wharf_driver::{AllowList, Browser, CallFailed, Endpoint, LaunchOptions, PageTarget};
use wharf_process::{Disturbance, RunDir};
use wharf_relay::{Side, handshake};
use wharf_store::{Heartbeat, HeartbeatReply, Registration, Store};
use wharf_worker::{LeaseError, LeaseRequest, LookError, Uplink, UplinkError, WorkerHandle};

/// How long a browser may take to answer on its own socket.
const DIAL_LIMIT: Duration = Duration::from_secs(4);
/// How long it may take to list or open pages.
const CONTROL_LIMIT: Duration = Duration::from_secs(5);
/// A protocol description is about a megabyte and a half.
const PROTOCOL_LIMIT: u64 = 16 << 20;

/// Coordinator → worker.
pub struct LocalLink {
    pub worker: OnceLock<WorkerHandle>,
    pub driven: Driven,
    /// What clients may choose about their browser; none where a program takes no launch options.
    pub allow_list: Option<AllowList>,
    pub run_dir: Arc<RunDir>,
}

/// Worker → grid.
pub struct LocalUplink {
    pub store: Arc<dyn Store>,
}

// === impl LocalLink ===

impl LocalLink {
    fn worker(&self) -> Result<&WorkerHandle, LinkError> {
        self.worker
            .get()
            .ok_or_else(|| LinkError::Unreachable("it is still starting".to_owned()))
    }

    fn browser(&self, session: SessionId) -> Result<Arc<dyn Browser>, LinkError> {
        self.worker()?.browser(session).ok_or(LinkError::NotHeld)
    }
}

#[async_trait]
impl WorkerLink for LocalLink {
    async fn lease(&self, wish: LeaseWish) -> Result<Option<serde_json::Value>, LinkError> {
        let options: LaunchOptions = serde_json::from_value(wish.options)
            .map_err(|error| LinkError::LaunchFailed(format!("the launch options make no sense: {error}")))?;
        let request = LeaseRequest {
            session: wish.session,
            epoch: wish.seat.epoch,
            options,
            data: wish.data,
        };
        match self.worker()?.lease(request).await {
            Ok(leased) => Ok(leased.answer),
            Err(LeaseError::LaunchFailed(cause)) => Err(LinkError::LaunchFailed(cause)),
            Err(LeaseError::Withdrawn) => Err(LinkError::Withdrawn),
            Err(LeaseError::Draining) => Err(LinkError::Draining),
            Err(LeaseError::Stopped) => Err(LinkError::Unreachable("it has stopped".to_owned())),
        }
    }

    async fn look(&self, session: SessionId, _: Seat, limit: Duration) -> Result<serde_json::Value, LinkError> {
        self.worker()?.look(session, limit).await.map_err(|error| match error {
            LookError::NotHeld => LinkError::NotHeld,
            LookError::Failed(failed @ CallFailed::TimedOut { .. }) => LinkError::BrowserHung(failed.to_string()),
            LookError::NoProgram | LookError::Failed(_) => LinkError::BrowserUnreachable(error.to_string()),
        })
    }

    async fn close(&self, session: SessionId, seat: Seat) -> bool {
        match self.worker() {
            Ok(worker) => worker.close(session, seat.epoch).await,
            Err(_) => false,
        }
    }

    async fn dial(
        &self,
        session: SessionId,
        _: Seat,
        target: DialTarget,
    ) -> Result<Side<Box<dyn BrowserIo>>, LinkError> {
        let browser = self.browser(session)?;
        let Endpoint { addr, path } = browser.endpoint();
        let path = match &target {
            DialTarget::Browser => path.clone(),
            DialTarget::Page(id) => {
                let pages = browser.pages(CONTROL_LIMIT).await;
                let pages = pages.map_err(|error| LinkError::BrowserUnreachable(error.to_string()))?;
                if !pages.iter().any(|page| page.id == *id) {
                    return Err(LinkError::NoSuchTarget(id.clone()));
                }
                format!("/devtools/page/{id}")
            }
        };
        let unreachable = |error: &dyn std::fmt::Display| LinkError::BrowserUnreachable(error.to_string());
        let deadline = Instant::now() + DIAL_LIMIT;
        let connect = tokio::time::timeout_at(deadline, TcpStream::connect(addr));
        let stream = connect
            .await
            .map_err(|e| unreachable(&e))?
            .map_err(|e| unreachable(&e))?;
        stream.set_nodelay(true).map_err(|e| unreachable(&e))?;
        let side = handshake::connect(stream, &addr.to_string(), &path, deadline)
            .await
            .map_err(|e| unreachable(&e))?;
        Ok(Side {
            io: Box::new(side.io),
            leftover: side.leftover,
        })
    }

    async fn pages(&self, session: SessionId, _: Seat) -> Result<Vec<PageInfo>, LinkError> {
        let pages = self.browser(session)?.pages(CONTROL_LIMIT).await;
        let pages = pages.map_err(|error| LinkError::BrowserUnreachable(error.to_string()))?;
        Ok(pages.into_iter().map(page_info).collect())
    }

    async fn open_page(&self, session: SessionId, _: Seat, url: &str) -> Result<PageInfo, LinkError> {
        let page = self.browser(session)?.open_page(url, CONTROL_LIMIT).await;
        page.map(page_info)
            .map_err(|error| LinkError::BrowserUnreachable(error.to_string()))
    }

    async fn protocol(&self) -> Result<Vec<u8>, LinkError> {
        let Some(endpoint) = self.worker()?.any_endpoint().await else {
            return Err(LinkError::BrowserUnreachable("no browser is up".to_owned()));
        };
        let fetched = tokio::time::timeout(CONTROL_LIMIT, fetch_protocol(&endpoint)).await;
        fetched
            .map_err(|_| LinkError::BrowserUnreachable("it took too long".to_owned()))?
            .map_err(|error| LinkError::BrowserUnreachable(error.to_string()))
    }

    async fn driven(&self) -> Driven {
        self.driven.clone()
    }

    fn check_options(&self, options: &serde_json::Value) -> Result<(), String> {
        check_options(self.allow_list.as_ref(), options)
    }

    async fn disturb(&self, session: SessionId, _: Seat, fault: Fault) -> Result<(), LinkError> {
        let pid = self.browser(session)?.pid();
        let signal = |disturbance: Disturbance| {
            // A pass over /proc, off the runtime's threads.
            tokio::task::spawn_blocking(move || wharf_process::disturb(pid, disturbance))
        };
        let (first, then) = match fault {
            Fault::Crash => (Disturbance::Kill, None),
            Fault::Hang => (Disturbance::Stop, None),
            Fault::Slow(span) => (Disturbance::Stop, Some(span)),
        };
        if !signal(first).await.unwrap_or(false) {
            return Err(LinkError::NotHeld);
        }
        if let Some(span) = then {
            // A value, so that a client that leaves meanwhile does not turn a pause into a hang.
            let _woken = Stopped(pid);
            tokio::time::sleep(span).await;
        }
        Ok(())
    }

    /// It is this process.
    async fn is_there(&self, _: WorkerId) -> bool {
        true
    }

    async fn call_back(&self, worker: WorkerId, _: &str) -> Result<(), String> {
        Err(format!(
            "{worker}: this grid has its worker in its own process and takes no others"
        ))
    }

    async fn orphans(&self) -> u64 {
        let run_dir = self.run_dir.clone();
        // A pass over /proc, off the runtime's threads.
        let count = tokio::task::spawn_blocking(move || {
            wharf_process::orphans(run_dir.path(), &wharf_process::live_roots()).len()
        });
        count.await.map_or(0, |count| count as u64)
    }
}

/// Whether these launch options are allowed; the text names each that is not.
pub fn check_options(allow_list: Option<&AllowList>, options: &serde_json::Value) -> Result<(), String> {
    let options: LaunchOptions = serde_json::from_value(options.clone()).map_err(|error| error.to_string())?;
    let Some(allow_list) = allow_list else {
        return match options == LaunchOptions::default() {
            true => Ok(()),
            false => {
                Err("a program (driver `command`) takes no launch options; what it needs goes into `data`".to_owned())
            }
        };
    };
    options.validate(allow_list).map_err(|refused| {
        let texts: Vec<_> = refused.iter().map(ToString::to_string).collect();
        texts.join("; ")
    })
}

/// A browser that is stopped for a while; goes on when this is dropped.
struct Stopped(u32);

impl Drop for Stopped {
    fn drop(&mut self) {
        // A pass over /proc, milliseconds; one that was killed meanwhile needs no waking.
        let _is_alive = wharf_process::disturb(self.0, Disturbance::Continue);
    }
}

fn page_info(page: PageTarget) -> PageInfo {
    PageInfo {
        id: page.id,
        title: page.title,
        url: page.url,
    }
}

/// The body of `/json/protocol`. The browser closes the connection after the answer because we ask it to.
async fn fetch_protocol(endpoint: &Endpoint) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(endpoint.addr).await?;
    let request = format!(
        "GET /json/protocol HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
        endpoint.addr
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    let mut head_end = None;
    let mut chunk = stream.take(PROTOCOL_LIMIT);
    loop {
        if chunk.read_buf(&mut answer).await? == 0 {
            break;
        }
        head_end = head_end.or_else(|| answer.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4));
        // Chromium keeps the connection open whatever it is asked; its length says where the body ends.
        if let Some(start) = head_end
            && let Some(length) = content_length(&answer[..start])
            && answer.len() >= start + length
        {
            answer.truncate(start + length);
            break;
        }
    }
    let start = head_end.ok_or(std::io::ErrorKind::UnexpectedEof)?;
    if !answer.starts_with(b"HTTP/1.1 200") {
        return Err(std::io::Error::other("the browser has no protocol description"));
    }
    Ok(answer.split_off(start))
}

fn content_length(head: &[u8]) -> Option<usize> {
    let head = std::str::from_utf8(head).ok()?;
    head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse().ok())
            .flatten()
    })
}

// === impl LocalUplink ===

#[async_trait]
impl Uplink for LocalUplink {
    async fn register(&self, registration: Registration) -> Result<(), UplinkError> {
        self.store
            .register(registration)
            .await
            .map(drop)
            .map_err(|error| UplinkError::Unavailable(error.to_string()))
    }

    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatReply, UplinkError> {
        self.store
            .heartbeat(heartbeat)
            .await
            .map_err(|error| UplinkError::Unavailable(error.to_string()))
    }

    async fn deregister(&self, worker: WorkerId) -> Result<(), UplinkError> {
        self.store
            .deregister(worker)
            .await
            .map(drop)
            .map_err(|error| UplinkError::Unavailable(error.to_string()))
    }

    async fn ended(&self, session: SessionId, epoch: Epoch, reason: EndReason, detail: Option<String>) {
        // A report about an earlier placement says nothing about the present one.
        if matches!(self.store.session(session).await, Ok(Some(record)) if record.epoch != epoch) {
            return;
        }
        if let Err(error) = self.store.end(session, reason, detail).await {
            tracing::warn!(%session, %reason, %error, "could not record the end; the next heartbeat will");
        }
    }

    async fn vacated(&self, session: SessionId, epoch: Epoch) {
        if let Err(error) = self.store.vacate(session, epoch).await {
            tracing::warn!(%session, %error, "could not free the slot; the next heartbeat will");
        }
    }
}
