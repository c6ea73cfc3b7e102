//! A pool in a state that a test can write down and read.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;

use ext_proc_pick::{
    Ask, Endpoint, Health, NoPick, Observation, Pick, Pool, Prefix, PrefixBuilder, Settings, Stats, Ticket,
    Used,
};
use fastrand::Rng;

pub(crate) fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

/// A prompt of texts; each is (name, bytes), and equal names are equal bytes from the start.
pub(crate) fn prompt(texts: &[(char, usize)]) -> Prefix {
    let text = |builder: PrefixBuilder, &(name, bytes): &(char, usize)| {
        let bytes: Vec<u8> = (0..bytes).map(|n| ((n * 31 + n / 7) as u8 ^ name as u8) & 0x7f).collect();
        builder.text(1, &bytes)
    };
    texts.iter().fold(PrefixBuilder::new(&[b"m"]), text).finish()
}

pub(crate) fn names(names: &[&str]) -> Arc<BTreeSet<String>> {
    Arc::new(names.iter().map(|name| (*name).to_owned()).collect())
}

pub(crate) struct Scene {
    pub(crate) pool: Pool,
    pub(crate) rng: Rng,
    pub(crate) now: u64,
    next: u128,
}

impl Scene {
    /// Endpoints 1 to `endpoints`, all ready, nothing known of them. No exploration unless a test wants it.
    pub(crate) fn new(endpoints: u16) -> Self {
        Self::with(endpoints, Settings { exploration: 0.0, ..Settings::default() })
    }

    pub(crate) fn with(endpoints: u16, settings: Settings) -> Self {
        let mut pool = Pool::new(settings);
        let list: Vec<_> = (1..=endpoints).map(|n| Endpoint { address: address(n), ready: true }).collect();
        pool.replace(&list);
        Self { pool, rng: Rng::with_seed(1), now: 1_000, next: 0 }
    }

    pub(crate) fn try_ask(&mut self, ask: &Ask<'_>) -> (Ticket, Result<Pick, NoPick>) {
        self.next += 1;
        let ticket = Ticket(self.next);
        (ticket, self.pool.pick(ticket, ask, self.now, &mut self.rng))
    }

    pub(crate) fn ask(&mut self, prefix: &Prefix) -> (Ticket, Pick) {
        let (ticket, pick) = self.try_ask(&plain(prefix));
        (ticket, pick.expect("an endpoint"))
    }

    /// Sends a request to `port`.
    pub(crate) fn send(&mut self, prefix: &Prefix, port: u16) -> Ticket {
        let ask = Ask { stay: Some(address(port)), ..plain(prefix) };
        let (ticket, pick) = self.try_ask(&ask);
        assert_eq!(pick.expect("it is there").order, [address(port)]);
        ticket
    }

    /// Sends a request to `port`, which begins to answer it.
    pub(crate) fn put(&mut self, prefix: &Prefix, port: u16) -> Ticket {
        let ticket = self.send(prefix, port);
        self.pool.answered(ticket, Some(address(port)), 200, None, self.now);
        ticket
    }

    /// A whole exchange on `port`, of whose prompt the engine found `cached` tokens of `input`.
    pub(crate) fn serve(&mut self, prefix: &Prefix, port: u16, input: u64, cached: u64) {
        let ticket = self.put(prefix, port);
        self.pool.first_token(ticket, self.now);
        self.end(ticket, input, cached);
    }

    pub(crate) fn end(&mut self, ticket: Ticket, input: u64, cached: u64) {
        let used = Used { input: Some(input), cached: Some(cached), output: Some(100) };
        self.pool.release(ticket, used, self.now);
    }

    pub(crate) fn health(&mut self, port: u16, health: Health) {
        self.pool.observe(address(port), Observation { health, stats: None, models: None }, self.now);
    }

    pub(crate) fn stats(&mut self, port: u16, stats: Stats) {
        let observation = Observation { health: Health::Ready, stats: Some(stats), models: None };
        self.pool.observe(address(port), observation, self.now);
    }

    pub(crate) fn models(&mut self, port: u16, models: &[&str]) {
        let observation = Observation { health: Health::Ready, stats: None, models: Some(names(models)) };
        self.pool.observe(address(port), observation, self.now);
    }
}

pub(crate) fn plain(prefix: &Prefix) -> Ask<'_> {
    Ask {
        model: "m",
        prefix,
        prompt_bytes: prefix.bytes(),
        prompt_token_ids: 0,
        output_tokens_max: None,
        stay: None,
    }
}

/// The ports in order and the reason.
pub(crate) fn short(pick: &Pick) -> String {
    let ports: Vec<String> = pick.order.iter().map(|address| address.port().to_string()).collect();
    format!("{} {}", ports.join(","), pick.reason.as_label())
}

/// One line per candidate; times in milliseconds, terms that are nothing left out.
pub(crate) fn table(pick: &Pick) -> String {
    let mut out = format!("{}\n", short(pick));
    for candidate in &pick.candidates {
        let e = &candidate.explanation;
        let port = candidate.address.port();
        if let Some(excluded) = candidate.excluded {
            writeln!(out, "{port}: {}", excluded.as_label()).expect("a string");
            continue;
        }
        write!(out, "{port}: {}+{} tokens", e.matched_tokens, e.uncached_tokens).expect("a string");
        for (name, seconds) in [
            ("prefill", e.prefill_s),
            ("wait", e.wait_s),
            ("foreign", e.foreign_s),
            ("kv", e.kv_wait_s),
            ("decode", e.decode_s),
            ("evicting", e.evicting_s),
            ("lora", e.lora_s),
            ("penalty", e.penalty_s),
        ] {
            let ms = (seconds * 1e3).round();
            if ms > 0.0 {
                write!(out, " {name} {ms}").expect("a string");
            }
        }
        writeln!(out, " = {}", (e.total_s * 1e3).round()).expect("a string");
    }
    out
}
