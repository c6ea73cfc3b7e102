//! `token_keys`: the secrets that sign exchange tokens, shared by all replicas.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Check, yaml::child};

/// Most keys.
pub const TOKEN_KEYS_MAX: usize = 8;

/// Least length of a secret in bytes: the width of the digest.
pub const TOKEN_KEY_BYTES_MIN: usize = 32;

/// Greatest length of a secret, bytes.
pub const TOKEN_KEY_BYTES_MAX: usize = 4096;

/// Longest key id, bytes.
pub const TOKEN_KEY_ID_BYTES_MAX: usize = 32;

/// A secret that signs exchange tokens.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenKeyFile {
    /// Name of the key, carried in every token: letters, digits, `.`, `_`, `-`; at most 32.
    pub id: String,
    /// File with the secret, 32 to 4096 bytes, taken as they are (a line end counts). Relative paths start at this
    /// file's folder.
    #[schemars(length(min = 1))]
    pub file: String,
}

/// Checked key with its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenKey {
    /// Name of the key.
    pub id: String,
    /// Where the secret came from.
    pub file: PathBuf,
    /// The secret.
    pub secret: Secret,
}

/// Bytes that must not be shown: `Debug` gives only their number.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Keeps `bytes` out of sight.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The bytes, for the one place that needs them.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.0.len())
    }
}

/// Whether `id` can name a key.
pub(crate) fn is_key_id(id: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    !id.is_empty() && id.len() <= TOKEN_KEY_ID_BYTES_MAX && id.bytes().all(plain)
}

pub(super) fn check(raw: &[TokenKeyFile], check: &mut Check<'_, '_>) -> Vec<TokenKey> {
    let mut seen = BTreeSet::new();
    let mut keys = Vec::new();
    for (index, key) in raw.iter().enumerate() {
        let at = format!("/token_keys/{index}");
        if !is_key_id(&key.id) {
            let advice = format!("use 1 to {TOKEN_KEY_ID_BYTES_MAX} letters, digits, `.`, `_` or `-`");
            check.error(&child(&at, "id"), format!("{:?} is not a key id", key.id), advice);
        } else if !seen.insert(key.id.as_str()) {
            check.error(&child(&at, "id"), format!("{} is used twice", key.id), "give every key its own id");
        }
        let file_at = child(&at, "file");
        let file = check.resolve(&key.file);
        let Some(bytes) = check.read(&file, &file_at, TOKEN_KEY_BYTES_MAX) else { continue };
        if bytes.len() < TOKEN_KEY_BYTES_MIN {
            let what =
                format!("{} has {} bytes, fewer than {TOKEN_KEY_BYTES_MIN}", file.display(), bytes.len());
            check.error(&file_at, what, "make one with `openssl rand 32`");
            continue;
        }
        keys.push(TokenKey { id: key.id.clone(), file, secret: Secret::new(bytes) });
    }
    keys
}
