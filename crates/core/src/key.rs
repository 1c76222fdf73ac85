//! API keys as clients show them: `whf_<id>_<secret>`.
//!
//! Its own file because the secret exists here and nowhere else: it is shown once, kept as a SHA-256 (it is 256 random
//! bits, so nothing slower is needed) and compared in constant time. The invariant: neither `Debug` nor any error of
//! this type prints it.

use std::{fmt, str::FromStr};

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use uuid::Uuid;

use crate::KeyId;

const PREFIX: &str = "whf_";
const ID_DIGITS: usize = 32;
const SECRET_DIGITS: usize = 64;

/// A key as its owner has it. Prints without its secret; [`KeyToken::reveal`] is the one way to it.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyToken {
    id: KeyId,
    secret: [u8; 32],
}

/// A text that is not a key. It does not say the text: it may be a secret with a typing error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a key like `whf_0198c0de…_…`, as `wharf key create` printed it")]
pub struct NotAKey;

// === impl KeyToken ===

impl KeyToken {
    /// A new key; id and randomness are the caller's.
    pub const fn mint(id: KeyId, random: [u8; 32]) -> Self {
        Self { id, secret: random }
    }

    /// Which key it claims to be.
    pub const fn id(&self) -> KeyId {
        self.id
    }

    /// What the store keeps.
    pub fn hash(&self) -> [u8; 32] {
        Sha256::digest(self.secret).into()
    }

    /// Whether the store keeps this one; takes the same time whatever differs.
    pub fn matches(&self, hash: &[u8; 32]) -> bool {
        self.hash().ct_eq(hash).into()
    }

    /// The whole key, to be shown once.
    pub fn reveal(&self) -> String {
        let secret: String = self.secret.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{PREFIX}{}_{secret}", self.id.as_uuid().simple())
    }
}

impl FromStr for KeyToken {
    type Err = NotAKey;

    fn from_str(text: &str) -> Result<Self, NotAKey> {
        let rest = text.strip_prefix(PREFIX).ok_or(NotAKey)?;
        let (id, secret) = rest.split_once('_').ok_or(NotAKey)?;
        let is_hex = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if id.len() != ID_DIGITS || secret.len() != SECRET_DIGITS || !is_hex(id) || !is_hex(secret) {
            return Err(NotAKey);
        }
        let id = Uuid::try_parse(id).map(KeyId::from_uuid).map_err(|_| NotAKey)?;
        let mut bytes = [0; 32];
        for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
            *byte = u8::from_str_radix(&secret[at..at + 2], 16).map_err(|_| NotAKey)?;
        }
        Ok(Self { id, secret: bytes })
    }
}

impl fmt::Debug for KeyToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyToken({}, …)", self.id)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn key_is_read_back_and_matches_only_its_own_hash(id: u128, secret: [u8; 32], other: [u8; 32]) {
            let token = KeyToken::mint(KeyId::from_uuid(Uuid::from_u128(id)), secret);
            let read: KeyToken = token.reveal().parse().unwrap();
            prop_assert_eq!(&read, &token);
            prop_assert!(read.matches(&token.hash()));
            let stranger = KeyToken::mint(token.id(), other);
            prop_assert_eq!(stranger.matches(&token.hash()), secret == other);
        }

        #[test]
        fn no_text_panics(text in ".{0,120}", cut in 0usize..110) {
            let _ = text.parse::<KeyToken>();
            let token = KeyToken::mint(KeyId::from_uuid(Uuid::nil()), [7; 32]).reveal();
            prop_assert!(token[..cut.min(token.len() - 1)].parse::<KeyToken>().is_err());
        }
    }

    #[test]
    fn secret_is_not_printed() {
        let token = KeyToken::mint(KeyId::from_uuid(Uuid::nil()), [0xab; 32]);
        assert!(!format!("{token:?}").contains("abab"));
        assert!(!NotAKey.to_string().contains("abab"));
    }
}
