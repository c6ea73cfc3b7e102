//! Engines, the pool, and everybody's clocks: one run in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::rc::Rc;

use ext_proc_pick::{
    Ask, Endpoint, Health, Observation, Pool, Settings, Speed, Stats, Strategy, Ticket, Used,
};
use fastrand::Rng;

use crate::engine::{Engine, Make, Output};
use crate::workload::{Kind, Prompt, Session, sessions};

/// KV cache of an engine, tokens.
const KV_TOKENS: u64 = 200_000;
/// Way to an engine and back, each; microseconds.
const NETWORK_US: u64 = 1_000;
/// Reports come in batches, so often.
const REPORT_US: u64 = 20_000;
const SCRAPE_US: u64 = 250_000;
/// Between a look at an engine and its arrival at the pool.
const SCRAPE_LAG_US: u64 = 10_000;

/// A run to make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) kind: Kind,
    pub(crate) strategy: Strategy,
    pub(crate) endpoints: usize,
    pub(crate) load: f64,
    pub(crate) seconds: f64,
    pub(crate) seed: u64,
}

/// What became of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fate {
    pub(crate) ttft_s: f64,
    pub(crate) good: bool,
    pub(crate) hit: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Ask { session: usize },
    Arrive { id: usize, engine: usize },
    StepEnd { engine: usize },
    FirstToken { id: usize },
    Release { id: usize },
    Scrape { engine: usize },
    Observe { engine: usize, place: usize },
}

struct Exchange {
    session: usize,
    prompt: Rc<Prompt>,
    asked_us: u64,
    first_us: Option<u64>,
    last_us: Option<u64>,
    cached: u64,
}

struct World {
    plan: Plan,
    pool: Pool,
    rng: Rng,
    engines: Vec<Engine>,
    sessions: Vec<Session>,
    turns: Vec<usize>,
    exchanges: Vec<Exchange>,
    looks: Vec<Option<Stats>>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
}

fn address(engine: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 8_000 + engine as u16))
}

/// The speed in truth.
fn truth() -> Speed {
    Speed::default()
}

/// What the pool is told instead: by turns half and double, and the other way round.
fn told(seed: u64) -> Speed {
    let (prefill, decode) = match seed % 3 {
        0 => (1.0, 1.0),
        1 => (0.5, 2.0),
        _ => (2.0, 0.5),
    };
    let Speed { c0, c_p, c_a, c_b, c_kv } = truth();
    Speed { c0: c0 * decode, c_p: c_p * prefill, c_a: c_a * prefill, c_b: c_b * decode, c_kv: c_kv * decode }
}

fn make(kind: Kind, engine: usize) -> Make {
    let slow = if kind == Kind::OneSlow && engine == 0 { 3.0 } else { 1.0 };
    let taken = if kind == Kind::OneFull && engine == 0 { 0.9 } else { 0.0 };
    let Speed { c0, c_p, c_a, c_b, c_kv } = truth();
    let speed = Speed { c0: c0 * slow, c_p: c_p * slow, c_a: c_a * slow, c_b: c_b * slow, c_kv: c_kv * slow };
    Make { speed, kv_tokens: KV_TOKENS, taken }
}

/// Makes a run: the fates of all requests asked in its second three quarters.
pub(crate) fn run(plan: Plan) -> Vec<Fate> {
    let settings = Settings { strategy: plan.strategy, speed: told(plan.seed), ..Settings::default() };
    let mut pool = Pool::new(settings);
    let endpoints: Vec<_> =
        (0..plan.endpoints).map(|n| Endpoint { address: address(n), ready: true }).collect();
    pool.replace(&endpoints);
    let sessions = sessions(plan.kind, plan.endpoints, plan.load, plan.seconds, plan.seed);
    let mut world = World {
        plan,
        pool,
        rng: Rng::with_seed(plan.seed),
        engines: (0..plan.endpoints).map(|n| Engine::new(make(plan.kind, n))).collect(),
        turns: vec![0; sessions.len()],
        sessions,
        exchanges: Vec::new(),
        looks: Vec::new(),
        events: BinaryHeap::new(),
        sequence: 0,
    };
    world.all();
    world.fates()
}

impl World {
    fn at(&mut self, us: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((us, self.sequence, event)));
    }

    fn all(&mut self) {
        for session in 0..self.sessions.len() {
            if let Some((pause, _)) = self.sessions[session].turns.first() {
                let at = self.sessions[session].start_s + pause;
                self.at((at * 1e6) as u64, Event::Ask { session });
            }
        }
        for engine in 0..self.plan.endpoints {
            self.at(SCRAPE_US * engine as u64 / self.plan.endpoints as u64, Event::Scrape { engine });
        }
        let end_us = ((self.plan.seconds + 20.0) * 1e6) as u64;
        while let Some(Reverse((now, _, event))) = self.events.pop().filter(|Reverse((at, ..))| *at < end_us)
        {
            self.happen(now, event);
        }
    }

    fn happen(&mut self, now: u64, event: Event) {
        let now_ms = now / 1_000;
        match event {
            Event::Ask { session } => self.ask(session, now),
            Event::Arrive { id, engine } => {
                self.engines[engine].submit(id, self.exchanges[id].prompt.clone());
                if !self.engines[engine].busy {
                    self.step(engine, now);
                }
            }
            Event::StepEnd { engine } => {
                for output in self.engines[engine].end() {
                    self.put_out(&output, now);
                }
                self.step(engine, now);
            }
            Event::FirstToken { id } => self.pool.first_token(Ticket(id as u128), now_ms),
            Event::Release { id } => {
                let exchange = &self.exchanges[id];
                let used = Used {
                    input: Some(exchange.prompt.tokens),
                    cached: Some(exchange.cached),
                    output: Some(exchange.prompt.output),
                };
                self.pool.release(Ticket(id as u128), used, now_ms);
            }
            Event::Scrape { engine } => {
                self.looks.push(Some(self.engines[engine].stats()));
                self.at(now + SCRAPE_LAG_US, Event::Observe { engine, place: self.looks.len() - 1 });
                let jitter = self.rng.u64(0..SCRAPE_US / 5);
                self.at(now + SCRAPE_US - SCRAPE_US / 10 + jitter, Event::Scrape { engine });
            }
            Event::Observe { engine, place } => {
                let stats = self.looks[place].take();
                self.pool.observe(
                    address(engine),
                    Observation { health: Health::Ready, stats, models: None },
                    now_ms,
                );
            }
        }
    }

    fn ask(&mut self, session: usize, now: u64) {
        let turn = self.turns[session];
        let prompt = self.sessions[session].turns[turn].1.clone();
        let id = self.exchanges.len();
        let ask = Ask {
            model: "model",
            prefix: &prompt.prefix,
            prompt_bytes: prompt.bytes,
            prompt_token_ids: 0,
            output_tokens_max: None,
            stay: None,
        };
        let pick =
            self.pool.pick(Ticket(id as u128), &ask, now / 1_000, &mut self.rng).expect("all are ready");
        let engine = usize::from(pick.order[0].port() - 8_000);
        self.exchanges.push(Exchange {
            session,
            prompt,
            asked_us: now,
            first_us: None,
            last_us: None,
            cached: 0,
        });
        self.at(now + NETWORK_US, Event::Arrive { id, engine });
    }

    fn step(&mut self, engine: usize, now: u64) {
        if let Some(seconds) = self.engines[engine].begin() {
            self.at(now + (seconds * 1e6) as u64, Event::StepEnd { engine });
        }
    }

    fn put_out(&mut self, output: &Output, now: u64) {
        let seen = now + NETWORK_US;
        let report = seen.next_multiple_of(REPORT_US);
        match *output {
            Output::First(id) => {
                self.exchanges[id].first_us = Some(seen);
                self.at(report, Event::FirstToken { id });
            }
            Output::Last { id, cached } => {
                self.exchanges[id].last_us = Some(seen);
                self.exchanges[id].cached = cached;
                self.at(report, Event::Release { id });
                let session = self.exchanges[id].session;
                self.turns[session] += 1;
                if let Some((pause, _)) = self.sessions[session].turns.get(self.turns[session]) {
                    let at = seen + (pause * 1e6) as u64;
                    if (at as f64) < self.plan.seconds * 1e6 {
                        self.at(at, Event::Ask { session });
                    }
                }
            }
        }
    }

    fn fates(&self) -> Vec<Fate> {
        let from_us = (self.plan.seconds * 0.25 * 1e6) as u64;
        let end_us = ((self.plan.seconds + 20.0) * 1e6) as u64;
        let fate = |exchange: &Exchange| {
            let ttft_s = (exchange.first_us.unwrap_or(end_us) - exchange.asked_us) as f64 / 1e6;
            let per_token = match (exchange.first_us, exchange.last_us) {
                (Some(first), Some(last)) => {
                    (last - first) as f64 / 1e6 / (exchange.prompt.output.max(2) - 1) as f64
                }
                _ => f64::INFINITY,
            };
            let hit = exchange.cached as f64 / exchange.prompt.tokens as f64;
            Fate { ttft_s, good: ttft_s <= 1.0 && per_token <= 0.06, hit }
        };
        self.exchanges.iter().filter(|exchange| exchange.asked_us >= from_us).map(fate).collect()
    }
}
