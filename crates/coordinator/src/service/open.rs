//! Opening a session: submit, wait, lease, activate.
//!
//! Its own file because it is the path where a client may vanish at every await. The rule: [`Attempt`] is a value that
//! lives as long as somebody wants the session; dropping it before the hand-over ends the session as `cancelled`, and
//! the end frees whatever was held by then (ticket, slot, launch, browser).

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};
use uuid::Uuid;
use wharf_core::{
    EndReason, Epoch, ErrorCode, KeyId, Phase, Seat, SessionId, SessionSpec, SessionState, Timestamp, queue,
};
use wharf_store::{PlacementFailure, Replaced, SessionRecord, Submission, Submitted};

use super::{Service, waiters::News};
use crate::{LeaseWish, LinkError, Refusal};

/// A validated request for a session.
#[derive(Debug, Clone)]
pub struct Ask {
    /// What it asks for.
    pub spec: SessionSpec,
    /// The API key it comes with.
    pub owner: Option<KeyId>,
    /// The client's own key for this request.
    pub idempotency_key: Option<String>,
}

/// An active session on its way to its client. Dropping it before [`Handover::delivered`] ends the session: whoever
/// asked for it is gone.
#[must_use = "dropping a hand-over ends the session"]
pub struct Handover {
    /// The session.
    pub record: Box<SessionRecord>,
    /// What its program answered when it was told of the session; none for browsers that are not told.
    pub answer: Option<serde_json::Value>,
    /// The store's time at which it became active, if that was just now.
    pub(crate) as_of: Option<Timestamp>,
    guard: Option<(Service, EndReason)>,
}

/// A session that was accepted and is being opened.
pub(crate) struct Attempt {
    service: Service,
    session: SessionId,
    news: watch::Receiver<News>,
    opened_at: Instant,
    queue_timeout: Duration,
    /// Whether somebody else may come to wait for the session, too.
    is_keyed: bool,
    is_armed: bool,
}

/// A session that has become active.
struct Opened {
    record: Box<SessionRecord>,
    answer: Option<serde_json::Value>,
}

enum Next {
    Wait(Box<SessionRecord>),
    Start(Box<SessionRecord>),
}

// === impl Service ===

impl Service {
    /// Opens a session and waits until it is active. Dropping the future withdraws the request.
    pub async fn open(&self, ask: Ask) -> Result<Handover, Refusal> {
        let key = ask.idempotency_key.is_some();
        match self.submit(ask).await? {
            Accepted::New(attempt, next) => {
                let Opened { record, answer } = attempt.run(next).await?;
                // With a key the client can ask again for the same session; without one nobody else knows its id.
                let guard = (!key).then(|| (self.clone(), EndReason::Cancelled));
                Ok(Handover {
                    as_of: record.times.started_at,
                    record,
                    answer,
                    guard,
                })
            }
            Accepted::Known(record) => {
                let record = self.join(record).await?;
                Ok(Handover {
                    record,
                    answer: None,
                    as_of: None,
                    guard: None,
                })
            }
        }
    }

    /// Accepts a session and goes on opening it on its own; answers with the record as accepted.
    pub async fn open_async(&self, ask: Ask) -> Result<Box<SessionRecord>, Refusal> {
        match self.submit(ask).await? {
            Accepted::Known(record) => Ok(record),
            Accepted::New(attempt, next) => {
                let record = match &next {
                    Next::Wait(record) | Next::Start(record) => record.clone(),
                };
                self.inner().tasks.spawn(async move {
                    let session = attempt.session;
                    if let Err(refusal) = attempt.run(next).await {
                        tracing::info!(%session, code = %refusal.code, message = refusal.message, "session not opened");
                    }
                });
                Ok(record)
            }
        }
    }

    async fn submit(&self, ask: Ask) -> Result<Accepted, Refusal> {
        if !self.phase().admits() {
            return Err(Refusal::draining());
        }
        let attempt = Attempt::new(self, &ask.spec, ask.idempotency_key.is_some());
        let (pool, browser) = (ask.spec.pool.clone(), ask.spec.browser);
        let submission = Submission {
            session: attempt.session,
            coordinator: self.config().id,
            spec: ask.spec,
            owner: ask.owner,
            idempotency_key: ask.idempotency_key,
            queue_limit: self.config().queue_limit,
        };
        match self.inner().store.submit(submission).await? {
            Submitted::Placed(record) => Ok(Accepted::New(attempt, Next::Start(record))),
            Submitted::Queued { record, position } => {
                tracing::debug!(session = %record.id, position, "session queued");
                Ok(Accepted::New(attempt, Next::Wait(record)))
            }
            Submitted::Known(record) => {
                attempt.settled();
                Ok(self.adopt(record))
            }
            Submitted::KeyReused(session) => {
                attempt.settled();
                let message = "the idempotency key was used for a different request";
                Err(Refusal::new(ErrorCode::IdempotencyKeyReused, message).about(session))
            }
            Submitted::QueueFull { waiting, limit } => {
                attempt.settled();
                let wait = self.estimate(waiting + 1).await.unwrap_or_default();
                let message = format!("the queue is full: {waiting} of {limit} places are taken (limit `queue`)");
                let refusal = Refusal::new(ErrorCode::QueueFull, message).retry_in(queue::retry_after(wait));
                Err(Refusal {
                    limit: Some((limit, waiting)),
                    ..refusal
                })
            }
            Submitted::NoSuchPool => {
                attempt.settled();
                let message = format!("no worker of the pool `{pool}` serves {browser}");
                Err(Refusal::new(ErrorCode::PoolNotFound, message))
            }
            Submitted::Locked(lock) => {
                attempt.settled();
                Err(Refusal::locked(&lock, "it covers this session"))
            }
            Submitted::QuotaReached { held, limit } => {
                attempt.settled();
                let message = format!("the key holds {held} of {limit} sessions (limit `max_sessions`)");
                Err(Refusal {
                    limit: Some((limit, held)),
                    ..Refusal::new(ErrorCode::QuotaReached, message)
                })
            }
        }
    }

    /// A session that an earlier request with the same key made. If it still waits and nobody waits for it here, it has
    /// just passed to us: the coordinator it came by may be gone.
    fn adopt(&self, record: Box<SessionRecord>) -> Accepted {
        let is_ours = record.coordinator == self.config().id && self.inner().waiters.follow(record.id).is_none();
        match record.state {
            SessionState::Queued if is_ours => Accepted::New(Attempt::of(self, &record), Next::Wait(record)),
            SessionState::Placed(seat) if is_ours => {
                let attempt = Attempt::of(self, &record);
                Accepted::New(attempt, self.take_up(record, seat))
            }
            _ => Accepted::Known(record),
        }
    }

    /// A placement that was found is taken up as one that was told.
    fn take_up(&self, record: Box<SessionRecord>, seat: Seat) -> Next {
        self.inner().waiters.tell(record.id, News::Placed(seat));
        Next::Wait(Box::new(SessionRecord {
            epoch: Epoch(seat.epoch.0.saturating_sub(1)),
            ..*record
        }))
    }

    /// Waits along for a session that an earlier request with the same key made.
    async fn join(&self, record: Box<SessionRecord>) -> Result<Box<SessionRecord>, Refusal> {
        let session = record.id;
        let mut news = self.inner().waiters.follow(session);
        loop {
            let record = self.session(session).await?;
            match record.state {
                SessionState::Active(_) => return Ok(Box::new(record)),
                SessionState::Ended(reason) => {
                    return Err(Refusal::never_opened(session, reason, record.detail.as_deref()));
                }
                _ if !self.phase().admits() => return Err(Refusal::draining()),
                _ => {}
            }
            let poll = tokio::time::sleep(Duration::from_secs(1));
            match news.as_mut() {
                // Another coordinator opens it, or it has just finished here.
                None => poll.await,
                Some(news) => tokio::select! {
                    changed = news.changed() => if changed.is_err() { tokio::task::yield_now().await },
                    () = poll => {}
                },
            }
        }
    }
}

async fn draining(phase: &mut watch::Receiver<Phase>) {
    // A closed channel means that the process is going down, too.
    let _ = phase.wait_for(|phase| *phase > Phase::Ready).await;
}

enum Accepted {
    New(Attempt, Next),
    Known(Box<SessionRecord>),
}

// === impl Attempt ===

impl Attempt {
    fn new(service: &Service, spec: &SessionSpec, is_keyed: bool) -> Self {
        Self::for_session(service, SessionId::from_uuid(Uuid::now_v7()), spec, is_keyed)
    }

    /// Of a session that has passed to us.
    fn of(service: &Service, record: &SessionRecord) -> Self {
        Self::for_session(service, record.id, &record.spec, true)
    }

    fn for_session(service: &Service, session: SessionId, spec: &SessionSpec, is_keyed: bool) -> Self {
        Self {
            service: service.clone(),
            is_keyed,
            session,
            news: service.inner().waiters.join(session),
            opened_at: Instant::now(),
            queue_timeout: spec.timeouts.queue,
            is_armed: true,
        }
    }

    async fn run(mut self, mut next: Next) -> Result<Opened, Refusal> {
        loop {
            next = match next {
                Next::Wait(record) => self.wait(&record).await?,
                Next::Start(record) => match self.start(record).await? {
                    Ok(opened) => {
                        let waited = self.opened_at.elapsed();
                        self.service.inner().metrics.acquire_wait.observe(waited.as_secs_f64());
                        tracing::info!(session = %self.session, ?waited, "session active");
                        self.service.inner().waiters.tell(self.session, News::Active);
                        self.settled();
                        return Ok(opened);
                    }
                    Err(next) => next,
                },
            };
        }
    }

    /// Waits for a placement and claims it.
    async fn wait(&mut self, record: &SessionRecord) -> Result<Next, Refusal> {
        let deadline = self.opened_at + self.queue_timeout;
        let mut phase = self.service.inner().phase.clone();
        loop {
            let news = *self.news.borrow_and_update();
            match news {
                News::Placed(seat) if seat.epoch > record.epoch => {
                    if let Some(record) = self.service.inner().store.claim(self.session, seat.epoch).await? {
                        let waited = self.opened_at.elapsed();
                        self.service.inner().metrics.queue_wait.observe(waited.as_secs_f64());
                        return Ok(Next::Start(Box::new(record)));
                    }
                }
                News::Ended(reason) => return Err(self.over(reason).await),
                _ => {}
            }
            tokio::select! {
                changed = self.news.changed() => if changed.is_err() {
                    return Err(Refusal::new(ErrorCode::Internal, "the wait was lost"));
                },
                () = tokio::time::sleep_until(deadline) => return Err(self.time_out().await),
                () = draining(&mut phase) => return Err(Refusal::draining()),
            }
        }
    }

    /// Asks the worker for a browser. `Err(next)` means: placed elsewhere, or waiting again.
    async fn start(&mut self, record: Box<SessionRecord>) -> Result<Result<Opened, Next>, Refusal> {
        let Some(seat) = record.state.seat() else {
            return Err(Refusal::new(
                ErrorCode::Internal,
                "a session without a slot was about to start",
            ));
        };
        let inner = Arc::clone(&self.service.0);
        let wish = LeaseWish {
            session: self.session,
            seat,
            options: record.spec.options.clone(),
            data: record.spec.data.clone(),
        };
        let leased = tokio::select! {
            leased = tokio::time::timeout(inner.config.starting_limit, inner.link.lease(wish)) => leased,
            () = self.placed_after(seat.epoch) => {
                tracing::info!(session = %self.session, worker = %seat.worker, "the worker was given up; placed elsewhere");
                let (inner, session) = (Arc::clone(&inner), self.session);
                // It may be long in answering, if it does.
                self.service.inner().tasks.spawn(async move { inner.link.close(session, seat).await });
                return Ok(Err(Next::Wait(record)));
            }
        };
        match leased.unwrap_or_else(|_| Err(LinkError::LaunchFailed("the worker took too long".to_owned()))) {
            Ok(answer) => {
                // Known here before the store says active: a crash in between must find its clients' door.
                inner.live.add(&record);
                match inner.store.activate(self.session, seat.epoch).await {
                    Ok(Some(record)) => Ok(Ok(Opened {
                        record: Box::new(record),
                        answer,
                    })),
                    Ok(None) => {
                        inner.live.forget(self.session);
                        inner.link.close(self.session, seat).await;
                        self.lookup().await.map(Err)
                    }
                    Err(error) => {
                        inner.live.forget(self.session);
                        Err(error.into())
                    }
                }
            }
            Err(LinkError::Withdrawn) => self.lookup().await.map(Err),
            // The whole grid is going; elsewhere another worker may take it.
            Err(LinkError::Draining) if !self.service.phase().admits() => Err(Refusal::draining()),
            Err(error) => {
                inner.link.close(self.session, seat).await;
                self.place_again(&record, error).await
            }
        }
    }

    async fn place_again(&mut self, record: &SessionRecord, error: LinkError) -> Result<Result<Opened, Next>, Refusal> {
        let cause = error.to_string();
        tracing::warn!(session = %self.session, attempt = record.epoch.0, cause, "placement failed");
        let failure = PlacementFailure {
            session: self.session,
            epoch: record.epoch,
            cause: cause.clone(),
            is_worker_absent: matches!(error, LinkError::Unreachable(_) | LinkError::Draining),
        };
        match self.service.inner().store.placement_failed(failure).await? {
            Replaced::Placed(record) => Ok(Err(Next::Start(record))),
            Replaced::Queued(record) => Ok(Err(Next::Wait(record))),
            Replaced::Ended(record) => match record.reason() {
                Some(EndReason::LaunchFailed) | None => {
                    let message = format!("no browser could be launched in {} attempts: {cause}", record.epoch.0);
                    let refusal = Refusal::new(ErrorCode::LaunchFailed, message).about(self.session);
                    Err(Refusal {
                        reason: Some(EndReason::LaunchFailed),
                        ..refusal
                    })
                }
                Some(reason) => Err(self.over(reason).await),
            },
            Replaced::Stale => self.lookup().await.map(Err),
        }
    }

    /// The queue deadline passed: the session ends with that reason, and the client learns what it waited behind.
    async fn time_out(&mut self) -> Refusal {
        let position = self.service.inner().store.position(self.session).await.ok().flatten();
        if let Err(refusal) = self.service.end(self.session, EndReason::QueueTimeout, None).await {
            return refusal;
        }
        let refusal = self.over(EndReason::QueueTimeout).await;
        Refusal {
            position: position.or(refusal.position),
            ..refusal
        }
    }

    /// Until the session has a later placement than this one.
    async fn placed_after(&mut self, epoch: Epoch) {
        let is_later = |news: &News| matches!(news, News::Placed(seat) if seat.epoch > epoch);
        if self.news.wait_for(is_later).await.is_err() {
            std::future::pending().await
        }
    }

    /// The store has moved the session on while it was being opened here: where to?
    async fn lookup(&self) -> Result<Next, Refusal> {
        let record = Box::new(self.service.session(self.session).await?);
        let is_ours = record.coordinator == self.service.config().id;
        match record.state {
            SessionState::Ended(reason) => Err(self.over(reason).await),
            // Its worker was given up.
            SessionState::Queued if is_ours => Ok(Next::Wait(record)),
            SessionState::Placed(seat) if is_ours => Ok(self.service.take_up(record, seat)),
            _ => {
                let message = "the session has passed to another coordinator; ask again with the same idempotency key";
                Err(Refusal::new(ErrorCode::SessionNotActive, message).about(self.session))
            }
        }
    }

    /// What the client is told of a session that ended before it was active.
    async fn over(&self, reason: EndReason) -> Refusal {
        match reason {
            EndReason::QueueTimeout => {
                let waited = self.opened_at.elapsed();
                let wait = self.service.estimate(1).await.unwrap_or_default();
                let message = format!(
                    "no slot became free within the queue timeout of {:?}",
                    self.queue_timeout
                );
                tracing::info!(session = %self.session, ?waited, "queue timeout");
                let refusal = Refusal::new(ErrorCode::QueueTimeout, message).retry_in(queue::retry_after(wait));
                Refusal {
                    reason: Some(reason),
                    ..refusal.about(self.session)
                }
            }
            EndReason::WorkerDrained => Refusal::draining().about(self.session),
            EndReason::Killed => {
                let message = "an operator ended the session before it had a browser";
                let refusal = Refusal::new(ErrorCode::QueueCleared, message).about(self.session);
                Refusal {
                    reason: Some(reason),
                    ..refusal
                }
            }
            EndReason::Policy => {
                let message = "the key was revoked while the session waited";
                Refusal::new(ErrorCode::Unauthorized, message).about(self.session)
            }
            _ => {
                let record = self.service.session(self.session).await.ok();
                let detail = record.as_ref().and_then(|record| record.detail.as_deref());
                Refusal::never_opened(self.session, reason, detail)
            }
        }
    }

    /// Nothing is to be undone.
    fn settled(mut self) {
        self.is_armed = false;
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.service.inner().waiters.leave(self.session);
        match (self.is_armed, self.is_keyed) {
            (false, _) => {}
            (true, false) => self.service.end_later(self.session, EndReason::Cancelled),
            (true, true) => self.service.cancel_if_ours(self.session),
        }
    }
}

// === impl Handover ===

impl Handover {
    /// The client has it.
    pub fn delivered(mut self) -> Box<SessionRecord> {
        self.guard = None;
        self.record.clone()
    }

    /// From now on dropping it means that this reason ends the session.
    pub fn otherwise(mut self, reason: EndReason) -> Self {
        if let Some((_, otherwise)) = &mut self.guard {
            *otherwise = reason;
        }
        self
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        if let Some((service, reason)) = self.guard.take() {
            service.end_later(self.record.id, reason);
        }
    }
}
