//! TLS of the gRPC listeners.

use std::path::{Path, PathBuf};

use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};

use crate::config::Tls;

/// Why TLS cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{} (listen.tls.{key}) cannot be read: {source}; make the file and let this user read it", file.display())]
    Unreadable {
        /// Key below `listen.tls`.
        key: &'static str,
        /// The file.
        file: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The files were read, but are not a usable identity.
    #[error("{} and {} (listen.tls) are not a usable certificate and key: {reason}; the certificate must come first in its file, and the key must belong to it", cert_file.display(), key_file.display())]
    Unusable {
        /// Certificate chain.
        cert_file: PathBuf,
        /// Private key.
        key_file: PathBuf,
        /// The TLS library's words.
        reason: String,
    },
}

/// The TLS setup of a server. With client authorities, clients without a certificate are refused.
///
/// # Errors
/// A file cannot be read, or certificate and key don't fit.
pub fn server_config(tls: &Tls) -> Result<ServerTlsConfig, TlsError> {
    let cert = read("cert_file", &tls.cert_file)?;
    let key = read("key_file", &tls.key_file)?;
    let mut config = ServerTlsConfig::new().identity(Identity::from_pem(cert, key));
    if let Some(file) = &tls.client_ca_file {
        config = config.client_ca_root(Certificate::from_pem(read("client_ca_file", file)?));
    }
    // Only a server turns PEM into keys; without this the first error would be at the first connection.
    match Server::builder().tls_config(config.clone()) {
        Ok(_) => Ok(config),
        Err(error) => Err(TlsError::Unusable {
            cert_file: tls.cert_file.clone(),
            key_file: tls.key_file.clone(),
            reason: innermost(&error),
        }),
    }
}

fn read(key: &'static str, file: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(file).map_err(|source| TlsError::Unreadable { key, file: file.to_owned(), source })
}

/// The last of a chain of errors says most.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Files(tempfile::TempDir);

    impl Files {
        fn new() -> Self {
            Self(tempfile::tempdir().expect("a folder"))
        }

        /// Writes a fresh certificate and key.
        fn identity(&self, name: &str) -> (PathBuf, PathBuf) {
            let made =
                rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
            let (cert, key) =
                (self.0.path().join(format!("{name}.pem")), self.0.path().join(format!("{name}.key")));
            std::fs::write(&cert, made.cert.pem()).expect("written");
            std::fs::write(&key, made.signing_key.serialize_pem()).expect("written");
            (cert, key)
        }
    }

    #[test]
    fn a_matching_pair_is_taken_with_and_without_client_authorities() {
        let files = Files::new();
        let (cert_file, key_file) = files.identity("a");
        let mut tls = Tls { client_ca_file: None, cert_file, key_file };
        server_config(&tls).expect("usable");
        tls.client_ca_file = Some(tls.cert_file.clone());
        server_config(&tls).expect("usable");
    }

    #[test]
    fn what_does_not_fit_is_said_at_the_start() {
        let files = Files::new();
        let ((cert_file, _), (_, key_file)) = (files.identity("a"), files.identity("b"));
        let mut tls = Tls { cert_file, key_file, client_ca_file: None };
        let text = server_config(&tls).expect_err("an error").to_string();
        assert!(text.contains("not a usable certificate and key"), "{text}");
        tls.key_file = files.0.path().join("none");
        let text = server_config(&tls).expect_err("an error").to_string();
        assert!(text.contains("(listen.tls.key_file) cannot be read: No such file"), "{text}");
    }
}
