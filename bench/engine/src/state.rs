//! What the connections, the scheduler's task and the handle of one engine share.

use crate::books::{Books, End, Entry};
use crate::config::{EngineConfig, Faults, MetricsFault};
use crate::core::Core;
use crate::flow::{Death, Flow};
use crate::metrics::Traffic;
use crate::responses::Store;
use crate::scheduler::{Full, Job};
use crate::tokens;
use bytes::Bytes;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{Notify, watch};

/// How long a dead engine says 503 to health checks before it is gone.
const LAST_WORDS: Duration = Duration::from_millis(300);

pub(crate) struct State {
    pub(crate) config: EngineConfig,
    pub(crate) wake: Notify,
    core: Mutex<Core>,
    faults: Mutex<Faults>,
    books: Mutex<Books>,
    pub(crate) traffic: Mutex<Traffic>,
    pub(crate) store: Mutex<Store>,
    /// The page of the moment when metrics froze.
    pub(crate) frozen_page: Mutex<Option<Bytes>>,
    /// Whether new requests may come in.
    awake: watch::Sender<bool>,
    /// Dropping it ends the listener, the connections and the scheduler's task.
    pub(crate) running: Mutex<Option<watch::Sender<()>>>,
    /// Being killed: who ends now did not leave by itself.
    dead: AtomicBool,
    /// When it was started last, in seconds since 1970.
    pub(crate) started: Mutex<f64>,
    /// Requests in flight, those outside the scheduler included.
    pub(crate) load: AtomicUsize,
    salt: u64,
    ids: AtomicU64,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("name", &self.config.name).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Seconds since 1970.
pub(crate) fn seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

impl State {
    pub(crate) fn new(config: EngineConfig) -> Arc<Self> {
        Arc::new(Self {
            core: Mutex::new(Core::new(&config)),
            wake: Notify::new(),
            faults: Mutex::new(Faults::default()),
            books: Mutex::new(Books::default()),
            traffic: Mutex::new(Traffic::default()),
            store: Mutex::new(Store::default()),
            frozen_page: Mutex::new(None),
            awake: watch::channel(true).0,
            running: Mutex::new(None),
            dead: AtomicBool::new(false),
            started: Mutex::new(seconds()),
            load: AtomicUsize::new(0),
            salt: RandomState::new().hash_one(&config.name),
            ids: AtomicU64::new(1),
            config,
        })
    }

    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        lock(&self.core)
    }

    pub(crate) fn faults(&self) -> Faults {
        *lock(&self.faults)
    }

    pub(crate) fn books(&self) -> MutexGuard<'_, Books> {
        lock(&self.books)
    }

    pub(crate) fn traffic(&self) -> MutexGuard<'_, Traffic> {
        lock(&self.traffic)
    }

    pub(crate) fn store(&self) -> MutexGuard<'_, Store> {
        lock(&self.store)
    }

    /// Sixteen hexadecimal digits that come once.
    pub(crate) fn random(&self) -> String {
        format!("{:016x}", tokens::mix(self.salt, self.ids.fetch_add(1, Ordering::Relaxed)))
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, faults: Faults) {
        let frozen_page = matches!(faults.metrics, MetricsFault::Frozen);
        if frozen_page && self.faults().metrics != MetricsFault::Frozen {
            let page = Bytes::from(crate::metrics::page(self));
            *lock(&self.frozen_page) = Some(page);
        }
        let mut core = self.core();
        core.advance();
        core.scheduler.set_slow(faults.slow);
        core.scheduler.hold(faults.held_cache);
        core.set_die_after(faults.die_after_tokens);
        core.freeze(faults.frozen());
        core.advance();
        drop(core);
        *lock(&self.faults) = faults;
        self.awake.send_replace(!faults.hangs());
        self.wake.notify_one();
    }

    /// Waits while the engine sleeps or is paused.
    pub(crate) async fn awake(&self) {
        let mut awake = self.awake.subscribe();
        // The sender lives as long as `self`.
        let _ = awake.wait_for(|awake| *awake).await;
    }

    /// Everything that was in flight ends; the port is closed a moment later.
    pub(crate) fn die(self: &Arc<Self>, death: Death) {
        if self.dead.swap(true, Ordering::AcqRel) {
            return;
        }
        self.core().kill(death);
        let state = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(LAST_WORDS).await;
            state.close();
        });
    }

    /// Ends the listener and all connections now, as a killed process does.
    pub(crate) fn close(&self) {
        self.dead.store(true, Ordering::Release);
        drop(lock(&self.running).take());
    }

    /// Empty, with all counters at nothing; faults, books and stored configuration stay.
    pub(crate) fn revive(&self) -> watch::Receiver<()> {
        let (running, stopped) = watch::channel(());
        *lock(&self.running) = Some(running);
        *self.core() = Core::new(&self.config);
        *self.traffic() = Traffic::default();
        *self.store() = Store::default();
        *lock(&self.started) = seconds();
        self.dead.store(false, Ordering::Release);
        self.set(self.faults());
        stopped
    }

    /// Gives a request's sequences to the scheduler.
    pub(crate) fn submit(self: &Arc<Self>, jobs: Vec<Job>, n: usize, entry: u64) -> Result<Ticket, Full> {
        let mut core = self.core();
        let idle = core.scheduler.step_ends().is_none();
        let (flow, ids, dies) = core.submit(jobs)?;
        let begun = idle && core.scheduler.step_ends().is_some();
        drop(core);
        if dies {
            self.die(Death::Failed);
        } else if begun {
            self.wake.notify_one();
        }
        Ok(Ticket { state: Arc::clone(self), flow, ids, entry, n, done: false })
    }

    /// Opens an entry of the books.
    pub(crate) fn enter(&self, entry: Entry) -> u64 {
        self.books().open(entry)
    }
}

/// A request that the scheduler has. Dropping it before its end aborts it.
pub(crate) struct Ticket {
    pub(crate) state: Arc<State>,
    pub(crate) flow: Arc<Flow>,
    ids: Vec<u64>,
    entry: u64,
    /// Sequences of one prompt.
    n: usize,
    done: bool,
}

impl Ticket {
    /// Its entry in the books.
    pub(crate) fn entry(&self) -> u64 {
        self.entry
    }

    /// Writes down how it ended.
    pub(crate) fn end(&mut self, end: End) {
        if std::mem::replace(&mut self.done, true) {
            return;
        }
        let progress = self.flow.now();
        self.state.books().change(self.entry, |entry| {
            entry.generated_tokens = progress.iter().map(|one| u64::from(one.generated)).sum();
            entry.cached_tokens = progress.iter().step_by(self.n).map(|one| u64::from(one.cached)).sum();
            entry.end = end;
            let begun = progress.iter().filter(|one| one.generated > 0).map(|one| one.timing);
            if let Some(first) = begun.min_by_key(|timing| timing.first) {
                entry.queued_us = Some(first.queued / 1000);
                entry.first_token_us = Some(first.first / 1000);
                entry.last_token_us = progress.iter().map(|one| one.timing.last / 1000).max();
            }
        });
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        self.state.core().abort(&self.ids);
        self.end(if self.state.is_dead() { End::Died } else { End::Aborted });
    }
}
