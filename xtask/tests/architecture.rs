//! The architecture's rules, read from the manifests and the files and compared with what the documents promise.
//!
//! A test and not a habit: an edge, an unsafe block or a stale page that nobody decided on fails here, with a message
//! that says what to do. The table of edges is in ARCHITECTURE.md, the pages are in docs/reference.
//! `UPDATE_DOCS=1 cargo test -p xtask --test architecture` writes generated tables anew.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

/// Normal edges and edges of dev-dependencies, by crate.
type Edges = BTreeMap<String, (BTreeSet<String>, BTreeSet<String>)>;

// === edges ===

#[test]
fn workspace_edges_are_those_of_architecture_md() {
    let (real, promised) = (real_edges(), promised_edges());
    let mut wrong = Vec::new();
    for name in real.keys().chain(promised.keys()).collect::<BTreeSet<_>>() {
        match (real.get(name), promised.get(name)) {
            (Some(real), Some(promised)) => {
                wrong.extend(differences(name, "depends on", &real.0, &promised.0));
                wrong.extend(differences(name, "names in its tests", &real.1, &promised.1));
            }
            (Some(_), None) => wrong.push(format!("`{name}` is in the workspace but not in the table")),
            (None, _) => wrong.push(format!("`{name}` is in the table but not in the workspace")),
        }
    }
    assert!(
        wrong.is_empty(),
        "the manifests and the table of workspace edges in ARCHITECTURE.md differ:\n  {}\n\
         Remove the dependency, or, if the edge is wanted, write it in the table (and the reason in an ADR).",
        wrong.join("\n  ")
    );
}

fn differences(name: &str, verb: &str, real: &BTreeSet<String>, promised: &BTreeSet<String>) -> Vec<String> {
    let extra = real
        .difference(promised)
        .map(|to| format!("`{name}` {verb} `{to}`, which the table does not allow"));
    let missing = promised
        .difference(real)
        .map(|to| format!("the table says `{name}` {verb} `{to}`, but it does not"));
    extra.chain(missing).collect()
}

fn real_edges() -> Edges {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().expect("cargo metadata lists packages");
    let name = |value: &Value| value["name"].as_str().expect("a package has a name").to_owned();
    let ours: BTreeSet<String> = packages.iter().map(&name).collect();
    let mut edges = Edges::new();
    for package in packages {
        let (normal, dev) = edges.entry(name(package)).or_default();
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let to = name(dependency);
            if ours.contains(&to) {
                let is_dev = dependency["kind"].as_str() == Some("dev");
                if is_dev { &mut *dev } else { &mut *normal }.insert(to);
            }
        }
    }
    edges
}

fn promised_edges() -> Edges {
    let text = read("ARCHITECTURE.md");
    let table = between(&text, "<!-- edges -->", "<!-- /edges -->")
        .expect("ARCHITECTURE.md has a table of workspace edges between `<!-- edges -->` and `<!-- /edges -->`");
    let mut edges = Edges::new();
    for row in table.lines().filter(|line| line.starts_with("| `")) {
        let mut cells = row.trim_matches('|').split('|').map(names);
        let name = cells
            .next()
            .and_then(|cell| cell.into_iter().next())
            .expect("a row names a crate");
        let mut next = || cells.next().unwrap_or_default();
        let row = (next(), next());
        assert!(
            edges.insert(name.clone(), row).is_none(),
            "`{name}` has two rows in ARCHITECTURE.md"
        );
    }
    edges
}

/// What stands between backticks.
fn names(cell: &str) -> BTreeSet<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

// === what the compiler cannot say ===

#[test]
fn meaning_has_no_async_runtime() {
    for package in ["wharf-core", "wharf-wire"] {
        let tree = cargo(&["tree", "--package", package, "--edges", "normal", "--prefix", "none"]);
        let found: Vec<_> = tree.lines().filter(|line| line.starts_with("tokio")).collect();
        assert!(
            found.is_empty(),
            "{package} must work without an async runtime, but its tree has {found:?}; \
             `cargo tree -p {package} -e normal -i tokio` says who brings it: move that code to a role or an adapter"
        );
    }
}

#[test]
fn unsafe_code_stands_only_in_process() {
    let mut found = Vec::new();
    for path in files("rs")
        .into_iter()
        .filter(|path| !path.starts_with("crates/process"))
    {
        for (number, line) in read(&path).lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            // Spelled in two parts, or this file would find itself.
            let word = concat!("uns", "afe");
            let is_used = [" {", " fn ", " impl ", " extern ", " trait "]
                .iter()
                .any(|then| code.contains(&format!("{word}{then}")));
            if is_used || code.contains(&format!("#[{word}(")) {
                found.push(format!("{}:{}", path.display(), number + 1));
            }
        }
    }
    assert!(
        found.is_empty(),
        "only crates/process may hold such code; move it there, behind a safe function: {found:?}"
    );
    for manifest in files("toml").into_iter().filter(|path| path.ends_with("Cargo.toml")) {
        let is_member = manifest
            .parent()
            .is_some_and(|dir| dir != Path::new("") && !dir.starts_with("fuzz"));
        if is_member && !manifest.starts_with("crates/process") {
            assert!(
                read(&manifest).contains("[lints]\nworkspace = true"),
                "{} must take the workspace's lints: add `[lints]` with `workspace = true`",
                manifest.display()
            );
        }
    }
}

#[test]
fn every_rust_file_says_what_it_is() {
    let silent: Vec<_> = files("rs")
        .into_iter()
        .filter(|path| !read(path).starts_with("//!"))
        .collect();
    assert!(
        silent.is_empty(),
        "begin each of these with `//!`: what it is, and why it is its own file: {silent:?}"
    );
}

#[test]
fn no_file_names_the_directory_it_was_made_in() {
    let root = root();
    let root = root.to_str().expect("the workspace's path is text");
    let is_name = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_alphanumeric() || b"-_./".contains(b));
    let mut found = Vec::new();
    for path in all_files() {
        let Ok(bytes) = fs::read(self::root().join(&path)) else {
            continue;
        };
        let text = String::from_utf8_lossy(&bytes);
        let bytes = text.as_bytes();
        // `/srv` is named by `/srv/x` and by `/srv`, not by `a/srv` or `/srv2`.
        let is_named = text.match_indices(root).any(|(at, _)| {
            let before = at.checked_sub(1).and_then(|at| bytes.get(at));
            let after = bytes.get(at + root.len());
            !is_name(before) && (after == Some(&b'/') || !is_name(after))
        });
        if is_named {
            found.push(path);
        }
    }
    assert!(
        found.is_empty(),
        "these name {root}, which exists on this machine only; use a relative path: {found:?}"
    );
}

#[test]
fn links_in_documents_lead_somewhere() {
    let mut dead = Vec::new();
    for page in files("md") {
        let dir = page.parent().unwrap_or(Path::new("")).to_owned();
        for link in read(&page)
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            let target = link.split('#').next().unwrap_or_default();
            let is_relative = !target.is_empty() && !target.contains("://") && !target.contains(' ');
            if is_relative && !root().join(&dir).join(target).exists() {
                dead.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(
        dead.is_empty(),
        "correct or remove these links:\n  {}",
        dead.join("\n  ")
    );
}

// === the generated reference ===

/// The keys as `wharf config show --help` tells them, one line each, and which commands know them.
#[test]
fn configuration_page_is_fresh() {
    let roles = ["up", "coordinator", "worker"].map(|role| {
        let known: BTreeSet<String> = help_rows(&wharf(&[role, "--help"]))
            .into_iter()
            .map(|row| row.0)
            .collect();
        (role, known)
    });
    let mut table = String::from("| key | value | default | for | meaning |\n|---|---|---|---|---|\n");
    let mut documented = BTreeSet::new();
    for (key, value, default, text) in help_rows(&wharf(&["config", "show", "--help"])) {
        let knowing: Vec<_> = roles
            .iter()
            .filter(|(_, known)| known.contains(&key))
            .map(|(role, _)| *role)
            .collect();
        assert!(!knowing.is_empty(), "no command knows the key {key}");
        let knowing = match knowing.len() {
            3 => "all".to_owned(),
            _ => knowing.join(", "),
        };
        table.push_str(&format!("| `{key}` | {value} | {default} | {knowing} | {text} |\n"));
        documented.insert(key);
    }
    let shown: Value = serde_json::from_str(&wharf(&["config", "show", "--json"])).expect("config show prints JSON");
    let keys: BTreeSet<String> = shown.as_object().expect("an object").keys().cloned().collect();
    assert_eq!(
        documented, keys,
        "`wharf config show --help` and `wharf config show` must know the same keys"
    );
    compare("docs/reference/configuration.md", &table);
}

/// Key, value, default and meaning of every flag of a help text.
fn help_rows(help: &str) -> Vec<(String, String, String, String)> {
    let mut rows = Vec::new();
    for line in help.lines().map(str::trim) {
        // A switch may go without its value: `--flag[=<BOOL>]`.
        let line = line.replacen("[=<", " <", 1).replacen(">]", ">", 1);
        let Some((flag, rest)) = line.strip_prefix("--").and_then(|line| line.split_once(" <")) else {
            continue;
        };
        let Some((value, text)) = rest.split_once('>') else {
            continue;
        };
        let key = flag.replace('-', "_");
        if key == "config" {
            continue;
        }
        let text = text.trim().trim_start_matches("...").trim();
        let text = text.split(" [env: ").next().unwrap_or_default();
        let (text, default) = match text.split_once(" [default: ") {
            Some((text, default)) => (text, format!("`{}`", default.trim_end_matches(']'))),
            None => (text, "—".to_owned()),
        };
        rows.push((key, value.to_owned(), default, text.replace('|', "\\|")));
    }
    rows
}

/// Every metric that a role registers has a row, and every row a metric.
#[test]
fn metrics_page_is_complete() {
    let page = read("docs/reference/metrics.md");
    let rows: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `wharf_")?.split('`').next())
        .collect();
    let mut real = BTreeSet::new();
    for source in ["crates/coordinator/src/metrics.rs", "crates/worker/src/metrics.rs"] {
        let text = read(source);
        let by_unit = text.split(".register_with_unit(").skip(1).map(|rest| (rest, true));
        let plain = text.split(".register(").skip(1).map(|rest| (rest, false));
        for (rest, has_unit) in plain.chain(by_unit) {
            let name = rest.split('"').nth(1).expect("a metric has a name");
            let unit = rest
                .split("Unit::")
                .nth(1)
                .and_then(|unit| unit.split([',', ')']).next())
                .unwrap_or_default();
            let suffix = if has_unit {
                format!("_{}", unit.to_lowercase())
            } else {
                String::new()
            };
            real.insert(format!("{name}{suffix}"));
        }
    }
    // Prometheus shows a counter with `_total`.
    let rows: BTreeSet<String> = rows
        .into_iter()
        .map(|row| row.trim_end_matches("_total").to_owned())
        .collect();
    let missing: Vec<_> = real.difference(&rows).collect();
    let extra: Vec<_> = rows.difference(&real).collect();
    assert!(
        missing.is_empty() && extra.is_empty(),
        "docs/reference/metrics.md: add rows for {missing:?}, remove rows for {extra:?}"
    );
}

#[test]
fn openapi_document_is_fresh() {
    let text = wharf(&["openapi"]);
    assert!(
        read("api/openapi.json") == text,
        "api/openapi.json is stale; run `cargo run -p wharf -- openapi > api/openapi.json`"
    );
}

/// Compares the generated block of a page, or writes it with `UPDATE_DOCS`.
fn compare(page: &str, table: &str) {
    let text = read(page);
    let (begin, end) = ("<!-- generated -->\n", "<!-- /generated -->");
    let block = between(&text, begin, end).unwrap_or_else(|| panic!("{page} has no `<!-- generated -->` block"));
    if block == table {
        return;
    }
    if env::var_os("UPDATE_DOCS").is_some() {
        let whole = text.replacen(&format!("{begin}{block}{end}"), &format!("{begin}{table}{end}"), 1);
        fs::write(root().join(page), whole).expect("the page can be written");
        return;
    }
    panic!("{page} is stale; run `UPDATE_DOCS=1 cargo test -p xtask --test architecture`. It should be:\n{table}");
}

// === reading ===

fn root() -> PathBuf {
    let manifest =
        env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest.parent().expect("xtask lies in the workspace").to_owned()
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("could not read {}: {error}", path.display()))
}

fn between<'a>(text: &'a str, begin: &str, end: &str) -> Option<&'a str> {
    text.split_once(begin)?.1.split_once(end).map(|(block, _)| block)
}

/// Files of the project with this extension, relative to its root.
fn files(extension: &str) -> Vec<PathBuf> {
    all_files()
        .into_iter()
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect()
}

fn all_files() -> Vec<PathBuf> {
    // As in .gitignore: what is made, fetched or found is not the project's.
    const FOREIGN: &[&str] = &[
        "target",
        ".git",
        ".wharf",
        "node_modules",
        "corpus",
        "artifacts",
        "__pycache__",
    ];
    let (root, mut found) = (root(), Vec::new());
    let mut dirs = vec![root.clone()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir)
            .expect("a directory of the project can be read")
            .flatten()
        {
            let (path, name) = (entry.path(), entry.file_name());
            let is_foreign =
                FOREIGN.iter().any(|foreign| name == *foreign) || path.extension().is_some_and(|e| e == "log");
            match entry.file_type() {
                _ if is_foreign => {}
                Ok(kind) if kind.is_dir() => dirs.push(path),
                Ok(kind) if kind.is_file() => found.push(path.strip_prefix(&root).expect("below the root").to_owned()),
                _ => {}
            }
        }
    }
    found.sort();
    found
}

fn metadata() -> Value {
    serde_json::from_str(&cargo(&["metadata", "--format-version", "1", "--no-deps"]))
        .expect("cargo metadata prints JSON")
}

fn cargo(args: &[&str]) -> String {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    output(Command::new(cargo).args(args).current_dir(root()))
}

/// The binary that `cargo xtask test` builds before the tests.
fn wharf(args: &[&str]) -> String {
    let metadata = metadata();
    let target = metadata["target_directory"]
        .as_str()
        .expect("cargo metadata names the target directory");
    let program = Path::new(target).join("debug/wharf");
    assert!(
        program.is_file(),
        "{} is missing; run `cargo build -p wharf` first",
        program.display()
    );
    // Wide, so that help is one line a key; without the caller's settings, so that defaults are defaults.
    let foreign = env::vars_os()
        .map(|(name, _)| name)
        .filter(|name| name.to_string_lossy().starts_with("WHARF_"));
    let mut command = Command::new(program);
    for name in foreign {
        command.env_remove(name);
    }
    output(command.args(args).env("COLUMNS", "10000"))
}

fn output(command: &mut Command) -> String {
    let output = command.output().expect("the program starts");
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("the output is text")
}
