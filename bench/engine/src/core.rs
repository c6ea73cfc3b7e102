//! One scheduler in real time: the clock that maps virtual to real time, the requests' flows, and the task that wakes up
//! when a step ends.
//!
//! Steps are ordered by virtual time only: a task that wakes late completes all steps that are due, with the arrivals that
//! were there when each began. An engine without requests has no timer. Timers end on a grid that all engines of a process
//! share, so that many steps need one wake-up.

use crate::cache::ByHash;
use crate::config::EngineConfig;
use crate::flow::{Death, Flow};
use crate::scheduler::{Full, Job, Output, Scheduler};
use crate::state::State;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Virtual time, which may stand still.
#[derive(Debug)]
struct Clock {
    origin: Instant,
    scale: f64,
    /// Virtual nanoseconds that passed in reality only.
    skipped: u64,
    frozen: Option<u64>,
}

impl Clock {
    fn passed(&self) -> u64 {
        (self.origin.elapsed().as_nanos() as f64 * self.scale) as u64
    }

    /// Virtual time when `passed` virtual nanoseconds would have passed without any pause.
    fn at(&self, passed: u64) -> u64 {
        self.frozen.unwrap_or_else(|| passed.saturating_sub(self.skipped))
    }

    fn now(&self) -> u64 {
        self.at(self.passed())
    }

    fn freeze(&mut self, frozen: bool, passed: u64) {
        match (self.frozen, frozen) {
            (None, true) => self.frozen = Some(self.at(passed)),
            (Some(at), false) => {
                self.skipped = passed.saturating_sub(at);
                self.frozen = None;
            }
            _ => {}
        }
    }

    fn real(&self, at: u64) -> Instant {
        self.origin + Duration::from_nanos(((at + self.skipped) as f64 / self.scale) as u64)
    }
}

/// A scheduler and who waits for it.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) scheduler: Scheduler,
    clock: Clock,
    flows: ByHash<(Arc<Flow>, usize)>,
    /// The engine dies when a sequence has this many tokens.
    die_after: Option<u32>,
    adapted: bool,
    /// Adapters that were active together, and when that was so last (seconds since 1970).
    pub(crate) loras: Vec<(Vec<String>, f64)>,
}

/// Sets of adapters that are remembered for the metrics.
const LORA_SETS_MAX: usize = 64;

impl Core {
    pub(crate) fn new(config: &EngineConfig) -> Self {
        let clock = Clock {
            origin: Instant::now(),
            scale: if config.time_scale > 0.0 { config.time_scale } else { 1.0 },
            skipped: 0,
            frozen: None,
        };
        let scheduler = Scheduler::new(config.limits(), config.speed);
        let adapted = !config.loras.is_empty();
        Self { scheduler, clock, flows: ByHash::default(), die_after: None, adapted, loras: Vec::new() }
    }

    /// Virtual nanoseconds since the start.
    pub(crate) fn now(&self) -> u64 {
        self.clock.now()
    }

    pub(crate) fn set_die_after(&mut self, tokens: Option<u32>) {
        self.die_after = tokens;
    }

    /// Stops time or lets it go on. What is due at the moment when it stops is completed: later arrivals must not come
    /// before it.
    pub(crate) fn freeze(&mut self, frozen: bool) {
        let stops = frozen && self.clock.frozen.is_none();
        let passed = self.clock.passed();
        self.clock.freeze(frozen, passed);
        if stops {
            self.advance_to(self.clock.now());
        }
    }

    /// Completes what is due; whether the engine has to die now.
    pub(crate) fn advance(&mut self) -> bool {
        self.clock.frozen.is_none() && self.advance_to(self.clock.now())
    }

    fn advance_to(&mut self, now: u64) -> bool {
        let (flows, die_after, mut dies, mut ended) = (&mut self.flows, self.die_after, false, false);
        let mut tell = |output: Output| {
            dies |= die_after.is_some_and(|tokens| output.generated >= tokens);
            if output.finished {
                ended = true;
                if let Some((flow, sequence)) = flows.remove(&output.id) {
                    flow.tell(sequence, &output);
                }
            } else if let Some((flow, sequence)) = flows.get(&output.id) {
                flow.tell(*sequence, &output);
            }
        };
        self.scheduler.advance(now, &mut tell);
        if ended && self.adapted {
            self.note_loras();
        }
        dies
    }

    /// Takes the sequences of one request; none where the queue is full. The flag says that the engine has to die now.
    pub(crate) fn submit(&mut self, jobs: Vec<Job>) -> Result<(Arc<Flow>, Vec<u64>, bool), Full> {
        // One reading of the clock: a step that ends between two would begin the next with a request of later.
        let now = self.clock.now();
        let before = self.clock.frozen.is_none() && self.advance_to(now);
        if let Some(full) = self.scheduler.refuses(jobs.len()) {
            return Err(full);
        }
        let flow = Flow::new(jobs.len());
        let mut ids = Vec::with_capacity(jobs.len());
        for (sequence, job) in jobs.into_iter().enumerate() {
            let id = self.scheduler.submit(job, now);
            self.flows.insert(id, (Arc::clone(&flow), sequence));
            ids.push(id);
        }
        if self.adapted {
            self.note_loras();
        }
        let dies = self.advance() || before;
        Ok((flow, ids, dies))
    }

    fn note_loras(&mut self) {
        let seconds = crate::state::seconds();
        let active = self.scheduler.active_loras();
        if let Some(set) = self.loras.iter_mut().find(|(set, _)| *set == active) {
            set.1 = seconds;
        } else if self.loras.len() < LORA_SETS_MAX {
            self.loras.push((active, seconds));
        }
    }

    pub(crate) fn abort(&mut self, ids: &[u64]) {
        for id in ids {
            self.flows.remove(id);
            self.scheduler.abort(*id);
        }
    }

    /// All requests get to know that the engine is gone.
    pub(crate) fn kill(&mut self, death: Death) {
        for (_, (flow, _)) in self.flows.drain() {
            flow.kill(death);
        }
    }

    /// When to look again, in real time.
    fn due(&self) -> Option<Instant> {
        if self.clock.frozen.is_some() {
            return None;
        }
        self.scheduler.step_ends().map(|at| self.clock.real(at))
    }
}

/// The next point of the process's grid at or after `at`.
fn on_grid(at: Instant, tick: Duration) -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    let origin = *ORIGIN.get_or_init(Instant::now);
    let (since, tick) = (at.saturating_duration_since(origin).as_nanos(), tick.as_nanos());
    if tick == 0 {
        return at;
    }
    origin + Duration::from_nanos((since.div_ceil(tick) * tick) as u64)
}

/// Completes steps as they end, until the other half of `stopped` is dropped.
pub(crate) async fn drive(state: Arc<State>, mut stopped: watch::Receiver<()>) {
    loop {
        let (dies, due) = {
            let mut core = state.core();
            (core.advance(), core.due())
        };
        if dies {
            state.die(Death::Failed);
            return;
        }
        let due = due.map(|at| tokio::time::Instant::from_std(on_grid(at, state.config.tick)));
        tokio::select! {
            _ = stopped.changed() => return,
            () = state.wake.notified() => {}
            () = async {
                match due {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_stood_still_is_not_made_up_for() {
        let mut clock = Clock { origin: Instant::now(), scale: 2.0, skipped: 0, frozen: None };
        assert_eq!(clock.at(100), 100);
        clock.freeze(true, 100);
        clock.freeze(true, 300);
        assert_eq!(clock.at(700), 100);
        clock.freeze(false, 700);
        assert_eq!(clock.at(710), 110);
        clock.freeze(true, 720);
        clock.freeze(false, 1000);
        assert_eq!(clock.at(1000), 120);
        // 120 is due when 1000 virtual nanoseconds have passed: in half as many real ones.
        assert_eq!(clock.real(120) - clock.origin, Duration::from_nanos(500));
    }
}
