//! The keys that seal exchange tokens: those of the configuration, or one of our own in the state folder, made on the
//! first start. It must outlive the process: reports that come after a restart are believed by it.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use proto_tokenweir::token::{KEY_BYTES_MIN, KeyError, KeyRing};

use crate::config::Config;

/// Name of our own key in the state folder.
pub const KEY_FILE: &str = "token.key";
const OWN_KEY_ID: &str = "own";

/// Why there is no key to seal with.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The file can't be read or made.
    #[error("the token key {path} can't be used: {source}; the service must be able to write its state_dir")]
    File {
        /// The key file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A key is not good.
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// The ring to seal and open tokens with.
///
/// # Errors
/// See [`KeysError`].
pub fn ring(config: &Config) -> Result<KeyRing, KeysError> {
    if config.token_keys.is_empty() {
        let path = config.state_dir.join(KEY_FILE);
        let secret = own_key(&path).map_err(|source| KeysError::File { path, source })?;
        return Ok(KeyRing::new([(OWN_KEY_ID, secret.as_slice())])?);
    }
    Ok(KeyRing::new(config.token_keys.iter().map(|key| (key.id.as_str(), key.secret.bytes())))?)
}

fn own_key(path: &Path) -> std::io::Result<Vec<u8>> {
    match std::fs::read(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        read => return read,
    }
    let mut secret = vec![0; KEY_BYTES_MIN];
    getrandom::fill(&mut secret).map_err(std::io::Error::other)?;
    // Written aside and renamed: a start that is killed half-way leaves no half key.
    let aside = path.with_extension("new");
    let mut file =
        std::fs::OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&aside)?;
    file.write_all(&secret)?;
    file.sync_all()?;
    std::fs::rename(aside, path)?;
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn our_own_key_is_made_once_and_for_us_alone() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join(KEY_FILE);
        let first = own_key(&path).expect("made");
        assert_eq!(own_key(&path).expect("read"), first);
        assert_eq!(first.len(), KEY_BYTES_MIN);
        let mode = std::fs::metadata(&path).expect("file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
