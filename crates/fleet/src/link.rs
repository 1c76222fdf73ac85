//! The link of a coordinator whose workers are elsewhere: finds the worker's gateway in the store and calls it.
//!
//! Its own file because it is the second implementation of the port. Addresses are cached; one that is refused or cannot be
//! reached is looked up again once, because a worker that restarted has a new key and perhaps a new port.

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use http::{Method, StatusCode};
use parking_lot::{Mutex, RwLock};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{net::TcpStream, time::Instant};
use wharf_coordinator::{BrowserIo, DialTarget, Driven, Fault, LeaseWish, LinkError, PageInfo, WorkerLink};
use wharf_core::{Seat, SessionId, WorkerId};
use wharf_relay::{Side, handshake, handshake::DialError};
use wharf_store::Store;
use wharf_wire::internal::{
    Closed, FaultBody, GATEWAY, GatewayError, GatewayErrorKind, Hello, LeaseBody, Leased, NewPage,
};

use crate::{
    address::GatewayAddress,
    client::{Call, CallError, HttpClient},
};

/// How long a gateway may take for anything that launches nothing.
const CALL_LIMIT: Duration = Duration::from_secs(8);
/// How long a worker may take to say that it is there.
const THERE_LIMIT: Duration = Duration::from_millis(700);
/// A launch has its own limits on the worker and in the service; this only bounds a gateway that hangs.
const LEASE_LIMIT: Duration = Duration::from_secs(600);

/// Which launch options are allowed; the text names each that is not.
pub type CheckOptions = Box<dyn Fn(&serde_json::Value) -> Result<(), String> + Send + Sync>;

/// The link.
pub struct FleetLink {
    store: Arc<dyn Store>,
    client: HttpClient,
    addresses: RwLock<HashMap<WorkerId, GatewayAddress>>,
    /// What the worker that was last called back drives.
    driven: Mutex<Driven>,
    dial_limit: Duration,
    check_options: CheckOptions,
}

// === impl FleetLink ===

impl FleetLink {
    /// A link to the workers that this store knows.
    pub fn new(store: Arc<dyn Store>, dial_limit: Duration, check_options: CheckOptions) -> Self {
        Self {
            store,
            client: HttpClient::new(),
            addresses: RwLock::default(),
            driven: Mutex::default(),
            dial_limit,
            check_options,
        }
    }

    /// Where a worker's gateway is, as last known.
    async fn address(&self, worker: WorkerId) -> Result<GatewayAddress, LinkError> {
        if let Some(address) = self.addresses.read().get(&worker) {
            return Ok(address.clone());
        }
        self.look_up(worker).await
    }

    async fn look_up(&self, worker: WorkerId) -> Result<GatewayAddress, LinkError> {
        let unreachable = |text: String| LinkError::Unreachable(format!("{worker}: {text}"));
        let rows = self
            .store
            .workers(None)
            .await
            .map_err(|error| unreachable(error.to_string()))?;
        let mut fresh = HashMap::new();
        for row in rows.iter().filter(|row| row.state.is_live()) {
            if let Ok(address) = row.address.parse() {
                fresh.insert(row.id, address);
            }
        }
        let found = fresh.get(&worker).cloned();
        *self.addresses.write() = fresh;
        found.ok_or_else(|| unreachable("it is not registered, or was given up".to_owned()))
    }

    /// Calls a worker's gateway; once more at a fresh address if the known one is wrong.
    async fn call<B: Serialize, A: DeserializeOwned>(
        &self,
        worker: WorkerId,
        (method, path): (Method, String),
        body: Option<&B>,
        limit: Duration,
    ) -> Result<A, LinkError> {
        let mut address = self.address(worker).await?;
        for is_last in [false, true] {
            let call = Call {
                method: method.clone(),
                authority: &address.authority,
                path: &path,
                token: &address.key,
                limit,
            };
            let error = match self.client.json(call, body).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let is_stale = matches!(
                &error,
                CallError::Unreachable(_)
                    | CallError::Refused {
                        status: StatusCode::UNAUTHORIZED,
                        ..
                    }
            );
            if is_stale && !is_last {
                let fresh = self.look_up(worker).await?;
                if fresh != address {
                    address = fresh;
                    continue;
                }
            }
            return Err(link_error(worker, error));
        }
        Err(LinkError::Unreachable(format!("{worker}: its address keeps changing")))
    }

    async fn hello(&self, worker: WorkerId, limit: Duration) -> Result<Hello<Driven>, LinkError> {
        let path = (Method::GET, format!("{GATEWAY}/hello"));
        self.call(worker, path, None::<&()>, limit).await
    }

    fn of(session: SessionId, what: &str, seat: Seat) -> String {
        format!("{GATEWAY}/sessions/{session}/{what}?epoch={}", seat.epoch.0)
    }

    async fn dial_once(&self, address: &GatewayAddress, path: &str) -> Result<Side<TcpStream>, DialError> {
        let deadline = Instant::now() + self.dial_limit;
        let stream = tokio::time::timeout_at(deadline, TcpStream::connect(&address.authority));
        let stream = stream.await.map_err(|_| DialError::Timeout)??;
        stream.set_nodelay(true)?;
        handshake::connect_as(stream, &address.authority, path, &address.key, deadline).await
    }
}

#[async_trait]
impl WorkerLink for FleetLink {
    async fn lease(&self, wish: LeaseWish) -> Result<Option<serde_json::Value>, LinkError> {
        let body = LeaseBody {
            session: wish.session,
            epoch: wish.seat.epoch,
            options: wish.options,
            data: wish.data,
        };
        let path = (Method::POST, format!("{GATEWAY}/lease"));
        let leased: Leased = self.call(wish.seat.worker, path, Some(&body), LEASE_LIMIT).await?;
        Ok(leased.answer)
    }

    async fn look(&self, session: SessionId, seat: Seat, limit: Duration) -> Result<serde_json::Value, LinkError> {
        let path = format!("{}&limit_ms={}", Self::of(session, "look", seat), limit.as_millis());
        self.call(seat.worker, (Method::GET, path), None::<&()>, limit + CALL_LIMIT)
            .await
    }

    async fn close(&self, session: SessionId, seat: Seat) -> bool {
        let path = (Method::POST, Self::of(session, "close", seat));
        let closed: Result<Closed, _> = self.call(seat.worker, path, Some(&()), CALL_LIMIT).await;
        match closed {
            Ok(closed) => closed.was_held,
            Err(error) => {
                tracing::debug!(%session, worker = %seat.worker, %error, "could not close; its next report will be told");
                true
            }
        }
    }

    async fn dial(
        &self,
        session: SessionId,
        seat: Seat,
        target: DialTarget,
    ) -> Result<Side<Box<dyn BrowserIo>>, LinkError> {
        let mut path = Self::of(session, "dial", seat);
        if let DialTarget::Page(id) = &target {
            if !id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
                return Err(LinkError::NoSuchTarget(id.clone()));
            }
            path.push_str(&format!("&page={id}"));
        }
        let mut address = self.address(seat.worker).await?;
        for is_last in [false, true] {
            let error = match self.dial_once(&address, &path).await {
                Ok(side) => {
                    return Ok(Side {
                        io: Box::new(side.io),
                        leftover: side.leftover,
                    });
                }
                Err(error) => error,
            };
            let is_stale = matches!(&error, DialError::Io(_) | DialError::Closed | DialError::Refused(401));
            if is_stale && !is_last {
                let fresh = self.look_up(seat.worker).await?;
                if fresh != address {
                    address = fresh;
                    continue;
                }
            }
            return Err(match error {
                DialError::Refused(404) => LinkError::NotHeld,
                DialError::Refused(410) => match target {
                    DialTarget::Page(id) => LinkError::NoSuchTarget(id),
                    DialTarget::Browser => LinkError::NotHeld,
                },
                DialError::Refused(502 | 504) => {
                    LinkError::BrowserUnreachable("it does not answer its worker".to_owned())
                }
                other => LinkError::Unreachable(format!("{}: {other}", seat.worker)),
            });
        }
        Err(LinkError::Unreachable(format!(
            "{}: its address keeps changing",
            seat.worker
        )))
    }

    async fn pages(&self, session: SessionId, seat: Seat) -> Result<Vec<PageInfo>, LinkError> {
        let path = (Method::GET, Self::of(session, "pages", seat));
        self.call(seat.worker, path, None::<&()>, CALL_LIMIT).await
    }

    async fn open_page(&self, session: SessionId, seat: Seat, url: &str) -> Result<PageInfo, LinkError> {
        let path = (Method::POST, Self::of(session, "pages", seat));
        let page = NewPage { url: url.to_owned() };
        self.call(seat.worker, path, Some(&page), CALL_LIMIT).await
    }

    async fn protocol(&self) -> Result<Vec<u8>, LinkError> {
        let rows = self
            .store
            .workers(None)
            .await
            .map_err(|error| LinkError::Unreachable(error.to_string()))?;
        let Some(worker) = rows.iter().find(|row| row.state.is_live()).map(|row| row.id) else {
            return Err(LinkError::BrowserUnreachable("no worker is registered".to_owned()));
        };
        let address = self.address(worker).await?;
        let call = Call {
            method: Method::GET,
            authority: &address.authority,
            path: &format!("{GATEWAY}/protocol"),
            token: &address.key,
            limit: CALL_LIMIT,
        };
        let bytes = self.client.bytes(call, Vec::new()).await;
        bytes
            .map(|bytes| bytes.to_vec())
            .map_err(|error| link_error(worker, error))
    }

    async fn driven(&self) -> Driven {
        let known = self.driven.lock().clone();
        if !known.product.is_empty() {
            return known;
        }
        // No worker has registered through this coordinator yet.
        let Ok(rows) = self.store.workers(None).await else {
            return known;
        };
        for row in rows.iter().filter(|row| row.state.is_live()) {
            if let Ok(hello) = self.hello(row.id, THERE_LIMIT).await {
                *self.driven.lock() = hello.driven.clone();
                return hello.driven;
            }
        }
        known
    }

    fn check_options(&self, options: &serde_json::Value) -> Result<(), String> {
        (self.check_options)(options)
    }

    async fn disturb(&self, session: SessionId, seat: Seat, fault: Fault) -> Result<(), LinkError> {
        let path = (Method::POST, Self::of(session, "disturb", seat));
        let (fault, pause) = match fault {
            Fault::Crash => (FaultBody::Crash, Duration::ZERO),
            Fault::Hang => (FaultBody::Hang, Duration::ZERO),
            Fault::Slow(span) => (
                FaultBody::Slow(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)),
                span,
            ),
        };
        self.call(seat.worker, path, Some(&fault), CALL_LIMIT + pause).await
    }

    async fn is_there(&self, worker: WorkerId) -> bool {
        self.hello(worker, THERE_LIMIT)
            .await
            .is_ok_and(|hello| hello.worker == worker)
    }

    async fn call_back(&self, worker: WorkerId, address: &str) -> Result<(), String> {
        let address: GatewayAddress = address.parse().map_err(|error| format!("{error}"))?;
        let call = Call {
            method: Method::GET,
            authority: &address.authority,
            path: &format!("{GATEWAY}/hello"),
            token: &address.key,
            limit: CALL_LIMIT,
        };
        let way_out = "set --advertise on the worker to a URL that coordinators can reach";
        let hello: Result<Hello<Driven>, _> = self.client.json(call, None::<&()>).await;
        match hello {
            Ok(hello) if hello.worker == worker => {
                *self.driven.lock() = hello.driven;
                self.addresses.write().insert(worker, address);
                Ok(())
            }
            Ok(hello) => Err(format!(
                "{} answers at {address}, another worker; {way_out}",
                hello.worker
            )),
            Err(CallError::Refused {
                status: StatusCode::UNAUTHORIZED,
                ..
            }) => Err(format!(
                "the gateway at {address} is not this worker's: it does not take its key; {way_out}"
            )),
            Err(error) => Err(format!("{address}: {error}; {way_out}")),
        }
    }

    async fn orphans(&self) -> u64 {
        // Each worker tells its own, in its own metrics.
        0
    }
}

fn link_error(worker: WorkerId, error: CallError) -> LinkError {
    use GatewayErrorKind as Kind;
    if let CallError::Refused { text, .. } = &error
        && let Ok(GatewayError { error, message }) = serde_json::from_str(text)
    {
        return match error {
            Kind::LaunchFailed => LinkError::LaunchFailed(message),
            Kind::Withdrawn => LinkError::Withdrawn,
            Kind::Draining => LinkError::Draining,
            Kind::Unreachable => LinkError::Unreachable(message),
            Kind::BrowserUnreachable => LinkError::BrowserUnreachable(message),
            Kind::BrowserHung => LinkError::BrowserHung(message),
            Kind::NotHeld => LinkError::NotHeld,
            Kind::NoSuchTarget => LinkError::NoSuchTarget(message),
        };
    }
    LinkError::Unreachable(format!("{worker}: {error}"))
}
