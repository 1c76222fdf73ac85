//! How busy this host is: processors, memory, pressure; a few small files of the kernel's, read with every report.
//!
//! Its own file because it is the only part that reads them. For people and for scaling: a file that is not there is a zero,
//! never an error. Inside a container the container's own memory counts.

use std::{fs, time::Duration};

use tokio::time::Instant;
use wharf_process::system::{Resource, pressure};
use wharf_store::Load;

/// Reads the load; processor time is counted between two looks.
pub(crate) struct Meter {
    /// Busy and all processor ticks at the last look.
    ticks: Option<(u64, u64)>,
    born: Instant,
}

// === impl Meter ===

impl Meter {
    pub(crate) fn new() -> Self {
        Self {
            ticks: ticks(),
            born: Instant::now(),
        }
    }

    /// How long this worker has been there.
    pub(crate) fn age(&self) -> Duration {
        self.born.elapsed()
    }

    pub(crate) fn read(&mut self) -> Load {
        let now = ticks();
        let cpu_permille = match (self.ticks, now) {
            (Some((busy, all)), Some((busy_now, all_now))) if all_now > all => {
                permille(busy_now.saturating_sub(busy), all_now - all)
            }
            _ => 0,
        };
        self.ticks = now;
        let (memory_used, memory_limit) = memory();
        let waiting = [Resource::Cpu, Resource::Memory]
            .into_iter()
            .filter_map(pressure)
            .map(|pressure| (pressure.some * 10.0) as u32);
        Load {
            cpu_permille,
            memory_used,
            memory_limit,
            pressure_permille: waiting.max().unwrap_or(0),
        }
    }
}

/// Resident memory of this process itself, browsers apart.
pub(crate) fn own_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    kibibytes(&status, "VmRSS").map_or(0, |count| count << 10)
}

/// A line such as `MemTotal:  16384 kB`.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.strip_prefix(':')?.trim().strip_suffix("kB")?.trim().parse().ok()
}

fn permille(part: u64, whole: u64) -> u32 {
    u32::try_from(part.saturating_mul(1000) / whole.max(1))
        .unwrap_or(1000)
        .min(1000)
}

/// Busy and all ticks since boot, over all processors.
fn ticks() -> Option<(u64, u64)> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let counts: Vec<u64> = line.split_whitespace().filter_map(|text| text.parse().ok()).collect();
    let all: u64 = counts.iter().take(8).sum();
    // Idle, and waiting for a disk.
    let idle = counts.get(3)? + counts.get(4)?;
    Some((all - idle, all))
}

/// Used and available memory: the container's if it has a limit, else the machine's.
fn memory() -> (u64, u64) {
    let number = |path: &str| -> Option<u64> { fs::read_to_string(path).ok()?.trim().parse().ok() };
    if let (Some(used), Some(limit)) = (
        number("/sys/fs/cgroup/memory.current"),
        number("/sys/fs/cgroup/memory.max"),
    ) {
        return (used, limit);
    }
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    match (kibibytes(&meminfo, "MemTotal"), kibibytes(&meminfo, "MemAvailable")) {
        (Some(total), Some(available)) => ((total - available.min(total)) << 10, total << 10),
        _ => (0, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_memory_and_this_process_uses_some() {
        let load = Meter::new().read();
        assert!(load.memory_limit > load.memory_used && load.memory_used > 0, "{load:?}");
        assert!(load.cpu_permille <= 1000 && load.pressure_permille <= 1000);
        assert!(own_memory() > 1 << 20);
    }
}
