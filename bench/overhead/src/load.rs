//! The load generator: keep-alive connections on one thread, each sending its next request when the last answer is whole.
//!
//! A closed loop has no send times to be late for; what can be late is the thread itself, when the machine is short of
//! cores. So a clock ticks on the same thread, and how late its ticks come is part of the result, as is the thread's CPU.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::LocalSet;

use crate::process::Usage;
use crate::wire::{Expected, Reader};

/// How often the clock of the load thread ticks.
const TICK: Duration = Duration::from_millis(5);

/// A request, encoded, and the answer it must get.
#[derive(Clone)]
pub(crate) struct Exchange {
    pub(crate) wire: Arc<Vec<u8>>,
    pub(crate) answer: Arc<Expected>,
}

/// What to do.
pub(crate) struct Plan {
    pub(crate) address: SocketAddr,
    pub(crate) connections: usize,
    /// Sent in turn.
    pub(crate) exchanges: Vec<Exchange>,
    /// The window that counts. Answers that come later are read and checked, but not counted.
    pub(crate) window: Duration,
    /// Processes whose CPU in the window is wanted.
    pub(crate) pids: Vec<u32>,
}

/// What came of it.
#[derive(Debug, Default)]
pub(crate) struct Load {
    /// Whole, right answers in the window.
    pub(crate) answers: u64,
    /// SSE events of right answers in the window.
    pub(crate) events: u64,
    /// Answers in all, the late ones too.
    pub(crate) all: u64,
    pub(crate) seconds: f64,
    /// What was wrong with answers, the first few.
    pub(crate) wrong: Vec<String>,
    /// CPU seconds in the window, and resident MiB at its end, of each process of the plan.
    pub(crate) usage: Vec<Usage>,
    /// CPU seconds of the load thread in the window.
    pub(crate) own_cpu_s: f64,
    /// How late ticks came, milliseconds: 99th percentile and most.
    pub(crate) late_ms: (f64, f64),
    /// Latencies of answers in the window, milliseconds: median and 99th percentile.
    pub(crate) latency_ms: (f64, f64),
}

/// Wrong answers that are described; all are counted as not whole by their absence.
const WRONG_SHOWN_MAX: usize = 5;

#[derive(Default)]
struct Shared {
    next: Cell<usize>,
    answers: Cell<u64>,
    events: Cell<u64>,
    all: Cell<u64>,
    over: Cell<bool>,
    wrong: RefCell<Vec<String>>,
    latencies: RefCell<Vec<f32>>,
}

/// Runs the plan on a thread of its own.
pub(crate) async fn run(plan: Plan) -> Result<Load> {
    tokio::task::spawn_blocking(move || {
        let thread = std::thread::Builder::new().name("load".into()).spawn(move || on_this_thread(plan))?;
        thread.join().map_err(|_| anyhow::anyhow!("the load thread panicked"))?
    })
    .await?
}

fn on_this_thread(plan: Plan) -> Result<Load> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, drive(plan))
}

fn thread_cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

async fn drive(plan: Plan) -> Result<Load> {
    let shared = Rc::new(Shared::default());
    let exchanges = Rc::new(plan.exchanges);
    let mut sockets = Vec::new();
    for _ in 0..plan.connections {
        let socket = TcpStream::connect(plan.address).await.context("connect to Envoy")?;
        socket.set_nodelay(true)?;
        sockets.push(socket);
    }
    let (before, own_before) = (Usage::of_all(&plan.pids), thread_cpu_s());
    let started = Instant::now();
    let tasks: Vec<_> = sockets
        .into_iter()
        .map(|socket| {
            let (shared, exchanges) = (Rc::clone(&shared), Rc::clone(&exchanges));
            tokio::task::spawn_local(async move {
                if let Err(error) = connection(socket, &exchanges, &shared).await {
                    note(&shared, format!("{error:#}"));
                }
            })
        })
        .collect();
    let late = ticks(started + plan.window).await;
    shared.over.set(true);
    let seconds = started.elapsed().as_secs_f64();
    let (answers, events) = (shared.answers.get(), shared.events.get());
    let own_cpu_s = thread_cpu_s() - own_before;
    let usage =
        Usage::of_all(&plan.pids).iter().zip(&before).map(|(now, before)| now.since(before)).collect();
    let latency_ms = percentiles(&mut shared.latencies.borrow_mut());
    for task in tasks {
        task.await?;
    }
    let wrong = shared.wrong.take();
    let all = shared.all.get();
    Ok(Load { answers, events, all, seconds, wrong, usage, own_cpu_s, late_ms: late, latency_ms })
}

fn note(shared: &Shared, what: String) {
    let mut wrong = shared.wrong.borrow_mut();
    if wrong.len() < WRONG_SHOWN_MAX {
        wrong.push(what);
    }
}

async fn connection(mut socket: TcpStream, exchanges: &[Exchange], shared: &Shared) -> Result<()> {
    let mut reader = Reader::default();
    while !shared.over.get() {
        let turn = shared.next.replace(shared.next.get() + 1);
        let exchange = &exchanges[turn % exchanges.len()];
        let sent = Instant::now();
        socket.write_all(&exchange.wire).await?;
        let mut seen = |events: u64| {
            if !shared.over.get() {
                shared.events.set(shared.events.get() + events);
            }
        };
        reader.answer(&mut socket, &exchange.answer, &mut seen).await?;
        shared.all.set(shared.all.get() + 1);
        if !shared.over.get() {
            shared.answers.set(shared.answers.get() + 1);
            shared.latencies.borrow_mut().push(sent.elapsed().as_secs_f32() * 1000.0);
        }
    }
    Ok(())
}

/// Ticks until `end`, and tells how late the ticks came.
async fn ticks(end: Instant) -> (f64, f64) {
    let mut late = Vec::new();
    loop {
        let due = (Instant::now() + TICK).min(end);
        tokio::time::sleep_until(due.into()).await;
        late.push(due.elapsed().as_secs_f32() * 1000.0);
        if Instant::now() >= end {
            late.sort_by(f32::total_cmp);
            return (f64::from(at(&late, 0.99)), f64::from(at(&late, 1.0)));
        }
    }
}

fn at(sorted: &[f32], share: f64) -> f32 {
    let index = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(index.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or_default()
}

fn percentiles(values: &mut [f32]) -> (f64, f64) {
    values.sort_by(f32::total_cmp);
    (f64::from(at(values, 0.5)), f64::from(at(values, 0.99)))
}
