//! The instant upstream: an HTTP/1.1 server that answers at once with bytes made beforehand, in a process of its own so
//! that its CPU can be told apart. It reads no JSON; a request header says what answer is wanted.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use anyhow::Result;
use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::LocalSet;

use crate::answers::{self, Form, METRICS, MODELS, PACE};
use crate::setups::listen;

/// The request header that names a [`Form`].
pub(crate) const FORM_HEADER: &str = "x-bench-form";
/// Longest request head, bytes.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// How much of a body is looked at: an injected member is the first one.
const LOOKED_AT_BYTES: usize = 256;

/// Pieces that are written one by one, the head with the first.
type Pieces = Rc<Vec<Vec<u8>>>;

/// Encoded answers, made on first use.
#[derive(Default)]
struct Shelf {
    /// By number of events, and whether they carry usage.
    made: RefCell<HashMap<(usize, bool), Pieces>>,
}

impl Shelf {
    fn stream(&self, events: usize, usage: bool) -> Pieces {
        let make = || {
            let mut pieces: Vec<Vec<u8>> =
                answers::stream(events, usage).iter().map(|event| chunk(event)).collect();
            let mut first = STREAM_HEAD.to_vec();
            first.append(&mut pieces[0]);
            pieces[0] = first;
            pieces.push(b"0\r\n\r\n".to_vec());
            Rc::new(pieces)
        };
        Rc::clone(self.made.borrow_mut().entry((events, usage)).or_insert_with(make))
    }
}

const STREAM_HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";

fn chunk(bytes: &[u8]) -> Vec<u8> {
    let mut out = format!("{:x}\r\n", bytes.len()).into_bytes();
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
    out
}

fn sized(content_type: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// Serves on so many ports, which it prints, until the process is ended.
pub(crate) fn serve(ports: usize) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let (shelf, whole) =
            (Rc::new(Shelf::default()), Rc::new(sized("application/json", &answers::whole())));
        let mut accepting = tokio::task::JoinSet::new();
        for _ in 0..ports {
            let listener = listen().await?;
            let (shelf, whole) = (Rc::clone(&shelf), Rc::clone(&whole));
            accepting.spawn_local(async move {
                loop {
                    let Ok((socket, _)) = listener.accept().await else { continue };
                    let (shelf, whole) = (Rc::clone(&shelf), Rc::clone(&whole));
                    // A connection that breaks is the client's affair.
                    tokio::task::spawn_local(async move { drop(connection(socket, &shelf, &whole).await) });
                }
            });
        }
        // None of them ends by itself.
        match accepting.join_next().await {
            Some(Err(failed)) => Err(failed.into()),
            _ => Ok(()),
        }
    })
}

struct Request {
    form: Option<Form>,
    path: String,
    /// The body asks for usage in every event.
    usage: bool,
}

async fn connection(mut socket: TcpStream, shelf: &Shelf, whole: &[u8]) -> Result<()> {
    socket.set_nodelay(true)?;
    let mut buffer = vec![0; 256 << 10];
    let mut filled = 0;
    while let Some(request) = read(&mut socket, &mut buffer, &mut filled).await? {
        match request.form {
            Some(Form::Whole) => socket.write_all(whole).await?,
            Some(Form::Stream(events)) => {
                for piece in shelf.stream(events, request.usage).iter() {
                    socket.write_all(piece).await?;
                    // One event of each stream in turn, as an engine's steps give them.
                    tokio::task::yield_now().await;
                }
            }
            Some(Form::Paced(events)) => {
                let mut ticks = tokio::time::interval(PACE);
                for piece in shelf.stream(events, request.usage).iter() {
                    ticks.tick().await;
                    socket.write_all(piece).await?;
                }
            }
            Some(Form::Held) => {
                socket.write_all(&shelf.stream(1, request.usage)[0]).await?;
                // Until the other side goes.
                while socket.read(&mut buffer).await? > 0 {}
                return Ok(());
            }
            None if request.path == "/metrics" => {
                socket.write_all(&sized("text/plain; version=0.0.4", METRICS.as_bytes())).await?;
            }
            None if request.path == "/v1/models" => {
                socket.write_all(&sized("application/json", MODELS.as_bytes())).await?;
            }
            None => socket.write_all(&sized("text/plain", b"")).await?,
        }
    }
    Ok(())
}

/// Reads a request, its body unread but for the beginning; `None`: the other side has closed.
async fn read(socket: &mut TcpStream, buffer: &mut [u8], filled: &mut usize) -> Result<Option<Request>> {
    let head = loop {
        if let Some(end) = memmem::find(&buffer[..*filled], b"\r\n\r\n") {
            break end + 4;
        }
        anyhow::ensure!(*filled < HEAD_BYTES_MAX, "a request head of more than {HEAD_BYTES_MAX} bytes");
        match socket.read(&mut buffer[*filled..]).await? {
            0 => return Ok(None),
            count => *filled += count,
        }
    };
    let text = &buffer[..head];
    let length = header(text, "content-length")
        .and_then(|value| std::str::from_utf8(value).ok()?.parse::<usize>().ok())
        .unwrap_or(0);
    let path = text.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    let mut request = Request {
        form: header(text, FORM_HEADER).and_then(Form::parse),
        path: String::from_utf8_lossy(path).into_owned(),
        usage: false,
    };
    let mut beginning = buffer[head..(*filled).min(head + LOOKED_AT_BYTES)].to_vec();
    let mut left = length.saturating_sub(*filled - head);
    // Bytes of the next request, if any, move to the front.
    let rest = (head + length).min(*filled);
    buffer.copy_within(rest..*filled, 0);
    *filled -= rest;
    while left > 0 {
        let most = left.min(buffer.len());
        let count = socket.read(&mut buffer[..most]).await?;
        if count == 0 {
            return Ok(None);
        }
        if beginning.len() < LOOKED_AT_BYTES {
            beginning.extend_from_slice(&buffer[..count.min(LOOKED_AT_BYTES)]);
        }
        left -= count;
    }
    request.usage = memmem::find(&beginning, b"\"continuous_usage_stats\":true").is_some();
    Ok(Some(request))
}

/// The value of a header in a request head as Envoy writes it: lower-case names, one space.
fn header<'a>(head: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let needle = format!("\r\n{name}: ");
    let at = memmem::find(head, needle.as_bytes())? + needle.len();
    let rest = &head[at..];
    Some(&rest[..memchr::memchr(b'\r', rest)?])
}
