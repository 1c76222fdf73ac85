//! What the desk does on each request and event.
//!
//! Its own file because these are the verbs; the loop is in `mod`, the nouns are in `book`. The order at an end is the
//! design's: the client is told first, then the tree is killed, then the slot is free, then the files go.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use wharf_core::{
    BrowserId, BrowserState, EndReason,
    warm::{WarmPlan, WarmRules, WarmView, plan},
    worker::BrowserEvent,
};
use wharf_driver::{Browser, Exit, LaunchError, LaunchOptions, LaunchSpec, Urgency};
use wharf_process::{
    ExitStatus,
    system::{Resource, pressure},
};

use super::{
    Desk, Event, Kept,
    book::{Lease, Purpose, Waiting},
    program::{self, Beginning},
};
use crate::{
    WorkerStatus,
    handle::{LeaseError, Request},
    metrics::StateLabel,
    supervisor::{self, Trouble, Watch},
};

/// Whether the desk takes work.
pub(crate) enum Mode {
    Serving,
    Draining,
    Stopping(Option<oneshot::Sender<()>>),
}

impl Desk {
    pub(super) fn request(&mut self, request: Request) {
        match request {
            Request::Lease(request, reply) => self.lease(Waiting { request, reply }),
            Request::Close { session, epoch, known } => {
                // A caller that left does not care.
                let _ = known.send(self.close_session((session, epoch)));
            }
            Request::Status(reply) => {
                let _ = reply.send(self.status());
            }
            Request::AnyEndpoint(reply) => {
                let up = self.book.iter().find_map(|(_, kept)| kept.browser.as_ref());
                let _ = reply.send(up.map(|browser| browser.endpoint().clone()));
            }
            Request::Drain => self.drain(),
            Request::Stop { reason, done } => self.stop(reason, Some(done)),
        }
    }

    pub(super) fn event(&mut self, event: Event) {
        match event {
            Event::Launched {
                id,
                result: Ok(browser),
                took,
            } => self.launched(id, browser, took),
            Event::Launched {
                id,
                result: Err(LaunchError::Cancelled),
                ..
            } => drop(self.book.remove(id)),
            Event::Launched {
                id,
                result: Err(error),
                took,
            } => self.launch_failed(id, &error, took),
            Event::Troubled { id, trouble } => self.troubled(id, trouble),
            Event::Begun { id, result } => self.begun(id, result),
            Event::Gone { id } => self.gone(id),
            Event::Measured { used, browsers } => {
                let each = used.checked_div(browsers as u64).unwrap_or(self.memory.1);
                self.memory = (used, each.max(1));
                self.metrics
                    .browsers_memory
                    .set(i64::try_from(used).unwrap_or(i64::MAX));
            }
        }
    }

    // --- leases ---

    fn lease(&mut self, waiting: Waiting) {
        if !matches!(self.mode, Mode::Serving) {
            let _ = waiting.reply.send(Err(LeaseError::Draining));
            return;
        }
        self.demand.arrived(self.clock.now());
        self.shrink.reset();
        let warm = if waiting.is_plain() {
            self.book.warm.front().copied()
        } else {
            None
        };
        match warm {
            Some(id) => self.hand_over(id, waiting, "warm"),
            None => self.book.waiting.push_back(waiting),
        }
    }

    fn hand_over(&mut self, id: BrowserId, waiting: Waiting, how: &'static str) {
        let lease = waiting.lease();
        let browser = self.book.get(id).and_then(|kept| kept.browser.clone());
        let Some(browser) = browser.filter(|_| self.book.step(id, BrowserEvent::Leased)) else {
            // Cannot be: callers pass warm browsers. The waiter keeps its place.
            tracing::error!(browser = %id, "a browser that is not warm was about to be leased");
            self.book.waiting.push_front(waiting);
            return;
        };
        self.book.bind(id, lease);
        browser.promote();
        self.metrics.leased(how);
        self.served += 1;
        self.answer(id, browser, waiting);
    }

    fn close_session(&mut self, lease: Lease) -> bool {
        if let Some(waiting) = self.book.take_waiting(lease) {
            self.metrics.leased("withdrawn");
            let _ = waiting.reply.send(Err(LeaseError::Withdrawn));
            if let Some(id) = self.book.launch_for(lease) {
                self.close(id, None);
            }
            self.vacate(lease);
            return true;
        }
        match self.book.leases.get(&lease).copied() {
            Some(id) => {
                self.close(id, None);
                true
            }
            None => false,
        }
    }

    /// A coordinator that dropped its wish without closing the session.
    fn withdraw_abandoned(&mut self) {
        self.close_abandoned();
        if self.book.waiting.iter().any(|waiting| waiting.reply.is_closed()) {
            for waiting in self.book.take_abandoned() {
                self.metrics.leased("withdrawn");
                if let Some(id) = self.book.launch_for(waiting.lease()) {
                    self.close(id, None);
                }
                self.vacate(waiting.lease());
            }
        }
    }

    fn vacate(&self, (session, epoch): Lease) {
        let uplink = self.uplink.clone();
        self.tasks.spawn(async move { uplink.vacated(session, epoch).await });
    }

    // --- launches ---

    /// Starts what the pure plan says, within what the breaker allows.
    pub(super) fn refill(&mut self) {
        if !matches!(self.mode, Mode::Serving) {
            return;
        }
        self.withdraw_abandoned();
        let now = self.clock.now();
        let WarmPlan { urgent, refill, evict } = plan(&self.rules(), &self.view());
        for _ in 0..evict {
            if let Some(id) = self.book.warm.back().copied() {
                self.close(id, None);
            }
        }
        if self.breaker.allows_urgent(now) {
            for _ in 0..urgent {
                self.launch_urgent();
            }
        }
        if self.breaker.allows_refill(now) {
            // An open circuit closes only by a trial, whether or not the pool wants a browser.
            let is_trial = self.breaker.failures() > 0 && self.book.count(BrowserState::Launching) == 0;
            let count = if is_trial { refill.max(1) } else { refill };
            for _ in 0..count {
                self.launch(Purpose::Pool, LaunchOptions::default(), Urgency::Refill);
            }
        }
    }

    fn launch_urgent(&mut self) {
        match self.book.next_special() {
            Some(waiting) => {
                let (lease, options) = (waiting.lease(), waiting.request.options.clone());
                self.launch(Purpose::Session(lease), options, Urgency::Waiting);
            }
            None => self.launch(Purpose::Pool, LaunchOptions::default(), Urgency::Waiting),
        }
    }

    fn launch(&mut self, purpose: Purpose, options: LaunchOptions, urgency: Urgency) {
        let id = BrowserId::from_uuid(Uuid::now_v7());
        let stop = CancellationToken::new();
        let kept = Kept {
            state: BrowserState::Launching,
            browser: None,
            purpose,
            lease: None,
            beginning: None,
            stop: stop.clone(),
        };
        self.book.insert(id, kept);
        let (driver, events) = (self.driver.clone(), self.events.clone());
        let spec = LaunchSpec {
            id,
            options,
            timeout: self.config.launch_timeout,
            urgency,
            cancel: stop,
        };
        self.tasks.spawn(async move {
            let started = tokio::time::Instant::now();
            // A launch that is called off returns when nothing of it is left; until then it counts as closing.
            let result = driver.launch(spec).await;
            let _ = events
                .send(Event::Launched {
                    id,
                    result,
                    took: started.elapsed(),
                })
                .await;
        });
    }

    fn launched(&mut self, id: BrowserId, browser: Arc<dyn Browser>, took: Duration) {
        self.breaker.succeeded();
        self.demand.launched(took);
        self.metrics.launched("ok");
        self.metrics.launch_seconds.observe(took.as_secs_f64());
        tracing::debug!(browser = %id, pid = browser.pid(), ?took, "browser launched");
        let Some(kept) = self.book.get_mut(id) else { return };
        kept.browser = Some(browser.clone());
        let purpose = kept.purpose;
        if kept.state != BrowserState::Launching {
            self.kill(id, None);
            return;
        }
        let watch = Watch {
            browser,
            config: self.config.clone(),
            stop: kept.stop.clone(),
        };
        supervisor::spawn(&self.tasks, watch, self.events.clone(), |id, trouble| Event::Troubled {
            id,
            trouble,
        });
        self.book.step(id, BrowserEvent::Ready);
        let waiting = match purpose {
            Purpose::Pool => self.book.next_plain(),
            Purpose::Session(lease) => self.book.take_waiting(lease),
        };
        match (waiting, purpose) {
            (Some(waiting), _) => self.hand_over(id, waiting, "launched"),
            (None, Purpose::Pool) => {}
            // Launched with options that nobody else asked for.
            (None, Purpose::Session(_)) => self.close(id, None),
        }
    }

    fn launch_failed(&mut self, id: BrowserId, error: &LaunchError, took: Duration) {
        let Some(kept) = self.book.remove(id) else { return };
        self.breaker.failed(self.clock.now());
        self.metrics.launched("failed");
        let failures = self.breaker.failures();
        tracing::error!(browser = %id, ?took, failures, circuit_open = self.breaker.is_open(), %error, "launch failed");
        self.changed.notify_one();
        let waiting = match kept.purpose {
            Purpose::Session(lease) => self.book.take_waiting(lease),
            // Somebody is told only if no other launch is on its way for them.
            Purpose::Pool if self.book.waiting.len() > self.book.count(BrowserState::Launching) => {
                self.book.next_plain()
            }
            Purpose::Pool => None,
        };
        if let Some(waiting) = waiting {
            self.metrics.leased("failed");
            let _ = waiting.reply.send(Err(LeaseError::LaunchFailed(error.to_string())));
        }
    }

    // --- ends ---

    fn troubled(&mut self, id: BrowserId, trouble: Trouble) {
        let Some(kept) = self.book.get(id) else { return };
        let state = kept.state;
        if !matches!(state, BrowserState::Warm | BrowserState::Leased) {
            return;
        }
        let (reason, detail) = verdict(&trouble);
        if matches!(trouble, Trouble::Hung(_)) {
            self.metrics.hung.inc();
        }
        if let Some(Beginning { reply }) = self.book.get_mut(id).and_then(|kept| kept.beginning.take()) {
            // Nobody has used it yet: the session is placed again, not ended.
            let more = detail.map(|text| format!(": {text}")).unwrap_or_default();
            self.not_begun(
                id,
                reply,
                format!("the program ended before it took its session ({reason}{more})"),
            );
            return;
        }
        match state {
            BrowserState::Leased if reason == EndReason::Released => {}
            BrowserState::Leased => self.breaker.crashed(self.clock.now()),
            _ => self.breaker.failed(self.clock.now()),
        }
        tracing::warn!(browser = %id, state = state.as_str(), %reason, detail, "browser ended by itself");
        self.close(id, Some((reason, detail)));
    }

    /// Begins the end of a browser. With a verdict, its session is told first.
    pub(super) fn close(&mut self, id: BrowserId, verdict: Option<(EndReason, Option<String>)>) {
        let was_launching = self
            .book
            .get(id)
            .is_some_and(|kept| kept.state == BrowserState::Launching);
        if !self.book.step(id, BrowserEvent::Close) {
            return;
        }
        if let Some(lease) = self.book.lease_of(id) {
            self.held.write().remove(&lease.0);
        }
        if let Some(kept) = self.book.get_mut(id) {
            kept.stop.cancel();
            if let Some(Beginning { reply }) = kept.beginning.take() {
                let _ = reply.send(Err(LeaseError::Withdrawn));
            }
        }
        if !was_launching {
            self.kill(id, verdict);
        }
    }

    fn kill(&mut self, id: BrowserId, verdict: Option<(EndReason, Option<String>)>) {
        let Some(browser) = self.book.get(id).and_then(|kept| kept.browser.clone()) else {
            return;
        };
        let lease = self.book.lease_of(id);
        // Who was found hung is not asked: the answer would be the limit.
        let is_hung = matches!(verdict, Some((EndReason::BrowserHung, _)));
        let asked = (lease.is_some() && !is_hung).then_some(self.config.forward_timeout);
        let (uplink, events) = (self.uplink.clone(), self.events.clone());
        self.tasks.spawn(async move {
            let told = async {
                if let (Some((session, epoch)), Some((reason, detail))) = (lease, verdict) {
                    uplink.ended(session, epoch, reason, detail).await;
                }
            };
            let ended = async {
                if let Some(limit) = asked {
                    program::finish(browser.as_ref(), limit).await;
                }
                browser.kill().await;
            };
            // At once, but the slot is given back only after both.
            tokio::join!(told, ended);
            let _ = events.send(Event::Gone { id }).await;
            browser.files_removed().await;
        });
    }

    fn gone(&mut self, id: BrowserId) {
        self.book.step(id, BrowserEvent::Gone);
        if let Some(lease) = self.book.remove(id).and_then(|kept| kept.lease) {
            self.book.leases.remove(&lease);
            self.vacate(lease);
        }
    }

    // --- time ---

    pub(super) fn tick(&mut self) {
        self.is_pressed = is_pressed();
        let (rules, view) = (self.rules(), self.view());
        if matches!(self.mode, Mode::Serving) && self.shrink.tick(&rules, &view) {
            // The youngest goes: the oldest has settled best.
            if let Some(id) = self.book.warm.back().copied() {
                tracing::debug!(browser = %id, "retired for want of demand");
                self.metrics.retired.inc();
                self.close(id, None);
            }
        }
        self.measure();
    }

    fn measure(&self) {
        let browsers: Vec<_> = self.book.iter().filter_map(|(_, kept)| kept.browser.clone()).collect();
        // Reading memory costs milliseconds a tree: a sample of eight is enough for a budget.
        let total = browsers.len();
        let sample: Vec<_> = browsers.into_iter().take(8).collect();
        let events = self.events.clone();
        if total == 0 || self.config.warm.memory_budget.is_none() {
            return;
        }
        self.tasks.spawn(async move {
            let taken = sample.len();
            let sum =
                tokio::task::spawn_blocking(move || sample.iter().filter_map(|b| b.pss_bytes()).sum::<u64>()).await;
            if let Ok(sum) = sum {
                let used = sum / taken as u64 * total as u64;
                let _ = events.send(Event::Measured { used, browsers: total }).await;
            }
        });
    }

    /// How long until the breaker allows what it now forbids.
    pub(super) fn until_next_launch(&self) -> Option<Duration> {
        let left = self.breaker.next_launch_at().since(self.clock.now());
        (matches!(self.mode, Mode::Serving) && !left.is_zero()).then_some(left)
    }

    // --- drain and stop ---

    fn drain(&mut self) {
        if matches!(self.mode, Mode::Serving) {
            self.mode = Mode::Draining;
            let idle: Vec<_> = self.unleased();
            for id in idle {
                self.close(id, None);
            }
            self.withdraw_waiting();
        }
    }

    pub(super) fn stop(&mut self, reason: EndReason, done: Option<oneshot::Sender<()>>) {
        self.drain();
        self.mode = Mode::Stopping(done);
        let leased: Vec<_> = self.book.leases.values().copied().collect();
        for id in leased {
            self.close(id, Some((reason, None)));
        }
    }

    fn unleased(&self) -> Vec<BrowserId> {
        let idle = |kept: &Kept| matches!(kept.state, BrowserState::Launching | BrowserState::Warm);
        self.book
            .iter()
            .filter(|(_, kept)| idle(kept))
            .map(|(id, _)| id)
            .collect()
    }

    fn withdraw_waiting(&mut self) {
        for waiting in std::mem::take(&mut self.book.waiting) {
            let _ = waiting.reply.send(Err(LeaseError::Draining));
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        matches!(self.mode, Mode::Stopping(_)) && self.book.is_empty()
    }

    pub(super) fn finish(self) {
        if let Mode::Stopping(Some(done)) = self.mode {
            let _ = done.send(());
        }
        self.changed.notify_one();
    }

    // --- seeing ---

    fn rules(&self) -> WarmRules {
        let usual = self.config.warm;
        WarmRules {
            parallel_launches: self.breaker.lanes(usual.parallel_launches),
            ..usual
        }
    }

    fn view(&mut self) -> WarmView {
        WarmView {
            memory_used: self.memory.0,
            memory_each: self.memory.1,
            is_pressed: self.is_pressed,
            demand: self.demand.warm(self.clock.now()),
            ..self.book.view()
        }
    }

    fn status(&self) -> WorkerStatus {
        let view = self.book.view();
        WorkerStatus {
            held: self.book.held(),
            pids: self
                .book
                .iter()
                .filter_map(|(_, kept)| Some(kept.browser.as_ref()?.pid()))
                .collect(),
            warm: view.warm,
            launching: view.launching,
            leased: view.leased,
            closing: view.closing,
            is_circuit_open: self.breaker.is_open(),
            is_draining: !matches!(self.mode, Mode::Serving),
            served: self.served,
        }
    }

    pub(super) fn publish(&self) {
        let mut up = 0;
        for state in BrowserState::COUNTED {
            let count = i64::try_from(self.book.count(state)).unwrap_or(i64::MAX);
            up += if state == BrowserState::Launching { 0 } else { count };
            self.metrics
                .browsers
                .get_or_create(&StateLabel { state: state.as_str() })
                .set(count);
        }
        self.metrics.workers_current.set(up);
        let launching = self.book.count(BrowserState::Launching);
        self.metrics
            .workers_pending
            .set(i64::try_from(launching).unwrap_or(i64::MAX));
        self.metrics.circuit_open.set(i64::from(self.breaker.is_open()));
        let counts = (self.book.count(BrowserState::Warm), launching);
        self.counts
            .send_if_modified(|known| std::mem::replace(known, counts) != counts);
    }
}

/// Whether the host is short of memory or CPU, where the kernel tells (PSI, percent of the last ten seconds).
fn is_pressed() -> bool {
    let above = |resource, limit| pressure(resource).is_some_and(|pressure| pressure.some > limit);
    above(Resource::Memory, 10.0) || above(Resource::Cpu, 90.0)
}

/// The end reason that a browser's trouble means for its session, and more about it for people.
pub(super) fn verdict(trouble: &Trouble) -> (EndReason, Option<String>) {
    match trouble {
        // `Browser.close` from a client: the process leaves in good order.
        Trouble::Exited(Exit::Clean) => (
            EndReason::Released,
            Some("the browser was closed by its client".to_owned()),
        ),
        Trouble::Exited(Exit::OutOfMemory { used, limit }) => (EndReason::OutOfMemory, Some(amounts(*used, *limit))),
        Trouble::Exited(Exit::Crashed { status, detail }) => {
            let how = match status {
                ExitStatus::Code(code) => format!("exit code {code}"),
                ExitStatus::Signal(signal) => format!("signal {signal}"),
            };
            let words = if detail.is_empty() {
                how
            } else {
                format!("{how}: {detail}")
            };
            (EndReason::BrowserCrashed, Some(words))
        }
        Trouble::Exited(Exit::Killed) => (EndReason::Internal, Some("killed by us without a reason".to_owned())),
        Trouble::Hung(text) => (EndReason::BrowserHung, Some(text.clone())),
        Trouble::Greedy { used, limit } => (EndReason::OutOfMemory, Some(amounts(Some(*used), Some(*limit)))),
    }
}

fn amounts(used: Option<u64>, limit: Option<u64>) -> String {
    let text = |bytes: Option<u64>| bytes.map_or("?".to_owned(), |bytes| format!("{} MiB", bytes >> 20));
    format!("used {} of {}", text(used), text(limit))
}
