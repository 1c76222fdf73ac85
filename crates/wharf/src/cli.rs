//! The command line, made from the table of keys, so that a key cannot exist without its flag and its help.

use std::{io::Write, path::PathBuf, process::ExitCode};

use clap::{Arg, ArgAction, ArgMatches, Command as Clap};

use crate::{
    client,
    config::{KEYS, Key, Origin, Problem, Role, Sources, shown},
};

/// What the person wants.
pub enum Command {
    /// A role of the grid.
    Serve(Role, Sources),
    /// Its own problem with the sources, because it has its own exit code for it.
    Doctor(Result<Sources, Problem>, Format),
    ShowConfig(Sources, Format),
    OpenApi,
    Guard(PathBuf),
    /// A call to a grid.
    Client(ArgMatches),
    Completions(clap_complete::Shell),
    Problem(Problem),
}

/// How `config show` and `doctor` print.
#[derive(Clone, Copy)]
pub enum Format {
    Table,
    Json,
}

const EXAMPLES: &str = "\
Examples:
  wharf up                                   two warm browsers, ten slots, http://127.0.0.1:8080
  wharf up --min 4 --max 20 --queue 500      more of everything
  wharf up --browser chromium                the full browser instead of the headless shell
  wharf up --driver command --command ./steel-browser      any program that serves one session over HTTP
  wharf up --store memory: --listen 127.0.0.1:0
  WHARF_MAX=4 wharf up --config wharf.toml   flag > environment > file > default

Then connect: puppeteer.connect({ browserWSEndpoint: 'ws://127.0.0.1:8080' }),
chromium.connectOverCDP('http://127.0.0.1:8080'), or curl -X POST http://127.0.0.1:8080/v1/sessions.";

const FLEET_EXAMPLES: &str = "\
Examples (WHARF_WORKER_TOKEN is the same secret of at least 32 characters everywhere):
  wharf coordinator --listen 0.0.0.0:8080 --store postgres://wharf@db/wharf
  wharf coordinator --listen 0.0.0.0:8080 --store redis+cluster://r1:6379,r2:6379,r3:6379
  wharf worker --coordinator http://10.0.0.2:8080 --gateway 0.0.0.0:8081 --max 8
  wharf worker --coordinator http://10.0.0.2:8080 --coordinator http://10.0.0.3:8080 --pool gpu
  wharf workers list                         who is there, how busy, in which state
  wharf workers drain WORKER --wait 40s      let it finish and leave";

const COMPLETIONS: &str = "\
Examples:
  wharf completions bash > /etc/bash_completion.d/wharf
  wharf completions zsh > \"${fpath[1]}/_wharf\"
  wharf completions fish > ~/.config/fish/completions/wharf.fish";

const DOCTOR_EXAMPLES: &str = "\
Examples:
  wharf doctor                               is this host ready for `wharf up` as it is?
  wharf doctor --max 50 --listen 127.0.0.1:9000
  wharf doctor --config wharf.toml           for the settings of a file
  wharf doctor --json | jq '.findings[] | select(.level != \"ok\")'

It starts the browser once, ends it and leaves nothing behind; a running grid is not touched.
Exit code: 0 without problems (warnings are allowed), 1 with a problem, 2 for wrong usage or settings.";

/// With the flags of every key.
fn keyed(command: Clap) -> Clap {
    KEYS.iter().map(flag).fold(command.arg(config_file()), Clap::arg)
}

/// With the flags of a role's keys.
fn role(command: Clap, role: Role) -> Clap {
    let keys = KEYS.iter().filter(|key| key.is_for(role));
    keys.map(flag).fold(command.arg(config_file()), Clap::arg)
}

/// With the flags that say which store is meant, for commands that work on it while no grid does.
pub fn with_store(command: Clap) -> Clap {
    let keys = KEYS
        .iter()
        .filter(|key| ["store", "data_dir", "listen"].contains(&key.name));
    let args = keys.map(flag).chain([config_file()]);
    args.map(|arg| arg.global(true).help_heading("Which store, while no grid uses it"))
        .fold(command, Clap::arg)
}

fn config_file() -> Arg {
    Arg::new("config")
        .long("config")
        .value_name("FILE")
        .env("WHARF_CONFIG")
        .help("A TOML file with any of these keys (with underscores)")
}

fn flag(key: &Key) -> Arg {
    let default = if key.default.is_empty() {
        String::new()
    } else {
        format!(" [default: {}]", key.default)
    };
    let arg = Arg::new(key.name)
        .long(key.flag())
        .value_name(key.value)
        .action(if key.is_list { ArgAction::Append } else { ArgAction::Set })
        .help(format!("{}{default} [env: {}]", key.help, key.variable()))
        // A browser's or program's own argument begins with dashes itself.
        .allow_hyphen_values(["browser_arg", "command_args"].contains(&key.name));
    let arg = match key.name {
        // As DESIGN.md has it.
        "worker_token" => arg.visible_alias("token"),
        _ => arg,
    };
    match key.is_switch {
        true => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
        false => arg,
    }
}

fn command() -> Clap {
    let json = || {
        Arg::new("json")
            .long("json")
            .action(ArgAction::SetTrue)
            .help("For programs")
    };
    let show = keyed(Clap::new("show").about("Print every value with its origin")).arg(json());
    let doctor = Clap::new("doctor")
        .about("Check this host for running the grid, and say how to mend it")
        .after_help(DOCTOR_EXAMPLES)
        .arg(json());
    Clap::new("wharf")
        .version(env!("CARGO_PKG_VERSION"))
        .about("A browser grid in one binary: warm browsers, a fair queue, every session's end explained")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .after_help(EXAMPLES)
        .subcommand(role(
            Clap::new("up").about("Run a grid on this machine").after_help(EXAMPLES),
            Role::Up,
        ))
        .subcommand(role(
            Clap::new("coordinator")
                .about("Run a front door of a fleet: API, queue, relay; any number on one shared store")
                .after_help(FLEET_EXAMPLES),
            Role::Coordinator,
        ))
        .subcommand(role(
            Clap::new("worker")
                .about("Run browsers for a fleet: registers with its coordinators and serves them")
                .after_help(FLEET_EXAMPLES),
            Role::Worker,
        ))
        .subcommand(keyed(doctor))
        .subcommand(
            Clap::new("config")
                .about("Look at the configuration")
                .subcommand_required(true)
                .subcommand(show),
        )
        .subcommands(client::commands())
        .subcommand(Clap::new("openapi").about("Print the API's OpenAPI document"))
        .subcommand(
            Clap::new("completions")
                .about("Print completions for a shell")
                .after_help(COMPLETIONS)
                .arg(
                    Arg::new("shell")
                        .required(true)
                        .value_parser(clap::value_parser!(clap_complete::Shell)),
                ),
        )
        .subcommand(Clap::new("guard").hide(true).arg(Arg::new("run_dir").required(true)))
}

/// Reads the command line. Wrong usage prints clap's own words and exits.
pub fn parse() -> Command {
    let matches = command().get_matches();
    let with = |matches: &ArgMatches, make: &dyn Fn(Sources) -> Command| match sources(matches) {
        Ok(sources) => make(sources),
        Err(problem) => Command::Problem(problem),
    };
    match matches.subcommand() {
        Some(("up", up)) => with(up, &|sources| Command::Serve(Role::Up, sources)),
        Some(("coordinator", role)) => with(role, &|sources| Command::Serve(Role::Coordinator, sources)),
        Some(("worker", role)) => with(role, &|sources| Command::Serve(Role::Worker, sources)),
        Some(("doctor", doctor)) => Command::Doctor(sources(doctor), format(doctor)),
        Some(("config", config)) => match config.subcommand() {
            Some(("show", show)) => with(show, &|sources| Command::ShowConfig(sources, format(show))),
            _ => unreachable!("clap requires a subcommand"),
        },
        Some(("completions", completions)) => match completions.get_one("shell") {
            Some(shell) => Command::Completions(*shell),
            None => unreachable!("clap requires a shell"),
        },
        Some(("sessions" | "pool" | "queue" | "lock" | "key" | "workers" | "events" | "top", _)) => {
            Command::Client(matches)
        }
        Some(("guard", guard)) => {
            let run_dir = guard.get_one::<String>("run_dir").cloned().unwrap_or_default();
            Command::Guard(PathBuf::from(run_dir))
        }
        _ => Command::OpenApi,
    }
}

fn format(matches: &ArgMatches) -> Format {
    if matches.get_flag("json") {
        Format::Json
    } else {
        Format::Table
    }
}

pub fn sources(matches: &ArgMatches) -> Result<Sources, Problem> {
    let mut sources = Sources::default();
    for key in KEYS {
        // Not every command has every key.
        if let Ok(Some(texts)) = matches.try_get_many::<String>(key.name) {
            sources.flags.insert(key.name, texts.cloned().collect());
        }
    }
    for (name, value) in std::env::vars_os() {
        // A variable that is not text cannot be one of ours.
        if let (Ok(name), Ok(value)) = (name.into_string(), value.into_string())
            && name.starts_with("WHARF_")
        {
            sources.variables.push((name, value));
        }
    }
    if let Some(path) = matches.get_one::<String>("config").map(PathBuf::from) {
        let text = std::fs::read_to_string(&path)
            .map_err(|error| Problem(format!("the file {} cannot be read: {error}", path.display())))?;
        sources.file = Some((path, text));
    }
    Ok(sources)
}

/// Prints every value with its origin, and what is wrong with it.
pub fn show_config(sources: &Sources, format: Format) -> ExitCode {
    let mut problems = Vec::new();
    let raw = sources.merge(&mut problems);
    let text = match format {
        Format::Table => {
            let mut text = String::new();
            for key in KEYS {
                let raw = &raw[key.name];
                let value = if raw.texts.is_empty() {
                    "-".to_owned()
                } else {
                    safe(key, &raw.texts).join(", ")
                };
                text.push_str(&format!("{:<22} {value:<28} {}\n", key.name, raw.origin));
            }
            text
        }
        Format::Json => {
            let values = KEYS.iter().map(|key| {
                let raw = &raw[key.name];
                let texts = safe(key, &raw.texts);
                let value = if key.is_list {
                    serde_json::json!(texts)
                } else {
                    serde_json::json!(texts.first())
                };
                let origin = match &raw.origin {
                    Origin::File(path, line) => format!("file {}:{line}", path.display()),
                    origin => origin.to_string(),
                };
                (
                    key.name.to_owned(),
                    serde_json::json!({"value": value, "origin": origin}),
                )
            });
            let all: serde_json::Map<_, _> = values.collect();
            format!("{}\n", serde_json::Value::Object(all))
        }
    };
    let printed = print(&text);
    match crate::config::Settings::load(sources, Role::Up) {
        Ok(_) => printed,
        Err(problems) => crate::refuse(&problems),
    }
}

/// Values as they may be shown.
fn safe(key: &Key, texts: &[String]) -> Vec<String> {
    let one = |text: &String| match key.name {
        _ if !key.is_secret() => text.clone(),
        "store" => shown(text),
        _ if text.is_empty() => String::new(),
        _ => "(set)".to_owned(),
    };
    texts.iter().map(one).collect()
}

/// Prints the completions of a shell.
pub fn completions(shell: clap_complete::Shell) -> ExitCode {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command(), "wharf", &mut text);
    print(&String::from_utf8_lossy(&text))
}

/// Prints; a reader that has left (`| head`) is no failure.
pub fn print(text: &str) -> ExitCode {
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    #[test]
    fn command_line_is_consistent() {
        super::command().debug_assert();
    }
}
