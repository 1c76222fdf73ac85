//! Where a worker's gateway is, with the key it wants: `http://:KEY@host:port`.
//!
//! Its own file because the key must never be shown: it is made anew for every life of a worker, told to the grid at
//! registration, and only coordinators have it. A worker token alone opens no gateway.

use std::{fmt, str::FromStr};

use rand::RngExt;

/// Characters of a key: 64 hexadecimal digits.
const KEY_BYTES: usize = 32;

/// A gateway's address and key.
#[derive(Clone, PartialEq, Eq)]
pub struct GatewayAddress {
    /// `host:port`.
    pub authority: String,
    /// What callers must show.
    pub key: String,
}

/// A text that is no such address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected http://host:port, got `{0}`")]
pub struct BadAddress(String);

// === impl GatewayAddress ===

impl GatewayAddress {
    /// A new key.
    pub fn new_key() -> String {
        let bytes: [u8; KEY_BYTES] = rand::rng().random();
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// With this key, at the URL that an operator advertises.
    pub fn advertised(url: &str, key: &str) -> Result<Self, BadAddress> {
        let bad = || BadAddress(url.to_owned());
        let authority = url.strip_prefix("http://").ok_or_else(bad)?.trim_end_matches('/');
        let (host, port) = authority.rsplit_once(':').ok_or_else(bad)?;
        let is_legal = |text: &str| {
            text.bytes()
                .all(|byte| byte.is_ascii_graphic() && !b"/@?#".contains(&byte))
        };
        let is_bracketed =
            host.starts_with('[') == host.ends_with(']') && (host.starts_with('[') || !host.contains(':'));
        match !host.is_empty() && is_bracketed && is_legal(host) && port.parse::<u16>().is_ok_and(|port| port > 0) {
            true => Ok(Self {
                authority: authority.to_owned(),
                key: key.to_owned(),
            }),
            false => Err(bad()),
        }
    }

    /// As registrations have it, key included.
    pub fn to_registration(&self) -> String {
        format!("http://:{}@{}", self.key, self.authority)
    }
}

impl FromStr for GatewayAddress {
    type Err = BadAddress;

    /// Reads what [`GatewayAddress::to_registration`] writes.
    fn from_str(text: &str) -> Result<Self, BadAddress> {
        // The key is not repeated in the error.
        let bad = || BadAddress(text.rsplit_once('@').map_or(text, |(_, rest)| rest).to_owned());
        let rest = text.strip_prefix("http://:").ok_or_else(bad)?;
        let (key, authority) = rest.split_once('@').ok_or_else(bad)?;
        Self::advertised(&format!("http://{authority}"), key).map_err(|_| bad())
    }
}

impl fmt::Display for GatewayAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.authority)
    }
}

impl fmt::Debug for GatewayAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_reads_back_and_never_shows_its_key() {
        let key = GatewayAddress::new_key();
        assert_eq!(key.len(), 64);
        for url in ["http://10.0.0.7:8081", "http://worker-1.example:9", "http://[::1]:8081"] {
            let address = GatewayAddress::advertised(url, &key).unwrap();
            let again: GatewayAddress = address.to_registration().parse().unwrap();
            assert_eq!(again, address);
            assert_eq!(address.to_string(), url);
            assert!(!format!("{address:?} {address}").contains(&key));
        }
    }

    #[test]
    fn wrong_addresses_are_refused_without_their_key() {
        for url in [
            "",
            "10.0.0.7:8081",
            "https://a:1",
            "http://a",
            "http://:1",
            "http://a:0",
            "http://a:x",
            "http://a/b:1",
            "http://::1:80",
            "http://a@b:1",
        ] {
            assert!(GatewayAddress::advertised(url, "k").is_err(), "{url}");
        }
        let error = "http://:secret@nowhere".parse::<GatewayAddress>().unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
