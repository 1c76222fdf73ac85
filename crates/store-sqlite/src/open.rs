//! Opening the file: whose it is, where it lies, which version it has.
//!
//! Its own file because everything that can be wrong with a file is found here, before the first operation. Invariant:
//! one process per file, on a file system whose locks and memory maps can be trusted.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::{Connection, OpenFlags};
use rustix::fs::{FlockOperation, flock, statfs};

use crate::rows;

/// The schema, step by step. A step that was released is never edited; a new one is added.
const MIGRATIONS: [&str; 3] = [
    include_str!("../migrations/0001_initial.sql"),
    include_str!("../migrations/0002_holds.sql"),
    include_str!("../migrations/0003_fleet.sql"),
];

/// How long a foreign reader (an operator's `sqlite3`) may hold us up.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// More than the number of distinct statements, so that none is ever parsed twice.
const STATEMENTS_KEPT: usize = 128;

/// File systems whose locks span machines badly or not at all, by the magic numbers of statfs(2).
const NETWORK_FILE_SYSTEMS: [(u32, &str); 8] = [
    (0x6969, "NFS"),
    (0x517B, "SMB"),
    (0xFF53_4D42, "CIFS"),
    (0xFE53_4D42, "SMB2"),
    (0x5346_414F, "AFS"),
    (0x7375_7245, "Coda"),
    (0x00C3_6400, "Ceph"),
    (0x0102_1997, "9P"),
];

/// How much a power cut may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// A crash of Wharf loses nothing; a power cut may lose the last moments, and never corrupts.
    #[default]
    Normal,
    /// Every answer is on the disk, at the price of one flush per batch.
    Full,
}

/// Why the store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("could not open {0}: another process uses it (it holds {0}.lock); one process per file")]
    InUse(PathBuf),
    /// Its locks cannot be trusted.
    #[error(
        "could not open {path}: it lies on {kind}, a network file system, where SQLite may corrupt; use a local disk"
    )]
    NetworkFileSystem {
        /// The file.
        path: PathBuf,
        /// The kind of file system.
        kind: &'static str,
    },
    /// A later Wharf has written it.
    #[error("could not open {path}: it has schema version {found}, this Wharf knows up to {known}; use a newer Wharf")]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: usize,
        /// Ours.
        known: usize,
    },
    /// The operating system said no.
    #[error("could not open {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// SQLite said no.
    #[error("could not open {path} as a SQLite file")]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: rusqlite::Error,
    },
}

/// The right to a database file, gone with this value or with the process.
#[derive(Debug)]
pub(crate) struct FileLock {
    _held: File,
}

// === impl FileLock ===

impl FileLock {
    /// Takes the lock, or says at once that somebody has it.
    pub(crate) fn take(path: &Path) -> Result<Self, OpenError> {
        let refused = |source| OpenError::Io {
            path: path.to_owned(),
            source,
        };
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        fs::create_dir_all(folder).map_err(refused)?;
        if let Some(kind) = network_kind(folder) {
            return Err(OpenError::NetworkFileSystem {
                path: path.to_owned(),
                kind,
            });
        }
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        // The lock file stays when we go: removing it would let two processes lock two files of one name.
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(name)
            .map_err(refused)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { _held: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenError::InUse(path.to_owned())),
            Err(errno) => Err(refused(errno.into())),
        }
    }
}

/// The kind of network file system a folder lies on, as far as it is easily told.
fn network_kind(folder: &Path) -> Option<&'static str> {
    // The field's type differs between platforms; the magic numbers have 32 bits on all of them.
    let magic = statfs(folder).ok()?.f_type as u32;
    NETWORK_FILE_SYSTEMS
        .into_iter()
        .find(|(known, _)| *known == magic)
        .map(|(_, kind)| kind)
}

/// The writer's connection, its schema up to date. No path means memory.
pub(crate) fn open_writer(path: Option<&Path>, durability: Durability) -> Result<Connection, OpenError> {
    let shown = path.unwrap_or_else(|| Path::new(":memory:")).to_owned();
    let refused = |source| OpenError::Sqlite {
        path: shown.clone(),
        source,
    };
    let mut conn = match path {
        Some(path) => Connection::open(path),
        None => Connection::open_in_memory(),
    }
    .map_err(refused)?;
    configure(&conn, durability).map_err(refused)?;
    let found: u32 = conn
        .query_row("PRAGMA user_version", [], |row| row.get(0))
        .map_err(refused)?;
    let found = found as usize;
    if found > MIGRATIONS.len() {
        return Err(OpenError::Newer {
            path: shown,
            found,
            known: MIGRATIONS.len(),
        });
    }
    migrate(&mut conn, found).map_err(refused)?;
    Ok(conn)
}

/// A second connection to the same file that cannot write.
pub(crate) fn open_reader(path: &Path) -> Result<Connection, OpenError> {
    let refused = |source| OpenError::Sqlite {
        path: path.to_owned(),
        source,
    };
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags).map_err(refused)?;
    conn.busy_timeout(BUSY_TIMEOUT).map_err(refused)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
    Ok(conn)
}

fn configure(conn: &Connection, durability: Durability) -> rusqlite::Result<()> {
    conn.busy_timeout(BUSY_TIMEOUT)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
    // Memory answers "memory" here, which is as it should be.
    conn.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    let synchronous = match durability {
        Durability::Normal => "NORMAL",
        Durability::Full => "FULL",
    };
    conn.pragma_update(None, "synchronous", synchronous)?;
    // 4000 pages of 4 KiB: at full speed a checkpoint every few hundred batches, and a log of 16 MiB at most in peace.
    conn.pragma_update_and_check(None, "wal_autocheckpoint", 4000, |_| Ok(()))?;
    // 32 MiB of pages kept: the live part of a large store stays in memory.
    conn.pragma_update(None, "cache_size", -32_768)?;
    conn.pragma_update(None, "temp_store", "MEMORY")
}

/// Brings the schema up to date, each step with its version in one transaction.
fn migrate(conn: &mut Connection, from: usize) -> rusqlite::Result<()> {
    for (index, sql) in MIGRATIONS.iter().enumerate().skip(from) {
        let transaction = conn.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        transaction.execute_batch(sql)?;
        transaction.pragma_update(None, "user_version", rows::signed(index as u64 + 1))?;
        transaction.commit()?;
    }
    Ok(())
}
