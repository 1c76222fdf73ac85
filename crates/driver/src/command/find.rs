//! Finding the program: a path as it is, a bare name in PATH.
//!
//! Its own file because the two have different mistakes: a path is wrong or not executable, a name is nowhere. The
//! invariant: what is returned is absolute (a relative path would mean another file in another working directory) and
//! not resolved (a program may look at the name it was called by).

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use crate::{DriverProblem, process::check_executable};

/// Looks for `program`, a path below `working_dir` or a name in `search_path`.
pub(super) fn find(program: &Path, working_dir: &Path, search_path: Option<&OsStr>) -> Result<PathBuf, DriverProblem> {
    if program.components().count() != 1 || program.is_absolute() || has_slash(program) {
        let path = working_dir.join(program);
        check_executable(&path)?;
        return Ok(path);
    }
    let mut refused = None;
    let mut searched = Vec::new();
    for dir in search_path.into_iter().flat_map(std::env::split_paths) {
        let path = working_dir.join(&dir).join(program);
        match check_executable(&path) {
            Ok(()) => return Ok(path),
            Err(problem) if path.exists() => refused = refused.or(Some(problem)),
            Err(_) => {}
        }
        searched.push(format!("`{}`", dir.display()));
    }
    // A file of this name that cannot be executed is more likely meant than missing.
    Err(refused.unwrap_or_else(|| DriverProblem::ProgramNotFound {
        program: program.display().to_string(),
        searched: if searched.is_empty() {
            vec!["PATH, which is empty".to_owned()]
        } else {
            searched
        },
    }))
}

/// `./program` has one component too.
fn has_slash(program: &Path) -> bool {
    program.as_os_str().as_encoded_bytes().contains(&b'/')
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn program_is_found_by_path_and_by_name_and_its_absence_is_explained() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("serve");
        fs::write(&file, "#!/bin/sh\n").unwrap();
        let search = Some(dir.path().as_os_str());
        let text = |found: Result<PathBuf, DriverProblem>| found.unwrap_err().to_string();
        // Not executable: named, by path and by name.
        for program in [Path::new("./serve"), Path::new("serve"), file.as_path()] {
            let text = text(find(program, dir.path(), search));
            assert!(
                text.contains("no execute permission") && text.contains("chmod +x"),
                "{text}"
            );
        }
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        for program in [Path::new("./serve"), Path::new("serve"), file.as_path()] {
            let found = find(program, dir.path(), search).unwrap();
            assert!(found.is_absolute() && found.ends_with("serve"), "{}", found.display());
        }
        // A name is not looked for in the working directory: that would run what happens to lie there.
        let none = text(find(Path::new("serve"), dir.path(), Some(OsStr::new("/nowhere"))));
        assert!(
            none.contains("no program `serve`") && none.contains("`/nowhere`"),
            "{none}"
        );
        let missing = text(find(Path::new("./none"), dir.path(), search));
        assert!(missing.contains("No such file"), "{missing}");
        let directory = text(find(dir.path(), dir.path(), search));
        assert!(directory.contains("not a file"), "{directory}");
    }
}
