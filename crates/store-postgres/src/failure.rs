//! What an error of the database means for us.
//!
//! Its own file because "try again", "try again elsewhere" and "an operator must look" are decided here and nowhere else,
//! by SQLSTATE and never by text.

use wharf_journal::JournalError;

/// Why one attempt did not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The database, or the way to it.
    Sql(sqlx::Error),
    /// The state changed between two statements: the whole attempt again.
    Again,
    /// The answer itself: no attempt will change it.
    Answer(JournalError),
}

/// What to do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// Another transaction was in the way: again, on the same connection.
    Conflict,
    /// The connection or the server is not usable: again, on another connection. Whether the statement happened is not
    /// known.
    Lost,
    /// A unique key is taken.
    Duplicate,
    /// We closed ourselves.
    Closed,
    /// The statement or the data is wrong: an operator must look.
    Wrong,
}

// === impl Failure ===

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<JournalError> for Failure {
    fn from(error: JournalError) -> Self {
        Self::Answer(error)
    }
}

// === impl Meaning ===

impl Meaning {
    pub(crate) fn of(error: &sqlx::Error) -> Self {
        match error {
            sqlx::Error::PoolClosed => Self::Closed,
            sqlx::Error::Database(_) => Self::of_code(code(error).as_deref().unwrap_or_default()),
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::WorkerCrashed => Self::Lost,
            _ => Self::Wrong,
        }
    }

    /// By SQLSTATE (PostgreSQL's appendix A; CockroachDB uses the same and adds `XXUUU`).
    fn of_code(code: &str) -> Self {
        match code {
            "40001" | "40P01" | "55P03" => Self::Conflict,
            "23505" => Self::Duplicate,
            // Damaged data or index.
            "XX001" | "XX002" => Self::Wrong,
            // A plan or prepared statement that another version's migration, or a pooler, took away.
            "0A000" | "26000" => Self::Lost,
            _ => match code.get(..2) {
                // Connection, authorisation, wrong state (a standby is read-only), unknown database, rollback with an
                // unknown outcome (40003), resources, shutting down or cancelled, system, internal.
                Some("08" | "25" | "28" | "3D" | "40" | "53" | "57" | "58" | "XX") => Self::Lost,
                _ => Self::Wrong,
            },
        }
    }
}

/// The SQLSTATE, if the server gave one.
pub(crate) fn code(error: &sqlx::Error) -> Option<String> {
    error
        .as_database_error()
        .and_then(|error| error.code())
        .map(|code| code.into_owned())
}

/// The error in words, with its SQLSTATE.
pub(crate) fn text(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(database) => match database.code() {
            Some(code) => format!("{} (SQLSTATE {code})", database.message()),
            None => database.message().to_owned(),
        },
        sqlx::Error::Io(io) => io.to_string(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqlstate_decides_what_to_do() {
        for code in ["40001", "40P01"] {
            assert_eq!(Meaning::of_code(code), Meaning::Conflict, "{code}");
        }
        for code in ["08006", "57P01", "57P03", "40003", "25006", "53300", "XX000", "XXUUU"] {
            assert_eq!(Meaning::of_code(code), Meaning::Lost, "{code}");
        }
        for code in ["42P01", "22021", "23514", "XX001", ""] {
            assert_eq!(Meaning::of_code(code), Meaning::Wrong, "{code}");
        }
        assert_eq!(Meaning::of_code("23505"), Meaning::Duplicate);
    }
}
