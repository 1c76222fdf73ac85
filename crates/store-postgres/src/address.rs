//! Which database is meant: the URL read once, and a way to name it without its password.
//!
//! Its own file because every message names the database and none may show the password. Invariant: an [`Address`] never
//! held it.

use std::{fmt, str::FromStr};

use sqlx::{ConnectOptions as _, postgres::PgConnectOptions};

use crate::ConnectError;

/// A database's name for messages: user, host, port, database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) user: String,
    pub(crate) place: String,
    pub(crate) database: String,
}

// === impl Address ===

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "postgres://{}@{}/{}", self.user, self.place, self.database)
    }
}

/// Reads a URL of one of the three schemes.
pub(crate) fn parse(url: &str) -> Result<(Address, PgConnectOptions), ConnectError> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(ConnectError::Scheme("no scheme".to_owned()));
    };
    if !matches!(scheme, "postgres" | "postgresql" | "cockroachdb") {
        // A scheme cannot hold a password, unless the whole is something else altogether: show a word of it at most.
        let word: String = scheme
            .chars()
            .take_while(char::is_ascii_alphanumeric)
            .take(20)
            .collect();
        return Err(ConnectError::Scheme(format!("`{word}://`")));
    }
    // The parsers' messages name what is wrong and never repeat the text.
    let options = PgConnectOptions::from_str(&format!("postgres://{rest}"))
        .map_err(|error| ConnectError::Url(reason(&error)))?
        .application_name("wharf")
        .disable_statement_logging();
    let place = match options.get_socket() {
        Some(socket) => socket.display().to_string(),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    };
    let user = options.get_username().to_owned();
    let database = options.get_database().unwrap_or(&user).to_owned();
    Ok((Address { user, place, database }, options))
}

fn reason(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Configuration(inner) => inner.to_string(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scheme_is_read_and_the_password_is_not_shown() {
        for scheme in ["postgres", "postgresql", "cockroachdb"] {
            let (address, _) = parse(&format!("{scheme}://ann:geheim@db.example:26257/grid")).expect("a good URL");
            assert_eq!(address.to_string(), "postgres://ann@db.example:26257/grid");
        }
        let (address, _) = parse("postgres://db.example/grid?user=ann&password=geheim").expect("a good URL");
        assert_eq!(address.to_string(), "postgres://ann@db.example:5432/grid");
    }

    #[test]
    fn wrong_url_is_explained_without_its_password() {
        for url in [
            "mysql://ann:geheim@db/grid",
            "ann:geheim@db/grid",
            "ann:geheim://db",
            "postgres://ann:geheim@db:port/grid",
            "postgres://ann:geheim@db/grid?sslmode=geheim",
            "postgres://ann:geheim@[::1/grid",
        ] {
            let error = parse(url).expect_err(url);
            let told = format!("{error} {error:?}");
            assert!(!told.replace("sslmode", "").contains("ann:geheim"), "{told}");
        }
    }
}
