//! `scale`: what coordinators and store do with thousands of sessions, and how the cost of each grows with the fleet.
//!
//! Run it with `cargo xtask scale`; `docs/internals/scale.md` says what is measured. Figures are for reports: nothing here
//! asserts.
//!
//! Layout: [`options`] · [`sim`] (workers without browsers), [`api`] (the client) · [`load`], [`gauge`], [`step`] (one fleet,
//! measured), [`raw`] (the store alone) · [`table`].
//!
//! Invariant: nothing it starts outlives it.

mod api;
mod gauge;
mod load;
mod options;
mod raw;
mod sim;
mod step;
mod table;

use std::process::ExitCode;

use anyhow::Result;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use wharf_e2e::machine::load_average;
use wharf_testkit::{FleetStore, postgres, redis};

use crate::options::Options;

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
    // Every waiter is a connection.
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
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

async fn run(options: &Options) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!(
        "{cores} cores, shared by coordinators, store, simulated workers and clients; load {} before",
        load_average()
    );
    println!("{} requests in flight, {:?} each", options.in_flight, options.span);
    for store in &options.stores {
        let name = options::name(*store);
        if options.raw {
            println!("{}", table::raw(name, &alone(*store, options).await?));
        }
        if options.fleet {
            let mut steps = Vec::new();
            for workers in options.steps() {
                steps.push(step::measure(*store, workers, options).await?);
            }
            println!("{}", table::fleet(name, &steps));
        }
    }
    println!("load {} after", load_average());
    Ok(())
}

/// The store alone, on a server of its own.
async fn alone(store: FleetStore, options: &Options) -> Result<Vec<raw::Raw>> {
    let (postgres, redis);
    let url = match store {
        FleetStore::Redis => {
            // As most run it. The kit's PostgreSQL does not wait for its disk either; the fleet's Redis does, for every page.
            let server = redis::Server::builder()
                .set("appendonly", "yes")
                .set("appendfsync", "everysec");
            redis = server.start().await?;
            redis.url()
        }
        _ => {
            postgres = postgres::Server::start()?;
            postgres.url()
        }
    };
    let mut all = Vec::new();
    for replicas in [1, 3] {
        eprintln!("scale: {}: {replicas} replicas", options::name(store));
        all.push(raw::measure(&url, replicas, options.in_flight, options.span).await?);
    }
    Ok(all)
}
