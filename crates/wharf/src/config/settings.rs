//! Raw values checked and turned into settings. All problems are collected; none hides another.
//!
//! Its own file because it is the only place that knows what a value must look like. A problem names the key, where the
//! value came from, the value, and what was expected.

use std::{collections::BTreeMap, fmt, net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

use bytesize::ByteSize;
use ipnet::IpNet;
use wharf_coordinator::{KeyRule, WorkerToken, config::LongestTimeouts};
use wharf_core::{BrowserKind, PoolName, Timeouts};
use wharf_driver::{Engine, Sandbox};
use wharf_relay::RelayConfig;
use wharf_store::StoreRules;
use wharf_wire::span::Span;
use wharf_worker::Recycling;

use super::{Origin, Problem, Raw, Role, Sources, consistency, timing};

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text on a terminal, else JSON.
    Auto,
    /// For people.
    Text,
    /// For machines.
    Json,
}

/// Where records live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// In a file; `None` is the data directory's own.
    Sqlite(Option<PathBuf>),
    /// Nowhere: gone at the end.
    Memory,
    /// A shared PostgreSQL or CockroachDB.
    Postgres(String),
    /// A shared Redis or Redis Cluster.
    Redis(String),
}

/// Everything a role is told, checked.
#[derive(Debug, Clone)]
// Each field is a key of the table in `keys`, with its help there.
pub struct Settings {
    pub listen: SocketAddr,
    pub keys: KeyRule,
    pub faults: bool,
    pub min: usize,
    pub max: usize,
    pub spare: usize,
    pub queue: u64,
    pub store: StoreUrl,
    pub coordinators: Vec<String>,
    pub worker_token: Option<WorkerToken>,
    pub gateway: SocketAddr,
    pub advertise: Option<String>,
    pub recycling: Recycling,
    pub recycles_by_exit: bool,
    pub fence_after: Duration,
    pub driver: BrowserKind,
    pub command: Option<PathBuf>,
    pub command_args: Vec<String>,
    pub forward_timeout: Duration,
    pub binary: Option<PathBuf>,
    pub engine: Engine,
    pub browser_args: Vec<String>,
    pub allow_link_local: bool,
    pub allow_flags: Vec<String>,
    pub sandbox: Sandbox,
    pub data_dir: Option<PathBuf>,
    pub run_dir: Option<PathBuf>,
    pub pool: PoolName,
    pub timeouts: Timeouts,
    pub longest: LongestTimeouts,
    pub launch_timeout: Duration,
    pub drain_timeout: Duration,
    pub termination_grace: Duration,
    pub probe_interval: Duration,
    pub probe_limit: Duration,
    pub probe_misses: u32,
    pub tick: Duration,
    pub memory_budget: Option<u64>,
    pub memory_limit: Option<u64>,
    pub rules: StoreRules,
    pub allow_hosts: Vec<String>,
    pub external_url: Option<String>,
    pub trusted_proxies: Vec<IpNet>,
    pub relay: RelayConfig,
    pub connections: usize,
    pub header_timeout: Duration,
    pub header_limit: usize,
    pub body_timeout: Duration,
    pub body_limit: usize,
    pub heartbeat_interval: Duration,
    pub ticket_renewal: Duration,
    pub dial_limit: Duration,
    pub log: String,
    pub log_format: LogFormat,
    pub ready_file: Option<PathBuf>,
}

/// Reads typed values out of the merged layers, collecting problems.
struct Reader<'a> {
    raw: &'a BTreeMap<&'static str, Raw>,
    problems: &'a mut Vec<Problem>,
}

// === impl Settings ===

impl Settings {
    /// For commands that work on the store alone: only its own keys are judged, whichever role will use it.
    pub fn load_for_store(sources: &Sources) -> Result<Self, Vec<Problem>> {
        let mut problems = Vec::new();
        let raw = sources.merge(&mut problems);
        let settings = Reader {
            raw: &raw,
            problems: &mut problems,
        }
        .settings();
        match problems.is_empty() {
            true => Ok(settings),
            false => Err(problems),
        }
    }

    /// Merges, reads and checks. Either settings, or every problem at once.
    pub fn load(sources: &Sources, role: Role) -> Result<Self, Vec<Problem>> {
        let mut problems = Vec::new();
        let raw = sources.merge(&mut problems);
        let settings = Reader {
            raw: &raw,
            problems: &mut problems,
        }
        .settings();
        let has_token = raw.get("worker_token").is_some_and(|raw| !raw.text().trim().is_empty());
        problems.extend(timing::check(&settings, role));
        problems.extend(consistency::check(&settings, role, has_token));
        if problems.is_empty() {
            Ok(settings)
        } else {
            Err(problems)
        }
    }
}

/// A URL without its password, for people.
pub fn shown(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let rest = match rest[..end].rfind('@') {
        Some(at) => {
            let user = rest[..at].split(':').next().unwrap_or("");
            format!("{user}:…@{}", &rest[at + 1..])
        }
        None => rest.to_owned(),
    };
    // A password may also be a parameter.
    let mut parts = rest.splitn(2, '?');
    let (place, query) = (parts.next().unwrap_or(""), parts.next());
    match query {
        Some(query) => {
            let hide = |pair: &str| match pair.split_once('=') {
                Some((name, _)) if name.contains("pass") => format!("{name}=…"),
                _ => pair.to_owned(),
            };
            let query: Vec<_> = query.split('&').map(hide).collect();
            format!("{scheme}://{place}?{}", query.join("&"))
        }
        None => format!("{scheme}://{place}"),
    }
}

// === impl Reader ===

impl Reader<'_> {
    fn settings(mut self) -> Settings {
        let timeouts = Timeouts {
            queue: self.span("queue_timeout"),
            connect: self.limit("connect_timeout"),
            idle: self.limit("idle_timeout"),
            max_duration: self.limit("max_duration"),
        };
        let longest = LongestTimeouts {
            queue: self.limit("longest_queue_timeout"),
            idle: self.limit("longest_idle_timeout"),
            max_duration: self.limit("longest_max_duration"),
        };
        let launch_timeout = self.span("launch_timeout");
        let forward_timeout = self.span("forward_timeout");
        let rules = StoreRules {
            liveness_ttl: self.span("liveness_ttl"),
            history: self.span("history"),
            // Three launches in a row, each with its pause, must fit, and a program's answer to its session.
            starting_grace: launch_timeout * 3 + forward_timeout + Duration::from_secs(30),
            ..StoreRules::default()
        };
        let relay = RelayConfig {
            ping_interval: self.span("ping_interval"),
            dead_after: self.span("dead_after"),
            ..RelayConfig::default()
        };
        Settings {
            listen: self.parse(
                "listen",
                "an address and port such as 127.0.0.1:8080",
                ([127, 0, 0, 1], 8080).into(),
            ),
            keys: self.choice(
                "require_key",
                &[
                    ("auto", KeyRule::OnceMade),
                    ("always", KeyRule::Always),
                    ("never", KeyRule::Never),
                ],
            ),
            faults: self.choice("enable_faults", &[("false", false), ("true", true)]),
            min: self.parse("min", "a number", 2),
            max: self.parse("max", "a number", 10),
            spare: self.parse("spare", "a number", 1),
            queue: self.parse("queue", "a number", 1000),
            store: self.store(),
            coordinators: self.texts("coordinator"),
            worker_token: self.worker_token(),
            gateway: self.parse(
                "gateway",
                "an address and port such as 127.0.0.1:8081",
                ([127, 0, 0, 1], 8081).into(),
            ),
            advertise: self.url("advertise"),
            recycling: Recycling {
                sessions: Some(self.parse("recycle_sessions", "a number", 50)).filter(|count| *count > 0),
                age: self.limit("recycle_age"),
                memory: self.size("recycle_memory"),
            },
            recycles_by_exit: self.choice("recycle", &[("restart", false), ("exit", true)]),
            fence_after: self.span("fence_after"),
            driver: self.choice(
                "driver",
                &[("chromium", BrowserKind::Chromium), ("command", BrowserKind::Command)],
            ),
            command: self.path("command"),
            command_args: self.texts("command_args"),
            forward_timeout,
            binary: self.path("binary"),
            engine: self.choice(
                "browser",
                &[
                    ("auto", Engine::Auto),
                    ("headless-shell", Engine::HeadlessShell),
                    ("chromium", Engine::Chromium),
                ],
            ),
            browser_args: self.texts("browser_arg"),
            allow_link_local: self.choice("allow_link_local", &[("false", false), ("true", true)]),
            allow_flags: self.texts("allow_flag"),
            sandbox: self.choice(
                "sandbox",
                &[("auto", Sandbox::Auto), ("on", Sandbox::On), ("off", Sandbox::Off)],
            ),
            data_dir: self.path("data_dir"),
            run_dir: self.path("run_dir"),
            pool: self.parse("pool", "a short name of a-z, 0-9, `_`, `-`, `.`", PoolName::default()),
            timeouts,
            longest,
            launch_timeout,
            drain_timeout: self.span("drain_timeout"),
            termination_grace: self.span("termination_grace"),
            probe_interval: self.span("probe_interval"),
            probe_limit: self.span("probe_limit"),
            probe_misses: self.parse("probe_misses", "a number", 2),
            tick: self.span("tick"),
            memory_budget: self.size("memory_budget"),
            memory_limit: self.size("memory_limit"),
            rules,
            allow_hosts: self.texts("allow_host"),
            external_url: self.url("external_url"),
            trusted_proxies: self.networks("trusted_proxy"),
            relay,
            connections: self.parse("connections", "a number", 20_000),
            header_timeout: self.span("header_timeout"),
            header_limit: self.bytes("header_limit", 8 * 1024),
            body_timeout: self.span("body_timeout"),
            body_limit: self.bytes("body_limit", 1),
            heartbeat_interval: self.span("heartbeat_interval"),
            ticket_renewal: rules.ticket_lease / 3,
            dial_limit: Duration::from_secs(5),
            log: self.text("log").to_owned(),
            log_format: self.choice(
                "log_format",
                &[
                    ("auto", LogFormat::Auto),
                    ("text", LogFormat::Text),
                    ("json", LogFormat::Json),
                ],
            ),
            ready_file: self.path("ready_file"),
        }
    }

    fn text(&self, name: &str) -> &str {
        self.raw.get(name).map_or("", Raw::text)
    }

    fn texts(&self, name: &str) -> Vec<String> {
        self.raw.get(name).map(|raw| raw.texts.clone()).unwrap_or_default()
    }

    fn wrong(&mut self, name: &str, text: &str, expected: &str) {
        let origin = self.raw.get(name).map_or(&Origin::Default, |raw| &raw.origin);
        self.problems
            .push(Problem(format!("{name} ({origin}): expected {expected}, got `{text}`")));
    }

    fn parse<T: FromStr>(&mut self, name: &str, expected: &str, fallback: T) -> T {
        let text = self.text(name).to_owned();
        text.trim().parse().unwrap_or_else(|_| {
            self.wrong(name, &text, expected);
            fallback
        })
    }

    fn span(&mut self, name: &str) -> Duration {
        let Span(span) = self.parse(name, "a time span such as 30s or 5m", Span(Duration::from_secs(1)));
        span
    }

    /// A span where 0 means "no limit".
    fn limit(&mut self, name: &str) -> Option<Duration> {
        Some(self.span(name)).filter(|span| !span.is_zero())
    }

    /// A size where 0 means "no limit".
    fn size(&mut self, name: &str) -> Option<u64> {
        let size = self.parse(name, "a size such as 512MiB", ByteSize::b(0));
        Some(size.as_u64()).filter(|bytes| *bytes > 0)
    }

    fn bytes(&mut self, name: &str, least: u64) -> usize {
        let size = self.parse(name, "a size such as 64KiB", ByteSize::b(least)).as_u64();
        if size < least {
            self.wrong(name, &size.to_string(), &format!("at least {least} bytes"));
        }
        usize::try_from(size).unwrap_or(usize::MAX)
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        Some(self.text(name)).filter(|text| !text.is_empty()).map(PathBuf::from)
    }

    fn url(&mut self, name: &str) -> Option<String> {
        let text = self.text(name).to_owned();
        let known = ["http://", "https://", "ws://", "wss://"];
        if text.is_empty()
            || known
                .iter()
                .any(|scheme| text.strip_prefix(scheme).is_some_and(|rest| !rest.is_empty()))
        {
            return Some(text).filter(|text| !text.is_empty());
        }
        self.wrong(name, &text, "a URL such as https://grid.example/wharf");
        None
    }

    fn networks(&mut self, name: &str) -> Vec<IpNet> {
        let mut networks = Vec::new();
        for text in self.texts(name) {
            match text
                .parse::<IpNet>()
                .or_else(|_| text.parse::<std::net::IpAddr>().map(IpNet::from))
            {
                Ok(network) => networks.push(network),
                Err(_) => self.wrong(name, &text, "an address or a network such as 10.0.0.0/8"),
            }
        }
        networks
    }

    fn choice<T: Copy>(&mut self, name: &str, choices: &[(&str, T)]) -> T {
        let text = self.text(name).to_owned();
        match choices.iter().find(|(choice, _)| *choice == text) {
            Some((_, value)) => *value,
            None => {
                let names: Vec<_> = choices.iter().map(|(choice, _)| *choice).collect();
                self.wrong(name, &text, &format!("one of {}", names.join(", ")));
                choices[0].1
            }
        }
    }

    fn worker_token(&mut self) -> Option<WorkerToken> {
        let text = self.text("worker_token").trim().to_owned();
        if text.is_empty() {
            return None;
        }
        // The value is not repeated: it may be nearly right.
        WorkerToken::new(&text)
            .map_err(|problem| self.problems.push(Problem(format!("worker_token {problem}"))))
            .ok()
    }

    fn store(&mut self) -> StoreUrl {
        let text = self.text("store").to_owned();
        match text.split_once(':') {
            None if text.is_empty() => StoreUrl::Sqlite(None),
            Some(("sqlite", path)) if !path.is_empty() => {
                // `sqlite:///absolute` and `sqlite://relative`, as other programs spell it, and the plain form.
                StoreUrl::Sqlite(Some(PathBuf::from(path.strip_prefix("//").unwrap_or(path))))
            }
            Some(("memory", "")) => StoreUrl::Memory,
            Some(("postgres" | "postgresql" | "cockroachdb", rest)) if rest.starts_with("//") => {
                StoreUrl::Postgres(text)
            }
            Some(("redis" | "rediss" | "redis+cluster" | "rediss+cluster" | "redis+unix", rest))
                if rest.starts_with("//") =>
            {
                StoreUrl::Redis(text)
            }
            _ => {
                self.wrong(
                    "store",
                    &shown(&text),
                    "sqlite:PATH, memory:, postgres://…, cockroachdb://…, redis://… or redis+cluster://…",
                );
                StoreUrl::Memory
            }
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(Some(path)) => write!(f, "sqlite:{}", path.display()),
            Self::Sqlite(None) => f.write_str("sqlite in the data directory"),
            Self::Memory => f.write_str("memory:"),
            Self::Postgres(url) | Self::Redis(url) => f.write_str(&shown(url)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(file: &str, variables: &[(&str, &str)], flags: &[(&'static str, &str)]) -> Result<Settings, Vec<String>> {
        let sources = Sources {
            flags: flags
                .iter()
                .map(|(name, text)| (*name, vec![(*text).to_owned()]))
                .collect(),
            variables: variables
                .iter()
                .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
                .collect(),
            file: Some((PathBuf::from("wharf.toml"), file.to_owned())),
        };
        Settings::load(&sources, Role::Up).map_err(|problems| problems.into_iter().map(|problem| problem.0).collect())
    }

    #[test]
    fn defaults_are_the_designs() {
        let settings = load("", &[], &[]).unwrap();
        assert_eq!(
            (settings.min, settings.max, settings.spare, settings.queue),
            (2, 10, 1, 1000)
        );
        assert_eq!(settings.timeouts, Timeouts::default());
        assert_eq!(settings.rules.liveness_ttl, Duration::from_secs(10));
    }

    #[test]
    fn flag_beats_environment_beats_file_beats_default() {
        let file = "max = 5\nmin = 1\nqueue = 7\n";
        let settings = load(file, &[("WHARF_MAX", "6"), ("WHARF_MIN", "3")], &[("max", "8")]).unwrap();
        assert_eq!(
            (settings.max, settings.min, settings.queue, settings.spare),
            (8, 3, 7, 1)
        );
    }

    #[test]
    fn all_problems_are_shown_at_once_with_key_value_and_way_out() {
        let problems = load(
            "mx = 5\nidle_timeout = \"soon\"\n",
            &[("WHARF_QUEU", "1")],
            &[("listen", "0.0.0.0:80"), ("require_key", "never")],
        )
        .unwrap_err();
        let all = problems.join("\n");
        for part in [
            "wharf.toml:1: key `mx` is not known; did you mean `max`?",
            "idle_timeout (wharf.toml:2): expected a time span such as 30s or 5m, got `soon`",
            "environment variable `WHARF_QUEU` is not known; did you mean `WHARF_QUEUE`?",
            "listen (0.0.0.0:80) is not a loopback address and require_key is never",
        ] {
            assert!(all.contains(part), "{part}\n--\n{all}");
        }
        assert_eq!(problems.len(), 4, "{all}");
    }

    #[test]
    fn driver_and_command_belong_together() {
        let settings = load("", &[], &[("driver", "command"), ("command", "./steel-browser")]).unwrap();
        assert_eq!(settings.driver, BrowserKind::Command);
        let problems = load("", &[], &[("driver", "command")]).unwrap_err().join("\n");
        assert!(problems.contains("command is not set"), "{problems}");
        let problems = load("", &[], &[("command", "x")]).unwrap_err().join("\n");
        assert!(problems.contains("driver is chromium"), "{problems}");
    }

    #[test]
    fn token_that_is_too_short_is_told_once() {
        let sources = Sources {
            flags: [("worker_token", vec!["short".to_owned()])].into_iter().collect(),
            ..Sources::default()
        };
        let problems = Settings::load(&sources, Role::Coordinator).unwrap_err();
        let all: Vec<_> = problems.into_iter().map(|problem| problem.0).collect();
        assert!(all.len() == 1 && all[0].contains("5 characters"), "{all:?}");
        let problems = Settings::load(&Sources::default(), Role::Coordinator).unwrap_err();
        assert!(problems[0].0.contains("worker_token is not set"), "{problems:?}");
    }

    #[test]
    fn timing_rules_name_the_offending_pair() {
        let problems = load("", &[], &[("probe_limit", "9s"), ("dead_after", "5s")])
            .unwrap_err()
            .join("\n");
        assert!(
            problems.contains("probe_limit (9s) must be below probe_interval (5s)"),
            "{problems}"
        );
        assert!(
            problems.contains("ping_interval (20s) must be below dead_after (5s)"),
            "{problems}"
        );
    }

    #[test]
    fn passwords_are_never_shown() {
        for (url, safe) in [
            ("postgres://me:secret@db:5432/wharf", "postgres://me:…@db:5432/wharf"),
            ("redis://:secret@r/0", "redis://:…@r/0"),
            (
                "postgres://db/wharf?user=me&password=secret",
                "postgres://db/wharf?user=me&password=…",
            ),
            ("redis://r:6379", "redis://r:6379"),
            ("postgres://me:se@cret@db/x", "postgres://me:…@db/x"),
        ] {
            assert_eq!(shown(url), safe);
        }
        let problems = load("", &[], &[("store", "postgres://me:secret@db/wharf")])
            .unwrap_err()
            .join("\n");
        assert!(
            problems.contains("run `wharf coordinator") && !problems.contains("secret"),
            "{problems}"
        );
    }

    #[test]
    fn lists_come_from_arrays_and_commas() {
        let settings = load("trusted_proxy = [\"10.0.0.0/8\", \"::1\"]", &[], &[]).unwrap();
        assert_eq!(settings.trusted_proxies.len(), 2);
        let settings = load("", &[("WHARF_ALLOW_FLAG", "a, b")], &[]).unwrap();
        assert_eq!(settings.allow_flags, ["a", "b"]);
        assert!(load("max = [1, 2]", &[], &[]).is_err());
    }
}
