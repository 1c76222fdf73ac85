-- Workers, sessions, leases and the queue. Times are microseconds since the Unix epoch by the store's clock; ids are
-- the 16 bytes of the UUID, so that their order is the order of creation.

CREATE TABLE workers (
    id              BLOB PRIMARY KEY,
    pool            TEXT NOT NULL,
    browsers        TEXT NOT NULL,              -- kinds, separated by commas, in the worker's order
    slots           INTEGER NOT NULL,
    busy            INTEGER NOT NULL DEFAULT 0, -- kept by the lease triggers below
    lifetime        INTEGER NOT NULL DEFAULT 0, -- likewise
    state           TEXT NOT NULL,
    is_circuit_open INTEGER NOT NULL,
    address         TEXT NOT NULL,
    registered_at   INTEGER NOT NULL,
    heard_at        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX workers_by_pool ON workers (pool);
CREATE INDEX workers_by_silence ON workers (heard_at);
-- The order of core::placement::choose: the first row that fits is the one. Equal shares of small integers divide to
-- equal doubles, so the quotient orders exactly.
CREATE INDEX workers_free ON workers (pool, busy * 1.0 / slots, lifetime DESC, id)
    WHERE state = 'available' AND is_circuit_open = 0 AND busy < slots;

-- A session's lease is its row's `is_leased`: the seat is always (worker, epoch) of the row and dates from placed_at,
-- because a session is placed only while it has no lease.
CREATE TABLE sessions (
    number          INTEGER PRIMARY KEY,        -- order of arrival
    id              BLOB NOT NULL UNIQUE,
    pool            TEXT NOT NULL,
    browser         TEXT NOT NULL,
    priority        INTEGER NOT NULL,
    operation       TEXT NOT NULL,
    status          TEXT NOT NULL,
    reason          TEXT,
    epoch           INTEGER NOT NULL,
    worker          BLOB,
    is_leased       INTEGER NOT NULL,
    coordinator     BLOB NOT NULL,
    idempotency_key TEXT,
    queued_at       INTEGER NOT NULL,
    joined_at       INTEGER NOT NULL,           -- when its present ticket was given out
    placed_at       INTEGER,
    started_at      INTEGER,
    attached_at     INTEGER,
    active_at       INTEGER,
    ended_at        INTEGER,
    due_at          INTEGER,                    -- when time alone ends it, tickets' leases aside
    detail          TEXT,
    excluded        BLOB NOT NULL,              -- worker ids, 16 bytes each
    timeouts        TEXT NOT NULL
) STRICT;

CREATE INDEX sessions_queue ON sessions (pool, browser, priority DESC, number) WHERE status = 'queued';
CREATE INDEX sessions_tickets ON sessions (coordinator, joined_at) WHERE status = 'queued';
CREATE INDEX sessions_leases ON sessions (worker, id) WHERE is_leased = 1;
CREATE INDEX sessions_due ON sessions (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX sessions_history ON sessions (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX sessions_live ON sessions (status, id) WHERE status <> 'ended';
CREATE UNIQUE INDEX sessions_key ON sessions (idempotency_key) WHERE idempotency_key IS NOT NULL;

-- The client's own data may be large; apart, it is not copied whenever a session moves.
CREATE TABLE specs (
    number INTEGER PRIMARY KEY,
    body   TEXT NOT NULL
) STRICT;

CREATE TRIGGER session_forgotten AFTER DELETE ON sessions BEGIN
    DELETE FROM specs WHERE number = OLD.number;
END;

-- A ticket's lease runs from its own beginning or from its coordinator's last renewal, whichever is later: one row is
-- written per renewal, however many wait.
CREATE TABLE coordinators (
    id         BLOB PRIMARY KEY,
    renewed_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- How many wait, so that admission and a newcomer's position count nothing.
CREATE TABLE waiting (
    pool     TEXT NOT NULL,
    browser  TEXT NOT NULL,
    priority INTEGER NOT NULL,
    amount   INTEGER NOT NULL,
    PRIMARY KEY (pool, browser, priority)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER session_joins AFTER INSERT ON sessions WHEN NEW.status = 'queued' BEGIN
    INSERT INTO waiting (pool, browser, priority, amount) VALUES (NEW.pool, NEW.browser, NEW.priority, 1)
        ON CONFLICT DO UPDATE SET amount = amount + 1;
END;
CREATE TRIGGER session_rejoins AFTER UPDATE OF status ON sessions
WHEN NEW.status = 'queued' AND OLD.status <> 'queued' BEGIN
    INSERT INTO waiting (pool, browser, priority, amount) VALUES (NEW.pool, NEW.browser, NEW.priority, 1)
        ON CONFLICT DO UPDATE SET amount = amount + 1;
END;
CREATE TRIGGER session_leaves AFTER UPDATE OF status ON sessions
WHEN NEW.status <> 'queued' AND OLD.status = 'queued' BEGIN
    UPDATE waiting SET amount = amount - 1
        WHERE pool = OLD.pool AND browser = OLD.browser AND priority = OLD.priority;
END;
CREATE TRIGGER session_refused AFTER DELETE ON sessions WHEN OLD.status = 'queued' BEGIN
    UPDATE waiting SET amount = amount - 1
        WHERE pool = OLD.pool AND browser = OLD.browser AND priority = OLD.priority;
END;

CREATE TRIGGER lease_begins AFTER UPDATE OF is_leased ON sessions
WHEN NEW.is_leased = 1 AND OLD.is_leased = 0 BEGIN
    UPDATE workers SET busy = busy + 1, lifetime = lifetime + 1 WHERE id = NEW.worker;
END;
CREATE TRIGGER lease_ends AFTER UPDATE OF is_leased ON sessions
WHEN NEW.is_leased = 0 AND OLD.is_leased = 1 BEGIN
    UPDATE workers SET busy = busy - 1 WHERE id = OLD.worker;
END;
