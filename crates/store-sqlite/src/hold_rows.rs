//! Rows of limits, locks and keys: how they are written in SQL and read back.
//!
//! Its own file, beside `rows`, because nothing of a session's path reads these whole. Invariant: what is written reads
//! back equal, and a row that makes no sense is [`Fault::Corrupt`], never a guess.

use rusqlite::{Connection, Row, named_params};
use uuid::Uuid;
use wharf_core::{KeyId, LimitScope, LockName, LockToken, Timestamp};
use wharf_store::{KeyRecord, KeyRole, LimitRecord, LockRecord};

use crate::rows::{Fault, corrupt, json, key, parse, signed, text, time, unsigned, uuid};

/// The columns of a lock, in the order [`read_lock`] expects.
macro_rules! lock_columns {
    () => {
        "name, token, holder, description, cover, taken_at, until, owner"
    };
}
pub(crate) use lock_columns;

/// The columns of a key, in the order [`read_key`] expects.
macro_rules! key_columns {
    () => {
        "id, name, hash, role, max_sessions, held, created_at, used_at, revoked_at"
    };
}
pub(crate) use key_columns;

/// An owner, where there may be none.
pub(crate) fn owner(row: &Row<'_>, column: usize) -> Result<Option<KeyId>, Fault> {
    let bytes: Option<[u8; 16]> = row.get(column)?;
    Ok(bytes.map(|bytes| KeyId::from_uuid(Uuid::from_bytes(bytes))))
}

/// All rows of a question, each read by `read`.
pub(crate) fn all<T>(
    conn: &Connection,
    sql: &str,
    values: impl rusqlite::Params,
    read: impl Fn(&Row<'_>) -> Result<T, Fault>,
) -> Result<Vec<T>, Fault> {
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query(values)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(read(row)?);
    }
    Ok(found)
}

// === limits ===

/// How a scope is written: no operation has an empty name.
pub(crate) fn write_scope(scope: &LimitScope) -> &str {
    match scope {
        LimitScope::Pool => "",
        LimitScope::Operation(operation) => operation.as_str(),
    }
}

/// Reads `pool, operation, amount, set_at`.
pub(crate) fn read_limit(row: &Row<'_>) -> Result<LimitRecord, Fault> {
    Ok(LimitRecord {
        pool: parse("pool", text(row, 0)?)?,
        scope: match text(row, 1)? {
            "" => LimitScope::Pool,
            operation => LimitScope::Operation(parse("operation", operation)?),
        },
        max: unsigned(row.get(2)?),
        set_at: Timestamp::from_micros(row.get(3)?),
    })
}

// === locks ===

pub(crate) fn read_lock(row: &Row<'_>) -> Result<LockRecord, Fault> {
    let cover = text(row, 4)?;
    Ok(LockRecord {
        name: parse("lock", text(row, 0)?)?,
        token: LockToken::from_uuid(uuid(row, 1)?),
        holder: row.get(2)?,
        description: row.get(3)?,
        cover: serde_json::from_str(cover).map_err(|_| corrupt("cover", cover))?,
        taken_at: Timestamp::from_micros(row.get(5)?),
        until: Timestamp::from_micros(row.get(6)?),
        owner: owner(row, 7)?,
    })
}

/// Writes a lock that was just taken or renewed.
pub(crate) fn write_lock(conn: &Connection, lock: &LockRecord) -> Result<(), Fault> {
    let mut statement = conn.prepare_cached(concat!(
        "INSERT OR REPLACE INTO locks (",
        lock_columns!(),
        ") VALUES (:name, :token, :holder, :description, :cover, :taken_at, :until, :owner)"
    ))?;
    statement.execute(named_params! {
        ":name": lock.name.as_str(),
        ":token": key!(lock.token),
        ":holder": lock.holder,
        ":description": lock.description,
        ":cover": json(&lock.cover)?,
        ":taken_at": lock.taken_at.as_micros(),
        ":until": lock.until.as_micros(),
        ":owner": lock.owner.map(|owner| key!(owner)),
    })?;
    Ok(())
}

pub(crate) fn delete_lock(conn: &Connection, name: &LockName) -> Result<(), Fault> {
    conn.prepare_cached("DELETE FROM locks WHERE name = ?1")?
        .execute([name.as_str()])?;
    Ok(())
}

// === keys ===

const ROLES: [(KeyRole, &str); 2] = [(KeyRole::Client, "client"), (KeyRole::Admin, "admin")];

pub(crate) fn write_role(role: KeyRole) -> &'static str {
    let known = ROLES.into_iter().find(|(known, _)| *known == role);
    known.map_or("client", |(_, name)| name)
}

pub(crate) fn read_key(row: &Row<'_>) -> Result<KeyRecord, Fault> {
    let role = text(row, 3)?;
    let known = ROLES.into_iter().find(|(_, name)| *name == role);
    Ok(KeyRecord {
        id: KeyId::from_uuid(uuid(row, 0)?),
        name: row.get(1)?,
        hash: row.get(2)?,
        role: known.map(|(role, _)| role).ok_or_else(|| corrupt("role", role))?,
        max_sessions: row.get::<_, Option<i64>>(4)?.map(unsigned),
        held: unsigned(row.get(5)?),
        created_at: Timestamp::from_micros(row.get(6)?),
        used_at: time(row, 7)?,
        revoked_at: time(row, 8)?,
    })
}

/// A quota as it is kept.
pub(crate) fn write_quota(max_sessions: Option<u64>) -> Option<i64> {
    max_sessions.map(signed)
}
