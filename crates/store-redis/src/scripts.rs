//! The scripts, ready to be called, and the names of the keys.
//!
//! Its own file because a script and the keys it is given must agree. Invariant: every key of a grid has the same hash
//! tag, so a script may touch all of them on a cluster, too.

use std::sync::LazyLock;

use redis::{Cmd, Script, cluster_routing::Slot};

/// How many slots a cluster has.
const SLOTS: u16 = 16_384;

/// A server-side script: its text and the name by which a server that has it is asked.
pub(crate) struct ServerScript {
    code: &'static str,
    script: Script,
}

macro_rules! script {
    ($name:ident, $($file:literal),+) => {
        pub(crate) static $name: LazyLock<ServerScript> =
            LazyLock::new(|| ServerScript::new(concat!($(include_str!(concat!("lua/", $file)), "\n"),+)));
    };
}

script!(APPEND, "common.lua", "append.lua");
script!(READ, "common.lua", "read.lua");
script!(KEEP, "common.lua", "keep.lua");
script!(ARCHIVE_ADD, "archive_add.lua");
script!(ARCHIVE_LIST, "archive_list.lua");
script!(ARCHIVE_PRUNE, "archive_prune.lua");

/// The names of a grid's keys.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    /// head, pages, writers, checkpoint, bell: as `common.lua` expects them.
    pub(crate) journal: [String; 5],
    /// records, columns, ids, ended: as the archive's scripts expect them.
    pub(crate) archive: [String; 4],
}

// === impl ServerScript ===

impl ServerScript {
    fn new(code: &'static str) -> Self {
        Self {
            code,
            script: Script::new(code),
        }
    }

    /// The call of it.
    pub(crate) fn call(&self, keys: &[String]) -> Cmd {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(self.script.get_hash()).arg(keys.len()).arg(keys);
        cmd
    }

    /// What teaches it to a server that does not know it (a new one, or one whose scripts were flushed).
    pub(crate) fn load(&self) -> Cmd {
        let mut cmd = redis::cmd("SCRIPT");
        cmd.arg("LOAD").arg(self.code);
        cmd
    }
}

// === impl Keys ===

impl Keys {
    pub(crate) fn new(prefix: &str) -> Self {
        let key = |name: &str| format!("{{{prefix}}}:{name}");
        Self {
            journal: ["head", "pages", "writers", "checkpoint", "bell"].map(key),
            archive: ["archive", "archive:columns", "archive:ids", "archive:ended"].map(key),
        }
    }

    /// The slot of a cluster that all keys are in.
    pub(crate) fn slot(&self) -> u16 {
        // The library computes it but does not say it.
        let ours = Some(Slot::for_key(self.pages()));
        (0..SLOTS).find(|slot| Slot::new(*slot) == ours).unwrap_or_default()
    }

    pub(crate) fn pages(&self) -> &str {
        &self.journal[1]
    }

    pub(crate) fn checkpoint(&self) -> &str {
        &self.journal[3]
    }

    pub(crate) fn bell(&self) -> &str {
        &self.journal[4]
    }

    pub(crate) fn records(&self) -> &str {
        &self.archive[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_is_that_of_the_tag() {
        // CLUSTER KEYSLOT {wharf}:head
        assert_eq!(Keys::new("wharf").slot(), 10_307);
    }
}
