//! The one table of keys. The command line, the environment, the file, `config show` and the reference are made of it.

/// One setting.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// As in the file; the flag has dashes, the variable capitals and the prefix `WHARF_`.
    pub name: &'static str,
    /// As text, so that `config show` can print it. Empty means unset.
    pub default: &'static str,
    /// May be given several times (an array in the file, commas in the environment).
    pub is_list: bool,
    /// `true` if the flag has no value.
    pub is_switch: bool,
    /// What the value looks like.
    pub value: &'static str,
    /// What it is for, with its reason.
    pub help: &'static str,
}

const fn key(name: &'static str, default: &'static str, value: &'static str, help: &'static str) -> Key {
    Key {
        name,
        default,
        is_list: false,
        is_switch: matches!(default.as_bytes(), b"false"),
        value,
        help,
    }
}

const fn list(name: &'static str, value: &'static str, help: &'static str) -> Key {
    Key {
        name,
        default: "",
        is_list: true,
        is_switch: false,
        value,
        help,
    }
}

/// Every key, in the order in which people look for them.
pub const KEYS: &[Key] = &[
    key(
        "listen",
        "127.0.0.1:8080",
        "ADDR:PORT",
        "Where to listen; port 0 takes a free one. Beyond loopback every client needs a key",
    ),
    key(
        "require_key",
        "auto",
        "WHEN",
        "Whether clients need an API key: auto (beyond loopback, and everywhere once the first key was made), always, \
         or never (loopback only)",
    ),
    key(
        "enable_faults",
        "false",
        "BOOL",
        "Lets clients break their own sessions' browsers at /debug/…, to see their code survive it. Not for production",
    ),
    key("min", "2", "N", "Browsers kept up when nothing happens"),
    key("max", "10", "N", "Slots: sessions at once"),
    key(
        "spare",
        "1",
        "N",
        "Warm browsers allowed beyond max, so that a freed slot is usable at once; 0 makes max a ceiling of processes",
    ),
    key(
        "queue",
        "1000",
        "N",
        "Requests that may wait for a slot; 0 refuses at once when all are busy",
    ),
    key(
        "store",
        "",
        "URL",
        "sqlite:PATH keeps records across restarts, memory: does not. A fleet's coordinators share \
         postgres://USER:PASSWORD@HOST/DATABASE (or cockroachdb://…), redis://HOST, or \
         redis+cluster://HOST1,HOST2,…. Default: sqlite in the data directory",
    ),
    list(
        "coordinator",
        "URL",
        "Where a worker reports: http://HOST:PORT of a coordinator or of the balancer in front of them; several are tried \
         in turn",
    ),
    key(
        "worker_token",
        "",
        "SECRET",
        "What workers show to coordinators: the same secret, of at least 32 characters, on both. Better in the environment \
         than on the command line",
    ),
    key(
        "gateway",
        "127.0.0.1:8081",
        "ADDR:PORT",
        "Where a worker's gateway listens for coordinators; port 0 takes a free one",
    ),
    key(
        "advertise",
        "",
        "URL",
        "http://HOST:PORT at which coordinators reach a worker's gateway. Default: the gateway's own address, or this host's \
         name if it listens on all of them",
    ),
    key(
        "recycle_sessions",
        "50",
        "N",
        "A worker begins anew after this many sessions, one worker of a pool at a time; 0 for never",
    ),
    key(
        "recycle_age",
        "0",
        "SPAN",
        "A worker begins anew after this long; 0 for never",
    ),
    key(
        "recycle_memory",
        "0",
        "SIZE",
        "A worker begins anew when its own process, browsers apart, is larger than this; 0 for never",
    ),
    key(
        "recycle",
        "restart",
        "HOW",
        "How a worker begins anew: restart (by itself, under the same process id) or exit (with 0, for a supervisor)",
    ),
    key(
        "fence_after",
        "60s",
        "SPAN",
        "A worker that reaches no coordinator for this long ends its sessions, which the grid has given up by then",
    ),
    key(
        "driver",
        "chromium",
        "DRIVER",
        "What runs the sessions: chromium, or command (any program that serves one session over HTTP; see `command`)",
    ),
    key(
        "command",
        "",
        "PROGRAM",
        "The program of the driver command: a path, or a name in PATH. It serves /health and /sessions at the port in its \
         variable PORT",
    ),
    list(
        "command_args",
        "ARG",
        "An argument for the program of the driver command",
    ),
    key(
        "forward_timeout",
        "5s",
        "SPAN",
        "Longest time for a program to answer for its session; then it is killed and the session tried with another one, \
         or ended",
    ),
    key(
        "binary",
        "",
        "PATH",
        "The browser's executable. Default: the headless shell, then chromium, then chrome",
    ),
    key(
        "browser",
        "auto",
        "ENGINE",
        "auto, headless-shell, or chromium (full browser, three times the cost)",
    ),
    list("browser_arg", "FLAG", "A flag for every browser, after Wharf's own"),
    key(
        "allow_link_local",
        "false",
        "BOOL",
        "Lets pages reach link-local addresses (169.254.…, fe80:…), where clouds keep their hosts' credentials",
    ),
    list(
        "allow_flag",
        "NAME",
        "A browser flag that clients may set in launch.args, besides the harmless ones",
    ),
    key(
        "sandbox",
        "auto",
        "MODE",
        "auto (off for root, which Chromium refuses otherwise), on, or off",
    ),
    key(
        "data_dir",
        "",
        "DIR",
        "Where records live. Default: $XDG_STATE_HOME/wharf or ~/.local/state/wharf",
    ),
    key(
        "run_dir",
        "",
        "DIR",
        "Where browsers' profiles live while they run. Default: on tmpfs where there is one",
    ),
    key("pool", "default", "NAME", "The name of this worker's pool"),
    key(
        "idle_timeout",
        "60s",
        "SPAN",
        "Ends a session without client traffic; 0 for never",
    ),
    key(
        "connect_timeout",
        "30s",
        "SPAN",
        "Ends a session that nobody attaches to; 0 for never",
    ),
    key("queue_timeout", "300s", "SPAN", "Longest wait for a slot"),
    key(
        "max_duration",
        "0",
        "SPAN",
        "Ends a session after this long; 0 for never",
    ),
    key(
        "longest_idle_timeout",
        "0",
        "SPAN",
        "The most a client may ask for; 0 for no limit",
    ),
    key(
        "longest_queue_timeout",
        "0",
        "SPAN",
        "The most a client may ask for; 0 for no limit",
    ),
    key(
        "longest_max_duration",
        "0",
        "SPAN",
        "The most a client may ask for; 0 for no limit",
    ),
    key(
        "launch_timeout",
        "6s",
        "SPAN",
        "Limit of each readiness gate of a browser launch (endpoint, version, first page)",
    ),
    key(
        "drain_timeout",
        "30s",
        "SPAN",
        "How long sessions may go on after SIGTERM",
    ),
    key(
        "termination_grace",
        "60s",
        "SPAN",
        "When the supervisor will send SIGKILL after SIGTERM (Kubernetes, systemd); drain and clean-up must fit",
    ),
    key(
        "probe_interval",
        "5s",
        "SPAN",
        "How often each browser is asked for a sign of life",
    ),
    key("probe_limit", "2s", "SPAN", "How long it may take to answer"),
    key(
        "probe_misses",
        "2",
        "N",
        "Misses in a row after which a browser is hung and killed",
    ),
    key(
        "tick",
        "10s",
        "SPAN",
        "How often the pool may shrink by one; it does after two idle ticks",
    ),
    key(
        "memory_budget",
        "0",
        "SIZE",
        "Memory (PSS) of all browsers beyond which none is launched ahead of demand; 0 for no budget",
    ),
    key(
        "memory_limit",
        "0",
        "SIZE",
        "Memory (PSS) of one browser beyond which its session ends as out_of_memory; 0 for no limit",
    ),
    key("history", "24h", "SPAN", "How long records of ended sessions are kept"),
    list(
        "allow_host",
        "NAME",
        "A host name by which clients may call this grid, besides addresses, localhost and external_url's",
    ),
    key(
        "external_url",
        "",
        "URL",
        "What clients call this grid, if their requests do not tell",
    ),
    list(
        "trusted_proxy",
        "CIDR",
        "A proxy whose Forwarded and X-Forwarded-* headers are believed",
    ),
    key(
        "ping_interval",
        "20s",
        "SPAN",
        "How often attached clients and browsers are pinged",
    ),
    key("dead_after", "60s", "SPAN", "A side silent for this long is gone"),
    key("connections", "20000", "N", "Open client connections, at most"),
    key(
        "header_timeout",
        "10s",
        "SPAN",
        "Longest time for a request's head to arrive",
    ),
    key("header_limit", "64KiB", "SIZE", "Longest request head"),
    key(
        "body_timeout",
        "10s",
        "SPAN",
        "Longest time for a request's body to arrive",
    ),
    key("body_limit", "1MiB", "SIZE", "Largest request body"),
    key("heartbeat_interval", "3s", "SPAN", "How often the worker reports"),
    key("liveness_ttl", "10s", "SPAN", "A worker silent for this long is lost"),
    key(
        "log",
        "info",
        "LEVEL",
        "error, warn, info, debug, trace, or a filter such as wharf_worker=debug",
    ),
    key(
        "log_format",
        "auto",
        "FORMAT",
        "auto (text on a terminal, else json), text, or json",
    ),
    key(
        "ready_file",
        "",
        "PATH",
        "Written (JSON: pid, listen) once the grid serves; for scripts",
    ),
];

/// Which command a key is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// `wharf up`: both roles in one process.
    Up,
    /// `wharf coordinator`.
    Coordinator,
    /// `wharf worker`.
    Worker,
}

/// Keys that only a worker apart has.
const APART: &[&str] = &[
    "coordinator",
    "gateway",
    "advertise",
    "recycle_sessions",
    "recycle_age",
    "recycle_memory",
    "recycle",
    "fence_after",
];

/// Keys of a host that runs browsers.
const HOST: &[&str] = &[
    "min",
    "max",
    "spare",
    "command",
    "command_args",
    "binary",
    "browser",
    "browser_arg",
    "allow_link_local",
    "sandbox",
    "run_dir",
    "probe_interval",
    "probe_limit",
    "probe_misses",
    "tick",
    "memory_budget",
    "memory_limit",
];

/// Keys of a front door.
const FRONT: &[&str] = &[
    "listen",
    "require_key",
    "enable_faults",
    "queue",
    "store",
    "idle_timeout",
    "connect_timeout",
    "queue_timeout",
    "max_duration",
    "longest_idle_timeout",
    "longest_queue_timeout",
    "longest_max_duration",
    "history",
    "allow_host",
    "external_url",
    "trusted_proxy",
    "ping_interval",
    "dead_after",
    "body_timeout",
    "body_limit",
];

// === impl Key ===

impl Key {
    /// The flag, without dashes in front.
    pub fn flag(&self) -> String {
        self.name.replace('_', "-")
    }

    /// The environment variable.
    pub fn variable(&self) -> String {
        format!("WHARF_{}", self.name.to_ascii_uppercase())
    }

    /// Whether a command knows this key.
    pub fn is_for(&self, role: Role) -> bool {
        match role {
            Role::Up => !APART.contains(&self.name) && self.name != "worker_token",
            Role::Coordinator => !APART.contains(&self.name) && !HOST.contains(&self.name),
            Role::Worker => !FRONT.contains(&self.name),
        }
    }

    /// Whether its value, or a part of it, must not be shown.
    pub fn is_secret(&self) -> bool {
        matches!(self.name, "worker_token" | "store")
    }

    /// The key of this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.name == name)
    }

    /// The known name nearest to an unknown one.
    pub fn nearest(name: &str) -> Option<&'static str> {
        let near = |key: &&Key| strsim::normalized_damerau_levenshtein(key.name, name);
        let best = KEYS.iter().max_by(|a, b| near(a).total_cmp(&near(b)))?;
        (near(&best) > 0.5).then_some(best.name)
    }
}
