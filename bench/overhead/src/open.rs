//! Thousands of streams that are open at the same time: what does each cost the service in memory?

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::answers::Form;
use crate::bodies;
use crate::process::Usage;
use crate::setups::Setup;

/// Requests that are being started at the same time.
const STARTING: usize = 200;
/// How long one may take to start.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Requests before the first look at memory.
const WARM_UP: usize = 64;
/// What the memory gets to settle.
const SETTLE: Duration = Duration::from_millis(500);

/// KiB of service memory for each of `streams` open streams with bodies of `body_bytes`: growth from before the first.
pub(crate) async fn kib_per_stream(setup: &mut Setup, streams: usize, body_bytes: usize) -> Result<f64> {
    let pid = setup.service_pid()?.context("no service")?;
    drop(open(setup, WARM_UP, body_bytes).await?);
    tokio::time::sleep(SETTLE).await;
    let before = Usage::of(pid).resident_mib;
    let sockets = open(setup, streams, body_bytes).await?;
    tokio::time::sleep(SETTLE).await;
    let after = Usage::of(pid).resident_mib;
    drop(sockets);
    Ok((after - before) * 1024.0 / streams as f64)
}

/// Opens streams that never go on, and waits for the first event of each.
async fn open(setup: &Setup, streams: usize, body_bytes: usize) -> Result<Vec<TcpStream>> {
    let exchanges = Arc::new(bodies::exchanges(setup.kind.host(), body_bytes, Form::Held, false, 1));
    let (address, gate) = (setup.envoy.address, Arc::new(Semaphore::new(STARTING)));
    let mut starting = JoinSet::new();
    for n in 0..streams {
        let (exchanges, gate) = (Arc::clone(&exchanges), Arc::clone(&gate));
        starting.spawn(async move {
            let _permit = gate.acquire().await?;
            let mut socket = TcpStream::connect(address).await?;
            socket.write_all(&exchanges[n % exchanges.len()].wire).await?;
            tokio::time::timeout(START_LIMIT, first_event(&mut socket)).await.context("no first event")??;
            anyhow::Ok(socket)
        });
    }
    let mut sockets = Vec::with_capacity(streams);
    while let Some(socket) = starting.join_next().await {
        sockets.push(socket??);
    }
    Ok(sockets)
}

async fn first_event(socket: &mut TcpStream) -> Result<()> {
    let mut got = Vec::new();
    loop {
        let count = socket.read_buf(&mut got).await?;
        ensure!(count > 0, "closed: {}", String::from_utf8_lossy(&got));
        ensure!(got.len() < 12 || got.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&got));
        if memmem::find(&got, b"\n\n").is_some() {
            return Ok(());
        }
    }
}
