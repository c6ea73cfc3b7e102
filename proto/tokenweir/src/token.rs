//! The exchange token: what the service knew at the verdict, sealed so that the filter can carry it and any replica
//! can believe it. With it a report can be settled by a replica that never saw the request, or by one that restarted.
//!
//! Text form: `tw1.<key id>.<payload>.<tag>`, payload and tag in URL-safe base64 without padding; the tag is
//! HMAC-SHA-256 (RFC 2104) over everything before its dot. Tokens are authenticated, not secret: they hold no prompt
//! text and no client key.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use prost::Message as _;
use sha2::Sha256;

use crate::v1::ExchangeToken;

/// Longest token text that is looked at, bytes.
pub const TOKEN_BYTES_MAX: usize = 8 * 1024;
/// Most keys in a ring: the signing one and those still accepted.
pub const KEYS_MAX: usize = 16;
/// Shortest key, bytes: as long as the hash.
pub const KEY_BYTES_MIN: usize = 32;
/// Longest key id, bytes.
pub const KEY_ID_BYTES_MAX: usize = 32;
/// Version of [`ExchangeToken`] that this build writes and reads.
pub const TOKEN_VERSION: u32 = 1;

const PREFIX: &str = "tw1";

/// Identifies one exchange everywhere: ours, random, never a client's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExchangeId(pub [u8; 16]);

impl ExchangeId {
    /// Reads the 32 hexadecimal digits that `Display` writes.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        (text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit())).then_some(())?;
        u128::from_str_radix(text, 16).ok().map(|n| Self(n.to_be_bytes()))
    }
}

impl fmt::Display for ExchangeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for ExchangeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a token is refused; the label goes into metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Not of the form that `seal` writes.
    #[error("the exchange token is malformed")]
    Malformed,
    /// Its key is not in the ring.
    #[error("the exchange token was signed with a key that this replica doesn't hold")]
    UnknownKey,
    /// Forged or altered.
    #[error("the exchange token's signature is wrong")]
    Forged,
    /// Past its lifetime.
    #[error("the exchange token has expired")]
    Expired,
    /// Written by an incompatible version.
    #[error("the exchange token has a version that this replica doesn't read")]
    Version,
}

impl TokenError {
    /// Stable label.
    #[must_use]
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::UnknownKey => "unknown_key",
            Self::Forged => "forged",
            Self::Expired => "expired",
            Self::Version => "version",
        }
    }
}

/// Why a key can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Fewer than [`KEY_BYTES_MIN`] bytes.
    #[error("key `{0}` is shorter than {KEY_BYTES_MIN} bytes; make one with `head -c 32 /dev/urandom`")]
    Short(String),
    /// Not 1 to 32 letters, digits, `-` or `_`.
    #[error("key id `{0}` must be 1 to {KEY_ID_BYTES_MAX} letters, digits, `-` or `_`")]
    Id(String),
    /// The same id twice.
    #[error("key id `{0}` is there twice; each key needs its own")]
    Doubled(String),
    /// None, or more than [`KEYS_MAX`].
    #[error("a key ring holds 1 to {KEYS_MAX} keys")]
    Count,
}

struct Key {
    id: String,
    /// Keyed once; cloned for each tag.
    mac: Hmac<Sha256>,
}

/// Signing and checking keys. The first signs; all check.
pub struct KeyRing {
    keys: Vec<Key>,
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.keys.iter().map(|k| &k.id)).finish()
    }
}

impl KeyRing {
    /// A ring of `(id, secret)` pairs.
    ///
    /// # Errors
    /// See [`KeyError`].
    pub fn new<'a>(keys: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Result<Self, KeyError> {
        let mut ring: Vec<Key> = Vec::new();
        for (id, secret) in keys {
            let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
            if id.is_empty() || id.len() > KEY_ID_BYTES_MAX || !id.bytes().all(plain) {
                return Err(KeyError::Id(id.to_owned()));
            }
            if ring.iter().any(|key| key.id == id) {
                return Err(KeyError::Doubled(id.to_owned()));
            }
            if secret.len() < KEY_BYTES_MIN {
                return Err(KeyError::Short(id.to_owned()));
            }
            let Ok(mac) = Hmac::<Sha256>::new_from_slice(secret) else {
                return Err(KeyError::Short(id.to_owned()));
            };
            ring.push(Key { id: id.to_owned(), mac });
        }
        if ring.is_empty() || ring.len() > KEYS_MAX {
            return Err(KeyError::Count);
        }
        Ok(Self { keys: ring })
    }

    /// The keys, the signing one first: each a fresh MAC.
    pub(crate) fn macs(&self) -> impl Iterator<Item = Hmac<Sha256>> + '_ {
        self.keys.iter().map(|key| key.mac.clone())
    }

    /// The text form of `token`, signed with the first key.
    #[must_use]
    pub fn seal(&self, token: &ExchangeToken) -> String {
        let Some(key) = self.keys.first() else {
            return String::new();
        };
        let payload = token.encode_to_vec();
        let mut text = String::with_capacity(payload.len() * 4 / 3 + 96);
        text.push_str(PREFIX);
        text.push('.');
        text.push_str(&key.id);
        text.push('.');
        URL_SAFE_NO_PAD.encode_string(&payload, &mut text);
        let tag = key.mac.clone().chain_update(text.as_bytes()).finalize().into_bytes();
        text.push('.');
        URL_SAFE_NO_PAD.encode_string(tag, &mut text);
        text
    }

    /// Checks `text` and reads it. The tag is compared in constant time before anything is decoded.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub fn open(&self, text: &str, now_unix_ms: u64) -> Result<(ExchangeId, ExchangeToken), TokenError> {
        if text.len() > TOKEN_BYTES_MAX {
            return Err(TokenError::Malformed);
        }
        let (signed, tag) = text.rsplit_once('.').ok_or(TokenError::Malformed)?;
        let mut parts = signed.splitn(3, '.');
        let (Some(PREFIX), Some(id), Some(payload)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(TokenError::Malformed);
        };
        let key = self.keys.iter().find(|key| key.id == id).ok_or(TokenError::UnknownKey)?;
        let tag = URL_SAFE_NO_PAD.decode(tag).map_err(|_| TokenError::Malformed)?;
        key.mac.clone().chain_update(signed.as_bytes()).verify_slice(&tag).map_err(|_| TokenError::Forged)?;
        let payload = URL_SAFE_NO_PAD.decode(payload).map_err(|_| TokenError::Malformed)?;
        let token = ExchangeToken::decode(payload.as_slice()).map_err(|_| TokenError::Malformed)?;
        if token.version != TOKEN_VERSION {
            return Err(TokenError::Version);
        }
        let id = token.exchange.as_slice().try_into().map_err(|_| TokenError::Malformed)?;
        if now_unix_ms >= token.expires_unix_ms {
            return Err(TokenError::Expired);
        }
        Ok((ExchangeId(id), token))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ring(ids: &[&str]) -> KeyRing {
        let secrets: Vec<_> = ids.iter().map(|id| (*id, id.repeat(KEY_BYTES_MIN).into_bytes())).collect();
        KeyRing::new(secrets.iter().map(|(id, s)| (*id, s.as_slice()))).expect("a good ring")
    }

    fn token() -> ExchangeToken {
        ExchangeToken {
            version: TOKEN_VERSION,
            exchange: vec![7; 16],
            replica: "r0".into(),
            tenant: "team-a".into(),
            model: "tiny-llama".into(),
            pool: "a".into(),
            endpoints: vec!["127.0.0.1:8001".into()],
            issued_unix_ms: 1_000,
            expires_unix_ms: 2_000,
            ..ExchangeToken::default()
        }
    }

    #[test]
    fn what_was_sealed_opens_until_it_expires() {
        let text = ring(&["k1"]).seal(&token());
        assert_eq!(ring(&["k1"]).open(&text, 1_999), Ok((ExchangeId([7; 16]), token())));
        assert_eq!(ring(&["k1"]).open(&text, 2_000), Err(TokenError::Expired));
    }

    #[test]
    fn an_old_key_still_checks_while_it_is_in_the_ring() {
        let text = ring(&["old"]).seal(&token());
        assert!(ring(&["new", "old"]).open(&text, 1_500).is_ok());
        assert_eq!(ring(&["new"]).open(&text, 1_500), Err(TokenError::UnknownKey));
    }

    #[test]
    fn another_replicas_secret_under_the_same_id_is_a_forgery() {
        let text = KeyRing::new([("k1", [9u8; 32].as_slice())]).expect("ring").seal(&token());
        assert_eq!(ring(&["k1"]).open(&text, 1_500), Err(TokenError::Forged));
    }

    #[test]
    fn versions_and_ids_that_we_do_not_know_are_refused() {
        let ring = ring(&["k1"]);
        let newer = ring.seal(&ExchangeToken { version: 2, ..token() });
        assert_eq!(ring.open(&newer, 1_500), Err(TokenError::Version));
        let short = ring.seal(&ExchangeToken { exchange: vec![1; 15], ..token() });
        assert_eq!(ring.open(&short, 1_500), Err(TokenError::Malformed));
    }

    #[test]
    fn weak_and_ambiguous_rings_are_refused() {
        let made = |keys: &[(&str, &[u8])]| KeyRing::new(keys.iter().copied()).map(|_| ()).unwrap_err();
        assert_eq!(made(&[]), KeyError::Count);
        assert_eq!(made(&[("k", &[1; 31])]), KeyError::Short("k".into()));
        assert_eq!(made(&[("k.1", &[1; 32])]), KeyError::Id("k.1".into()));
        assert_eq!(made(&[("k", &[1; 32]), ("k", &[2; 32])]), KeyError::Doubled("k".into()));
    }

    #[test]
    fn an_exchange_id_reads_what_it_writes() {
        let id = ExchangeId(*b"\x00\x01 sixteen bytes");
        assert_eq!(ExchangeId::from_hex(&id.to_string()), Some(id));
        assert_eq!(ExchangeId::from_hex("+1234567890123456789012345678901"), None, "32 digits or nothing");
    }

    proptest! {
        #[test]
        fn any_change_of_any_byte_is_refused(at in 0usize..400, with in 0u8..128) {
            let ring = ring(&["k1"]);
            let text = ring.seal(&token());
            let mut bytes = text.clone().into_bytes();
            let at = at % bytes.len();
            prop_assume!(bytes[at] != with);
            bytes[at] = with;
            let changed = String::from_utf8(bytes).expect("ascii");
            prop_assert!(ring.open(&changed, 1_500).is_err(), "{changed}");
        }

        #[test]
        fn no_text_panics(text in ".{0,300}") {
            prop_assert!(ring(&["k1"]).open(&text, 1_500).is_err());
        }
    }
}
