//! The store's server: which engine, and whether it waits for its disk.
//!
//! Its own file because a rate without its durability says nothing. The server is ours and not the fleet's, so that the store
//! alone and a fleet are measured on the same one; everything but the durability is the same for both settings of an engine.

use anyhow::Result;
use wharf_testkit::{postgres, redis};

use crate::{gauge::psql, options::Disk, options::Store};

/// An engine with its durability.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Engine {
    pub store: Store,
    pub disk: Disk,
}

/// A running server. It ends with its value.
pub enum Server {
    Postgres(postgres::Server),
    Redis(redis::Server),
}

// === impl Engine ===

impl Engine {
    /// As a report names it.
    pub fn name(self) -> &'static str {
        match self.store {
            Store::Postgres => "PostgreSQL",
            Store::Redis => "Redis",
        }
    }

    /// The setting that decides.
    pub fn durability(self) -> &'static str {
        match (self.store, self.disk) {
            (Store::Postgres, Disk::Ignored) => "fsync off",
            (Store::Postgres, Disk::Awaited) => "fsync on",
            (Store::Redis, Disk::Ignored) => "appendfsync everysec",
            (Store::Redis, Disk::Awaited) => "appendfsync always",
        }
    }

    pub async fn start(self) -> Result<Server> {
        Ok(match self.store {
            Store::Postgres => Server::Postgres(self.start_postgres()?),
            Store::Redis => {
                let value = match self.disk {
                    Disk::Ignored => "everysec",
                    Disk::Awaited => "always",
                };
                let server = redis::Server::builder()
                    .set("appendonly", "yes")
                    .set("appendfsync", value);
                Server::Redis(server.start().await?)
            }
        })
    }

    fn start_postgres(self) -> Result<postgres::Server> {
        let value = match self.disk {
            Disk::Ignored => "off",
            Disk::Awaited => "on",
        };
        let server = postgres::Server::builder()
            .set("max_connections", "200")
            .set("fsync", value)
            .set("full_page_writes", value)
            // Counts every statement at once; `pg_stat_database` is seconds behind.
            .set("shared_preload_libraries", "pg_stat_statements")
            .start()?;
        psql(&server.url(), "create extension pg_stat_statements")?;
        Ok(server)
    }
}

// === impl Server ===

impl Server {
    pub fn url(&self) -> String {
        match self {
            Self::Postgres(server) => server.url(),
            Self::Redis(server) => server.url(),
        }
    }

    pub fn port(&self) -> u16 {
        match self {
            Self::Postgres(server) => server.port(),
            Self::Redis(server) => server.port(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_durability_has_a_name_of_its_own() {
        let mut names = Vec::new();
        for store in [Store::Postgres, Store::Redis] {
            for disk in [Disk::Ignored, Disk::Awaited] {
                names.push(Engine { store, disk }.durability());
            }
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 4);
    }
}
