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
use wharf_testkit::{Fleet, Member, fleet};

use crate::{
    balancer::Balancer,
    book::{Book, FaultId, Sort},
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
    /// The fault that is over when it serves again; none if it ended by itself.
    fault: Option<FaultId>,
    /// It was asked to end, and has to do so properly.
    is_asked: bool,
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
        let picked = match fault {
            Fault::KillBrowser(worker, pick) | Fault::PauseBrowser(worker, pick, _) => self.browser(worker, pick),
            _ => None,
        };
        let is_void = match fault {
            // None is there at this moment.
            Fault::KillBrowser(..) | Fault::PauseBrowser(..) => picked.is_none(),
            Fault::Cut(Line::Store(_), _) | Fault::Blackhole(Line::Store(_), _) => !self.has_store_lines,
            _ => false,
        };
        if is_void {
            return Ok(());
        }
        let id = self.book.begin(fault);
        match fault {
            Fault::Kill(who, down) => {
                self.member(who).kill9()?;
                self.note_down(who);
                self.restart_in(who, down, Some(id), false);
            }
            Fault::Terminate(who) => {
                self.member(who).signal(Signal::TERM)?;
                self.restart_in(who, POLL, Some(id), true);
            }
            Fault::Pause(who, span) => self.pause(who, span, id)?,
            Fault::KillBrowser(..) => {
                if let Some(browser) = picked {
                    browser.send(Signal::KILL);
                }
                self.book.over(id);
            }
            Fault::PauseBrowser(_, _, span) => {
                if let Some(browser) = picked {
                    browser.send(Signal::STOP);
                    self.undo_in(span, id, move || {
                        browser.send(Signal::CONT);
                    });
                }
            }
            Fault::RestartStore => {
                self.restart_store().await?;
                self.book.over(id);
            }
            Fault::PauseStore(span) => {
                self.pause_store(span).await?;
                self.book.over(id);
            }
            Fault::ReloadBalancer => {
                self.balancer.reload()?;
                self.book.over(id);
            }
            Fault::KillBalancer(down) => {
                self.balancer.kill()?;
                sleep(down).await;
                self.balancer.start().await?;
                self.book.over(id);
            }
            Fault::Cut(line, span) => self.disturb(line, span, id, fleet::Line::cut)?,
            Fault::Blackhole(line, span) => self.disturb(line, span, id, fleet::Line::blackhole)?,
        }
        Ok(())
    }

    /// Undoes a fault by itself, whatever the conductor does then.
    fn undo_in(&mut self, span: Duration, id: FaultId, undo: impl FnOnce() + Send + 'static) {
        let book = self.book.clone();
        self.undoing.spawn(async move {
            sleep(span).await;
            undo();
            book.over(id);
        });
    }

    fn pause(&mut self, who: Who, span: Duration, id: FaultId) -> Result<()> {
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
        self.undo_in(span, id, move || {
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

    fn disturb(&mut self, line: Line, span: Duration, id: FaultId, how: fn(&fleet::Line) -> Result<()>) -> Result<()> {
        let line = match line {
            Line::Gateway(worker) => self.fleet.line_of_gateway(worker),
            Line::Uplink(worker) => self.fleet.line_of_uplink(worker),
            Line::Store(coordinator) => fleet::Line::Proxy(self.fleet.cutter_of_store(coordinator).clone()),
        };
        how(&line)?;
        let book = self.book.clone();
        self.undo_in(span, id, move || {
            if let Err(error) = line.heal() {
                book.finding(Sort::Rest, format!("a line could not be healed: {error:#}"));
            }
        });
        Ok(())
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

    fn restart_in(&mut self, who: Who, span: Duration, fault: Option<FaultId>, is_asked: bool) {
        let now = Instant::now();
        self.restarts.push(Restart {
            who,
            due: now + span,
            since: now,
            fault,
            is_asked,
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
        if restart.is_asked {
            self.ended_well(who).await;
        }
        if let Who::Worker(worker) = who {
            // From here on it may have browsers, long before it is ready.
            self.roster.change(worker, |post| post.down_since = None);
        }
        match self.member(who).start_again().await {
            Ok(()) => {
                if let Some(id) = restart.fault {
                    self.book.over(id);
                }
            }
            Err(error) => {
                eprintln!("chaos: {who:?} did not start: {error:#}");
                if since.elapsed() > STARTS_WITHIN {
                    let text = format!("{who:?} did not come back within {STARTS_WITHIN:?}: {error:#}");
                    self.book.finding(Sort::Rest, text);
                }
                // One that hangs in its start is killed, as a supervisor's start limit does.
                let _ = self.member(who).kill9();
                self.note_down(who);
                restart.due = Instant::now() + 5 * POLL;
                restart.is_asked = false;
                self.restarts.push(restart);
            }
        }
    }

    /// One that was told to end says goodbye with 0, and a worker leaves nothing.
    async fn ended_well(&mut self, who: Who) {
        let member = self.member(who);
        // Its first thread may be gone a moment before the others, and then it has no status yet.
        let (status, run_dir) = (member.wait_end().await, member.run_dir());
        if !status.as_ref().is_ok_and(std::process::ExitStatus::success) {
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
            self.restart_in(who, POLL, None, false);
        }
    }
}
