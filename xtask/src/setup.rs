//! Installing what is missing, and only that.
//!
//! Its own file because it is the list of everything the project needs from outside, each with its reason. It runs
//! before every task: when all is there, it costs a few milliseconds and prints one line.
//!
//! Invariant: idempotent; nothing is installed that is present already, and afterwards everything is present or the
//! task fails with the command to run.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use crate::steps::{cargo, root, run, say};

/// How much to set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// What `up` needs.
    Run,
    /// What tests and benchmarks need.
    Everything,
}

/// Something that a Debian package brings.
struct Need {
    package: &'static str,
    why: &'static str,
    scope: Scope,
    /// It is there if one of these is: a command on the path, a file, or (`module:`) something Python can import.
    signs: &'static [&'static str],
}

const NEEDS: &[Need] = &[
    Need {
        package: "chromium-headless-shell",
        why: "the browser that the grid runs by default",
        scope: Scope::Run,
        signs: &["/usr/lib/chromium/chromium-headless-shell", "chromium-headless-shell"],
    },
    Need {
        package: "fonts-liberation",
        why: "pages that name Arial, Times or Courier look as their authors meant",
        scope: Scope::Run,
        signs: &[
            "/usr/share/fonts/truetype/liberation",
            "/usr/share/fonts/truetype/liberation2",
        ],
    },
    Need {
        package: "chromium",
        why: "the full browser, which tests run beside the headless shell",
        scope: Scope::Everything,
        signs: &["/usr/lib/chromium/chromium", "chromium"],
    },
    Need {
        package: "gcc",
        why: "SQLite is compiled from C",
        scope: Scope::Run,
        signs: &["cc", "gcc"],
    },
    Need {
        package: "libc6-dev",
        why: "SQLite is compiled from C",
        scope: Scope::Run,
        signs: &["/usr/include/stdio.h"],
    },
    Need {
        package: "nodejs",
        why: "tests drive the grid with puppeteer and Playwright",
        scope: Scope::Everything,
        signs: &["node"],
    },
    Need {
        package: "npm",
        why: "installs puppeteer and Playwright",
        scope: Scope::Everything,
        signs: &["npm"],
    },
    Need {
        package: "python3",
        why: "runs the conformance tester",
        scope: Scope::Everything,
        signs: &["python3"],
    },
    Need {
        package: "postgresql",
        why: "a store of fleets, which tests start for themselves",
        scope: Scope::Everything,
        signs: &["postgres", "/usr/lib/postgresql"],
    },
    Need {
        package: "redis-server",
        why: "a store of fleets, which tests start for themselves, alone and as a cluster",
        scope: Scope::Everything,
        signs: &["redis-server"],
    },
    Need {
        package: "redis-tools",
        why: "tests ask and break Redis with redis-cli",
        scope: Scope::Everything,
        signs: &["redis-cli"],
    },
    Need {
        package: "nginx",
        why: "tests balance a fleet with deploy/nginx.conf.template",
        scope: Scope::Everything,
        signs: &["nginx", "/usr/sbin/nginx"],
    },
    Need {
        package: "haproxy",
        why: "tests balance a fleet with deploy/haproxy.cfg",
        scope: Scope::Everything,
        signs: &["haproxy", "/usr/sbin/haproxy"],
    },
    Need {
        package: "iproute2",
        why: "chaos parts a fleet with network namespaces",
        scope: Scope::Everything,
        signs: &["ip", "/usr/sbin/ip"],
    },
    Need {
        package: "util-linux",
        why: "chaos makes and enters those with unshare and nsenter",
        scope: Scope::Everything,
        signs: &["nsenter"],
    },
    Need {
        package: "libfaketime",
        why: "tests give a fleet's processes clocks that disagree",
        scope: Scope::Everything,
        signs: &[
            "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
            "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
        ],
    },
    Need {
        package: "python3-venv",
        why: "keeps schemathesis, which tests the API against its document, out of the system",
        scope: Scope::Everything,
        signs: &["module:ensurepip"],
    },
];

/// What playwright-core asks for.
const NODE_AT_LEAST: u32 = 20;

pub fn setup(scope: Scope) -> Result<()> {
    packages(scope)?;
    if scope == Scope::Everything {
        node_packages()?;
        for environment in ENVIRONMENTS {
            environment.install()?;
        }
        test_runner()?;
    }
    say(
        "setup",
        if scope == Scope::Run {
            "ready to run"
        } else {
            "ready to run and test"
        },
    );
    Ok(())
}

// === Debian packages ===

fn packages(scope: Scope) -> Result<()> {
    let wanted = NEEDS
        .iter()
        .filter(|need| scope == Scope::Everything || need.scope == Scope::Run);
    let missing: Vec<_> = wanted.filter(|need| !need.is_met()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    for need in &missing {
        say("setup", &format!("{} is missing: {}", need.package, need.why));
    }
    let names: Vec<_> = missing.iter().map(|need| need.package).collect();
    let prefix = privilege().with_context(|| by_hand(&names))?;
    // Once: without it apt may know nothing, or offer versions that are gone.
    run("setup", &mut apt(prefix, &["update", "--quiet"]))?;
    let mut install = apt(prefix, &["install", "--yes", "--quiet", "--no-install-recommends"]);
    run("setup", install.args(&names))?;
    match missing.iter().find(|need| !need.is_met()) {
        None => Ok(()),
        Some(need) => bail!("{} was installed, but none of {:?} is there", need.package, need.signs),
    }
}

fn by_hand(names: &[&str]) -> String {
    format!(
        "cannot install packages here; run as root: apt-get install --no-install-recommends {}",
        names.join(" ")
    )
}

fn apt(prefix: &[&str], args: &[&str]) -> Command {
    let mut words = prefix.iter().copied().chain(["apt-get"]);
    let mut command = Command::new(words.next().unwrap_or("apt-get"));
    command
        .args(words)
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null());
    command
}

/// What to put before apt-get to be allowed to install.
fn privilege() -> Result<&'static [&'static str]> {
    if on_path("apt-get").is_none() {
        bail!("there is no apt-get");
    }
    let id = Command::new("id").arg("-u").output().context("could not run id")?;
    if id.stdout.trim_ascii() == b"0" {
        return Ok(&[]);
    }
    // Not asking for a password: a task that waits for one in CI would wait for ever.
    let sudo = Command::new("sudo").args(["-n", "true"]).stderr(Stdio::null()).status();
    if sudo.is_ok_and(|status| status.success()) {
        return Ok(&["sudo", "-n", "--preserve-env=DEBIAN_FRONTEND"]);
    }
    bail!("neither root nor sudo without a password")
}

fn on_path(command: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?)
        .map(|dir| dir.join(command))
        .find(|path| path.is_file())
}

// === impl Need ===

impl Need {
    fn is_met(&self) -> bool {
        self.signs.iter().any(|sign| {
            if sign.starts_with('/') {
                Path::new(sign).exists()
            } else if let Some(module) = sign.strip_prefix("module:") {
                imports(module)
            } else {
                on_path(sign).is_some()
            }
        })
    }
}

// === puppeteer and Playwright ===

/// Installs the locked packages when the lock file is not the one they were installed from.
fn node_packages() -> Result<()> {
    check_node()?;
    let clients = root().join("tests/clients");
    let lock = fs::read(clients.join("package-lock.json")).context("could not read tests/clients/package-lock.json")?;
    let stamp = clients.join("node_modules/.installed-from");
    if fs::read(&stamp).is_ok_and(|installed| installed == lock) {
        return Ok(());
    }
    say(
        "setup",
        "installing puppeteer-core and playwright-core for the tests (no browsers)",
    );
    let mut npm = Command::new("npm");
    // No scripts: none of the packages needs one, and what is not run cannot fetch anything.
    npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
        .current_dir(&clients)
        .stdin(Stdio::null());
    run("setup", &mut npm)?;
    fs::write(&stamp, lock).context("could not write the installation's stamp")
}

fn check_node() -> Result<()> {
    let version = Command::new("node")
        .arg("--version")
        .output()
        .context("could not run node")?;
    let version = String::from_utf8_lossy(&version.stdout).trim().to_owned();
    let major = version
        .trim_start_matches('v')
        .split('.')
        .next()
        .and_then(|major| major.parse::<u32>().ok());
    match major {
        Some(major) if major >= NODE_AT_LEAST => Ok(()),
        _ => bail!("playwright-core needs Node.js {NODE_AT_LEAST} or newer, this is {version:?}; install a newer one"),
    }
}

// === Python packages ===

fn imports(module: &str) -> bool {
    let mut python = Command::new("python3");
    python.args(["-c", &format!("import {module}")]).stderr(Stdio::null());
    python.status().is_ok_and(|status| status.success())
}

/// Pinned Python packages in an environment of their own, so that their dependencies cannot disagree.
struct Environment {
    list: &'static str,
    home: &'static str,
    what: &'static str,
}

const ENVIRONMENTS: &[Environment] = &[
    Environment {
        list: "tests/schema/requirements.txt",
        home: "target/python",
        what: "schemathesis, which tests the API against its document",
    },
    Environment {
        list: "tests/deploy/requirements.txt",
        home: DEPLOY_PYTHON,
        what: "the schemas and linters that check deploy/",
    },
];

/// Where the checks of `deploy/` have their packages.
pub const DEPLOY_PYTHON: &str = "target/python-deploy";

// === impl Environment ===

impl Environment {
    /// Installs the pinned packages when the list, or the interpreter, is not the one they were installed from.
    fn install(&self) -> Result<()> {
        let list = root().join(self.list);
        let version = Command::new("python3").arg("--version").output();
        let mut wanted = version.context("could not run python3")?.stdout;
        wanted.extend(fs::read(&list).with_context(|| format!("could not read {}", list.display()))?);
        let home = root().join(self.home);
        let stamp = home.join(".installed-from");
        if fs::read(&stamp).is_ok_and(|installed| installed == wanted) {
            return Ok(());
        }
        say(
            "setup",
            &format!("installing {}, in a virtual environment in {}", self.what, self.home),
        );
        // From nothing: what an interrupted or older installation left is not told from what belongs there.
        let mut venv = Command::new("python3");
        run("setup", venv.args(["-m", "venv", "--clear"]).arg(&home))?;
        let mut pip = Command::new(home.join("bin/python"));
        pip.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--requirement",
        ])
        .arg(&list)
        .stdin(Stdio::null());
        run("setup", &mut pip)?;
        fs::write(&stamp, wanted).context("could not write the installation's stamp")
    }
}

// === the test runner ===

fn test_runner() -> Result<()> {
    let mut probe = cargo(["nextest", "--version"]);
    if probe
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
    {
        return Ok(());
    }
    say(
        "setup",
        "installing cargo-nextest, the test runner (takes minutes, once)",
    );
    run("setup", &mut cargo(["install", "--locked", "cargo-nextest"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn need_is_met_by_command_or_file() {
        let need = |signs| Need {
            package: "p",
            why: "w",
            scope: Scope::Run,
            signs,
        };
        assert!(need(&["sh"]).is_met());
        assert!(need(&["/no/such/file", "/proc/self"]).is_met());
        assert!(need(&["module:json"]).is_met() && !need(&["module:no_such_module"]).is_met());
        assert!(!need(&["no-such-command-anywhere", "/no/such/file"]).is_met());
    }

    /// With the same seed, the same requests: nothing may come in another version.
    #[test]
    fn python_packages_are_pinned() {
        let list = fs::read_to_string(root().join("tests/schema/requirements.txt")).unwrap();
        let packages: Vec<_> = list.lines().filter(|line| !line.starts_with('#')).collect();
        assert!(packages.iter().any(|line| line.starts_with("schemathesis==")));
        assert!(packages.iter().all(|line| line.contains("==")), "{packages:?}");
    }

    /// The lock file must work with any registry, so it names none.
    #[test]
    fn lock_file_names_no_registry() {
        let lock = fs::read_to_string(root().join("tests/clients/package-lock.json")).unwrap();
        assert!(
            !lock.contains("\"resolved\""),
            "run npm install in tests/clients, where .npmrc omits these"
        );
    }
}
