//! The suite that all journals share, on both isolation levels, with and without notifications.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use anyhow::Result;
use async_trait::async_trait;
use sqlx::{Connection as _, PgConnection};
use wharf_journal::{
    Journal,
    conformance::{Place, Places, check, stores::Stores},
};
use wharf_store_postgres::Options;

use crate::support::{ISOLATIONS, open_at, server};

/// One schema of a server.
struct Schema {
    url: String,
    options: Options,
    stumbles: bool,
}

const STUMBLE: &str = "CREATE OR REPLACE FUNCTION SCHEMA.stumble() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF random() < 0.1 THEN RAISE EXCEPTION 'injected' USING ERRCODE = '40001'; END IF;
        RETURN NEW;
    END $$;
    CREATE OR REPLACE TRIGGER stumble BEFORE INSERT ON SCHEMA.wharf_pages
        FOR EACH ROW EXECUTE FUNCTION SCHEMA.stumble();";

/// A server, and how many schemas were made on it.
struct Schemas {
    url: String,
    listen: bool,
    /// Whether the server refuses one append in ten with a conflict.
    stumbles: bool,
    count: AtomicU32,
}

#[async_trait]
impl Place for Schema {
    async fn open(&self) -> Arc<dyn Journal> {
        let journal = open_at(&self.url, self.options.clone()).await;
        let journal = journal.expect("a server that nothing hinders");
        if self.stumbles {
            let mut admin = PgConnection::connect(&self.url).await.expect("a second connection");
            let sql = STUMBLE.replace("SCHEMA", &self.options.schema);
            sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
                .execute(&mut admin)
                .await
                .expect("a trigger");
        }
        Arc::new(journal)
    }
}

#[async_trait]
impl Places for Schemas {
    async fn empty(&self) -> Box<dyn Place> {
        let schema = format!("place_{}", self.count.fetch_add(1, Ordering::Relaxed));
        let options = Options {
            listen: self.listen,
            schema,
            ..Options::default()
        };
        Box::new(Schema {
            url: self.url.clone(),
            options,
            stumbles: self.stumbles,
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_suite_passes() -> Result<()> {
    for (isolation, listen) in ISOLATIONS.into_iter().zip([true, false]) {
        let server = server(isolation)?;
        check(&Schemas {
            url: server.url(),
            listen,
            stumbles: false,
            count: AtomicU32::new(0),
        })
        .await;
    }
    Ok(())
}

/// The port's own suite, on a server that is serializable and refuses appends with conflicts, as CockroachDB does.
#[tokio::test(flavor = "multi_thread")]
async fn store_keeps_the_ports_contract_through_conflicts() -> Result<()> {
    let server = server("serializable")?;
    let schemas = Schemas {
        url: server.url(),
        listen: true,
        stumbles: true,
        count: AtomicU32::new(0),
    };
    Stores::new(&schemas).scenarios().await;
    Ok(())
}

#[test]
fn store_agrees_with_the_model_and_survives_races() -> Result<()> {
    let server = server("read committed")?;
    let schemas = Schemas {
        url: server.url(),
        listen: false,
        stumbles: false,
        count: AtomicU32::new(0),
    };
    let stores = Stores::new(&schemas);
    stores.agree_with_the_model(6);
    stores.survive_races(60);
    Ok(())
}
