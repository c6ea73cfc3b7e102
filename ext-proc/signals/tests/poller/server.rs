//! A small HTTP/1.1 server that misbehaves on demand. By hand on the socket, so that connections can break anywhere.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How the server behaves; answers to `/metrics` suffer, those to `/v1/models` only where it says so.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Behaviour {
    pub(crate) page: &'static str,
    pub(crate) models: &'static [&'static str],
    /// Of every answer.
    pub(crate) status: u16,
    /// Bytes of comments before the page.
    pub(crate) fill: usize,
    /// Says no length, and goes on until the client leaves.
    pub(crate) endless: bool,
    /// Breaks the connection in the middle of the page.
    pub(crate) half: bool,
    /// Waits before it answers.
    pub(crate) delay: Option<Duration>,
    /// Closes a connection that is idle for this long.
    pub(crate) close_idle: Option<Duration>,
    /// Reads the so-manieth request of a connection and closes it without an answer. 0: never.
    pub(crate) close_on_request: usize,
    /// The same, by a reset.
    pub(crate) reset_on_request: usize,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            page: "",
            models: &[],
            status: 200,
            fill: 0,
            endless: false,
            half: false,
            delay: None,
            close_idle: None,
            close_on_request: 0,
            reset_on_request: 0,
        }
    }
}

impl Behaviour {
    pub(crate) fn page(self, page: &'static str) -> Self {
        Self { page, ..self }
    }

    pub(crate) fn models(self, models: &'static [&'static str]) -> Self {
        Self { models, ..self }
    }
}

struct Inside {
    behaviour: Mutex<Behaviour>,
    connections: AtomicUsize,
    heads: Mutex<Vec<String>>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    inside: Arc<Inside>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.inside.stop.cancel();
    }
}

impl Server {
    pub(crate) async fn start(behaviour: Behaviour) -> Self {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0)), behaviour).await
    }

    pub(crate) async fn start_at(address: SocketAddr, behaviour: Behaviour) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(address).unwrap();
        let listener = socket.listen(64).unwrap();
        let inside = Arc::new(Inside {
            behaviour: Mutex::new(behaviour),
            connections: AtomicUsize::new(0),
            heads: Mutex::default(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        let address = listener.local_addr().unwrap();
        inside.tasks.spawn(accept(listener, Arc::clone(&inside)));
        Self { address, inside }
    }

    /// Nobody listens there any more when it returns.
    pub(crate) async fn stop(self) {
        self.inside.stop.cancel();
        self.inside.tasks.close();
        self.inside.tasks.wait().await;
    }

    pub(crate) fn set(&self, behaviour: Behaviour) {
        *self.inside.behaviour.lock().unwrap() = behaviour;
    }

    /// Connections accepted so far.
    pub(crate) fn connections(&self) -> usize {
        self.inside.connections.load(Ordering::Relaxed)
    }

    /// Every request's head, in lower case but for its first line.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.inside.heads.lock().unwrap().clone()
    }
}

async fn accept(listener: TcpListener, inside: Arc<Inside>) {
    while let Some(Ok((stream, _))) = inside.stop.run_until_cancelled(listener.accept()).await {
        inside.connections.fetch_add(1, Ordering::Relaxed);
        let mine = Arc::clone(&inside);
        inside.tasks.spawn(async move {
            let stop = mine.stop.clone();
            stop.run_until_cancelled(serve(stream, mine)).await;
        });
    }
}

async fn serve(mut stream: TcpStream, inside: Arc<Inside>) {
    for number in 1.. {
        let idle = inside.behaviour.lock().unwrap().close_idle.filter(|_| number > 1);
        let read = tokio::time::timeout(idle.unwrap_or(Duration::from_secs(3600)), head(&mut stream)).await;
        let Ok(Some(head)) = read else { return };
        let behaviour = *inside.behaviour.lock().unwrap();
        let models = head.starts_with("GET /v1/models ");
        inside.heads.lock().unwrap().push(head);
        if number == behaviour.close_on_request {
            return;
        }
        if number == behaviour.reset_on_request {
            stream.set_zero_linger().unwrap();
            return;
        }
        if let Some(delay) = behaviour.delay {
            tokio::time::sleep(delay).await;
        }
        if answer(&mut stream, behaviour, models).await.is_none() {
            return;
        }
    }
}

/// One request's head. `None`: the client has left.
async fn head(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        bytes.push(stream.read_u8().await.ok()?);
    }
    let text = String::from_utf8(bytes).unwrap();
    let (first, rest) = text.split_once("\r\n").unwrap();
    Some(format!("{first}\r\n{}", rest.to_ascii_lowercase()))
}

async fn answer(stream: &mut TcpStream, behaviour: Behaviour, models: bool) -> Option<()> {
    let body = if models {
        let names: Vec<_> = behaviour.models.iter().map(|name| format!("{{\"id\":\"{name}\"}}")).collect();
        format!("{{\"data\":[{}]}}", names.join(","))
    } else {
        format!("{}{}", "#\n".repeat(behaviour.fill.div_ceil(2)), behaviour.page)
    };
    let head = format!(
        "HTTP/1.1 {} x\r\ncontent-length: {}\r\nlocation: http://127.0.0.1:1/elsewhere\r\n\r\n",
        behaviour.status,
        body.len(),
    );
    if behaviour.endless {
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.ok()?;
        loop {
            stream.write_all(body.as_bytes()).await.ok()?;
        }
    }
    let cut = if behaviour.half && !models { body.len() / 2 } else { body.len() };
    stream.write_all(head.as_bytes()).await.ok()?;
    stream.write_all(&body.as_bytes()[..cut]).await.ok()?;
    (cut == body.len()).then_some(())
}
