//! Finding the real browser binary.
//!
//! Its own file because distributions hide it: `/usr/bin/chromium` is a shell script that costs about 50 ms and a
//! process of its own. The invariant: only a distribution's wrapper in a system directory is looked through; a script
//! of the operator's is run as it is.

use std::{
    ffi::OsStr,
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};

use crate::{DriverProblem, chromium::Engine, process::check_executable};

const SHELLS: &[&str] = &["chromium-headless-shell", "chrome-headless-shell", "headless_shell"];
const FULL: &[&str] = &[
    "chromium",
    "chromium-browser",
    "google-chrome-stable",
    "google-chrome",
    "chrome",
];
/// Where the real binaries live, most common first.
const LIB_DIRS: &[&str] = &[
    "/usr/lib/chromium",
    "/usr/lib64/chromium",
    "/usr/lib/chromium-browser",
    "/usr/lib64/chromium-browser",
    "/opt/google/chrome",
    "/opt/chromium",
    "/opt/chrome-headless-shell",
];

/// A binary and what it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) path: PathBuf,
    pub(crate) shell: bool,
}

/// Looks at the configured path, then for the wanted engine in well-known places and `search_path`.
pub(crate) fn find(
    configured: Option<&Path>,
    engine: Engine,
    search_path: Option<&OsStr>,
) -> Result<Found, DriverProblem> {
    if let Some(path) = configured {
        let path = executable(path)?;
        // An unknown name is told by the wanted engine; `Auto` takes it for a shell, which needs no further flags.
        let shell = match engine {
            Engine::HeadlessShell => true,
            Engine::Chromium => false,
            Engine::Auto => !is_named(&path, FULL),
        };
        return Ok(Found { path, shell });
    }
    let kinds: &[(&[&str], bool)] = match engine {
        Engine::HeadlessShell => &[(SHELLS, true)],
        Engine::Chromium => &[(FULL, false)],
        Engine::Auto => &[(SHELLS, true), (FULL, false)],
    };
    for (names, shell) in kinds {
        if let Some(path) = candidates(names, search_path).find_map(|candidate| executable(&candidate).ok()) {
            return Ok(Found { path, shell: *shell });
        }
    }
    let names = kinds.iter().flat_map(|(names, _)| names.iter());
    let mut searched: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    searched.push(format!("in PATH and {}", LIB_DIRS.join(", ")));
    Err(DriverProblem::NotFound { searched })
}

fn candidates(names: &[&str], search_path: Option<&OsStr>) -> impl Iterator<Item = PathBuf> {
    let mut dirs: Vec<PathBuf> = LIB_DIRS.iter().map(PathBuf::from).collect();
    dirs.extend(search_path.into_iter().flat_map(std::env::split_paths));
    dirs.extend(["/usr/bin", "/usr/local/bin"].map(PathBuf::from));
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    // By name first: the preferred engine anywhere beats the next one in a better place.
    names
        .into_iter()
        .flat_map(move |name| dirs.clone().into_iter().map(move |dir| dir.join(&name)))
}

/// The real, executable file behind `path`.
fn executable(path: &Path) -> Result<PathBuf, DriverProblem> {
    let real = fs::canonicalize(path).map_err(|e| DriverProblem::NotExecutable {
        path: path.to_owned(),
        reason: e.to_string(),
    })?;
    check_executable(&real)?;
    Ok(behind_wrapper(&real).unwrap_or(real))
}

/// What a distribution's wrapper script would start; `None` if this is none.
fn behind_wrapper(script: &Path) -> Option<PathBuf> {
    let system = ["/usr/bin", "/bin", "/usr/local/bin", "/opt/google"]
        .iter()
        .any(|dir| script.starts_with(dir));
    if !system || head(script)? != *b"#!" {
        return None;
    }
    let name = script.file_name()?;
    let mut places: Vec<PathBuf> = LIB_DIRS.iter().map(|dir| Path::new(dir).join(name)).collect();
    places.extend(script.parent().map(|dir| dir.join("chrome")));
    places.extend(
        LIB_DIRS
            .iter()
            .flat_map(|dir| ["chromium", "chrome"].map(|name| Path::new(dir).join(name))),
    );
    places.into_iter().find(|place| head(place) == Some(*b"\x7fE"))
}

fn head(path: &Path) -> Option<[u8; 2]> {
    let mut head = [0_u8; 2];
    fs::File::open(path).ok()?.read_exact(&mut head).ok()?;
    Some(head)
}

fn is_named(path: &Path, names: &[&str]) -> bool {
    path.file_name()
        .and_then(OsStr::to_str)
        .is_some_and(|name| names.contains(&name))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn debian_wrapper_is_looked_through() {
        for name in ["chromium", "chromium-headless-shell"] {
            let wrapper = Path::new("/usr/bin").join(name);
            assert!(
                wrapper.exists(),
                "Debian package `{name}` is not installed: run `cargo xtask setup`"
            );
            let found = find(Some(&wrapper), Engine::Auto, None).unwrap();
            assert_eq!(found.path, Path::new("/usr/lib/chromium").join(name));
            assert_eq!(found.shell, name != "chromium");
        }
    }

    #[test]
    fn shell_is_preferred_and_a_full_browser_found_on_request() {
        assert!(find(None, Engine::Auto, None).unwrap().shell);
        assert!(!find(None, Engine::Chromium, None).unwrap().shell);
    }

    #[test]
    fn missing_and_unexecutable_binaries_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("browser");
        fs::write(&file, "#!/bin/sh\n").unwrap();
        let text = find(Some(&file), Engine::Auto, None).unwrap_err().to_string();
        assert!(text.contains("no execute permission"), "{text}");
        let text = find(Some(&dir.path().join("none")), Engine::Auto, None)
            .unwrap_err()
            .to_string();
        assert!(text.contains("No such file"), "{text}");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(
            find(Some(&file), Engine::Auto, None).unwrap().path,
            fs::canonicalize(&file).unwrap()
        );
    }
}
