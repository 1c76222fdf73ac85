//! The load: filling up, churning, waiting, and who is served when a slot is freed.
//!
//! Its own file because these are the measurements. Clients share this process with the simulated workers and the cores
//! with everything else: what is measured is the whole machine, not the coordinators alone.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use http::Method;
use tokio::{sync::mpsc, task::JoinSet, time::timeout};
use wharf_e2e::samples::Samples;

use crate::api::Api;

/// Longer than any hand-over should take; a request that takes longer is an error of the run.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a churn did.
#[derive(Default)]
pub struct Churned {
    pub sessions: u64,
    pub errors: u64,
    /// From the request to an active session, in milliseconds.
    pub admission: Samples,
    pub took: Duration,
}

// === impl Churned ===

impl Churned {
    pub fn rate(&self) -> f64 {
        self.sessions as f64 / self.took.as_secs_f64()
    }
}

/// So many requests at once, each a session from creation to release, for a while.
pub async fn churn(apis: &[Api], in_flight: usize, span: Duration) -> Churned {
    let started = Instant::now();
    let mut clients = JoinSet::new();
    for number in 0..in_flight {
        let api = apis[number % apis.len()].clone();
        clients.spawn(async move {
            let mut own = Churned::default();
            while started.elapsed() < span {
                let asked = Instant::now();
                let Ok(session) = api.create().await else {
                    own.errors += 1;
                    continue;
                };
                own.admission.push_time(asked.elapsed());
                own.sessions += 1;
                if api.release(&session).await.is_err() {
                    own.errors += 1;
                }
            }
            own
        });
    }
    let mut all = Churned::default();
    while let Some(Ok(own)) = clients.join_next().await {
        all.sessions += own.sessions;
        all.errors += own.errors;
        all.admission.extend(own.admission);
    }
    all.took = started.elapsed();
    all
}

/// Live sessions, so many, made with so many requests at once.
pub async fn fill(apis: &[Api], count: usize, in_flight: usize) -> Result<Vec<String>> {
    let mut made = Vec::with_capacity(count);
    let mut making = JoinSet::new();
    let mut begun = 0;
    while made.len() < count {
        while making.len() < in_flight && begun < count {
            let api = apis[begun % apis.len()].clone();
            making.spawn(async move { api.create().await });
            begun += 1;
        }
        let session = making.join_next().await.context("nobody is asking")?;
        made.push(session??);
    }
    Ok(made)
}

/// Ends these sessions. One that has ended meanwhile is as good.
pub async fn release(apis: &[Api], sessions: Vec<String>, in_flight: usize) -> Result<()> {
    let mut releasing = JoinSet::new();
    for (number, session) in sessions.into_iter().enumerate() {
        if releasing.len() >= in_flight {
            releasing.join_next().await;
        }
        let api = apis[number % apis.len()].clone();
        releasing.spawn(async move { api.release(&session).await });
    }
    while releasing.join_next().await.is_some() {}
    Ok(())
}

/// Ends every session there is, those included that a waiter got and left.
pub async fn end_all(apis: &[Api], in_flight: usize) -> Result<()> {
    loop {
        let list = apis[0]
            .call(Method::GET, "/v1/sessions?limit=1000", None::<&()>)
            .await?;
        let list = list["sessions"].as_array().context("no list of sessions")?;
        if list.is_empty() {
            return Ok(());
        }
        let ids = list.iter().filter_map(|session| session["id"].as_str());
        release(apis, ids.map(str::to_owned).collect(), in_flight).await?;
    }
}

/// Requests that wait, and what they get.
pub struct Waiting {
    served: mpsc::Receiver<(Instant, Result<String>)>,
    asking: JoinSet<()>,
}

// === impl Waiting ===

impl Waiting {
    pub fn new(apis: &[Api], count: usize) -> Self {
        let (tell, served) = mpsc::channel(count.max(1));
        let mut asking = JoinSet::new();
        for number in 0..count {
            let (api, tell) = (apis[number % apis.len()].clone(), tell.clone());
            asking.spawn(async move {
                let got = api.create().await;
                // Whoever has stopped listening does not want to know.
                let _ = tell.send((Instant::now(), got)).await;
            });
        }
        Self { served, asking }
    }

    async fn next(&mut self) -> Result<(Instant, String)> {
        let (at, got) = timeout(PATIENCE, self.served.recv())
            .await
            .context("nobody was served")?
            .context("all were served")?;
        Ok((at, got?))
    }

    /// One slot after the other is freed; how long until the next waiter has its answer.
    pub async fn hand_over(&mut self, api: &Api, live: &mut VecDeque<String>, count: usize) -> Result<Samples> {
        let mut samples = Samples::default();
        for _ in 0..count {
            let session = live.pop_front().context("no session is live")?;
            let freed = Instant::now();
            let (released, served) = tokio::join!(api.release(&session), self.next());
            released?;
            let (at, next) = served?;
            samples.push_time(at.saturating_duration_since(freed));
            live.push_back(next);
        }
        Ok(samples)
    }

    /// Many slots are freed at once; hand-overs a second.
    pub async fn burst(&mut self, apis: &Arc<Vec<Api>>, live: &mut VecDeque<String>, count: usize) -> Result<f64> {
        let started = Instant::now();
        let mut releasing = JoinSet::new();
        for number in 0..count {
            let session = live.pop_front().context("no session is live")?;
            let api = apis[number % apis.len()].clone();
            releasing.spawn(async move { api.release(&session).await });
        }
        for _ in 0..count {
            let (_, next) = self.next().await?;
            live.push_back(next);
        }
        let rate = count as f64 / started.elapsed().as_secs_f64();
        while let Some(released) = releasing.join_next().await {
            released??;
        }
        Ok(rate)
    }

    /// The rest leave; their places go with their connections.
    pub async fn leave(mut self) {
        self.asking.shutdown().await;
    }
}
