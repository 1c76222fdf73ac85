//! What `/proc` says a process uses.
//!
//! Its own file because figures come from the kernel, never from the process that is measured.

use std::fs;

/// User and system time of a process and of its children that have ended, in seconds. Zero once it is gone.
#[must_use]
pub fn cpu_seconds(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
    let fields = fields.split_whitespace().skip(11).take(4);
    let ticks: f64 = fields.filter_map(|text| text.parse::<f64>().ok()).sum();
    // The kernel's unit towards user space is 1/100 s on every architecture we run on.
    ticks / 100.0
}

/// The proportional set size, in kB; NaN once it is gone.
#[must_use]
pub fn pss_kb(pid: u32) -> f64 {
    field(&format!("/proc/{pid}/smaps_rollup"), "Pss")
}

/// The resident set size, in kB; NaN once it is gone.
#[must_use]
pub fn rss_kb(pid: u32) -> f64 {
    field(&format!("/proc/{pid}/status"), "VmRSS")
}

fn field(path: &str, name: &str) -> f64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let word = line.and_then(|line| line.split_whitespace().next());
    word.and_then(|word| word.parse().ok()).unwrap_or(f64::NAN)
}

/// The load of one, five and fifteen minutes.
#[must_use]
pub fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}
