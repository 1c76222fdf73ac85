//! The store's server of a fleet: real, and to be stopped, held and restarted under it.
//!
//! Its own file because the engines differ in what an outage is: a PostgreSQL or Redis server stops and comes back with its
//! data, a cluster fails over, a file has no outage.
//!
//! Invariant: the port, and the data, survive a restart.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::builder::FleetStore;
use crate::{postgres, redis};

/// See [`super::Fleet::store`].
pub struct StoreServer(Engine);

enum Engine {
    Postgres(postgres::Server),
    Redis(redis::Server),
    Cluster(redis::Cluster),
    File(PathBuf),
}

const NO_OUTAGE: &str = "a SQLite file has no server that could stop";
const FAILS_OVER: &str = "a Redis Cluster without persistence forgets all when it stops: use `cluster()` and fail over";

// === impl StoreServer ===

impl StoreServer {
    pub(super) async fn launch(kind: FleetStore, home: &Path) -> Result<Self> {
        Ok(Self(match kind {
            FleetStore::Postgres => {
                // Ten coordinators with three connections each, and the test's own.
                Engine::Postgres(postgres::Server::builder().set("max_connections", "200").start()?)
            }
            FleetStore::Redis => Engine::Redis(redis::Server::builder().append_only().start().await?),
            FleetStore::RedisCluster => Engine::Cluster(redis::Cluster::start().await?),
            FleetStore::Sqlite => Engine::File(home.join("fleet.db")),
        }))
    }

    /// What a coordinator is given; the server itself, not through a cutter.
    #[must_use]
    pub fn url(&self) -> String {
        match &self.0 {
            Engine::Postgres(server) => server.url(),
            Engine::Redis(server) => server.url(),
            Engine::Cluster(cluster) => cluster.url(),
            Engine::File(path) => format!("sqlite:{}", path.display()),
        }
    }

    /// The same through another port of this machine; none for what is not behind one port.
    pub(super) fn url_at(&self, port: u16) -> Option<String> {
        match &self.0 {
            Engine::Postgres(server) => Some(server.url_at(port)),
            Engine::Redis(_) => Some(format!("redis://127.0.0.1:{port}")),
            Engine::Cluster(_) | Engine::File(_) => None,
        }
    }

    /// Where it listens, if that is one port.
    pub(super) fn port(&self) -> Option<u16> {
        match &self.0 {
            Engine::Postgres(server) => Some(server.port()),
            Engine::Redis(server) => Some(server.port()),
            Engine::Cluster(_) | Engine::File(_) => None,
        }
    }

    /// Ends it properly. Its data is kept.
    ///
    /// # Errors
    /// When it does not end, or cannot come back.
    pub async fn stop(&mut self) -> Result<()> {
        match &mut self.0 {
            Engine::Postgres(server) => server.stop(),
            Engine::Redis(server) => server.stop()?,
            Engine::Cluster(_) => bail!(FAILS_OVER),
            Engine::File(_) => bail!(NO_OUTAGE),
        }
        Ok(())
    }

    /// Ends it as a power cut does; what it acknowledged is on disk.
    ///
    /// # Errors
    /// When it does not end, or cannot come back.
    pub async fn crash(&mut self) -> Result<()> {
        match &mut self.0 {
            Engine::Postgres(server) => server.crash(),
            Engine::Redis(server) => server.kill()?,
            Engine::Cluster(_) => bail!(FAILS_OVER),
            Engine::File(_) => bail!(NO_OUTAGE),
        }
        Ok(())
    }

    /// Starts it again after [`Self::stop`] or [`Self::crash`], on the same port with its data.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn start(&mut self) -> Result<()> {
        match &mut self.0 {
            Engine::Postgres(server) => server.start_again(),
            Engine::Redis(server) => server.restart().await,
            Engine::Cluster(_) => bail!(FAILS_OVER),
            Engine::File(_) => bail!(NO_OUTAGE),
        }
    }

    /// [`Self::stop`] and [`Self::start`].
    ///
    /// # Errors
    /// When it does not end or start.
    pub async fn restart(&mut self) -> Result<()> {
        self.stop().await?;
        self.start().await
    }

    /// Holds it: connections stay, nothing is answered.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pause(&self) -> Result<()> {
        match &self.0 {
            Engine::Postgres(server) => server.pause(),
            Engine::Redis(server) => server.pause()?,
            Engine::Cluster(_) => bail!(FAILS_OVER),
            Engine::File(_) => bail!(NO_OUTAGE),
        }
        Ok(())
    }

    /// Undoes [`Self::pause`].
    ///
    /// # Errors
    /// When it does not run.
    pub fn resume(&self) -> Result<()> {
        match &self.0 {
            Engine::Postgres(server) => server.resume(),
            Engine::Redis(server) => server.resume()?,
            Engine::Cluster(_) => bail!(FAILS_OVER),
            Engine::File(_) => bail!(NO_OUTAGE),
        }
        Ok(())
    }

    /// The cluster, if it is one.
    pub fn cluster(&mut self) -> Option<&mut redis::Cluster> {
        match &mut self.0 {
            Engine::Cluster(cluster) => Some(cluster),
            _ => None,
        }
    }
}
