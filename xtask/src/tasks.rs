//! The tasks: up, test, bench, chaos, scale.
//!
//! Its own file because this is what a reader wants to know: which commands, in which order. The test runner comes
//! last in `test`, so that its closing lines are the last ones before our own summary.
//!
//! Invariant: each task brings what it needs; none assumes that another ran before.

use std::{
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{
    setup::{self, Scope},
    steps::{Steps, cargo, root, run, say},
};

/// Builds the release binary and becomes it.
pub fn up(args: &[String]) -> Result<()> {
    setup::setup(Scope::Run)?;
    run("build", &mut cargo(["build", "--release", "--package", "wharf"]))?;
    let program = target_dir()?.join("release/wharf");
    say("up", &format!("wharf up {}", args.join(" ")));
    let error = Command::new(&program).arg("up").args(args).exec();
    Err(error).with_context(|| format!("could not run {}", program.display()))
}

/// Everything that must hold before a change lands.
pub fn test(args: &[String]) -> Result<()> {
    let quick = args.iter().any(|arg| arg == "--quick");
    let filter = args.iter().map(String::as_str).filter(|arg| *arg != "--quick");
    let mut steps = Steps::default();
    steps.act("setup", || setup::setup(Scope::Everything))?;
    steps.run("format", &mut cargo(["fmt", "--all", "--check"]))?;
    steps.run(
        "lints",
        &mut cargo(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
    )?;
    // End-to-end tests start these; cargo builds another package's binaries only when told to. Together with the tests: on
    // their own they would be built with fewer features of what they depend on, and everything twice.
    steps.run("build", &mut cargo(["build", "--workspace", "--bins", "--tests"]))?;
    if !quick {
        let doc = &mut cargo(["doc", "--no-deps", "--workspace"]);
        steps.run("documentation", doc.env("RUSTDOCFLAGS", "-D warnings"))?;
        steps.run("documentation tests", &mut cargo(["test", "--doc", "--workspace"]))?;
    }
    let checks = || {
        let mut python = Command::new(root().join(setup::DEPLOY_PYTHON).join("bin/python"));
        python.arg(root().join("tests/deploy/check.py")).current_dir(root());
        python
    };
    steps.run("deployment files", &mut checks())?;
    if !quick {
        steps.run("deployment checks can fail", checks().arg("--selftest"))?;
    }
    let mut tests = cargo(["nextest", "run", "--workspace"]);
    // A failure's own words come first: with the backtraces of hundreds of frames they would scroll away in CI's log.
    tests.env("RUST_BACKTRACE", "0").env("RUST_LIB_BACKTRACE", "0");
    if quick {
        tests.args(["--filterset", "not package(wharf-e2e)"]);
    }
    steps.run("tests", tests.args(filter))?;
    steps.summary();
    Ok(())
}

/// The benchmark, on release binaries.
pub fn bench(args: &[String]) -> Result<()> {
    setup::setup(Scope::Everything)?;
    let mut steps = Steps::default();
    let build = [
        "build",
        "--release",
        "--bins",
        "-p",
        "wharf",
        "-p",
        "wharf-testkit",
        "-p",
        "wharf-e2e",
    ];
    steps.run("build", &mut cargo(build))?;
    let program = target_dir()?.join("release/wharf-bench");
    steps.run("bench", Command::new(program).args(args).current_dir(root()))?;
    steps.summary();
    Ok(())
}

/// Breaks a fleet on purpose; see `docs/internals/chaos.md`. Development builds: what breaks must break with its checks on.
pub fn chaos(args: &[String]) -> Result<()> {
    run_program("chaos", &[], "debug", args)
}

/// Thousands of sessions on release binaries; see `docs/internals/scale.md`.
pub fn scale(args: &[String]) -> Result<()> {
    run_program("scale", &["--release"], "release", args)
}

/// Builds and runs one of the programs of the package `wharf-e2e`, which start a fleet from the binaries beside them.
fn run_program(name: &str, profile: &[&str], dir: &str, args: &[String]) -> Result<()> {
    let asks_only = args.iter().any(|arg| arg == "--help" || arg == "-h");
    if !asks_only {
        setup::setup(Scope::Everything)?;
    }
    let mut steps = Steps::default();
    let packages = [
        "build",
        "--bins",
        "-p",
        "wharf",
        "-p",
        "wharf-testkit",
        "-p",
        "wharf-e2e",
    ];
    steps.run("build", &mut cargo(packages.into_iter().chain(profile.iter().copied())))?;
    let program = target_dir()?.join(dir).join(name);
    steps.run(name, Command::new(program).args(args).current_dir(root()))?;
    steps.summary();
    Ok(())
}

/// Cargo's own answer: the directory may be set by a variable or a configuration file.
fn target_dir() -> Result<PathBuf> {
    let metadata = cargo(["metadata", "--format-version", "1", "--no-deps"])
        .stderr(Stdio::inherit())
        .output()?;
    let metadata: Value = serde_json::from_slice(&metadata.stdout).context("cargo metadata printed no JSON")?;
    metadata["target_directory"]
        .as_str()
        .map(PathBuf::from)
        .context("cargo metadata names no target directory")
}
