//! `scale`: what coordinators and store do with thousands of sessions, and how the cost of each grows with the fleet.
//!
//! Run it with `cargo xtask scale`; `docs/internals/scale.md` says what is measured. Figures are for reports: nothing here
//! asserts.
//!
//! Layout: [`options`] · [`engine`] (the store's server), [`sim`] (workers without browsers), [`api`] (the client) · [`bed`] (one
//! fleet) · [`load`], [`gauge`], [`step`] (one fleet, measured), [`raw`] (the store alone) · [`table`].
//!
//! Invariant: nothing it starts outlives it.

mod api;
mod bed;
mod engine;
mod gauge;
mod load;
mod options;
mod raw;
mod sim;
mod step;
mod table;

use std::process::ExitCode;

use anyhow::{Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use wharf_e2e::machine::load_average;

use crate::{engine::Engine, options::Options, raw::Raw, step::Step};

#[tokio::main]
async fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("scale: {problem}\n\n{}", options::HELP);
            return ExitCode::from(64);
        }
    };
    if options.help {
        print!("{}", options::HELP);
        return ExitCode::SUCCESS;
    }
    // Dropping the run ends the fleet.
    let outcome = tokio::select! {
        outcome = run(&options) => outcome,
        () = told_to_stop() => Err(anyhow::anyhow!("stopped by a signal")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("scale: {error:#}");
            ExitCode::FAILURE
        }
    }
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

/// Every waiter is a connection: as many files as we may have, and enough of them.
fn raise_file_limit(options: &Options) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let _ = setrlimit(Resource::Nofile, wanted);
    let (have, need) = (getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX), options.files());
    ensure!(
        have >= need,
        "{need} open files may be needed and {have} are allowed: raise `ulimit -n`, or lower --waiting"
    );
    Ok(())
}

async fn run(options: &Options) -> Result<()> {
    raise_file_limit(options)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!(
        "{cores} cores, shared by coordinators, store, simulated workers and clients; load {} before",
        load_average()
    );
    println!("{} requests in flight, {:?} each", options.in_flight, options.span);
    for store in &options.stores {
        let plan = options.plan(*store);
        if options.raw {
            let mut all = Vec::new();
            for (engine, _) in &plan {
                all.extend(alone(*engine, options).await?);
            }
            println!("{}", table::raw(&all));
        }
        if options.fleet {
            let mut steps = Vec::new();
            for (engine, sizes) in plan {
                for workers in sizes {
                    steps.push(Step::measure(engine, workers, options).await?);
                }
            }
            println!("{}", table::fleet(&steps));
        }
    }
    println!("load {} after", load_average());
    Ok(())
}

/// The store alone, on a server of its own.
async fn alone(engine: Engine, options: &Options) -> Result<Vec<Raw>> {
    let server = engine.start().await?;
    let mut all = Vec::new();
    for replicas in [1, 3] {
        eprintln!("scale: {}, {}: {replicas} replicas", engine.name(), engine.durability());
        all.push(raw::measure(engine, &server.url(), replicas, options).await?);
    }
    Ok(all)
}
