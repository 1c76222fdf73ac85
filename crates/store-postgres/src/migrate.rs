//! The tables, made and upgraded at start.
//!
//! Its own file because it must be safe when ten coordinators start at once, without advisory locks (CockroachDB has
//! none, which rules sqlx's migrator out). Instead every statement may be run by all of them: it says `IF NOT EXISTS`,
//! commits on its own (CockroachDB does not mix DDL with other statements well), and what collides inside the server's
//! catalogue is run again. A migration's version is written down after its last statement. A migration must leave the
//! tables usable for the version before it: coordinators are upgraded one by one.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection};
use tokio::time::{Instant, sleep};

use crate::{
    failure::{self, Meaning},
    lane::Settings,
    sql::{Statements, safe},
};

/// For all migrations together. Ten at once on a busy server take a second or two.
const BUDGET: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(50);

/// What each version adds. Only ever appended to.
const MIGRATIONS: &[&[&str]] = &[&[
    // The order of the journal: `seq` and `last_at` are those of the last page. Readers before `trimmed` are refused;
    // pages before `deletable` may go; `pending` becomes `deletable` a grace after `pending_at`.
    "CREATE TABLE IF NOT EXISTS {s}.wharf_head (
        id int8 PRIMARY KEY CHECK (id = 1), seq int8 NOT NULL, last_at int8 NOT NULL, trimmed int8 NOT NULL,
        deletable int8 NOT NULL, pending int8 NOT NULL, pending_at int8 NOT NULL)",
    "CREATE TABLE IF NOT EXISTS {s}.wharf_pages (
        seq int8 PRIMARY KEY, appended_at int8 NOT NULL, writer uuid NOT NULL, number int8 NOT NULL, body text NOT NULL,
        CONSTRAINT wharf_pages_once UNIQUE (writer, number))",
    "CREATE TABLE IF NOT EXISTS {s}.wharf_checkpoint (
        id int8 PRIMARY KEY CHECK (id = 1), seq int8 NOT NULL, writer uuid, number int8, appended_at int8 NOT NULL,
        image text NOT NULL)",
    "CREATE TABLE IF NOT EXISTS {s}.wharf_archive (
        session uuid PRIMARY KEY, pool text NOT NULL, operation text NOT NULL, owner uuid, reason text NOT NULL,
        ended_at int8 NOT NULL, record text NOT NULL)",
    "CREATE INDEX IF NOT EXISTS wharf_archive_pool ON {s}.wharf_archive (pool, session)",
    "CREATE INDEX IF NOT EXISTS wharf_archive_operation ON {s}.wharf_archive (operation, session)",
    "CREATE INDEX IF NOT EXISTS wharf_archive_owner ON {s}.wharf_archive (owner, session)",
    "CREATE INDEX IF NOT EXISTS wharf_archive_reason ON {s}.wharf_archive (reason, session)",
    "CREATE INDEX IF NOT EXISTS wharf_archive_ended ON {s}.wharf_archive (ended_at)",
    "INSERT INTO {s}.wharf_head (id, seq, last_at, trimmed, deletable, pending, pending_at)
        VALUES (1, 0, 0, 0, 0, 0, 0) ON CONFLICT (id) DO NOTHING",
]];

/// Brings the schema up to our version.
pub(crate) async fn run(first: PgConnection, settings: &Settings, sql: &Statements) -> Result<(), String> {
    let deadline = Instant::now() + BUDGET;
    let mut connection = Some(first);
    loop {
        let attempt = match connection.take() {
            Some(connection) => migrate(connection, sql).await,
            None => match settings.open().await {
                Ok(connection) => migrate(connection, sql).await,
                Err(error) => Err(error),
            },
        };
        let error = match attempt {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        if !is_collision(&error) || Instant::now() + PAUSE >= deadline {
            return Err(failure::text(&error));
        }
        tracing::debug!(
            reason = failure::text(&error),
            "another coordinator makes the tables, too; trying again"
        );
        sleep(PAUSE.mul_f64(rand::random_range(0.5..1.5))).await;
    }
}

async fn migrate(mut connection: PgConnection, sql: &Statements) -> Result<(), sqlx::Error> {
    let newest = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
    // Asked first: on a migrated database nothing is changed, and no right to create anything is needed.
    let found = match version(&mut connection, sql).await {
        Ok(found) => found,
        Err(error) if matches!(failure::code(&error).as_deref(), Some("42P01" | "3F000")) => {
            for text in [
                "CREATE SCHEMA IF NOT EXISTS {s}",
                "CREATE TABLE IF NOT EXISTS {s}.wharf_versions (version int8 PRIMARY KEY, made_at int8 NOT NULL)",
            ] {
                execute(&mut connection, sql, text).await?;
            }
            0
        }
        Err(error) => return Err(error),
    };
    if found > newest {
        tracing::warn!(
            found,
            newest,
            "the tables were made by a newer version of wharf; going on with them"
        );
    }
    for (version, statements) in (1..).zip(MIGRATIONS) {
        if version <= found {
            continue;
        }
        for text in *statements {
            execute(&mut connection, sql, text).await?;
        }
        sqlx::query(safe(&sql.add_version))
            .bind(version)
            .execute(&mut connection)
            .await?;
        tracing::info!(version, schema = sql.schema, "tables made");
    }
    Ok(())
}

async fn version(connection: &mut PgConnection, sql: &Statements) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar(safe(&sql.version)).fetch_one(connection).await
}

/// Not prepared: these run once.
async fn execute(connection: &mut PgConnection, sql: &Statements, text: &str) -> Result<(), sqlx::Error> {
    let text = text.replace("{s}", &sql.schema);
    sqlx::raw_sql(AssertSqlSafe(text)).execute(connection).await.map(drop)
}

/// Two that create the same thing at once collide in the catalogue in many ways: a unique key of it (23505), a table, type
/// or schema that is there after all (42P07, 42710, 42P06), "tuple concurrently updated" (XX000), an object that is not
/// visible yet (42P01), or a conflict.
fn is_collision(error: &sqlx::Error) -> bool {
    match Meaning::of(error) {
        Meaning::Conflict | Meaning::Lost | Meaning::Duplicate => true,
        Meaning::Closed => false,
        Meaning::Wrong => {
            matches!(
                failure::code(error).as_deref(),
                Some("42P07" | "42710" | "42P06" | "42P01" | "3F000")
            )
        }
    }
}
