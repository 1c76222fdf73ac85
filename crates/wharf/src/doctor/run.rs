//! The order of checks: facts first, then the trial, then the verdicts and the exit code.
//!
//! Its own file because it is the wiring: it alone knows settings, every group and the terminal. The invariant: exit
//! code 0 means that no check found a problem, 1 that one did.

use std::{
    io::{IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use rustix::process::{Resource, getrlimit, setrlimit};
use wharf_driver::{DriverReport, Engine};
use wharf_process::Cgroups;

use super::{
    browser, cgroups, directories,
    finding::{Finding, Needs},
    fonts,
    host::{self, Lock, Mount},
    kernel, limits, memory, ports, report, sandbox, shared_memory,
    trial::{self, Ended, Failure, Made},
};
use crate::{EXIT_FAILED, cli, cli::Format, config::Settings, places::Places};

/// Where the grid would live, and what is wrong with that.
struct Home {
    places: Places,
    trouble: Option<String>,
}

/// Everything that is read before a browser is started.
struct Facts {
    directories: directories::Facts,
    ports: ports::Facts,
    limits: limits::Facts,
    shared_memory: shared_memory::Facts,
    hierarchy: cgroups::Hierarchy,
    fonts: fonts::Facts,
    kernel: kernel::Facts,
}

/// Looks, tries, prints.
pub fn run(settings: &Settings, format: Format) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("wharf: could not start the doctor: {error}");
            return ExitCode::from(EXIT_FAILED);
        }
    };
    match runtime.block_on(examine(settings)) {
        Ok(findings) => {
            let text = match format {
                Format::Table => report::for_people(&findings, report::Style::of_stdout()),
                Format::Json => report::for_programs(&findings),
            };
            let printed = cli::print(&text);
            match report::Summary::of(&findings).problems {
                0 => printed,
                _ => ExitCode::from(EXIT_FAILED),
            }
        }
        // As a shell tells a death by signal.
        Err(signal) => {
            eprintln!("wharf: interrupted; nothing is left");
            ExitCode::from(128_u8.saturating_add(signal))
        }
    }
}

/// Every finding in the order of the report, or the signal that ended the trial.
async fn examine(settings: &Settings) -> Result<Vec<Finding>, u8> {
    let needs = Needs::of(settings);
    let mut made = Made::default();
    let home = Home::find(settings, &mut made);
    let facts = Facts::gather(settings, &home);
    raise_file_limit();

    let own_cgroups = Cgroups::detect();
    let progress = Progress::start();
    made.note(&home.places.run_dir);
    let ended = trial::run(settings, &home.places.run_dir, own_cgroups.clone()).await;
    progress.end();
    let grouped = cgroups::Facts::new(&facts.hierarchy, own_cgroups.as_ref());
    if let Some(own) = own_cgroups {
        own.remove();
    }
    let outcome = match ended {
        Ended::Told(outcome) => outcome,
        Ended::Interrupted(signal) => return Err(signal),
    };

    let mut findings = browser::judge(&browser::Facts {
        outcome: &outcome,
        engine: settings.engine,
        launch_timeout: settings.launch_timeout,
    });
    findings.extend(sandbox::judge(&sandbox::Facts::gather(&outcome, settings.sandbox)));
    findings.extend(shared_memory::judge(&facts.shared_memory, &needs));
    findings.extend(directories::judge(&facts.directories, &needs));
    findings.extend(fonts::judge(&facts.fonts));
    findings.extend(limits::judge(&facts.limits, &needs));
    findings.extend(cgroups::judge(&grouped));
    let appetite = appetite(settings.engine, &outcome);
    let remembered = memory::Facts::gather(&facts.hierarchy, appetite);
    findings.extend(memory::judge(&remembered, &needs));
    findings.extend(ports::judge(&facts.ports));
    findings.extend(kernel::judge(&facts.kernel));
    Ok(findings)
}

/// By the binary that was found, else by the engine that is wanted. A program of the driver `command` counts as the less
/// of both, since nobody knows.
fn appetite(engine: Engine, outcome: &Result<DriverReport, Failure>) -> memory::Appetite {
    let name = outcome.as_ref().ok().and_then(|report| report.binary.file_name());
    let is_full = match (engine, name.and_then(|name| name.to_str())) {
        (Engine::Chromium, _) => true,
        (Engine::Auto, Some(name)) => name.contains("chrom") && !name.contains("shell"),
        _ => false,
    };
    if is_full {
        memory::Appetite::Full
    } else {
        memory::Appetite::Shell
    }
}

// === impl Home ===

impl Home {
    /// As `wharf up` would choose it. What is made on the way is noted, to be removed again.
    fn find(settings: &Settings, made: &mut Made) -> Self {
        let wanted = data_dir(settings);
        if let Some(dir) = &wanted {
            made.note(dir);
        }
        match Places::tell(settings) {
            Ok(places) => Self { places, trouble: None },
            // The browser can be tried all the same, in some place that can be written.
            Err(error) => Self {
                places: Places {
                    data_dir: wanted.unwrap_or_default(),
                    run_dir: settings
                        .run_dir
                        .clone()
                        .unwrap_or_else(|| std::env::temp_dir().join(format!("wharf-{}", std::process::id()))),
                },
                trouble: Some(format!("{error:#}")),
            },
        }
    }
}

/// The data directory by `places`' rules, before it exists; only to know what to remove.
fn data_dir(settings: &Settings) -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let state = || set("XDG_STATE_HOME").map(|dir| Path::new(&dir).join("wharf"));
    let home = || set("HOME").map(|dir| Path::new(&dir).join(".local/state/wharf"));
    settings.data_dir.clone().or_else(state).or_else(home)
}

// === impl Facts ===

impl Facts {
    fn gather(settings: &Settings, home: &Home) -> Self {
        let mounts = host::mounts();
        let hierarchy = cgroups::Hierarchy::gather(&mounts);
        let mut ports = ports::Facts::gather(settings.listen);
        let directories = look_at(settings, home, &mounts, &ports);
        let locks = [
            Some(&directories.run_lock),
            directories.store.as_ref().map(|(_, lock)| lock),
        ];
        ports.grid = locks.into_iter().flatten().find_map(|lock| match lock {
            Lock::Held(holder) => holder.clone(),
            Lock::Free => None,
        });
        Self {
            directories,
            ports,
            limits: limits::Facts::gather(&hierarchy),
            shared_memory: shared_memory::Facts::gather(&mounts),
            hierarchy,
            fonts: fonts::Facts::gather(),
            kernel: kernel::Facts::gather(),
        }
    }
}

fn look_at(settings: &Settings, home: &Home, mounts: &[Mount], ports: &ports::Facts) -> directories::Facts {
    let Places { data_dir, run_dir } = &home.places;
    let real = std::fs::canonicalize(run_dir).unwrap_or_else(|_| run_dir.clone());
    directories::Facts {
        run: directories::Place::gather(&real, mounts),
        data: directories::Place::gather(data_dir, mounts),
        data_trouble: home.trouble.clone(),
        run_lock: host::lock_of(&real.join("lock")),
        store: directories::store_lock(&settings.store, data_dir),
        listener: ports.holder.clone(),
    }
}

/// As `wharf up` does, so that the trial runs under the same limit. A refusal shows in the trial.
fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _kept = setrlimit(Resource::Nofile, limit);
}

/// A line on a terminal's standard error while the browser is being started.
struct Progress {
    is_shown: bool,
}

// === impl Progress ===

impl Progress {
    fn start() -> Self {
        let is_shown = std::io::stderr().is_terminal();
        if is_shown {
            eprint!("starting the browser ...");
            let _ = std::io::stderr().flush();
        }
        Self { is_shown }
    }

    fn end(self) {
        if self.is_shown {
            // Back to the line's begin, and spaces over the words: works on every terminal.
            eprint!("\r{:24}\r", "");
            let _ = std::io::stderr().flush();
        }
    }
}
