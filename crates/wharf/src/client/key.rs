//! `wharf key`: make, list, limit and revoke keys, on the store itself or through the grid that uses it.
//!
//! Its own file because of the first key: a grid that listens beyond loopback asks for one before any exists, so keys
//! can be made on the store while no grid uses it. The store's own lock decides which way; nobody has to say. A shared store
//! (PostgreSQL, Redis) may be used at any time: its coordinators learn of the key as they learn of everything.

use std::sync::Arc;

use clap::ArgMatches;
use rand::RngExt;
use serde_json::{Value, json};
use uuid::Uuid;
use wharf_core::{CoordinatorId, KeyId, KeyToken};
use wharf_store::{KeyRecord, KeyRole, NewKey, Store, StoreError};
use wharf_store_sqlite::{Durability, OpenError, SqliteStore};

use super::{
    Failure, Outcome, Output, count, deepest, given,
    http::{Call, Grid, encoded},
    operand,
    table::{Column, table, time, word},
};
use crate::{
    clock::SystemClock,
    config::{Settings, StoreUrl},
    places::Places,
    stores::{self, Past},
};

const KEYS: &[Column] = &[
    ("KEY", |row| word(&row["id"])),
    ("NAME", |row| word(&row["name"])),
    ("ROLE", |row| word(&row["role"])),
    ("SESSIONS", |row| match row["max_sessions"].as_u64() {
        Some(max) => format!("{} of {max}", word(&row["sessions"])),
        None => word(&row["sessions"]),
    }),
    ("CREATED", |row| time(&row["created_at"])),
    ("USED", |row| time(&row["used_at"])),
    ("REVOKED", |row| time(&row["revoked_at"])),
];

/// Who keeps the keys now.
enum Keeper {
    Store(Opened),
    Grid(Grid),
}

/// A store and the runtime that its tasks live on.
struct Opened {
    store: Arc<dyn Store>,
    runtime: tokio::runtime::Runtime,
}

pub(super) fn run(matches: &ArgMatches) -> Outcome {
    let keeper = keeper(matches)?;
    let Some((name, matches)) = matches.subcommand() else {
        unreachable!("clap requires a subcommand");
    };
    match name {
        "create" => {
            let name = operand(matches, "NAME");
            let role = if matches.get_flag("admin") { "admin" } else { "client" };
            let answer = keeper.create(name, role, matches.get_one::<u64>("max-sessions").copied())?;
            // The key alone on standard output, so that a script can keep it.
            eprintln!(
                "key {} ({role}) made for {name}. It is shown this once: keep it.",
                word(&answer["id"])
            );
            let text = format!("{}\n", word(&answer["token"]));
            Ok(Output::new(answer, text))
        }
        "limit" => {
            let answer = keeper.limit(operand(matches, "ID"), &count(operand(matches, "MAX"))?)?;
            let text = table(std::slice::from_ref(&answer), KEYS, "");
            Ok(Output::new(answer, text))
        }
        "revoke" => {
            let id = operand(matches, "ID");
            keeper.revoke(id)?;
            Ok(Output::new(json!({"revoked": id}), format!("revoked {id}\n")))
        }
        _ => {
            let answer = keeper.list()?;
            let text = table(
                &super::pool::rows(&answer["keys"]),
                KEYS,
                "there are no keys: the grid is open on loopback",
            );
            Ok(Output::new(answer, text))
        }
    }
}

fn keeper(matches: &ArgMatches) -> Result<Keeper, Failure> {
    let inner = deepest(matches);
    let is_told = given(inner, "url").is_some() || std::env::var_os("WHARF_URL").is_some();
    if is_told {
        return Ok(Keeper::Grid(super::grid(matches)));
    }
    let words = |problems: &[crate::config::Problem]| {
        let texts: Vec<_> = problems.iter().map(ToString::to_string).collect();
        Failure::Usage(texts.join("; "))
    };
    let sources = crate::cli::sources(inner).map_err(|problem| words(&[problem]))?;
    let settings = Settings::load_for_store(&sources).map_err(|problems| words(&problems))?;
    let local = |error: &dyn std::fmt::Display| Failure::Local(error.to_string());
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
    };
    let runtime = runtime().map_err(|error| local(&error))?;
    let path = match &settings.store {
        StoreUrl::Postgres(_) | StoreUrl::Redis(_) => {
            let places = Places::tell(&settings).map_err(|e| local(&format!("{e:#}")))?;
            let nobody = CoordinatorId::from_uuid(Uuid::now_v7());
            let store = runtime.block_on(stores::open(&settings, &places, nobody, Past::MayLive));
            let store = store.map_err(|e| local(&format!("{e:#}")))?;
            return Ok(Keeper::Store(Opened { store, runtime }));
        }
        StoreUrl::Memory => return Ok(Keeper::Grid(grid_of(matches, &settings))),
        StoreUrl::Sqlite(Some(path)) => path.clone(),
        StoreUrl::Sqlite(None) => Places::tell(&settings)
            .map_err(|e| local(&format!("{e:#}")))?
            .data_dir
            .join("wharf.db"),
    };
    match SqliteStore::open(&path, Durability::default(), Arc::new(SystemClock), settings.rules) {
        Ok(store) => Ok(Keeper::Store(Opened {
            store: Arc::new(store),
            runtime,
        })),
        Err(OpenError::InUse(_)) => Ok(Keeper::Grid(grid_of(matches, &settings))),
        Err(error) => Err(local(&error)),
    }
}

/// The grid that has these settings.
fn grid_of(matches: &ArgMatches, settings: &Settings) -> Grid {
    let token = given(deepest(matches), "token").map(str::to_owned);
    let token = token.or_else(|| std::env::var("WHARF_TOKEN").ok().filter(|text| !text.is_empty()));
    Grid::new(&format!("http://{}", settings.listen), token)
}

// === impl Keeper ===

impl Keeper {
    fn create(&self, name: &str, role: &str, max_sessions: Option<u64>) -> Result<Value, Failure> {
        let store = match self {
            Self::Grid(grid) => {
                let body = json!({"name": name, "role": role, "max_sessions": max_sessions});
                return Ok(grid.call(&Call::Post(Some(&body)), "/v1/keys")?);
            }
            Self::Store(store) => store,
        };
        if name.is_empty() || name.chars().count() > 100 || name.chars().any(char::is_control) {
            return Err(Failure::Usage(
                "the name: expected 1 to 100 printable characters".to_owned(),
            ));
        }
        let token = KeyToken::mint(KeyId::from_uuid(Uuid::now_v7()), rand::rng().random());
        let key = NewKey {
            id: token.id(),
            name: name.to_owned(),
            hash: token.hash(),
            role: if role == "admin" {
                KeyRole::Admin
            } else {
                KeyRole::Client
            },
            max_sessions,
        };
        let record = store.wait(store.store.create_key(key))?;
        let mut answer = shape(&record);
        answer["token"] = json!(token.reveal());
        Ok(answer)
    }

    fn list(&self) -> Result<Value, Failure> {
        match self {
            Self::Grid(grid) => Ok(grid.call(&Call::Get, "/v1/keys")?),
            Self::Store(store) => {
                let keys = store.wait(store.store.keys())?;
                Ok(json!({"keys": keys.iter().map(shape).collect::<Vec<_>>()}))
            }
        }
    }

    fn limit(&self, id: &str, max: &Value) -> Result<Value, Failure> {
        match self {
            Self::Grid(grid) => {
                let body = json!({"max_sessions": max});
                Ok(grid.call(&Call::Patch(&body), &format!("/v1/keys/{}", encoded(id)))?)
            }
            Self::Store(store) => {
                let key = parse(id)?;
                let changed = store.wait(store.store.set_quota(key, max.as_u64()))?;
                changed.as_ref().map(shape).ok_or_else(|| unknown(id))
            }
        }
    }

    fn revoke(&self, id: &str) -> Result<(), Failure> {
        match self {
            Self::Grid(grid) => {
                grid.call(&Call::Delete, &format!("/v1/keys/{}", encoded(id)))?;
                Ok(())
            }
            Self::Store(store) => match store.wait(store.store.revoke_key(parse(id)?))? {
                Some(_) => Ok(()),
                None => Err(unknown(id)),
            },
        }
    }
}

fn parse(id: &str) -> Result<KeyId, Failure> {
    id.parse().map_err(|error| Failure::Usage(format!("{error}")))
}

fn unknown(id: &str) -> Failure {
    Failure::Local(format!("there is no key {id}; `wharf key list` shows them"))
}

/// As the grid would answer it.
fn shape(record: &KeyRecord) -> Value {
    json!({
        "id": record.id,
        "name": record.name,
        "role": match record.role { KeyRole::Admin => "admin", KeyRole::Client => "client" },
        "max_sessions": record.max_sessions,
        "sessions": record.held,
        "created_at": record.created_at,
        "used_at": record.used_at,
        "revoked_at": record.revoked_at,
    })
}

// === impl Opened ===

impl Opened {
    /// Runs one store call to its end, and closes the store.
    fn wait<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, Failure> {
        let outcome = self.runtime.block_on(async {
            let outcome = call.await;
            let closed = self.store.close().await;
            outcome.and_then(|answer| closed.map(|()| answer))
        });
        outcome.map_err(|error| Failure::Local(error.to_string()))
    }
}
