//! `wharf-bench`: what the grid costs, against talking to the same browser directly.
//!
//! Run it with `cargo xtask bench`; it needs release builds of `wharf` and `fake-browser` beside it. Every comparison
//! is interleaved in one run: the direct side starts the same binary with the very flags the grid used, on a fresh
//! profile in memory, so noise hits both and ratios mean something even on a busy machine.
//!
//! Layout:
//! - [`options`], [`machine`], [`stats`], [`figure`], [`report`], [`chart`]: the command line and what comes out
//! - [`bed`], [`direct`], [`door`], [`page_server`], [`wire`]: the test bed, and the two ways to a browser
//! - (a) [`first_reply`] · (b) [`cycle`] · (c, d) [`messages`] · (e) [`churn`] · (f) [`footprint`] · (g) [`waiters`] ·
//!   (h) [`faults`] · (i) [`overload`] · (j) [`hops`]
//!
//! Invariant: nothing it starts outlives it, and a benchmark that fails is a line of the table, not the end of the run.

mod bed;
mod chart;
mod churn;
mod cycle;
mod direct;
mod door;
mod faults;
mod figure;
mod first_reply;
mod footprint;
mod hops;
mod machine;
mod messages;
mod options;
mod overload;
mod page_server;
mod report;
mod stats;
mod waiters;
mod wire;

use std::{process::ExitCode, time::Instant};

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    bed::Bed,
    figure::{Figure, Of},
    machine::Machine,
    options::Options,
    report::Report,
};

/// One thread: the client shares the cores with what it measures, and hops between threads would be measured too.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("wharf-bench: {problem}\n\n{}", options::HELP);
            return ExitCode::from(64);
        }
    };
    if options.help {
        print!("{}", options::HELP);
        return ExitCode::SUCCESS;
    }
    // Dropping the run ends its grids and browsers.
    let outcome = tokio::select! {
        outcome = run(&options) => outcome,
        () = told_to_stop() => Err(anyhow::anyhow!("stopped by a signal")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("wharf-bench: {error:#}");
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
    let (started, load_before) = (Instant::now(), machine::load_average());
    let mut bed = Bed::new(options).await?;
    let mut figures = Vec::new();
    for bench in options.wanted() {
        bed.say(&format!("({bench})"));
        match measure(bench, &mut bed).await {
            Ok(measured) => figures.extend(measured),
            Err(error) => figures.push(Figure::failed(bench, &format!("{error:#}"))),
        }
        let leftovers = bed.take_leftovers();
        figures.push(
            Figure::new(bench, "grids that left something behind", "")
                .value(leftovers.len() as f64)
                .at_most(Of::Value, 0.0)
                .note(leftovers.first().cloned().unwrap_or_default()),
        );
    }
    bed.done();
    let report = Report {
        machine: Machine::look(&bed.engines()),
        mode: options.mode(),
        seconds: started.elapsed().as_secs(),
        load_before,
        figures,
    };
    if options.table {
        print!("{}", report.markdown());
    }
    if let Some(path) = &options.json {
        report::write(path, &report.json()?)?;
    }
    if let Some(path) = &options.svg {
        report::write(path, &chart::draw(&report)).context("could not write the chart")?;
    }
    Ok(())
}

async fn measure(bench: char, bed: &mut Bed) -> Result<Vec<Figure>> {
    match bench {
        'a' => first_reply::measure(bed).await,
        'b' => cycle::measure(bed).await,
        'c' => messages::round_trips(bed).await,
        'd' => messages::large(bed).await,
        'e' => churn::measure(bed).await,
        'f' => footprint::measure(bed).await,
        'g' => waiters::measure(bed).await,
        'h' => faults::measure(bed).await,
        'i' => overload::measure(bed).await,
        _ => hops::measure(bed).await,
    }
}
