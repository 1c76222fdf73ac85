//! Which server it is, and what "written" means there.
//!
//! Its own file because an operator reads it once at start and must learn whether an acknowledged session survives a power
//! cut; and because the two engines differ in nothing else that we need to know.

use sqlx::{PgConnection, Row as _};
use wharf_journal::JournalError;

use crate::{PostgresJournal, failure::Failure};

/// What answers at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    Postgres,
    Cockroach,
}

// === impl Engine ===

impl Engine {
    pub(crate) async fn ask(connection: &mut PgConnection) -> Result<Self, sqlx::Error> {
        let version: String = sqlx::query_scalar("SELECT version()").fetch_one(connection).await?;
        Ok(Self::of(&version))
    }

    fn of(version: &str) -> Self {
        if version.contains("CockroachDB") {
            Self::Cockroach
        } else {
            Self::Postgres
        }
    }

    /// CockroachDB has no LISTEN.
    pub(crate) fn can_notify(self) -> bool {
        self == Self::Postgres
    }
}

impl PostgresJournal {
    pub(crate) async fn description(&self) -> Result<String, JournalError> {
        let told = self
            .call(&self.reads, "ask about the server", |mut connection| async move {
                let told = ask(&mut connection, self.engine).await;
                (connection, told)
            })
            .await?;
        let wakes = if self.sql.notifies {
            "readers are woken by NOTIFY"
        } else {
            "readers ask every 100 to 500 ms"
        };
        Ok(format!(
            "{told} Schema {} of {}; {wakes}.",
            self.sql.schema, self.address
        ))
    }
}

async fn ask(connection: &mut PgConnection, engine: Engine) -> Result<String, Failure> {
    if engine == Engine::Cockroach {
        let version: String = sqlx::query_scalar("SELECT version()").fetch_one(connection).await?;
        let version = version.split(" (").next().unwrap_or(&version);
        return Ok(format!(
            "{version}: a page is acknowledged when a majority of its replicas has it on disk."
        ));
    }
    let row = sqlx::query(
        "SELECT current_setting('server_version') AS version, current_setting('synchronous_commit') AS commit,
                current_setting('fsync') AS fsync, current_setting('synchronous_standby_names') AS standbys,
                current_setting('transaction_isolation') AS isolation",
    )
    .fetch_one(connection)
    .await?;
    let get = |column: &str| row.try_get::<String, _>(column);
    let (commit, fsync) = (get("commit")?, get("fsync")?);
    let meaning = durability(&commit, &fsync, !get("standbys")?.is_empty());
    let isolation = get("isolation")?;
    let slow = if matches!(isolation.as_str(), "serializable" | "repeatable read") {
        format!(
            " Its default isolation is {isolation}: correct here, but appends that meet are sent again; read committed is faster."
        )
    } else {
        String::new()
    };
    Ok(format!("PostgreSQL {}: {meaning}{slow}", get("version")?))
}

/// What an acknowledged page survives.
fn durability(commit: &str, fsync: &str, has_standbys: bool) -> String {
    match (fsync, commit) {
        ("off", _) => "WARNING: fsync is off: a crash of the machine can lose or damage everything; set fsync = on.".to_owned(),
        (_, "off") => "WARNING: synchronous_commit is off: a crash can lose the last moments of what was acknowledged; \
                       set synchronous_commit = on."
            .to_owned(),
        (_, "local") => "a page is acknowledged when this server has it on disk; a fail-over to a standby can lose the \
                         last moments (synchronous_commit = local)."
            .to_owned(),
        (_, level) if has_standbys => {
            format!("a page is acknowledged when this server has it on disk and its synchronous standbys have it ({level}).")
        }
        _ => "a page is acknowledged when this server has it on disk; a fail-over to a standby can lose the last moments, \
              because no synchronous standby is set."
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_is_known_by_its_version() {
        assert_eq!(Engine::of("PostgreSQL 15.18 on x86_64"), Engine::Postgres);
        assert_eq!(
            Engine::of("CockroachDB CCL v24.1.0 (x86_64-pc-linux-gnu)"),
            Engine::Cockroach
        );
    }

    #[test]
    fn lost_durability_is_a_warning() {
        assert!(durability("on", "off", true).starts_with("WARNING: fsync"));
        assert!(durability("off", "on", true).starts_with("WARNING: synchronous_commit"));
        assert!(!durability("on", "on", false).contains("WARNING"));
    }
}
