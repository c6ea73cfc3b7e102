//! The handle of one engine: start, stop, misbehave, and read its books.

use crate::books::Books;
use crate::cache::BlockEvent;
use crate::config::{EngineConfig, Faults};
use crate::flow::Death;
use crate::scheduler::{Gauges, Stats};
use crate::state::State;
use crate::{core, http, metrics};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};

/// Waiting connections of the listening socket: thousands may come at once.
const BACKLOG: u32 = 8192;
/// How often a port that is still taken is tried again, and how long between.
const BIND_TRIES: u32 = 50;
const BIND_PAUSE: Duration = Duration::from_millis(20);

/// One engine. Dropping it ends it as a kill does.
#[derive(Debug)]
pub struct Engine {
    address: SocketAddr,
    state: Arc<State>,
}

impl Engine {
    /// Starts an engine on the current tokio runtime. Fails where its address can't be had.
    pub fn start(config: EngineConfig) -> io::Result<Self> {
        let (listener, address) = bind(config.address)?;
        let engine = Self { address, state: State::new(config) };
        engine.run(listener);
        Ok(engine)
    }

    fn run(&self, listener: TcpListener) {
        let stopped = self.state.revive();
        tokio::spawn(http::accept(listener, Arc::clone(&self.state), stopped.clone()));
        tokio::spawn(core::drive(Arc::clone(&self.state), stopped));
    }

    /// Where it listens; the same over restarts.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it was started with.
    #[must_use]
    pub fn config(&self) -> &EngineConfig {
        &self.state.config
    }

    /// Changes how it misbehaves from now on.
    pub fn set(&self, change: impl FnOnce(&mut Faults)) {
        let mut faults = self.faults();
        change(&mut faults);
        self.state.set(faults);
    }

    /// How it misbehaves.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.state.faults()
    }

    /// A kill: connections are cut, new ones refused, until [`Engine::restart`].
    pub fn stop(&self) {
        self.state.core().kill(Death::Failed);
        self.state.close();
    }

    /// The engine core fails: streams end with vLLM's error, `/health` says 503 for a moment, then the port is closed.
    pub fn die(&self) {
        self.state.die(Death::Failed);
    }

    /// SIGTERM without drain: streams end with `abort` and what there is, then the port is closed.
    pub fn terminate(&self) {
        self.state.die(Death::Ended);
    }

    /// Starts again on the same port: no cache, no requests, counters at nothing. Faults and books stay.
    pub async fn restart(&self) -> io::Result<()> {
        self.stop();
        let mut tries = 0;
        let listener = loop {
            match bind(self.address) {
                Ok((listener, _)) => break listener,
                Err(error) if tries >= BIND_TRIES => return Err(error),
                Err(_) => tries += 1,
            }
            tokio::time::sleep(BIND_PAUSE).await;
        };
        self.run(listener);
        Ok(())
    }

    /// Whether it accepts connections.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.state.is_dead()
    }

    /// A copy of its books.
    #[must_use]
    pub fn books(&self) -> Books {
        self.state.books().clone()
    }

    /// Forgets its books.
    pub fn clear_books(&self) {
        self.state.books().clear();
    }

    /// What its scheduler counted since the last start.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.state.core().scheduler.stats().clone()
    }

    /// Running, waiting and cache use, as of the newest step.
    #[must_use]
    pub fn gauges(&self) -> Gauges {
        self.state.core().scheduler.stats().gauges
    }

    /// Unfinished requests in the scheduler now.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        self.state.core().scheduler.unfinished()
    }

    /// Blocks stored and removed since the last call; kept where [`EngineConfig::block_events`] says so.
    #[must_use]
    pub fn block_events(&self) -> Vec<BlockEvent> {
        self.state.core().scheduler.take_block_events()
    }

    /// The true `/metrics` page.
    #[must_use]
    pub fn metrics(&self) -> String {
        metrics::page(&self.state)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.state.close();
    }
}

fn bind(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    let listener = socket.listen(BACKLOG)?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}
