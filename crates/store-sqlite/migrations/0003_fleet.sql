-- How busy workers' machines are, and the log of what happened.

ALTER TABLE workers ADD COLUMN cpu_permille INTEGER NOT NULL DEFAULT 0;
ALTER TABLE workers ADD COLUMN memory_used INTEGER NOT NULL DEFAULT 0;
ALTER TABLE workers ADD COLUMN memory_limit INTEGER NOT NULL DEFAULT 0;
ALTER TABLE workers ADD COLUMN pressure_permille INTEGER NOT NULL DEFAULT 0;

-- One row per step (a few, if a step did very much), so that a step costs one insert. The key is the last number of a
-- row: what comes after a number is one search away. The newest row is never removed: the next number follows it.
CREATE TABLE events (
    last  INTEGER PRIMARY KEY,
    first INTEGER NOT NULL,
    at    INTEGER NOT NULL,
    body  TEXT NOT NULL             -- JSON: an array of store::Happening, `first` to `last`
) STRICT;
