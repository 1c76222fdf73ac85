-- What holds sessions back (limits and locks), whose they are (keys), and the counts these are judged by.

ALTER TABLE workers ADD COLUMN warm INTEGER NOT NULL DEFAULT 0;
ALTER TABLE workers ADD COLUMN launching INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN owner BLOB;             -- the API key it came with
-- The operation, if a limit or a lock may name it (see `buckets`), else ''. True of whoever waits.
ALTER TABLE sessions ADD COLUMN bucket TEXT NOT NULL DEFAULT '';

-- An operation that is held back must not be read through to find who is not: each has a queue of its own, and all
-- others share one.
DROP INDEX sessions_queue;
CREATE INDEX sessions_queue ON sessions (pool, browser, bucket, priority DESC, number) WHERE status = 'queued';

-- Idempotency keys are each owner's own; no owner is an owner, too.
DROP INDEX sessions_key;
CREATE UNIQUE INDEX sessions_key ON sessions (coalesce(owner, x''), idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX sessions_owner ON sessions (owner, id) WHERE owner IS NOT NULL;

-- The operations that have a bucket. Written in the same step as the limit or lock that names one; the sweep removes
-- those that nothing names any more.
CREATE TABLE buckets (
    operation TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

CREATE TABLE limits (
    pool      TEXT NOT NULL,
    operation TEXT NOT NULL,                            -- '' is the pool as a whole
    amount    INTEGER NOT NULL,
    set_at    INTEGER NOT NULL,
    PRIMARY KEY (pool, operation)
) STRICT, WITHOUT ROWID;

-- An expired lock holds nobody back; its row goes with the next dispatch, which serves whom it held back.
CREATE TABLE locks (
    name        TEXT PRIMARY KEY,
    token       BLOB NOT NULL,
    holder      TEXT NOT NULL,
    description TEXT NOT NULL,
    cover       TEXT NOT NULL,                          -- JSON: core::hold::Cover
    taken_at    INTEGER NOT NULL,
    until       INTEGER NOT NULL,
    owner       BLOB
) STRICT, WITHOUT ROWID;

CREATE INDEX locks_by_end ON locks (until);

CREATE TABLE keys (
    id           BLOB PRIMARY KEY,
    name         TEXT NOT NULL,
    hash         BLOB NOT NULL,                         -- SHA-256 of the secret
    role         TEXT NOT NULL,
    max_sessions INTEGER,
    held         INTEGER NOT NULL,                      -- kept by the triggers below
    created_at   INTEGER NOT NULL,
    used_at      INTEGER,
    revoked_at   INTEGER
) STRICT, WITHOUT ROWID;

-- How many run and wait, per pool ('' as the operation) and per operation of it, so that limits and reports count
-- nothing. A row goes when it is empty: operations are named by clients, and there may be any number of them.
CREATE TABLE counts (
    pool      TEXT NOT NULL,
    operation TEXT NOT NULL,
    running   INTEGER NOT NULL,
    waiting   INTEGER NOT NULL,
    PRIMARY KEY (pool, operation)
) STRICT, WITHOUT ROWID;

INSERT INTO counts (pool, operation, running, waiting)
    SELECT pool, '', sum(is_leased), sum(status = 'queued') FROM sessions
        WHERE status = 'queued' OR is_leased = 1 GROUP BY pool;
INSERT INTO counts (pool, operation, running, waiting)
    SELECT pool, operation, sum(is_leased), sum(status = 'queued') FROM sessions
        WHERE status = 'queued' OR is_leased = 1 GROUP BY pool, operation;

CREATE TRIGGER counted_in AFTER INSERT ON sessions WHEN NEW.status = 'queued' BEGIN
    INSERT INTO counts (pool, operation, running, waiting)
        VALUES (NEW.pool, '', 0, 1), (NEW.pool, NEW.operation, 0, 1)
        ON CONFLICT DO UPDATE SET waiting = waiting + 1;
END;
-- Whoever is placed has waited and whoever waits again was placed, so the rows are there.
CREATE TRIGGER counted_on AFTER UPDATE OF status, is_leased ON sessions
WHEN (NEW.status = 'queued') <> (OLD.status = 'queued') OR NEW.is_leased <> OLD.is_leased BEGIN
    UPDATE counts SET running = running + NEW.is_leased - OLD.is_leased,
                      waiting = waiting + (NEW.status = 'queued') - (OLD.status = 'queued')
        WHERE pool = NEW.pool AND operation IN ('', NEW.operation);
    DELETE FROM counts WHERE pool = NEW.pool AND operation IN ('', NEW.operation) AND running = 0 AND waiting = 0;
END;
CREATE TRIGGER counted_out AFTER DELETE ON sessions WHEN OLD.status = 'queued' BEGIN
    UPDATE counts SET waiting = waiting - 1 WHERE pool = OLD.pool AND operation IN ('', OLD.operation);
    DELETE FROM counts WHERE pool = OLD.pool AND operation IN ('', OLD.operation) AND running = 0 AND waiting = 0;
END;

-- A key holds its sessions that have not ended, and ended ones that still hold a slot.
CREATE TRIGGER key_takes AFTER INSERT ON sessions WHEN NEW.owner IS NOT NULL BEGIN
    UPDATE keys SET held = held + 1 WHERE id = NEW.owner;
END;
CREATE TRIGGER key_gives AFTER UPDATE OF status, is_leased ON sessions
WHEN NEW.owner IS NOT NULL AND NEW.status = 'ended' AND NEW.is_leased = 0
    AND (OLD.status <> 'ended' OR OLD.is_leased = 1) BEGIN
    UPDATE keys SET held = held - 1 WHERE id = NEW.owner;
END;
CREATE TRIGGER key_refused AFTER DELETE ON sessions
WHEN OLD.owner IS NOT NULL AND (OLD.status <> 'ended' OR OLD.is_leased = 1) BEGIN
    UPDATE keys SET held = held - 1 WHERE id = OLD.owner;
END;
