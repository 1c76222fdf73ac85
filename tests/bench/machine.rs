//! What the figures were measured on.
//!
//! Its own file because a figure without its machine says little: cores, kernel, browsers, and how busy it was.

use std::{fs, path::PathBuf, process::Command};

use rustix::{
    process::{Resource, Rlimit, getrlimit, setrlimit},
    system::uname,
};
use serde::Serialize;

#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    pub cpu: String,
    pub cores: usize,
    pub memory_gib: f64,
    pub kernel: String,
    pub browsers: Vec<String>,
    /// One, five and fifteen minutes, at the end.
    pub load_average: String,
    pub measured_at_unix: u64,
}

// === impl Machine ===

impl Machine {
    pub fn look(engines: &[PathBuf]) -> Self {
        #[expect(clippy::disallowed_methods, reason = "the date of the report, for people")]
        let now = std::time::SystemTime::now();
        let kib: f64 = field("/proc/meminfo", "MemTotal")
            .and_then(|text| text.parse().ok())
            .unwrap_or(0.0);
        Self {
            cpu: cpu(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_gib: (kib / 1024.0 / 1024.0 * 10.0).round() / 10.0,
            kernel: uname().release().to_string_lossy().into_owned(),
            browsers: engines.iter().filter_map(version).collect(),
            load_average: load_average(),
            measured_at_unix: now
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
        }
    }
}

/// The first word after `name:` in a file of `/proc`.
pub fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next().map(str::to_owned)
}

fn cpu() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| line.split_once(':')).map(|(_, name)| name.trim());
    name.unwrap_or("unknown").to_owned()
}

pub fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

fn version(binary: &PathBuf) -> Option<String> {
    let output = Command::new(binary).args(["--version", "--no-sandbox"]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let name = binary.file_name()?.to_string_lossy().into_owned();
    Some(format!("{name}: {text}"))
}

/// Lets us and what we start hold as many files as the hard limit allows.
pub fn raise_file_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let _ = setrlimit(Resource::Nofile, wanted);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// User and system time of one process so far, in milliseconds.
pub fn cpu_ms(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
    let ticks: f64 = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|text| text.parse::<f64>().ok())
        .sum();
    // The kernel's unit towards user space is 1/100 s on every architecture we run on.
    ticks * 10.0
}

/// The proportional set size of one process, in kB.
pub fn pss_kb(pid: u32) -> f64 {
    let text = field(&format!("/proc/{pid}/smaps_rollup"), "Pss");
    text.and_then(|text| text.parse().ok()).unwrap_or(f64::NAN)
}
