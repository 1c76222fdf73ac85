//! `chaos`: breaks a real fleet on purpose, with clients at work, and proves that nothing was lost that need not be.
//!
//! Run it with `cargo xtask chaos`; `docs/internals/chaos.md` says what it does and how to read what it finds.
//!
//! Layout:
//! - [`options`], [`table`]: the command line and what comes out
//! - [`schedule`], [`plan`]: which faults, which visits; pure, from the seed
//! - [`conductor`], [`balancer`]: the faults done · [`client`], [`visits`], [`outcome`]: the clients and what they are told
//! - [`watch`], [`kernel`], [`follow`]: what is looked at meanwhile · [`rest`]: the verdict afterwards
//! - [`book`]: the account · [`blame`]: which fault explains what · [`told`]: how soon clients learned of it
//!
//! Invariant: nothing it starts outlives it; what must not happen makes it end with 1.

mod balancer;
mod blame;
mod book;
mod client;
mod conductor;
mod follow;
mod kernel;
mod options;
mod outcome;
mod plan;
mod rest;
mod schedule;
mod table;
mod told;
mod visits;
mod watch;

use std::{fs, path::Path, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use parking_lot::RwLock;
use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use wharf_store::Store as _;
use wharf_testkit::{BrowserUnderTest, Fleet, FleetStore, fleet::hosts};

use crate::{
    balancer::Balancer,
    book::{Book, Sort},
    client::{LIMIT, World},
    conductor::Conductor,
    follow::Heard,
    kernel::{Post, Roster},
    options::{Means, Options},
    rest::Account,
    schedule::{Planned, Size},
};

/// A visit under way when the faults end may still wait for all its limits.
const VISITS_END_WITHIN: Duration = Duration::from_secs(150);

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("chaos: {problem}\n\n{}", options::HELP);
            return ExitCode::from(64);
        }
    };
    if options.help {
        print!("{}", options::HELP);
        return ExitCode::SUCCESS;
    }
    // The same whatever the means: a seed is a seed.
    let size = Size {
        coordinators: options.coordinators,
        workers: options.workers,
        lines: true,
    };
    let planned = schedule::schedule(options.seed, size, options.length);
    // Before anything is printed: this process may begin anew.
    let means = match options.schedule_only {
        true => Ok(Means::Proxies),
        false => choose(options.lines),
    };
    println!("seed {}: {} faults", options.seed, planned.len());
    planned.iter().for_each(|planned| println!("{planned}"));
    if options.schedule_only {
        return ExitCode::SUCCESS;
    }
    match means.and_then(|means| play(&options, means, &planned)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("chaos: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Namespaces where this machine has them: then this process begins anew in one of its own, and comes back here.
fn choose(wish: Option<Means>) -> Result<Means> {
    if hosts::is_inside() {
        eprintln!("chaos: lines are namespaces: each worker is a host of its own");
        return Ok(Means::Namespaces);
    }
    let why = match wish {
        Some(Means::Proxies) => "as asked for".to_owned(),
        _ => match hosts::probe() {
            Ok(()) => format!("{:#}", hosts::enter()),
            Err(why) => format!("no namespaces here: {why}"),
        },
    };
    ensure!(wish != Some(Means::Namespaces), "{why}");
    eprintln!("chaos: lines are proxies: {why}");
    Ok(Means::Proxies)
}

/// The run, or its end by a signal: dropping it ends the fleet.
fn play(options: &Options, means: Means, planned: &[Planned]) -> Result<bool> {
    let runtime = tokio::runtime::Runtime::new().context("could not start the runtime")?;
    runtime.block_on(async {
        tokio::select! {
            outcome = run(options, means, planned) => outcome,
            () = told_to_stop() => Err(anyhow::anyhow!("stopped by a signal")),
        }
    })
}

/// SIGINT or SIGTERM.
async fn told_to_stop() {
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        },
        Err(_) => std::future::pending().await,
    }
}

/// The whole run; whether all is well.
async fn run(options: &Options, means: Means, planned: &[Planned]) -> Result<bool> {
    let mut builder = Fleet::builder()
        .store(options.store)
        .coordinators(options.coordinators)
        .workers(options.workers)
        .slots(options.slots)
        .balancer(true)
        .cutters(true)
        .hosts(means == Means::Namespaces)
        .flag("--drain-timeout=4s")
        .flag("--log=info,wharf_coordinator=debug,wharf_worker=debug,wharf_fleet=debug")
        .coordinator_flag("--ping-interval=5s")
        .coordinator_flag("--dead-after=20s");
    let real = options.browsers.real_workers(options.workers);
    for worker in options.workers - real..options.workers {
        builder = builder.browser_at(worker, BrowserUnderTest::HeadlessShell);
    }
    let mut fleet = builder.start().await?;
    let book = Arc::new(Book::new(means, options.store == FleetStore::RedisCluster));
    // Workers say goodbye through it: it goes last.
    let mut balancer = Balancer::of(&fleet);
    let account = match break_it(&mut fleet, &mut balancer, options, planned, &book).await {
        Ok(account) => Some(account),
        Err(error) => {
            book.finding(Sort::Rest, format!("{error:#}"));
            None
        }
    };
    let logs = keep_logs(&fleet, options)?;
    if let Err(error) = fleet.finish().await {
        book.finding(Sort::Leak, format!("the fleet did not end tidily: {error:#}"));
    }
    let is_well = book.read(|pages| {
        println!("\n{}", table::table(options, means, pages, account.as_ref()));
        for (sort, text) in &pages.findings {
            println!("FINDING ({sort:?}) {text}");
        }
        pages.findings.is_empty()
    });
    match (is_well, &options.logs) {
        (true, None) => drop(logs),
        _ => println!("logs: {}", logs.keep().display()),
    }
    Ok(is_well)
}

async fn break_it(
    fleet: &mut Fleet,
    balancer: &mut Balancer,
    options: &Options,
    planned: &[Planned],
    book: &Arc<Book>,
) -> Result<Account> {
    let coordinators: Vec<_> = fleet.coordinators().iter().map(wharf_testkit::Member::addr).collect();
    let workers: Vec<_> = fleet.workers().iter().map(|worker| worker.id().ok()).collect();
    let world = Arc::new(World {
        book: book.clone(),
        seed: options.seed,
        door: fleet.front(),
        coordinators,
        workers: RwLock::new(workers),
    });
    let slots = options.slots as usize;
    let posts = fleet.workers().iter().map(|worker| Post {
        run_dir: worker.run_dir(),
        slots,
        down_since: None,
        is_held: false,
    });
    let roster = Arc::new(Roster::new(posts.collect()));
    let observer = watch::observer(&fleet.store().url()).await?;
    let heard = Arc::new(Heard::default());

    let (no_more_visits, stop) = (CancellationToken::new(), CancellationToken::new());
    let mut clients = JoinSet::new();
    for client in 0..options.clients {
        clients.spawn(visits::work(world.clone(), client, no_more_visits.clone()));
    }
    let mut watching = JoinSet::new();
    watching.spawn(watch::store(observer.clone(), book.clone(), stop.clone()));
    watching.spawn(watch::kernel(roster.clone(), book.clone(), stop.clone()));
    watching.spawn(watch::progress(book.clone(), heard.clone(), stop.clone()));
    let mut followers = JoinSet::new();
    for first in 0..options.coordinators {
        followers.spawn(follow::follow(world.clone(), heard.clone(), first, stop.clone()));
    }

    let has_store_lines = options.store != FleetStore::RedisCluster;
    let mut conductor = Conductor::new(fleet, balancer, book.clone(), roster.clone(), has_store_lines);
    conductor.run(planned).await;
    eprintln!("chaos: the faults are over; {} clients finish", clients.len());
    no_more_visits.cancel();
    let ended = tokio::time::timeout(VISITS_END_WITHIN, async {
        while clients.join_next().await.is_some() {}
    });
    if ended.await.is_err() {
        let text = format!(
            "{} clients did not finish within {VISITS_END_WITHIN:?} (each has {LIMIT:?})",
            clients.len()
        );
        book.finding(Sort::Unanswered, text);
        clients.shutdown().await;
    }
    let account = rest::check(&world, &observer, &roster, &heard).await;
    stop.cancel();
    while let Some(last) = followers.join_next().await {
        let (last, newest) = (last?, heard.newest());
        // One that was between two streams has missed the very last words; more than those it has not.
        if newest.saturating_sub(last) > 200 {
            book.finding(Sort::Events, format!("a follower ends at {last}, another at {newest}"));
        }
    }
    while watching.join_next().await.is_some() {}
    observer.close().await.context("could not close the observer")?;
    account
}

/// Copies every member's log; the directory goes with its value unless it is kept.
fn keep_logs(fleet: &Fleet, options: &Options) -> Result<tempfile::TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("wharf-chaos-logs-");
    let dir = match &options.logs {
        Some(place) => {
            fs::create_dir_all(place)?;
            builder.tempdir_in(place)?
        }
        None => builder.tempdir()?,
    };
    for member in fleet.members() {
        copy_if_there(&member.log_file(), &dir.path().join(format!("{}.log", member.name())))?;
    }
    copy_if_there(
        &fleet.home().join("nginx/access.log"),
        &dir.path().join("nginx-access.log"),
    )?;
    Ok(dir)
}

fn copy_if_there(from: &Path, to: &Path) -> Result<()> {
    if from.exists() {
        fs::copy(from, to)?;
    }
    Ok(())
}
