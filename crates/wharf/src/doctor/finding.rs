//! The words of a diagnosis: what was looked at, how bad it is, what it says and how to mend it.
//!
//! Its own file because every group of checks speaks them. The invariant: whatever is a warning or a problem names the
//! thing and its value, and brings a fix.

use bytesize::ByteSize;
use serde::Serialize;

use crate::config::Settings;

/// What a check is about, in the order of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    Browser,
    Sandbox,
    SharedMemory,
    Directories,
    Fonts,
    Limits,
    Cgroups,
    Memory,
    Ports,
    Kernel,
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Worth knowing; nothing suffers.
    Note,
    /// The grid runs, but worse than it could, or not at its full size.
    Warning,
    /// The grid does not start, or sessions fail.
    Problem,
}

/// One check's outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub group: Group,
    pub name: &'static str,
    pub level: Level,
    /// Names the thing and its value.
    pub says: String,
    /// An exact command or setting.
    pub fix: Option<String>,
}

/// What the settings ask of the host.
#[derive(Debug, Clone, Copy)]
pub struct Needs {
    pub max: u64,
    pub spare: u64,
    pub queue: u64,
    pub connections: u64,
}

// === impl Group ===

impl Group {
    /// As people read it.
    pub fn title(self) -> &'static str {
        match self {
            Self::Browser => "browser",
            Self::Sandbox => "sandbox",
            Self::SharedMemory => "shared memory",
            Self::Directories => "directories",
            Self::Fonts => "fonts",
            Self::Limits => "limits",
            Self::Cgroups => "cgroups",
            Self::Memory => "memory",
            Self::Ports => "ports",
            Self::Kernel => "kernel",
        }
    }

    pub fn ok(self, name: &'static str, says: impl Into<String>) -> Finding {
        self.finding(name, Level::Ok, says.into())
    }

    pub fn note(self, name: &'static str, says: impl Into<String>) -> Finding {
        self.finding(name, Level::Note, says.into())
    }

    pub fn warning(self, name: &'static str, says: impl Into<String>) -> Finding {
        self.finding(name, Level::Warning, says.into())
    }

    pub fn problem(self, name: &'static str, says: impl Into<String>) -> Finding {
        self.finding(name, Level::Problem, says.into())
    }

    fn finding(self, name: &'static str, level: Level, says: String) -> Finding {
        Finding {
            group: self,
            name,
            level,
            says,
            fix: None,
        }
    }
}

// === impl Finding ===

impl Finding {
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

// === impl Needs ===

impl Needs {
    pub fn of(settings: &Settings) -> Self {
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        Self {
            max: count(settings.max),
            spare: count(settings.spare),
            queue: settings.queue,
            connections: count(settings.connections),
        }
    }

    /// Browsers at once, at most.
    pub fn browsers(&self) -> u64 {
        self.max.saturating_add(self.spare)
    }

    /// So much for each browser.
    pub fn times(&self, each: u64) -> u64 {
        self.browsers().saturating_mul(each)
    }

    /// The largest `max` for which the browsers fit, if any does.
    pub fn fitting(&self, room: u64, each: u64) -> Option<u64> {
        (room / each).checked_sub(self.spare).filter(|max| *max > 0)
    }
}

/// `24.0 GiB`.
pub fn size(bytes: u64) -> String {
    ByteSize::b(bytes).to_string()
}

/// What unit tests judge against: the defaults of `wharf up`.
#[cfg(test)]
pub const USUAL: Needs = Needs {
    max: 10,
    spare: 1,
    queue: 1000,
    connections: 20_000,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fitting_max_leaves_room_for_the_spare() {
        assert_eq!(USUAL.fitting(600, 100), Some(5));
        assert_eq!(USUAL.fitting(150, 100), None);
    }

    #[test]
    fn group_names_are_the_titles() {
        let name = serde_json::to_value(Group::SharedMemory).unwrap();
        assert_eq!(name, "shared_memory");
        assert_eq!(Group::SharedMemory.title(), "shared memory");
    }
}
