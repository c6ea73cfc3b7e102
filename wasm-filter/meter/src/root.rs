//! One root context: its configuration, its reporter, and its end.
//!
//! Each root context owns its reporter and hands it to the streams that it creates itself; there is no state beside it. A
//! replaced root context holds back its end until its last report is acknowledged, for as long as Envoy lets it.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use crate::budget::Budget;
use crate::config::Config;
use crate::host::{Host, Level};
use crate::reporter::Reporter;
use crate::stream::Stream;

/// A root context.
#[derive(Debug)]
pub struct Root {
    /// `None` until a configuration was taken: streams are refused until then.
    config: Option<Rc<Config>>,
    reporter: Rc<RefCell<Reporter>>,
    /// What its streams may keep in memory, together.
    budget: Budget,
    life: Life,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Serving,
    /// Envoy asked for the end, and waits for `done`.
    Draining,
    Ended,
}

impl Root {
    /// A root context that reports under `name`.
    #[must_use]
    pub fn new(name: String) -> Root {
        Root {
            config: None,
            reporter: Rc::new(RefCell::new(Reporter::new(name))),
            budget: Budget::default(),
            life: Life::Serving,
        }
    }

    /// Takes the plugin's configuration; answers the tick period, or `None` (and a log line) when it is refused.
    pub fn configure(&mut self, host: &dyn Host, bytes: &[u8]) -> Option<Duration> {
        let config = match Config::parse(bytes) {
            Ok(config) => config,
            Err(error) => {
                host.log(Level::Error, &error.to_string());
                return None;
            }
        };
        let tick = config.tick;
        self.reporter.try_borrow_mut().ok()?.configure(&config);
        self.config = Some(Rc::new(config));
        Some(tick)
    }

    /// A stream of this root context. Never fails: without a configuration it refuses its request.
    #[must_use]
    pub fn open_stream(&self) -> Stream {
        Stream::new(self.config.clone(), Rc::clone(&self.reporter), self.budget.share())
    }

    #[cfg(test)]
    pub(crate) fn share_budget(&mut self, other: &Root) {
        self.budget = other.budget.clone();
    }

    /// Bytes that its streams keep.
    #[cfg(test)]
    pub(crate) fn kept_bytes(&self) -> usize {
        self.budget.kept_bytes()
    }

    /// The tick.
    pub fn on_tick(&mut self, host: &dyn Host) {
        if self.life == Life::Ended {
            return;
        }
        if let Ok(mut reporter) = self.reporter.try_borrow_mut() {
            reporter.tick(host);
        }
        self.end_if_drained(host);
    }

    /// The answer to a report.
    pub fn on_answer(&mut self, host: &dyn Host, call: u32, grpc_status: u32) {
        if let Ok(mut reporter) = self.reporter.try_borrow_mut() {
            reporter.on_answer(host, call, grpc_status);
        }
        self.end_if_drained(host);
    }

    /// Envoy wants to end this root context. Answers whether it may, now; otherwise `done` follows when all is reported.
    pub fn on_done(&mut self, host: &dyn Host) -> bool {
        let idle = self.reporter.try_borrow_mut().is_ok_and(|mut reporter| {
            reporter.drain(host);
            let idle = reporter.is_idle();
            if idle {
                reporter.close();
            }
            idle
        });
        self.life = if idle { Life::Ended } else { Life::Draining };
        idle
    }

    fn end_if_drained(&mut self, host: &dyn Host) {
        if self.life != Life::Draining {
            return;
        }
        let Ok(mut reporter) = self.reporter.try_borrow_mut() else { return };
        if reporter.is_idle() {
            reporter.close();
            self.life = Life::Ended;
            host.done();
        }
    }
}
