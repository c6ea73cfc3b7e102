//! What is asked: prompts as lists of texts, each text known by a number, so that equal numbers mean equal bytes.

use std::collections::HashMap;
use std::rc::Rc;

use ext_proc_pick::{Prefix, PrefixBuilder};
use fastrand::Rng;

use crate::cache::BLOCK;

/// Bytes a token, in truth; the pool's prior is another.
const BYTES_PER_TOKEN: f64 = 4.4;

/// A request.
pub(crate) struct Prompt {
    pub(crate) tokens: u64,
    pub(crate) bytes: u64,
    pub(crate) output: u64,
    /// Names of the 16-token blocks of prompt and output.
    pub(crate) blocks: Vec<u64>,
    pub(crate) prefix: Prefix,
}

/// Makes prompts; texts are made once.
#[derive(Default)]
pub(crate) struct Texts {
    bytes: HashMap<u64, Rc<[u8]>>,
}

fn mix(a: u64, b: u64) -> u64 {
    let x = (a ^ b.rotate_left(23)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

impl Texts {
    fn bytes(&mut self, text: u64, tokens: u64) -> Rc<[u8]> {
        let make = || {
            let words = (tokens as f64 * BYTES_PER_TOKEN / 8.0) as u64;
            // Only ASCII: the builder's mark between texts must not occur by accident.
            (0..words).flat_map(|word| (mix(text, word) & 0x7f7f_7f7f_7f7f_7f7f).to_le_bytes()).collect()
        };
        self.bytes.entry(text).or_insert_with(make).clone()
    }

    /// A prompt of (text, tokens) parts, and its reply's text.
    pub(crate) fn prompt(&mut self, parts: &[(u64, u64)], reply: (u64, u64)) -> Rc<Prompt> {
        let tokens: u64 = parts.iter().map(|(_, tokens)| tokens).sum();
        let mut builder = PrefixBuilder::new(&[b"model"]);
        for (n, &(text, tokens)) in parts.iter().enumerate() {
            let bytes = self.bytes(text, tokens);
            if parts.len() > 200 || n + 1 == parts.len() {
                self.bytes.remove(&text);
            }
            builder = builder.text(1, &bytes);
        }
        let prefix = builder.finish();
        let bytes = prefix.bytes();
        let mut blocks = Vec::new();
        let all: Vec<(u64, u64)> = parts.iter().copied().chain([reply]).collect();
        let (mut part, mut start, mut chain) = (0, 0, 0);
        for block in 1..=(tokens + reply.1) / BLOCK {
            // Where a block's last token lies in which text names it, given what came before.
            let last = block * BLOCK - 1;
            while last >= start + all[part].1 {
                start += all[part].1;
                part += 1;
                chain = mix(chain, all[part].0);
            }
            chain = mix(mix(chain, all[part].0), last - start) | 1;
            blocks.push(chain);
        }
        Rc::new(Prompt { tokens, bytes, output: reply.1, blocks, prefix })
    }
}

/// The kinds of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    SharedPrefix,
    MultiTurn,
    UniformShort,
    OneSlow,
    OneFull,
    HotFlips,
    MixedLengths,
}

impl Kind {
    /// Arrivals a second and endpoint at load 1 (sessions an endpoint for the closed loop): about where the better of
    /// the simple strategies begins to miss its objective.
    pub(crate) fn knee(self) -> f64 {
        match self {
            Self::SharedPrefix => 3.0,
            Self::MultiTurn => 40.0,
            Self::UniformShort => 30.0,
            Self::OneSlow => 6.0,
            Self::OneFull => 6.0,
            Self::HotFlips => 6.0,
            Self::MixedLengths => 4.0,
        }
    }
}

/// A session: its requests one after another, each with the pause before it in seconds.
pub(crate) struct Session {
    pub(crate) start_s: f64,
    pub(crate) turns: Vec<(f64, Rc<Prompt>)>,
}

fn exponential(rng: &mut Rng, mean: f64) -> f64 {
    -mean * (1.0 - rng.f64()).ln()
}

/// Everything that will be asked within `seconds`.
pub(crate) fn sessions(kind: Kind, endpoints: usize, load: f64, seconds: f64, seed: u64) -> Vec<Session> {
    let mut rng = Rng::with_seed(seed.wrapping_mul(77).wrapping_add(kind as u64));
    let mut texts = Texts::default();
    let rate = kind.knee() * load * endpoints as f64;
    if kind == Kind::MultiTurn {
        return (0..rate as usize).map(|_| conversation(&mut texts, &mut rng, seconds)).collect();
    }
    let groups = 24 * endpoints as u64;
    let (mut now, mut sessions) = (0.0, Vec::new());
    while now < seconds {
        now += exponential(&mut rng, 1.0 / rate);
        let own = rng.u64(1 << 40..);
        let reply = (rng.u64(1 << 40..), rng.u64(50..250));
        let parts = match kind {
            Kind::SharedPrefix => vec![(rng.u64(1..=groups), 6_000), (own, rng.u64(50..400))],
            Kind::UniformShort => vec![(own, rng.u64(150..400))],
            Kind::OneSlow | Kind::OneFull => vec![(own, rng.u64(500..2_500))],
            Kind::HotFlips => {
                let hot = 1 + (now / 20.0) as u64;
                let text = if rng.f64() < 0.8 { hot } else { 1_000 + rng.u64(0..groups) };
                vec![(text, 5_000), (own, rng.u64(50..400))]
            }
            Kind::MixedLengths | Kind::MultiTurn => {
                let tokens = (exponential(&mut rng, 1.0) + 0.05).powi(2) * 1_500.0;
                vec![(own, (tokens as u64).clamp(50, 24_000))]
            }
        };
        sessions.push(Session { start_s: now, turns: vec![(0.0, texts.prompt(&parts, reply))] });
    }
    sessions
}

fn conversation(texts: &mut Texts, rng: &mut Rng, seconds: f64) -> Session {
    let start_s = rng.f64() * 10.0;
    let mut turns = Vec::new();
    let mut at = start_s;
    let mut parts: Vec<(u64, u64)> = Vec::new();
    while at < seconds {
        if parts.is_empty() || parts.len() > 2 * rng.usize(5..12) {
            parts = vec![(1 + rng.u64(0..3), 800)];
        }
        parts.push((rng.u64(1 << 40..), rng.u64(50..600)));
        let reply = (rng.u64(1 << 40..), rng.u64(80..300));
        let pause = exponential(rng, 6.0);
        at += pause;
        turns.push((pause, texts.prompt(&parts, reply)));
        parts.push(reply);
    }
    Session { start_s, turns }
}
