//! One target's task: ask, judge, tell, wait.

use std::sync::Arc;
use std::time::Duration;

use proto_vllm::metrics;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::history::{Change, Failure, History, Look};
use crate::limits::{MODELS_BYTES_MAX, PAGE_BYTES_KEPT};
use crate::link::Link;
use crate::models;
use crate::seam::{Kind, Outcome, Settings, Sink, Target};

/// What all pollers share.
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) sink: Arc<dyn Sink>,
    /// One permit per scrape under way.
    pub(crate) scrapes: Semaphore,
    /// The beginning of all times that a history sees.
    pub(crate) epoch: Instant,
}

/// Polls a target until the task is aborted.
pub(crate) async fn poll(shared: Arc<Shared>, target: Target) {
    let mut poller = Poller {
        history: History::new(target.kind, shared.settings),
        link: Link::new(target.address),
        body: Vec::new(),
        chance: fastrand::Rng::new(),
        shared,
        target,
    };
    loop {
        let begun = poller.look().await;
        let in_flight = poller.in_flight();
        let pause = poller.history.pause(in_flight, poller.chance.f64());
        tokio::time::sleep_until(begun + pause).await;
    }
}

struct Poller {
    shared: Arc<Shared>,
    target: Target,
    history: History,
    link: Link,
    body: Vec<u8>,
    chance: fastrand::Rng,
}

impl Poller {
    /// One look; returns when it began.
    async fn look(&mut self) -> Instant {
        let shared = Arc::clone(&self.shared);
        // Never closed, so there is always a permit in the end.
        let permit = shared.scrapes.acquire().await;
        let begun = Instant::now();
        match self.target.kind {
            Kind::Vllm => self.vllm().await,
            Kind::OpenAi => self.models().await,
        }
        drop(permit);
        if self.body.capacity() > PAGE_BYTES_KEPT {
            self.body = Vec::new();
        }
        begun
    }

    async fn vllm(&mut self) {
        let begun = Instant::now();
        // Before the page is asked for: what is sent meanwhile needn't be in it.
        let in_flight = self.in_flight();
        let got = self.get("/metrics", metrics::limits::PAGE_BYTES_MAX).await;
        let read = got.and_then(|()| metrics::read(&self.body).map_err(Failure::NotMetrics));
        let look = self.history.metrics(read, in_flight, self.now_ms());
        self.tell(look, begun.elapsed(), true);
        if self.history.wants_models(self.now_ms()) {
            self.models().await;
        }
    }

    async fn models(&mut self) {
        let begun = Instant::now();
        let got = self.get("/v1/models", MODELS_BYTES_MAX).await;
        let read = got.and_then(|()| models::read(&self.body).ok_or(Failure::NotModels));
        let look = self.history.models(read, self.now_ms());
        self.tell(look, begun.elapsed(), self.target.kind == Kind::OpenAi);
    }

    async fn get(&mut self, path: &'static str, bytes_max: usize) -> Result<(), Failure> {
        self.link.get(path, bytes_max, self.shared.settings.within, &mut self.body).await
    }

    fn in_flight(&self) -> u32 {
        self.shared.sink.in_flight(&self.target.pool, self.target.address)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.shared.epoch.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn tell(&self, look: Look, took: Duration, counted: bool) {
        let Target { pool, address, .. } = &self.target;
        // Of a vLLM target the scrape is the page; its list only counts where it fails.
        if counted || look.outcome != Outcome::Ok {
            self.shared.sink.scraped(pool, *address, look.outcome, took);
        }
        self.shared.sink.observe(pool, *address, look.observation);
        if let Some(change) = &look.change {
            self.log(change);
        }
    }

    fn log(&self, change: &Change) {
        let Target { pool, address, .. } = &self.target;
        let failure = change.failure.map(|failure| failure.to_string()).unwrap_or_default();
        tracing::info!(
            %pool,
            %address,
            from = change.from.as_label(),
            to = change.to.as_label(),
            outcome = change.outcome.as_label(),
            failure,
            absurd = change.absurd,
            restarts = change.restarts,
            untold = change.untold,
            "endpoint signals changed",
        );
    }
}
