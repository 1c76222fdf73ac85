//! API keys: made, revoked, counted; and the queue cleared by filter.
//!
//! Its own file because these concern all sessions of somebody at once. Invariant: a revoked key has no live session and
//! no lock, and never gets one again.

use std::time::Duration;

use rusqlite::{OptionalExtension, ToSql, named_params};
use wharf_core::{EndReason, KeyId, Operation, PoolName};
use wharf_store::{EndedSession, Freed, KEY_REVOKED, KeyRecord, LockChange, NewKey, QueueFilter};

use crate::{
    hold_rows::{all, key_columns, lock_columns, read_key, read_lock, write_quota, write_role},
    rows::{Fault, SessionRow, key, session_columns, unsigned},
    step::Step,
};

/// How fine the time of last use is.
const USE_KNOWN_TO: Duration = Duration::from_secs(60);

// === impl Step: keys ===

impl Step<'_> {
    pub(crate) fn create_key(&mut self, new: &NewKey) -> Result<KeyRecord, Fault> {
        // Sessions may have come with it before it was kept here: from then on the triggers count.
        let mut statement = self.conn.prepare_cached(concat!(
            "INSERT OR IGNORE INTO keys (",
            key_columns!(),
            ") VALUES (:id, :name, :hash, :role, :max_sessions, (SELECT count(*) FROM sessions \
             WHERE owner = :id AND (status <> 'ended' OR is_leased = 1)), :now, NULL, NULL)"
        ))?;
        statement.execute(named_params! {
            ":id": key!(new.id),
            ":name": new.name,
            ":hash": new.hash,
            ":role": write_role(new.role),
            ":max_sessions": write_quota(new.max_sessions),
            ":now": self.now.as_micros(),
        })?;
        self.key(new.id)?
            .ok_or_else(|| Fault::Corrupt(format!("{} vanished within a transaction", new.id)))
    }

    pub(crate) fn key(&self, id: KeyId) -> Result<Option<KeyRecord>, Fault> {
        let sql = concat!("SELECT ", key_columns!(), " FROM keys WHERE id = ?1");
        Ok(all(self.conn, sql, [key!(id)], read_key)?.into_iter().next())
    }

    pub(crate) fn keys(&self) -> Result<Vec<KeyRecord>, Fault> {
        all(
            self.conn,
            concat!("SELECT ", key_columns!(), " FROM keys ORDER BY id"),
            [],
            read_key,
        )
    }

    pub(crate) fn revoke_key(&mut self, id: KeyId) -> Result<Option<(KeyRecord, Freed)>, Fault> {
        let mut statement = self
            .conn
            .prepare_cached("UPDATE keys SET revoked_at = coalesce(revoked_at, ?1) WHERE id = ?2")?;
        if statement.execute((self.now.as_micros(), key!(id)))? == 0 {
            return Ok(None);
        }
        let sql = concat!(
            "SELECT ",
            session_columns!(),
            " FROM sessions s WHERE s.owner = ?1 AND s.status <> 'ended' ORDER BY s.id"
        );
        let own = all(self.conn, sql, [key!(id)], SessionRow::read)?;
        let ended = self.end_all(own, EndReason::Policy, KEY_REVOKED)?;
        let sql = concat!("DELETE FROM locks WHERE owner = ?1 RETURNING ", lock_columns!());
        let mut own = all(self.conn, sql, [key!(id)], read_lock)?;
        own.sort_by(|one, other| one.name.cmp(&other.name));
        for lock in own {
            let change = match lock.until > self.now {
                true => LockChange::Released,
                false => LockChange::Expired,
            };
            self.note_lock(&lock, change);
        }
        let placed = self.dispatch_all()?;
        Ok(self.key(id)?.map(|record| (record, Freed { ended, placed })))
    }

    pub(crate) fn set_quota(&mut self, id: KeyId, max_sessions: Option<u64>) -> Result<Option<KeyRecord>, Fault> {
        let mut statement = self
            .conn
            .prepare_cached("UPDATE keys SET max_sessions = ?1 WHERE id = ?2")?;
        statement.execute((write_quota(max_sessions), key!(id)))?;
        self.key(id)
    }

    pub(crate) fn key_used(&mut self, id: KeyId) -> Result<(), Fault> {
        let stale_from = self.now.before(USE_KNOWN_TO).as_micros();
        let mut statement = self
            .conn
            .prepare_cached("UPDATE keys SET used_at = ?1 WHERE id = ?2 AND (used_at IS NULL OR used_at <= ?3)")?;
        statement.execute((self.now.as_micros(), key!(id), stale_from))?;
        Ok(())
    }

    /// What the key holds and may hold, if it may not hold one more.
    pub(crate) fn spent_quota(&self, id: KeyId) -> Result<Option<(u64, u64)>, Fault> {
        let mut statement = self
            .conn
            .prepare_cached("SELECT held, iif(revoked_at IS NULL, max_sessions, 0) FROM keys WHERE id = ?1")?;
        let found: Option<(i64, Option<i64>)> = statement
            .query_row([key!(id)], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        Ok(match found {
            Some((held, Some(limit))) if held >= limit => Some((unsigned(held), unsigned(limit))),
            _ => None,
        })
    }
}

// === impl Step: the queue cleared ===

impl Step<'_> {
    /// Nobody was kept out by somebody who only waited, so nothing is dispatched.
    pub(crate) fn clear_queue(
        &mut self,
        filter: &QueueFilter,
        reason: EndReason,
        detail: &str,
    ) -> Result<Freed, Fault> {
        let sql = concat!(
            "SELECT ",
            session_columns!(),
            " FROM sessions s WHERE s.status = 'queued' AND s.status <> 'ended' AND (:pool IS NULL OR s.pool = :pool) \
             AND (:operation IS NULL OR s.operation = :operation) AND (:owner IS NULL OR s.owner = :owner) \
             ORDER BY s.id"
        );
        let owner: Option<[u8; 16]> = filter.owner.map(|owner| key!(owner));
        let values: &[(&str, &dyn ToSql)] = named_params! {
            ":pool": filter.pool.as_ref().map(PoolName::as_str),
            ":operation": filter.operation.as_ref().map(Operation::as_str),
            ":owner": owner,
        };
        let waiting = all(self.conn, sql, values, SessionRow::read)?;
        Ok(Freed {
            ended: self.end_all(waiting, reason, detail)?,
            placed: Vec::new(),
        })
    }

    /// Ends sessions that have not ended; their leases stay.
    fn end_all(&mut self, rows: Vec<SessionRow>, reason: EndReason, detail: &str) -> Result<Vec<EndedSession>, Fault> {
        let mut ended = Vec::new();
        for mut row in rows {
            ended.push(self.finish(&mut row, reason, Some(detail.to_owned())));
            row.save_end(self.conn)?;
        }
        Ok(ended)
    }
}
