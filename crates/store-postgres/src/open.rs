//! Opening the journal: URL, first connection, tables, listener; and why that can fail.
//!
//! Its own file because what goes wrong here is told to an operator who is setting the grid up: every message names the
//! database, what it answered, and what to do.

use std::{sync::Arc, time::Duration};

use sqlx::PgConnection;
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Options, PostgresJournal,
    address::{self, Address},
    describe::Engine,
    failure, lane,
    lane::Lane,
    migrate,
    sql::Statements,
    wake::Wakes,
};

/// Longest schema name: with our prefix it must fit a channel's name, which PostgreSQL cuts at 63 bytes.
const MAX_SCHEMA: usize = 48;
/// Between two attempts to reach a server that is not there yet.
const PAUSE: Duration = Duration::from_millis(100);

/// Why the journal could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// Not a URL of ours.
    #[error("expected a URL that begins with postgres://, postgresql:// or cockroachdb://, got {0}")]
    Scheme(String),
    /// The URL cannot be read.
    #[error("could not read the database URL: {0}; expected postgres://user:password@host:5432/database")]
    Url(String),
    /// The schema's name.
    #[error("`{0}` is no name for a schema: expected 1 to 48 characters of a-z, 0-9 and `_`, beginning with a letter")]
    Schema(String),
    /// Nobody answers there.
    #[error(
        "could not reach {address} within {} s: {reason}; check that the server runs, and host and port of the URL",
        waited.as_secs_f32()
    )]
    Unreachable {
        /// The database.
        address: String,
        /// How long it was tried.
        waited: Duration,
        /// What happened last.
        reason: String,
    },
    /// The server does not let us in.
    #[error(
        "{address} refuses to let us in: {reason}; check user name and password of the URL, and the server's pg_hba.conf"
    )]
    Refused {
        /// The database.
        address: String,
        /// The server's words.
        reason: String,
    },
    /// The server has no such database.
    #[error("{address} has no database of this name: {reason}; create it with `CREATE DATABASE \"{database}\"`")]
    NoDatabase {
        /// The database.
        address: String,
        /// Its name.
        database: String,
        /// The server's words.
        reason: String,
    },
    /// The tables could not be made.
    #[error(
        "could not prepare the tables in schema `{schema}` of {address}: {reason}; the user needs CREATE on the database, \
         or an administrator runs `CREATE SCHEMA \"{schema}\" AUTHORIZATION` for it"
    )]
    Tables {
        /// The database.
        address: String,
        /// The schema.
        schema: String,
        /// What happened.
        reason: String,
    },
}

pub(crate) async fn open(url: &str, options: Options) -> Result<PostgresJournal, ConnectError> {
    let (address, connect) = address::parse(url)?;
    if !is_schema_name(&options.schema) {
        return Err(ConnectError::Schema(options.schema.chars().take(80).collect()));
    }
    let settings = lane::Settings {
        connect: connect.clone(),
        connect_timeout: options.connect_timeout,
        statement_timeout: options.statement_timeout,
    };
    let mut first = first_connection(&settings, &address).await?;
    let tables_error = |reason| ConnectError::Tables {
        address: address.to_string(),
        schema: options.schema.clone(),
        reason,
    };
    let engine = Engine::ask(&mut first)
        .await
        .map_err(|error| tables_error(failure::text(&error)))?;
    let sql = Arc::new(Statements::new(&options.schema, options.listen && engine.can_notify()));
    migrate::run(first, &settings, &sql).await.map_err(tables_error)?;

    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let wakes = Wakes::new();
    if sql.notifies {
        let listener = wakes.listener(settings.clone(), Arc::clone(&sql));
        tasks.spawn(stop.clone().run_until_cancelled_owned(listener.run()));
    }
    Ok(PostgresJournal {
        address,
        engine,
        sql,
        appends: Lane::new(settings.clone(), 1),
        reads: Arc::new(Lane::new(settings, options.max_connections.max(1))),
        wakes,
        budget: options.statement_timeout,
        tasks,
        _stop_on_drop: stop.clone().drop_guard(),
        stop,
    })
}

fn is_schema_name(name: &str) -> bool {
    let plain = name
        .bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    plain && name.len() <= MAX_SCHEMA && name.starts_with(|c: char| c.is_ascii_lowercase())
}

/// A server that is starting, or whose host is, gets the whole connect time-out to come up.
async fn first_connection(settings: &lane::Settings, address: &Address) -> Result<PgConnection, ConnectError> {
    let deadline = Instant::now() + settings.connect_timeout;
    loop {
        let error = match settings.open().await {
            Ok(connection) => return Ok(connection),
            Err(error) => error,
        };
        let reason = failure::text(&error);
        match failure::code(&error).as_deref() {
            Some("3D000") => {
                return Err(ConnectError::NoDatabase {
                    address: address.to_string(),
                    database: address.database.clone(),
                    reason,
                });
            }
            Some(code) if code.starts_with("28") => {
                return Err(ConnectError::Refused {
                    address: address.to_string(),
                    reason,
                });
            }
            _ if Instant::now() + PAUSE >= deadline => {
                return Err(ConnectError::Unreachable {
                    address: address.to_string(),
                    waited: settings.connect_timeout,
                    reason,
                });
            }
            _ => tokio::time::sleep(PAUSE).await,
        }
    }
}
