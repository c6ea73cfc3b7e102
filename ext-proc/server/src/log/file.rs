//! The file behind the exchange log: whole lines or nothing.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use proto_tokenweir::token::ExchangeId;
use serde::Deserialize;

/// The file that is written; older ones are `exchanges-<unix ms>.jsonl`.
pub(crate) const FILE_NAME: &str = "exchanges.jsonl";
/// A file this long is put aside and a new one begun, bytes. None is ever deleted here: they are what is billed from.
const ROTATE_BYTES: u64 = 1 << 30;

/// Longest line that is read back, bytes; far above what a record can be.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Held for the life of the process: two writers on one log would cut each other's lines.
const LOCK_NAME: &str = "lock";

/// What a restart needs of a line.
#[derive(Deserialize)]
pub(crate) struct Closed {
    exchange: String,
    pub(crate) revision: u32,
    ended_unix_ms: u64,
    #[serde(default)]
    pub(crate) api: String,
    #[serde(default)]
    pub(crate) status: u32,
    #[serde(default)]
    pub(crate) endpoints: Vec<String>,
    #[serde(default)]
    pub(crate) endpoint: Option<String>,
}

pub(super) struct LogFile {
    path: PathBuf,
    file: File,
    /// Bytes of whole lines.
    length: u64,
    rotate_bytes: u64,
    _lock: File,
}

impl LogFile {
    pub(super) fn open(
        state_dir: &Path,
        since_ms: u64,
        mut recall: impl FnMut(ExchangeId, &Closed),
    ) -> io::Result<Self> {
        let lock = lock(state_dir)?;
        if let Some(previous) = newest_rotated(state_dir)? {
            read(&mut BufReader::new(File::open(previous)?), since_ms, &mut recall)?;
        }
        let path = state_dir.join(FILE_NAME);
        let mut file = OpenOptions::new().create(true).read(true).append(true).open(&path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            let text = format!("{} is not a regular file; move it away", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let length = read(&mut BufReader::new(&mut file), since_ms, &mut recall)?;
        let found = metadata.len();
        if found > length {
            tracing::warn!(
                bytes = found - length,
                "cut a torn line off the exchange log; it was never acknowledged"
            );
            file.set_len(length)?;
        }
        file.seek(SeekFrom::End(0))?;
        Ok(Self { path, file, length, rotate_bytes: ROTATE_BYTES, _lock: lock })
    }

    /// As if the disk refused: the file can't be written.
    #[cfg(test)]
    pub(super) fn refusing(mut self) -> Self {
        self.file = File::open(&self.path).expect("opens for reading");
        self
    }

    #[cfg(test)]
    pub(super) fn rotate_at(mut self, bytes: u64) -> Self {
        self.rotate_bytes = bytes;
        self
    }

    /// Appends whole lines; on an error nothing of them stays.
    pub(super) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        if !self.is_in_place() {
            tracing::error!(path = %self.path.display(), "the exchange log was moved or removed; a new one is begun");
            self.begin()?;
        }
        if self.length >= self.rotate_bytes {
            self.rotate()?;
        }
        if let Err(error) = self.file.write_all(lines) {
            // Only what this write has left behind is cut off.
            if self.file.metadata()?.len() > self.length {
                self.file.set_len(self.length)?;
            }
            return Err(error);
        }
        self.length += lines.len() as u64;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.file.sync_all()?;
        let aside = self.path.with_file_name(format!("exchanges-{}.jsonl", crate::clock::unix_ms()));
        std::fs::rename(&self.path, aside)?;
        self.begin()
    }

    fn begin(&mut self) -> io::Result<()> {
        self.file = OpenOptions::new().create(true).read(true).append(true).open(&self.path)?;
        self.length = self.file.metadata()?.len();
        Ok(())
    }

    /// Whether the path still leads to the open file.
    fn is_in_place(&self) -> bool {
        let identity = |found: Metadata| (found.dev(), found.ino());
        match (std::fs::metadata(&self.path), self.file.metadata()) {
            (Ok(there), Ok(open)) => identity(there) == identity(open),
            (Err(_), _) => false,
            (Ok(_), Err(_)) => true,
        }
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }
}

/// Reads whole lines; gives their length. A line that isn't a record is left alone and skipped.
fn read(
    file: &mut impl BufRead,
    since_ms: u64,
    recall: &mut impl FnMut(ExchangeId, &Closed),
) -> io::Result<u64> {
    let mut length = 0u64;
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = file.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        if line.last() != Some(&b'\n') {
            // The end of the file, or something that no writer of ours has made: cutting that off would not be ours.
            return if (read as u64) < LINE_BYTES_MAX { Ok(length) } else { Err(not_a_log()) };
        }
        length += read as u64;
        let Ok(closed) = serde_json::from_slice::<Closed>(&line) else { continue };
        if let (true, Some(id)) = (closed.ended_unix_ms >= since_ms, ExchangeId::from_hex(&closed.exchange)) {
            recall(id, &closed);
        }
    }
}

fn lock(state_dir: &Path) -> io::Result<File> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(state_dir.join(LOCK_NAME))?;
    file.try_lock().map_err(|_| {
        let text =
            "another tokenweir process uses it; give each its own state_dir, or wait for that one to end";
        io::Error::new(io::ErrorKind::WouldBlock, text)
    })?;
    Ok(file)
}

fn not_a_log() -> io::Error {
    let text = format!("the exchange log has a line of over {LINE_BYTES_MAX} bytes; move the file away");
    io::Error::new(io::ErrorKind::InvalidData, text)
}

fn newest_rotated(state_dir: &Path) -> io::Result<Option<PathBuf>> {
    let mut newest: Option<PathBuf> = None;
    for entry in std::fs::read_dir(state_dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let rotated = name.starts_with("exchanges-") && name.ends_with(".jsonl");
        if rotated && newest.as_ref().is_none_or(|before| before < &path) {
            newest = Some(path);
        }
    }
    Ok(newest)
}
