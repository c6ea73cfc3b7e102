//! What the checks of all sections share: where they report, and how they look at files.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::FILE_BYTES_MAX;
use super::errors::{Collector, ConfigErrors};
use super::yaml::Document;

/// Largest PEM file, bytes.
const PEM_BYTES_MAX: usize = 1 << 20;

/// The document under check and its errors.
pub(crate) struct Check<'a, 'f> {
    pub(crate) document: &'a Document,
    errors: &'a mut Collector<'f>,
}

impl<'a, 'f> Check<'a, 'f> {
    pub(crate) fn new(document: &'a Document, errors: &'a mut Collector<'f>) -> Self {
        Self { document, errors }
    }

    pub(crate) fn file(&self) -> &'f Path {
        self.errors.file()
    }

    pub(crate) fn error(&mut self, pointer: &str, what: impl Into<String>, advice: impl Into<String>) {
        self.errors.value(self.document, pointer, what, advice);
    }

    /// An error that belongs to the key itself.
    pub(crate) fn key_error(&mut self, pointer: &str, what: impl Into<String>, advice: impl Into<String>) {
        self.errors.key(self.document, pointer, what, advice);
    }

    /// A path of the file, from the file's folder.
    pub(crate) fn resolve(&self, path: &str) -> PathBuf {
        self.resolve_path(Path::new(path))
    }

    /// As [`Check::resolve`].
    pub(crate) fn resolve_path(&self, path: &Path) -> PathBuf {
        self.file().parent().unwrap_or(Path::new("")).join(path)
    }

    /// The content of `path`; `None` after an error at `pointer`.
    pub(crate) fn read(&mut self, path: &Path, pointer: &str, bytes_max: usize) -> Option<Vec<u8>> {
        match read_bounded(path, bytes_max) {
            Ok(Some(bytes)) => return Some(bytes),
            Ok(None) => {
                let what = format!("{} has more than {bytes_max} bytes", path.display());
                self.error(pointer, what, "name the right file");
            }
            Err(error) => {
                let what = format!("{} cannot be read: {error}", path.display());
                self.error(pointer, what, "make the file and let this user read it, or correct the path");
            }
        }
        None
    }

    /// Sees that `path` can be read and holds a PEM block whose begin line ends with `label`.
    pub(crate) fn pem(&mut self, path: &str, pointer: &str, label: &str) -> PathBuf {
        let path = self.resolve(path);
        if let Some(bytes) = self.read(&path, pointer, PEM_BYTES_MAX) {
            let text = String::from_utf8_lossy(&bytes);
            if !text.lines().any(|line| line.starts_with("-----BEGIN ") && line.trim_end().ends_with(label)) {
                let kind = label.trim_end_matches('-');
                let what = format!("{} holds no PEM block {kind}", path.display());
                self.error(pointer, what, "convert it with openssl, or name the right file");
            }
        }
        path
    }
}

/// Reads a file of at most `bytes_max` bytes; `None` if it is larger.
fn read_bounded(path: &Path, bytes_max: usize) -> std::io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let room = u64::try_from(bytes_max).unwrap_or(u64::MAX).saturating_add(1);
    File::open(path)?.take(room).read_to_end(&mut bytes)?;
    Ok(if bytes.len() > bytes_max { None } else { Some(bytes) })
}

/// Reads a YAML file as text.
pub(crate) fn read_text(file: &Path) -> Result<String, ConfigErrors> {
    let bytes = match read_bounded(file, FILE_BYTES_MAX) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => {
            let what = format!("has more than {FILE_BYTES_MAX} bytes");
            return Err(ConfigErrors::file(file, what, "name the right file"));
        }
        Err(error) => {
            let what = format!("cannot be read: {error}");
            return Err(ConfigErrors::file(
                file,
                what,
                "make the file and let this user read it, or correct the path",
            ));
        }
    };
    String::from_utf8(bytes).map_err(|error| {
        let what = format!("is not UTF-8 text (byte {})", error.utf8_error().valid_up_to());
        ConfigErrors::file(file, what, "save it as UTF-8")
    })
}
