//! What the whole machine says: free memory, pressure, and how often the kernel ran out of memory.
//!
//! Its own file because it is about the host, not about a tree. The invariant: a host that does not tell (no PSI, no
//! cgroup) gives `None`, never a made-up number.

use std::fs;

/// Which resource's pressure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// Time lost waiting for a core.
    Cpu,
    /// Time lost waiting for memory.
    Memory,
    /// Time lost waiting for storage.
    Io,
}

/// Pressure stall information: percent of the last ten seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pressure {
    /// Some task waited.
    pub some: f64,
    /// All tasks waited (not told for the CPU by older kernels).
    pub full: Option<f64>,
}

/// Memory that can be used without swapping, in bytes: the host's, or what our own cgroup still allows if that is less.
pub fn available_memory() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let host = line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024;
    Some(cgroup_available().map_or(host, |own| own.min(host)))
}

/// Inside a container the cgroup's own files are at the root of the mount.
fn cgroup_available() -> Option<u64> {
    let number = |file: &str| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
    let limit =
        number("/sys/fs/cgroup/memory.max").or_else(|| number("/sys/fs/cgroup/memory/memory.limit_in_bytes"))?;
    let used =
        number("/sys/fs/cgroup/memory.current").or_else(|| number("/sys/fs/cgroup/memory/memory.usage_in_bytes"))?;
    Some(limit.saturating_sub(used))
}

/// Pressure of one resource, where the kernel tells (CONFIG_PSI).
pub fn pressure(resource: Resource) -> Option<Pressure> {
    let name = match resource {
        Resource::Cpu => "cpu",
        Resource::Memory => "memory",
        Resource::Io => "io",
    };
    parse_pressure(&fs::read_to_string(format!("/proc/pressure/{name}")).ok()?)
}

fn parse_pressure(text: &str) -> Option<Pressure> {
    let average = |kind: &str| {
        let line = text.lines().find(|line| line.starts_with(kind))?;
        line.split_ascii_whitespace()
            .find_map(|word| word.strip_prefix("avg10="))?
            .parse::<f64>()
            .ok()
    };
    Some(Pressure {
        some: average("some")?,
        full: average("full"),
    })
}

/// How many processes the kernel's out-of-memory killer has ended since boot.
pub fn oom_kills() -> Option<u64> {
    let vmstat = fs::read_to_string("/proc/vmstat").ok()?;
    vmstat
        .lines()
        .find_map(|line| line.strip_prefix("oom_kill "))?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_text_is_read() {
        let text = "some avg10=1.50 avg60=0.1 avg300=0.0 total=9\nfull avg10=0.25 avg60=0 avg300=0 total=1\n";
        assert_eq!(
            parse_pressure(text),
            Some(Pressure {
                some: 1.5,
                full: Some(0.25)
            })
        );
        assert_eq!(
            parse_pressure("some avg10=2 total=9\n"),
            Some(Pressure { some: 2.0, full: None })
        );
        assert_eq!(parse_pressure(""), None);
    }

    #[test]
    fn this_host_tells_its_memory() {
        assert!(available_memory().unwrap() > 1 << 20);
        assert!(oom_kills().is_some());
    }
}
