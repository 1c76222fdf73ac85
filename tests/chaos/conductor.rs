//! The conductor: does what the schedule says to the fleet, and undoes it in time.
//!
//! Its own file because it alone holds the fleet. What only needs a signal or a line is undone by tasks of their own, so
//! that a member that is slow to start delays further faults but lengthens none. The store is held by the conductor itself:
//! nobody is started while it is away.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use rustix::process::Signal;
use tokio::{task::JoinSet, time::sleep};
use wharf_testkit::{Cutter, Fleet, Member};

use crate::{
    balancer::Balancer,
    book::{Book, Sort},
    kernel::{self, Handle, Roster},
    schedule::{Fault, Line, Planned, Who},
};

/// Between looks at a member that is to end.
const POLL: Duration = Duration::from_millis(100);
/// Drain (4 s) and clean-up (10 s), on a machine that is busy with everything else.
const ENDS_WITHIN: Duration = Duration::from_secs(40);
/// A supervisor would try for ever; a member that does not come back for this long is a finding.
const STARTS_WITHIN: Duration = Duration::from_secs(60);
/// The prefix of the grid's keys on Redis.
const PREFIX: &str = "wharf";

pub struct Conductor<'a> {
    fleet: &'a mut Fleet,
    balancer: &'a mut Balancer,
    book: Arc<Book>,
    roster: Arc<Roster>,
    has_store_lines: bool,
    undoing: JoinSet<()>,
    restarts: Vec<Restart>,
}

/// A member that is down and is to be started.
struct Restart {
    who: Who,
    due: Instant,
    since: Instant,
    fault: Fault,
}

// === impl Conductor ===

impl<'a> Conductor<'a> {
    pub fn new(
        fleet: &'a mut Fleet,
        balancer: &'a mut Balancer,
        book: Arc<Book>,
        roster: Arc<Roster>,
        has_store_lines: bool,
    ) -> Self {
        Self {
            fleet,
            balancer,
            book,
            roster,
            has_store_lines,
            undoing: JoinSet::new(),
            restarts: Vec::new(),
        }
    }

    /// All of the schedule; then everybody is up again.
    pub async fn run(&mut self, planned: &[Planned]) {
        let started = Instant::now();
        for next in planned {
            loop {
                self.bring_back().await;
                let left = next.at.saturating_sub(started.elapsed());
                if left.is_zero() {
                    break;
                }
                sleep(left.min(POLL)).await;
            }
            eprintln!("chaos: {:>8.3} s  {:?}", started.elapsed().as_secs_f64(), next.fault);
            if let Err(error) = self.inject(next.fault).await {
                self.book
                    .finding(Sort::Rest, format!("{:?} could not be done: {error:#}", next.fault));
            }
        }
        while self.undoing.join_next().await.is_some() {}
        while !self.restarts.is_empty() {
            self.bring_back().await;
            sleep(POLL).await;
        }
    }

    fn member(&mut self, who: Who) -> &mut Member {
        match who {
            Who::Coordinator(index) => &mut self.fleet.coordinators()[index],
            Who::Worker(index) => &mut self.fleet.workers()[index],
        }
    }

    fn note_down(&self, who: Who) {
        if let Who::Worker(worker) = who {
            self.roster
                .change(worker, |post| post.down_since = Some(Instant::now()));
        }
    }

    async fn inject(&mut self, fault: Fault) -> Result<()> {
        let (_, lasts) = fault.takes();
        match fault {
            Fault::Kill(who, down) => {
                self.book.fault(fault, lasts);
                self.member(who).kill9()?;
                self.note_down(who);
                self.restart_in(who, down, fault);
            }
            Fault::Terminate(who) => {
                self.book.fault(fault, lasts);
                self.member(who).signal(Signal::TERM)?;
                self.restart_in(who, POLL, fault);
            }
            Fault::Pause(who, span) => {
                self.book.fault(fault, lasts);
                self.pause(who, span)?;
            }
            Fault::KillBrowser(worker, pick) => {
                let Some(browser) = self.browser(worker, pick) else {
                    return Ok(());
                };
                self.book.fault(fault, lasts);
                browser.send(Signal::KILL);
            }
            Fault::PauseBrowser(worker, pick, span) => {
                let Some(browser) = self.browser(worker, pick) else {
                    return Ok(());
                };
                self.book.fault(fault, span);
                browser.send(Signal::STOP);
                self.undoing.spawn(async move {
                    sleep(span).await;
                    browser.send(Signal::CONT);
                });
            }
            Fault::RestartStore => {
                self.book.fault(fault, lasts);
                self.restart_store().await?;
                self.book.fault_over(fault);
            }
            Fault::PauseStore(span) => {
                self.book.fault(fault, lasts);
                self.pause_store(span).await?;
                self.book.fault_over(fault);
            }
            Fault::ReloadBalancer => {
                self.book.fault(fault, lasts);
                self.balancer.reload()?;
            }
            Fault::KillBalancer(down) => {
                self.book.fault(fault, lasts);
                self.balancer.kill()?;
                sleep(down).await;
                self.balancer.start().await?;
                self.book.fault_over(fault);
            }
            Fault::Cut(line, span) => self.disturb(line, span, fault, Cutter::cut),
            Fault::Blackhole(line, span) => self.disturb(line, span, fault, Cutter::blackhole),
        }
        Ok(())
    }

    fn pause(&mut self, who: Who, span: Duration) -> Result<()> {
        let member = self.member(who);
        member.pause()?;
        let Some(handle) = Handle::on(member.pid()) else {
            return Ok(());
        };
        let roster = self.roster.clone();
        let hold = move |is_held| {
            if let Who::Worker(worker) = who {
                roster.change(worker, |post| post.is_held = is_held);
            }
        };
        hold(true);
        self.undoing.spawn(async move {
            sleep(span).await;
            handle.send(Signal::CONT);
            hold(false);
        });
        Ok(())
    }

    /// The first process of one of a worker's browsers.
    fn browser(&mut self, worker: usize, pick: u64) -> Option<Handle> {
        let browsers = kernel::browsers(&self.fleet.worker(worker).run_dir());
        let count = u64::try_from(browsers.len()).ok().filter(|count| *count > 0)?;
        let nth = usize::try_from(pick % count).ok()?;
        let pids = browsers.into_values().nth(nth)?;
        pids.into_iter().min().and_then(Handle::on)
    }

    fn disturb(&mut self, line: Line, span: Duration, fault: Fault, how: fn(&Cutter)) {
        let cutter = match line {
            Line::Gateway(worker) => self.fleet.cutter_of_gateway(worker),
            Line::Uplink(worker) => self.fleet.cutter_of_uplink(worker),
            Line::Store(_) if !self.has_store_lines => return,
            Line::Store(coordinator) => self.fleet.cutter_of_store(coordinator),
        };
        let cutter = cutter.clone();
        self.book.fault(fault, span);
        how(&cutter);
        self.undoing.spawn(async move {
            sleep(span).await;
            cutter.heal();
        });
    }

    /// A server restarts; a cluster fails over, and the old primary comes back as a replica.
    async fn restart_store(&mut self) -> Result<()> {
        let store = self.fleet.store();
        let Some(cluster) = store.cluster() else {
            return store.restart().await;
        };
        let (old, _) = cluster.fail_over(PREFIX).await?;
        cluster.node_mut(old).restart().await
    }

    async fn pause_store(&mut self, span: Duration) -> Result<()> {
        let store = self.fleet.store();
        let Some(cluster) = store.cluster() else {
            store.pause()?;
            sleep(span).await;
            return self.fleet.store().resume();
        };
        let primary = cluster.primary_of(PREFIX).await?;
        cluster.node(primary).pause()?;
        sleep(span).await;
        cluster.node(primary).resume()
    }

    fn restart_in(&mut self, who: Who, span: Duration, fault: Fault) {
        let now = Instant::now();
        self.restarts.push(Restart {
            who,
            due: now + span,
            since: now,
            fault,
        });
    }

    /// Starts what is due, and what ended without being told to.
    async fn bring_back(&mut self) {
        self.look_for_the_dead();
        let Some(index) = self.restarts.iter().position(|restart| restart.due <= Instant::now()) else {
            return;
        };
        let mut restart = self.restarts.swap_remove(index);
        let (who, since) = (restart.who, restart.since);
        if self.member(who).is_running() {
            if since.elapsed() > ENDS_WITHIN {
                let tail = self.member(who).log_tail();
                let text = format!("{who:?} did not end within {ENDS_WITHIN:?} of SIGTERM; its log ends:\n{tail}");
                self.book.finding(Sort::Rest, text);
                let _ = self.member(who).kill9();
            }
            restart.due = Instant::now() + POLL;
            self.restarts.push(restart);
            return;
        }
        if matches!(restart.fault, Fault::Terminate(_)) {
            self.ended_well(who);
        }
        match self.member(who).start_again().await {
            Ok(()) => {
                if let Who::Worker(worker) = who {
                    self.roster.change(worker, |post| post.down_since = None);
                }
                self.book.fault_over(restart.fault);
            }
            Err(error) => {
                eprintln!("chaos: {who:?} did not start: {error:#}");
                if since.elapsed() > STARTS_WITHIN {
                    let text = format!("{who:?} did not come back within {STARTS_WITHIN:?}: {error:#}");
                    self.book.finding(Sort::Rest, text);
                }
                // One that hangs in its start is killed, as a supervisor's start limit does.
                let _ = self.member(who).kill9();
                restart.due = Instant::now() + 5 * POLL;
                restart.fault = Fault::Kill(who, Duration::ZERO);
                self.restarts.push(restart);
            }
        }
    }

    /// One that was told to end says goodbye with 0, and a worker leaves nothing.
    fn ended_well(&mut self, who: Who) {
        let member = self.member(who);
        let (status, run_dir) = (member.ended(), member.run_dir());
        if status.is_none_or(|status| !status.success()) {
            let text = format!(
                "{who:?} ended with {status:?} after SIGTERM; its log ends:\n{}",
                member.log_tail()
            );
            self.book.finding(Sort::Rest, text);
        }
        let (left, dirs) = (kernel::browsers(&run_dir), kernel::directories(&run_dir));
        if !left.is_empty() || !dirs.is_empty() {
            let text = format!("{who:?} ended after SIGTERM and left {left:?} {dirs:?}");
            self.book.finding(Sort::Leak, text);
        }
    }

    fn look_for_the_dead(&mut self) {
        let workers = self.fleet.workers().len();
        let all = (0..workers).map(Who::Worker);
        let all = all.chain((0..self.fleet.coordinators().len()).map(Who::Coordinator));
        for who in all.collect::<Vec<_>>() {
            let is_expected = self.restarts.iter().any(|restart| restart.who == who);
            if is_expected || self.member(who).is_running() {
                continue;
            }
            let member = self.member(who);
            let text = format!(
                "{who:?} ended by itself ({:?}); its log ends:\n{}",
                member.ended(),
                member.log_tail()
            );
            self.book.finding(Sort::Rest, text);
            self.note_down(who);
            self.restart_in(who, POLL, Fault::Kill(who, Duration::ZERO));
        }
    }
}
