//! What can be set about the connection, with a reason for every default.
//!
//! Its own file because it is what the binary's configuration is mapped to.

use std::time::Duration;

/// How to use the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Connections of this process beside the one for appends and the one that listens. Reads are short and a
    /// coordinator has one reader; four leave room for lists and the archive.
    pub max_connections: u32,
    /// How long any call may take, all its retries included, before it fails with `Unavailable`; also the server's
    /// limit for one statement. Five seconds outlast the restart of a server, and no client waits much longer.
    pub statement_timeout: Duration,
    /// How long one attempt to connect may take, and how long `connect` tries.
    pub connect_timeout: Duration,
    /// Whether to wake readers by `LISTEN`/`NOTIFY` where the server has it. Set it alike on all coordinators: one that
    /// does not listen does not notify either. Switch it off behind a pooler that shares connections.
    pub listen: bool,
    /// The schema that holds the tables; made if it is not there.
    pub schema: String,
}

// === impl Options ===

impl Default for Options {
    fn default() -> Self {
        Self {
            max_connections: 4,
            statement_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(5),
            listen: true,
            schema: "wharf".to_owned(),
        }
    }
}
