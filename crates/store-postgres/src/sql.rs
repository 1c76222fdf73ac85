//! Every statement, with the schema's name put in once.
//!
//! Its own file so that what must hold on PostgreSQL and CockroachDB, under read committed and serializable, can be read
//! in one place. The only thing put into the text is the schema's name, which was checked to be a plain word.
//!
//! On `append`, the one that matters. It is a single statement, so it commits itself. The update of the head row is the
//! lock by which pages get their order. Under read committed a statement that waited for that lock goes on with the
//! newest head row (its condition and `clock_timestamp()` are evaluated again), but its *other* reads still see what was
//! committed when it began. Therefore: the condition that a trim may change (`trimmed`) is a column of the head row; the
//! page of the mark was read by the caller before, so it is seen in any case; and the missed pages that come along may be
//! incomplete, which shows in their numbers: the caller reads the rest with `follow`.
//! Under serializable the wait ends in 40001 instead, and the statement is sent again.

use std::{sync::Arc, time::Duration};

use sqlx::AssertSqlSafe;

/// The server's clock in microseconds: the time at the moment of asking, not when the statement began to wait.
const CLOCK: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::int8";
/// The same, as it was when the statement began: for where it is compared more than once.
const NOW: &str = "(extract(epoch FROM now()) * 1000000)::int8";
/// How many missed pages come along with an append; more are read after it.
const ALONG: u32 = 500;

/// The statements of one schema.
pub(crate) struct Statements {
    /// The schema, quoted.
    pub(crate) schema: String,
    /// The channel of its notifications.
    pub(crate) channel: String,
    /// Whether appends notify.
    pub(crate) notifies: bool,
    pub(crate) append: Arc<str>,
    pub(crate) follow: Arc<str>,
    pub(crate) find: Arc<str>,
    pub(crate) head: Arc<str>,
    pub(crate) checkpoint: Arc<str>,
    pub(crate) keep: Arc<str>,
    pub(crate) trim: Arc<str>,
    pub(crate) delete_pages: Arc<str>,
    pub(crate) archive: Arc<str>,
    pub(crate) archived: Arc<str>,
    pub(crate) archived_list: Arc<str>,
    pub(crate) prune: Arc<str>,
    pub(crate) version: Arc<str>,
    pub(crate) add_version: Arc<str>,
}

/// A text of [`Statements`] for sqlx.
pub(crate) fn safe(text: &Arc<str>) -> AssertSqlSafe<Arc<str>> {
    AssertSqlSafe(Arc::clone(text))
}

/// The server's own limit for a statement: what we gave up waiting for should not go on for ever.
pub(crate) fn statement_timeout(limit: Duration) -> AssertSqlSafe<String> {
    AssertSqlSafe(format!("SET statement_timeout = {}", limit.as_millis().max(1)))
}

// === impl Statements ===

impl Statements {
    pub(crate) fn new(schema: &str, notifies: bool) -> Self {
        let channel = format!("wharf_{schema}");
        let schema = format!("\"{schema}\"");
        let notify = if notifies {
            // In RETURNING, because it is evaluated for every inserted row, whoever reads it.
            format!(", pg_notify('{channel}', seq::text)::text AS told")
        } else {
            String::new()
        };
        let put = |text: &str| -> Arc<str> {
            let text = text
                .replace("{s}", &schema)
                .replace("{clock}", CLOCK)
                .replace("{now}", NOW)
                .replace("{notify}", &notify);
            Arc::from(text.replace("{along}", &ALONG.to_string()))
        };
        Self {
            append: put(APPEND),
            follow: put(FOLLOW),
            find: put("SELECT seq, appended_at FROM {s}.wharf_pages WHERE writer = $1 AND number = $2"),
            head: put("SELECT seq FROM {s}.wharf_head WHERE id = 1"),
            checkpoint: put("SELECT seq, writer, number, appended_at, image FROM {s}.wharf_checkpoint WHERE id = 1"),
            keep: put(KEEP),
            trim: put(TRIM),
            delete_pages: put(DELETE_PAGES),
            archive: put(ARCHIVE),
            archived: put("SELECT record FROM {s}.wharf_archive WHERE session = $1"),
            archived_list: put("SELECT record FROM {s}.wharf_archive"),
            prune: put(PRUNE),
            version: put("SELECT coalesce(max(version), 0) FROM {s}.wharf_versions"),
            add_version: put(
                "INSERT INTO {s}.wharf_versions (version, made_at) VALUES ($1, {clock}) ON CONFLICT (version) DO NOTHING",
            ),
            schema,
            channel,
            notifies,
        }
    }
}

/// $1 time or null, $2 after, $3 and $4 its mark, $5 writer, $6 number, $7 body.
const APPEND: &str = "
WITH head AS (
    UPDATE {s}.wharf_head SET seq = seq + 1, last_at = greatest(last_at, coalesce($1::int8, {clock}))
    WHERE id = 1 AND trimmed <= $2::int8 AND ($2::int8 = 0 OR EXISTS (
        SELECT 1 FROM {s}.wharf_pages WHERE seq = $2::int8 AND writer = $3::uuid AND number = $4::int8))
    RETURNING seq, last_at
), page AS (
    INSERT INTO {s}.wharf_pages (seq, appended_at, writer, number, body)
    SELECT seq, last_at, $5::uuid, $6::int8, $7::text FROM head
    RETURNING seq, appended_at {notify}
)
SELECT true AS is_own, seq, appended_at, NULL::uuid AS writer, NULL::int8 AS number, NULL::text AS body FROM page
UNION ALL
(SELECT false, seq, appended_at, writer, number, body FROM {s}.wharf_pages
 WHERE seq > $2::int8 ORDER BY seq LIMIT {along})";

/// $1 after, $2 how many rows, the page of the position itself (without its text) included.
const FOLLOW: &str = "
SELECT h.seq AS head, h.last_at, h.trimmed, {clock} AS clock, p.seq, p.appended_at, p.writer, p.number, p.body
FROM {s}.wharf_head h LEFT JOIN (
    SELECT seq, appended_at, writer, number, CASE WHEN seq > $1::int8 THEN body END AS body
    FROM {s}.wharf_pages WHERE seq >= $1::int8 ORDER BY seq LIMIT $2::int8
) p ON true
WHERE h.id = 1 ORDER BY p.seq";

/// $1 seq, $2 writer, $3 number, $4 time, $5 image. A checkpoint of a page that is not on the journal (its tail was lost)
/// would send every reader into the void: it is not kept.
const KEEP: &str = "
INSERT INTO {s}.wharf_checkpoint (id, seq, writer, number, appended_at, image)
SELECT 1, $1::int8, $2::uuid, $3::int8, $4::int8, $5::text
WHERE $1::int8 = 0 OR EXISTS (
    SELECT 1 FROM {s}.wharf_pages WHERE seq = $1::int8 AND writer = $2::uuid AND number = $3::int8)
ON CONFLICT (id) DO UPDATE SET
    seq = excluded.seq, writer = excluded.writer, number = excluded.number, appended_at = excluded.appended_at,
    image = excluded.image
WHERE wharf_checkpoint.seq < excluded.seq";

/// $1 trim to, $2 grace in microseconds. `trimmed` is what readers are held to from now on; `deletable` follows it a
/// grace later, so that an append that was accepted before can still read what it missed.
const TRIM: &str = "
UPDATE {s}.wharf_head SET
    deletable = CASE WHEN pending_at <= {now} - $2::int8 THEN pending ELSE deletable END,
    pending = CASE WHEN pending_at <= {now} - $2::int8
        THEN greatest(trimmed, least($1::int8, coalesce((SELECT seq FROM {s}.wharf_checkpoint WHERE id = 1), 0)))
        ELSE pending END,
    pending_at = CASE WHEN pending_at <= {now} - $2::int8 THEN {now} ELSE pending_at END,
    trimmed = greatest(trimmed, least($1::int8, coalesce((SELECT seq FROM {s}.wharf_checkpoint WHERE id = 1), 0)))
WHERE id = 1
RETURNING deletable";

/// $1 before which page, $2 memory in microseconds, $3 how many. A writer's last page is remembered longer: it may be
/// sent again by a writer that never heard of it.
const DELETE_PAGES: &str = "
DELETE FROM {s}.wharf_pages WHERE seq < $1::int8 AND seq IN (
    SELECT p.seq FROM {s}.wharf_pages p
    WHERE p.seq < $1::int8 AND (
        p.appended_at <= {clock} - $2::int8
        OR EXISTS (SELECT 1 FROM {s}.wharf_pages n WHERE n.writer = p.writer AND n.number > p.number))
    ORDER BY p.seq LIMIT $3::int8)";

const ARCHIVE: &str = "
INSERT INTO {s}.wharf_archive (session, pool, operation, owner, reason, ended_at, record)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::uuid[], $5::text[], $6::int8[], $7::text[])
ON CONFLICT (session) DO NOTHING";

/// $1 ended by, $2 how many.
const PRUNE: &str = "
DELETE FROM {s}.wharf_archive WHERE session IN (
    SELECT session FROM {s}.wharf_archive WHERE ended_at <= $1::int8 ORDER BY ended_at LIMIT $2::int8)";
