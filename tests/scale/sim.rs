//! Simulated workers: the worker's side of the fleet's protocol without browsers.
//!
//! Its own file because it is the stand-in for a thousand machines. Each has a listener, an id and a key of its own,
//! registers through a coordinator, answers leases and closes, tells of free slots and reports every three seconds with
//! all it holds, as a real worker does. It cannot be dialled: no client attaches here.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use axum::{
    Json, Router,
    extract::{Path, Query, State},
    routing::{get, post},
};
use http::Method;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    task::JoinSet,
    time::{MissedTickBehavior, interval_at},
};
use tokio_util::task::TaskTracker;
use uuid::Uuid;
use wharf_core::{BrowserKind, Epoch, PoolName, SessionId, WorkerId};
use wharf_store::{Heartbeat, HeartbeatReply, Load, Registration};
use wharf_testkit::Fleet;
use wharf_wire::internal::{Closed, GATEWAY, HEARTBEAT, LeaseBody, Leased, REGISTER, SlotVacated, VACATED};

use crate::api::Api;

const BEAT: Duration = Duration::from_secs(3);

/// All simulated workers. They end with their value.
pub struct Workers {
    _serving: JoinSet<()>,
}

/// One.
pub struct Worker {
    id: WorkerId,
    slots: u32,
    held: Mutex<HashMap<SessionId, Epoch>>,
    /// Each report and each free slot goes to the next one.
    coordinators: Vec<Api>,
    turn: AtomicUsize,
    telling: TaskTracker,
}

#[derive(Deserialize)]
struct EpochQuery {
    epoch: u32,
}

// === impl Workers ===

impl Workers {
    /// Starts and registers so many, with so many slots each.
    pub async fn start(count: usize, slots: u32, coordinators: &[SocketAddr]) -> Result<Self> {
        let mut workers = Self {
            _serving: JoinSet::new(),
        };
        let apis: Vec<_> = coordinators
            .iter()
            .map(|addr| Api::new(*addr).with_token(Fleet::token()))
            .collect();
        for number in 0..count {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let key = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
            let address = format!("http://:{key}@{}", listener.local_addr()?);
            let worker = Arc::new(Worker {
                id: WorkerId::from_uuid(Uuid::now_v7()),
                slots,
                held: Mutex::default(),
                coordinators: apis.clone(),
                turn: AtomicUsize::new(number),
                telling: TaskTracker::new(),
            });
            let router = worker.clone().router();
            workers._serving.spawn(async move {
                // Ends with its task only.
                let _ = axum::serve(listener, router).await;
            });
            worker
                .register(&address)
                .await
                .context("a simulated worker was not taken")?;
            let beating = worker.clone();
            // Spread over the interval, as machines that started at different times are.
            let offset = BEAT.mul_f64(number as f64 / count as f64);
            workers
                ._serving
                .spawn(async move { beating.beat(offset, &address).await });
        }
        Ok(workers)
    }
}

// === impl Worker ===

impl Worker {
    fn router(self: Arc<Self>) -> Router {
        let inside = Router::new()
            .route("/hello", get(hello))
            .route("/lease", post(lease))
            .route("/orphans", get(async || Json(0)))
            .route("/sessions/{id}/close", post(close));
        Router::new().nest(GATEWAY, inside).with_state(self)
    }

    fn coordinator(&self) -> &Api {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        &self.coordinators[turn % self.coordinators.len()]
    }

    async fn register(&self, address: &str) -> Result<()> {
        let registration = Registration {
            worker: self.id,
            pool: PoolName::default(),
            browsers: vec![BrowserKind::Chromium],
            slots: self.slots,
            address: address.to_owned(),
            is_ready: true,
        };
        self.coordinator()
            .call(Method::POST, REGISTER, Some(&registration))
            .await
            .map(drop)
    }

    async fn beat(&self, offset: Duration, address: &str) {
        let mut beats = interval_at(tokio::time::Instant::now() + offset, BEAT);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            beats.tick().await;
            let held = self
                .held
                .lock()
                .iter()
                .map(|(session, epoch)| (*session, *epoch))
                .collect();
            let report = Heartbeat {
                worker: self.id,
                held,
                is_circuit_open: false,
                is_ready: true,
                is_draining: false,
                warm: 1,
                launching: 0,
                load: Load::default(),
                wants_recycling: false,
            };
            let said = self.coordinator().call(Method::POST, HEARTBEAT, Some(&report)).await;
            let said = said.and_then(|said| Ok(serde_json::from_value::<HeartbeatReply>(said)?));
            match said {
                Ok(HeartbeatReply::Known { end, .. }) => {
                    for (session, epoch) in end {
                        self.held.lock().remove(&session);
                        self.vacated(session, epoch).await;
                    }
                }
                Ok(HeartbeatReply::Unknown) => {
                    eprintln!("scale: {} was given up", self.id);
                    self.held.lock().clear();
                    let _ = self.register(address).await;
                }
                Err(error) => eprintln!("scale: a report of {} failed: {error:#}", self.id),
            }
        }
    }

    async fn vacated(&self, session: SessionId, epoch: Epoch) {
        let said = SlotVacated { session, epoch };
        if let Err(error) = self.coordinator().call(Method::POST, VACATED, Some(&said)).await {
            eprintln!("scale: a free slot could not be told: {error:#}");
        }
    }
}

async fn hello(State(worker): State<Arc<Worker>>) -> Json<Value> {
    let driven = json!({
        "product": "Simulated/1.0", "protocol_version": "1.3", "user_agent": "Simulated", "js_version": "0", "revision": "0",
    });
    Json(json!({"worker": worker.id, "driven": driven}))
}

async fn lease(State(worker): State<Arc<Worker>>, Json(body): Json<LeaseBody>) -> Json<Leased> {
    worker.held.lock().insert(body.session, body.epoch);
    Json(Leased { answer: None })
}

async fn close(
    State(worker): State<Arc<Worker>>,
    Path(session): Path<SessionId>,
    Query(query): Query<EpochQuery>,
) -> Json<Closed> {
    let was_held = worker.held.lock().remove(&session).is_some();
    if was_held {
        let told = worker.clone();
        worker
            .telling
            .spawn(async move { told.vacated(session, Epoch(query.epoch)).await });
    }
    Json(Closed { was_held })
}
