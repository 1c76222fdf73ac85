//! Where the programs under test are: ours in the target directory, browsers from Debian's packages.
//!
//! Its own file because "not built" and "not installed" are the two most frequent reasons for a red test that is not
//! a bug; here each says what to run.
//!
//! Invariant: a path that is returned exists.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Which browser a grid runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BrowserUnderTest {
    /// Our stand-in: starts in milliseconds, fails on request.
    #[default]
    Fake,
    /// Chromium's headless shell, the default engine of the grid.
    HeadlessShell,
    /// Full Chromium.
    Chromium,
    /// Our stand-in for a program of the driver `command`: starts in milliseconds, fails on request.
    Program,
}

// === impl BrowserUnderTest ===

impl BrowserUnderTest {
    /// Whether it misbehaves on request.
    #[must_use]
    pub fn is_stand_in(self) -> bool {
        matches!(self, Self::Fake | Self::Program)
    }

    /// The executable itself, not the package's wrapper script.
    ///
    /// # Errors
    /// When it is not there; the message says how to get it.
    pub fn executable(self) -> Result<PathBuf> {
        match self {
            Self::Fake => built_binary("fake-browser"),
            Self::Program => built_binary("fake-program"),
            Self::HeadlessShell => installed(
                "WHARF_TEST_HEADLESS_SHELL",
                &[
                    "/usr/lib/chromium/chromium-headless-shell",
                    "/usr/bin/chromium-headless-shell",
                ],
                "chromium-headless-shell",
            ),
            Self::Chromium => installed(
                "WHARF_TEST_CHROMIUM",
                &["/usr/lib/chromium/chromium", "/usr/bin/chromium"],
                "chromium",
            ),
        }
    }
}

fn installed(variable: &str, candidates: &[&str], package: &str) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(variable) {
        let path = PathBuf::from(path);
        return if path.exists() {
            Ok(path)
        } else {
            bail!("{variable} names {path:?}, which does not exist")
        };
    }
    let found = candidates.iter().map(PathBuf::from).find(|path| path.exists());
    found.with_context(|| {
        format!("no {package} in {candidates:?}; run `cargo xtask setup` (package {package}) or set {variable}")
    })
}

/// A binary of this workspace, from the target directory and profile of the running test.
///
/// # Errors
/// When it was not built; the message says what to run.
pub fn built_binary(name: &str) -> Result<PathBuf> {
    let test = std::env::current_exe().context("could not find the running test's own path")?;
    // A test runs from target/<profile>/deps/, a binary such as the benchmark from target/<profile>/.
    let dir = test.parent().context("the running test has no directory")?;
    let profile_dir = if dir.ends_with("deps") {
        dir.parent().unwrap_or(dir)
    } else {
        dir
    };
    let path = profile_dir.join(name);
    if !path.is_file() {
        let release = if profile_dir.ends_with("release") {
            " --release"
        } else {
            ""
        };
        bail!(
            "{} is not built; run `cargo build{release} --workspace --bins` first",
            path.display()
        );
    }
    Ok(path)
}

/// The root of the workspace this crate was built in.
#[must_use]
pub fn workspace_root() -> &'static Path {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).unwrap_or(manifest)
}
