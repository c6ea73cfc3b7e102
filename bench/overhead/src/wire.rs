//! Reads answers off a socket and compares them with what they must be, byte by byte, as they come.

use anyhow::{Context, Result, bail, ensure};
use memchr::memmem;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// Longest response head, bytes.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// How much is read at once.
const READ_BYTES: usize = 64 << 10;

/// The body that an answer must have.
pub(crate) struct Expected {
    bytes: Vec<u8>,
    /// Where its events end; none for an answer that is no stream.
    ends: Vec<usize>,
}

impl Expected {
    /// A whole body.
    pub(crate) fn whole(bytes: Vec<u8>) -> Self {
        Self { bytes, ends: Vec::new() }
    }

    /// A stream of these events.
    pub(crate) fn stream(events: &[Vec<u8>]) -> Self {
        let mut at = 0;
        let ends = events.iter().map(|event| {
            at += event.len();
            at
        });
        Self { ends: ends.collect(), bytes: events.concat() }
    }
}

/// How far an answer has been read.
struct Progress<'a> {
    expected: &'a Expected,
    at: usize,
    event: usize,
}

impl Progress<'_> {
    /// Takes body bytes; answers how many events ended in them.
    fn take(&mut self, bytes: &[u8]) -> Result<u64> {
        let due = self.expected.bytes.get(self.at..self.at + bytes.len());
        if due != Some(bytes) {
            let from = self.at.saturating_sub(80);
            let due = &self.expected.bytes[from.min(self.expected.bytes.len())..];
            let due = String::from_utf8_lossy(&due[..due.len().min(400)]).into_owned();
            let got = String::from_utf8_lossy(&bytes[..bytes.len().min(320)]).into_owned();
            bail!("a body differs from byte {} on: got {got:?} where {due:?} was due", self.at);
        }
        self.at += bytes.len();
        let mut ended = 0;
        while self.expected.ends.get(self.event).is_some_and(|end| *end <= self.at) {
            self.event += 1;
            ended += 1;
        }
        Ok(ended)
    }
}

/// Where in a chunked body the next byte lies.
enum Chunked {
    /// In a size line.
    Size(usize),
    /// In data: this many bytes are left, the line end after them included.
    Data(usize),
    /// In the last, empty line.
    Last,
}

/// Reads one connection's answers.
#[derive(Default)]
pub(crate) struct Reader {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Reader {
    /// Reads an answer to its end. `seen` gets the number of events that each read completes.
    pub(crate) async fn answer(
        &mut self,
        socket: &mut TcpStream,
        expected: &Expected,
        seen: &mut impl FnMut(u64),
    ) -> Result<()> {
        let length = self.head(socket).await?;
        let mut progress = Progress { expected, at: 0, event: 0 };
        match length {
            Some(mut left) => {
                while left > 0 {
                    let bytes = self.more(socket).await?;
                    let count = bytes.len().min(left);
                    seen(progress.take(&bytes[..count])?);
                    left -= count;
                    self.start += count;
                }
            }
            None => self.chunks(socket, &mut progress, seen).await?,
        }
        ensure!(
            progress.at == expected.bytes.len(),
            "a body ends {} of {} bytes in",
            progress.at,
            expected.bytes.len()
        );
        Ok(())
    }

    /// Bytes that are not used yet, at least one.
    async fn more(&mut self, socket: &mut TcpStream) -> Result<&[u8]> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            self.read(socket).await?;
        }
        Ok(&self.buffer[self.start..self.end])
    }

    async fn read(&mut self, socket: &mut TcpStream) -> Result<()> {
        if self.buffer.len() < self.end + READ_BYTES {
            self.buffer.resize(self.end + READ_BYTES, 0);
        }
        let count = socket.read(&mut self.buffer[self.end..]).await?;
        ensure!(count > 0, "the connection was closed in an answer");
        self.end += count;
        Ok(())
    }

    /// Reads a head; answers the length of the body, `None` for a chunked one.
    async fn head(&mut self, socket: &mut TcpStream) -> Result<Option<usize>> {
        self.more(socket).await?;
        let head = loop {
            let unread = &self.buffer[self.start..self.end];
            if let Some(end) = memmem::find(unread, b"\r\n\r\n") {
                break self.start..self.start + end + 4;
            }
            ensure!(unread.len() < HEAD_BYTES_MAX, "a response head of more than {HEAD_BYTES_MAX} bytes");
            self.read(socket).await?;
        };
        self.start = head.end;
        let head = &self.buffer[head];
        ensure!(
            head.starts_with(b"HTTP/1.1 200 "),
            "not 200: {}",
            String::from_utf8_lossy(&head[..head.len().min(600)])
        );
        if memmem::find(head, b"\r\ntransfer-encoding: chunked\r\n").is_some() {
            return Ok(None);
        }
        let name = b"\r\ncontent-length: ";
        let at = memmem::find(head, name).context("an answer of unknown length")? + name.len();
        let digits = head[at..].split(|byte| *byte == b'\r').next().unwrap_or_default();
        Ok(Some(std::str::from_utf8(digits)?.parse()?))
    }

    async fn chunks(
        &mut self,
        socket: &mut TcpStream,
        progress: &mut Progress<'_>,
        seen: &mut impl FnMut(u64),
    ) -> Result<()> {
        let mut state = Chunked::Size(0);
        loop {
            let bytes = self.more(socket).await?;
            let (mut at, mut events, mut ended) = (0, 0, false);
            while at < bytes.len() && !ended {
                match state {
                    Chunked::Size(size) => {
                        let byte = bytes[at];
                        at += 1;
                        state = match byte {
                            b'\r' => Chunked::Size(size),
                            b'\n' if size == 0 => Chunked::Last,
                            b'\n' => Chunked::Data(size + 2),
                            _ => {
                                let digit = (byte as char).to_digit(16).context("not a chunk size")?;
                                Chunked::Size(size * 16 + digit as usize)
                            }
                        };
                    }
                    Chunked::Data(left) => {
                        let count = left.min(bytes.len() - at);
                        let data = count.min(left.saturating_sub(2));
                        events += progress.take(&bytes[at..at + data])?;
                        at += count;
                        state = if left == count { Chunked::Size(0) } else { Chunked::Data(left - count) };
                    }
                    Chunked::Last => {
                        ended = bytes[at] == b'\n';
                        at += 1;
                    }
                }
            }
            self.start += at;
            seen(events);
            if ended {
                return Ok(());
            }
        }
    }
}
