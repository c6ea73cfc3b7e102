//! A small model server that answers as vLLM 0.32 does, and keeps its own books.
//!
//! It shares no parsing code with the product: what it counted is evidence. The answer to a body is a function of the
//! body alone (but for `stream_options`), so a call through Envoy and a direct call can be compared byte by byte.

pub mod books;
pub mod control;
pub mod format;
pub mod hostile;
pub mod job;
pub mod play;
pub mod pump;
pub mod refusal;
mod serve;
mod store;
pub mod text;

pub use books::{Books, Entry, Outcome};
pub use control::{Cache, Fault, Script, Settings};

use self::store::Store;
use anyhow::{Context, Result};
use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;

/// Waiting connections of the listening socket: thousands may come at once.
const BACKLOG: u32 = 8192;

/// What the engine's connections share.
#[derive(Debug)]
pub struct State {
    pub name: String,
    settings: Mutex<Settings>,
    books: Mutex<Books>,
    cache: Mutex<HashSet<u64>>,
    store: Mutex<Store>,
    /// Whether answers that were told to wait may go on.
    released: watch::Sender<bool>,
}

impl State {
    pub(crate) fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn gate(&self) -> watch::Receiver<bool> {
        self.released.subscribe()
    }

    pub(crate) fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn cache(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One engine, listening on loopback. Dropping it closes everything.
#[derive(Debug)]
pub struct Engine {
    pub address: SocketAddr,
    state: Arc<State>,
    /// Dropping the sender ends the listener and every connection.
    running: Option<watch::Sender<()>>,
}

impl Engine {
    /// Starts an engine on a free port.
    pub fn start(name: &str) -> Result<Self> {
        Self::start_at(name, SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    /// Starts an engine on `address`.
    pub fn start_at(name: &str, address: SocketAddr) -> Result<Self> {
        let state = State {
            name: name.to_owned(),
            settings: Mutex::new(Settings::default()),
            books: Mutex::new(Books::default()),
            cache: Mutex::new(HashSet::new()),
            store: Mutex::new(Store::default()),
            released: watch::channel(false).0,
        };
        let mut engine = Self { address, state: Arc::new(state), running: None };
        engine.listen()?;
        Ok(engine)
    }

    /// An address where nothing listens: an engine of this address refuses until [`Engine::listen`].
    pub fn refusing(name: &str) -> Result<Self> {
        let mut engine = Self::start(name)?;
        engine.refuse();
        Ok(engine)
    }

    /// Refuses new connections and cuts the open ones, as a killed engine does. The responses that it kept are lost.
    pub fn refuse(&mut self) {
        self.running = None;
        *self.state.store() = Store::default();
    }

    /// Listens (again) on its address.
    pub fn listen(&mut self) -> Result<()> {
        let listener = bind(self.address).with_context(|| format!("an engine on {}", self.address))?;
        self.address = listener.local_addr()?;
        let (running, stopped) = watch::channel(());
        self.running = Some(running);
        tokio::spawn(serve::accept(listener, Arc::clone(&self.state), stopped));
        Ok(())
    }

    /// Lets the answers go on that wait because of `x-engine-hold-after`, these and all later ones.
    pub fn release(&self) {
        self.state.released.send_replace(true);
    }

    /// Requests that are being answered now.
    #[must_use]
    pub fn running(&self) -> usize {
        self.state.books().count(Outcome::Running)
    }

    /// Changes how it behaves from now on.
    pub fn set(&self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.state.settings());
    }

    /// A copy of its books.
    #[must_use]
    pub fn books(&self) -> Books {
        self.state.books().clone()
    }

    /// Forgets its books and its prefix cache.
    pub fn clear(&self) {
        *self.state.books() = Books::default();
        self.state.cache().clear();
    }

    /// `127.0.0.1:8001`
    #[must_use]
    pub fn authority(&self) -> String {
        self.address.to_string()
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.state.name
    }
}

fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
