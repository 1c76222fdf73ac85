//! A few connections that are opened when needed and kept while they work.
//!
//! Our own and not sqlx's pool, because an outage must be told with its reason (the pool only says that it timed out), a
//! checkout must not cost a round trip, and a call that is dropped half-way must take its connection with it: what its
//! statement did is then unknown, and the next call must not read its answer.

use std::{io, time::Duration};

use parking_lot::Mutex;
use sqlx::{ConnectOptions as _, Connection as _, PgConnection, postgres::PgConnectOptions};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};

use crate::sql;

/// How long a goodbye may take.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// How a connection is made.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) connect: PgConnectOptions,
    pub(crate) connect_timeout: Duration,
    pub(crate) statement_timeout: Duration,
}

/// Up to a number of connections to one database.
pub(crate) struct Lane {
    settings: Settings,
    permits: Semaphore,
    /// The last one given back is the first one taken: the others may idle.
    idle: Mutex<Vec<PgConnection>>,
}

/// The right to use one connection, and the connection if there was one. Dropping the permit frees the place.
pub(crate) struct Taken<'a> {
    pub(crate) connection: PgConnection,
    /// Opened just now: if it fails, the server does.
    pub(crate) is_fresh: bool,
    pub(crate) permit: SemaphorePermit<'a>,
}

// === impl Settings ===

impl Settings {
    /// Opens a connection, within the connect time-out.
    pub(crate) async fn open(&self) -> Result<PgConnection, sqlx::Error> {
        let opening = async {
            let mut connection = self.connect.connect().await?;
            sqlx::raw_sql(sql::statement_timeout(self.statement_timeout))
                .execute(&mut connection)
                .await?;
            Ok(connection)
        };
        timeout(self.connect_timeout, opening).await.unwrap_or_else(|_| {
            let text = format!("no answer to an attempt to connect within {:?}", self.connect_timeout);
            Err(sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, text)))
        })
    }
}

// === impl Lane ===

impl Lane {
    pub(crate) fn new(settings: Settings, size: u32) -> Self {
        let size = usize::try_from(size).unwrap_or(1);
        Self {
            settings,
            permits: Semaphore::new(size),
            idle: Mutex::new(Vec::new()),
        }
    }

    pub(crate) async fn take(&self) -> Result<Taken<'_>, sqlx::Error> {
        let permit = self.permits.acquire().await.map_err(|_| sqlx::Error::PoolClosed)?;
        let idle = self.idle.lock().pop();
        match idle {
            Some(connection) => Ok(Taken {
                connection,
                is_fresh: false,
                permit,
            }),
            None => Ok(Taken {
                connection: self.settings.open().await?,
                is_fresh: true,
                permit,
            }),
        }
    }

    /// Only for a connection whose last statement was answered in full.
    pub(crate) fn give_back(&self, connection: PgConnection) {
        if !self.permits.is_closed() {
            self.idle.lock().push(connection);
        }
    }

    /// One idle connection was dead: the others died with it, more likely than not.
    pub(crate) fn drop_idle(&self) {
        let dead = std::mem::take(&mut *self.idle.lock());
        drop(dead);
    }

    pub(crate) async fn close(&self) {
        self.permits.close();
        let idle = std::mem::take(&mut *self.idle.lock());
        for connection in idle {
            // A server that does not answer learns it from the socket.
            let _ = timeout(CLOSE_TIMEOUT, connection.close()).await;
        }
    }
}
