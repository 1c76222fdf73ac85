//! The loops behind the service: changes of the store, sweep, activity, ticket renewal.
//!
//! Its own file because each loop is one function and all share one rule: any of them may miss a beat and nothing is
//! lost; the store has the truth and the next beat corrects.

use std::{sync::Arc, time::Duration};

use rand::RngExt;
use tokio::{sync::broadcast::error::RecvError, time::sleep};
use wharf_core::{SessionState, SessionStatus};
use wharf_store::{Change, EndedSession, SessionQuery};

use super::{Service, live::LiveSession, waiters::News};

pub(super) fn spawn(service: &Service) {
    let tasks = &service.inner().tasks;
    let stop = &service.inner().stop;
    for task in [Loop::Changes, Loop::Sweep, Loop::Touch, Loop::Tickets] {
        let (service, stop) = (service.clone(), stop.clone());
        tasks.spawn(async move {
            tokio::select! {
                // Every loop may be dropped at any await: a store call that has begun is finished by the store.
                () = stop.cancelled() => {}
                () = task.run(service) => {}
            }
        });
    }
}

enum Loop {
    Changes,
    Sweep,
    Touch,
    Tickets,
}

// === impl Loop ===

impl Loop {
    async fn run(self, service: Service) {
        match self {
            Self::Changes => changes(service).await,
            Self::Sweep => sweep(service).await,
            Self::Touch => touch(service).await,
            Self::Tickets => tickets(service).await,
        }
    }
}

/// Applies what happened in the store to whoever waits or is attached here.
async fn changes(service: Service) {
    let mut changes = service.inner().store.changes();
    let mut poll = tokio::time::interval(Duration::from_secs(1));
    poll.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            change = changes.recv() => match change {
                Ok(Change::Placed(placement)) => {
                    service.inner().waiters.tell(placement.session, News::Placed(placement.seat));
                }
                Ok(Change::Ended(ended)) => {
                    service.inner().metrics.ended(ended.reason);
                    service.on_ended(ended);
                    service.close_browser(ended);
                }
                // Counted and closed by the coordinator whose step it was.
                Ok(Change::EndedElsewhere(ended)) => service.on_ended(ended),
                Ok(Change::Noted(number)) => {
                    service.inner().events.send_replace(number);
                }
                Ok(Change::Missed) => {
                    tracing::warn!("missed changes of the store; looking for myself");
                    resync(&service).await;
                }
                Err(RecvError::Lagged(missed)) => {
                    tracing::warn!(missed, "missed changes of the store; looking for myself");
                    resync(&service).await;
                }
                Err(RecvError::Closed) => return,
            },
            _ = poll.tick() => find_placements(&service).await,
        }
    }
}

/// Placements whose wake-up was lost.
async fn find_placements(service: &Service) {
    let query = SessionQuery {
        statuses: vec![SessionStatus::Placed],
        limit: 1000,
        ..SessionQuery::default()
    };
    match service.inner().store.sessions(&query).await {
        Ok(records) => {
            for record in records
                .iter()
                .filter(|record| record.coordinator == service.config().id)
            {
                if let Some(seat) = record.state.seat() {
                    service.inner().waiters.tell(record.id, News::Placed(seat));
                }
            }
        }
        Err(error) => tracing::warn!(%error, "could not look for placements"),
    }
}

/// Compares everything known here with the store.
async fn resync(service: &Service) {
    find_placements(service).await;
    for session in service.inner().live.ids() {
        if let Ok(Some(record)) = service.inner().store.session(session).await
            && let SessionState::Ended(reason) = record.state
        {
            let seat = record.worker.map(|worker| wharf_core::Seat {
                worker,
                epoch: record.epoch,
            });
            let ended = EndedSession { session, reason, seat };
            service.on_ended(ended);
            service.close_browser(ended);
        }
    }
}

async fn sweep(service: Service) {
    loop {
        // Spread, so that many coordinators do not sweep at once.
        let spread = rand::rng().random_range(0.8..1.2);
        sleep(service.config().sweep_interval.mul_f64(spread)).await;
        if let Err(error) = service.inner().store.sweep().await {
            tracing::warn!(%error, "could not sweep");
        }
    }
}

async fn touch(service: Service) {
    loop {
        sleep(service.config().touch_interval).await;
        let live = service.inner().live.all();
        let batch: Vec<_> = live.iter().filter_map(|live| live.touch()).collect();
        live.iter().for_each(|live| service.count_bytes(live));
        if !batch.is_empty()
            && let Err(error) = service.inner().store.touch(&batch).await
        {
            tracing::warn!(%error, sessions = batch.len(), "could not write activity");
        }
    }
}

async fn tickets(service: Service) {
    loop {
        sleep(service.config().ticket_renewal).await;
        if let Err(error) = service.inner().store.renew_tickets(service.config().id).await {
            tracing::warn!(%error, "could not renew tickets");
        }
    }
}

// === impl Service ===

impl Service {
    /// A session ended, by whomever: its clients and waiters here learn it.
    fn on_ended(&self, ended: EndedSession) {
        let EndedSession { session, reason, .. } = ended;
        self.inner().waiters.tell(session, News::Ended(reason));
        let ran = self.inner().live.end(session, reason).map(|live| {
            self.count_bytes(&live);
            self.inner().metrics.session_seconds.observe(live.age().as_secs_f64());
            self.held_for(live.age());
            live.age()
        });
        tracing::info!(%session, %reason, ?ran, "session ended");
    }

    /// The browser of a session that ended goes, and its slot is freed. Said by the process whose step ended it; should it
    /// be cut off before, the worker's next report is told.
    fn close_browser(&self, ended: EndedSession) {
        let EndedSession { session, seat, .. } = ended;
        let Some(seat) = seat else { return };
        let service = self.clone();
        self.inner().tasks.spawn(async move {
            if !service.inner().link.close(session, seat).await
                && let Err(error) = service.inner().store.vacate(session, seat.epoch).await
            {
                tracing::warn!(%session, %error, "could not free the slot; the next heartbeat will");
            }
        });
    }

    pub(super) fn count_bytes(&self, live: &Arc<LiveSession>) {
        let (to_browser, to_client) = live.take_bytes();
        if to_browser > 0 {
            self.inner().metrics.to_browser().inc_by(to_browser);
        }
        if to_client > 0 {
            self.inner().metrics.to_client().inc_by(to_client);
        }
    }
}
