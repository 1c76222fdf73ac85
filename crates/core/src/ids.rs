//! Identifiers: newtypes over UUIDv7 that print with their kind (`ses_…`, `wrk_…`, `brw_…`).
//!
//! Their own file because every other type names them. The invariant: an id of one kind can neither be passed nor
//! parsed where another kind is meant. Ids are names, not secrets (74 random bits, sortable by time).

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use uuid::Uuid;

/// Why a text is not an id of the wanted kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected an id like `{prefix}_0198c0de…` (the prefix and 32 hexadecimal digits), got `{found}`")]
pub struct ParseIdError {
    prefix: &'static str,
    found: String,
}

/// Pool and operation names: short words that are safe in URLs, SQL, logs and metric labels.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected 1 to 64 characters of a-z, 0-9, `_`, `-` or `.`, starting with a letter or digit, got `{0}`")]
pub struct ParseNameError(String);

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Uuid);

        impl $name {
            /// The kind's prefix, without the underscore.
            pub const PREFIX: &'static str = $prefix;

            /// An id from a UUID that the caller made (time and randomness are the caller's).
            pub const fn from_uuid(uuid: Uuid) -> Self {
                Self(uuid)
            }

            /// The bare UUID, for stores with a native type.
            pub const fn as_uuid(&self) -> Uuid {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "_{}"), self.0.simple())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                let refused = || ParseIdError { prefix: $prefix, found: text.chars().take(64).collect() };
                let hex = text.strip_prefix(concat!($prefix, "_")).ok_or_else(refused)?;
                // `Uuid` would also take braces, dashes and URNs; one spelling only, or one session has many names.
                if hex.len() != 32 || !hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
                    return Err(refused());
                }
                Uuid::try_parse(hex).map(Self).map_err(|_| refused())
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(D::Error::custom)
            }
        }
    };
}

id!(
    /// One session: one client's private use of a browser.
    SessionId,
    "ses"
);
id!(
    /// One worker: the agent on one host. Stable across restarts.
    WorkerId,
    "wrk"
);
id!(
    /// One browser process tree.
    BrowserId,
    "brw"
);
id!(
    /// One coordinator process, as the holder of ticket leases.
    CoordinatorId,
    "crd"
);
id!(
    /// One API key. The name of it, not its secret.
    KeyId,
    "key"
);
id!(
    /// One taking of a lock: whoever shows it may renew and release it.
    LockToken,
    "lck"
);
id!(
    /// One request, for logs and error bodies.
    RequestId,
    "req"
);

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $default:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self($default.to_owned())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = ParseNameError;

            fn from_str(text: &str) -> Result<Self, ParseNameError> {
                let mut bytes = text.bytes();
                let head = bytes.next().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
                let tail = bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-.".contains(&b));
                if head && tail && text.len() <= 64 {
                    Ok(Self(text.to_owned()))
                } else {
                    Err(ParseNameError(text.chars().take(80).collect()))
                }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(D::Error::custom)
            }
        }
    };
}

name!(
    /// A named set of workers with one configuration.
    PoolName,
    "default"
);
name!(
    /// What a session is for (`test_run`, `agent`, `scrape`, …), for limits and statistics.
    Operation,
    "session"
);

name!(
    /// What an exclusive lock is called.
    LockName,
    "exclusive"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_prints_its_kind_and_parses_back() {
        let id = SessionId::from_uuid(Uuid::from_u128(0x0198_c0de));
        assert_eq!(id.to_string(), "ses_0000000000000000000000000198c0de");
        assert_eq!(id.to_string().parse::<SessionId>(), Ok(id));
    }

    #[test]
    fn id_of_another_kind_or_spelling_is_refused() {
        for text in [
            "wrk_0000000000000000000000000198c0de",
            "ses_0000000000000000000000000198C0DE",
            "ses_00000000-0000-0000-0000-00000198c0de",
            "ses_",
            "",
            "0198c0de",
        ] {
            assert!(text.parse::<SessionId>().is_err(), "{text}");
        }
    }

    #[test]
    fn name_outside_the_alphabet_is_refused() {
        for text in ["", "Default", "a b", "-a", "a/b", "é", &"a".repeat(65)] {
            assert!(text.parse::<PoolName>().is_err(), "{text}");
        }
        assert!("eu-west.1_spot".parse::<PoolName>().is_ok());
    }
}
