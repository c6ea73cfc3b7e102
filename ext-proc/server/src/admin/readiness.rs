//! Whether this replica should get requests, and if not, why.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use serde_json::json;

/// One thing that readiness hangs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The configuration is in use.
    Config,
    /// A valid set of endpoints is in use.
    Endpoints,
    /// Every gRPC listener accepts connections.
    Serving,
    /// The service is going away. The only one that must not hold.
    Draining,
}

impl Condition {
    const ALL: [Self; 4] = [Self::Config, Self::Endpoints, Self::Serving, Self::Draining];

    fn bit(self) -> u8 {
        match self {
            Self::Config => 1,
            Self::Endpoints => 2,
            Self::Serving => 4,
            Self::Draining => 8,
        }
    }

    /// Name in the answer of `/readyz`.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::Endpoints => "endpoints",
            Self::Serving => "serving",
            Self::Draining => "draining",
        }
    }

    /// What it means that this stands in the way.
    fn reason(self) -> &'static str {
        match self {
            Self::Config => "the configuration is not loaded yet",
            Self::Endpoints => "no valid endpoints file was read yet",
            Self::Serving => "the gRPC listeners are not open yet",
            Self::Draining => "the service is going away",
        }
    }
}

/// Bits of the conditions that hold in a ready service.
const READY: u8 = 1 | 2 | 4;

/// Shared readiness. Starts with no condition holding: not ready.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    holding: Arc<AtomicU8>,
}

impl Readiness {
    /// Says whether `condition` holds from now on.
    pub fn set(&self, condition: Condition, holds: bool) {
        if holds {
            self.holding.fetch_or(condition.bit(), Ordering::SeqCst);
        } else {
            self.holding.fetch_and(!condition.bit(), Ordering::SeqCst);
        }
    }

    /// Whether this replica should get requests.
    pub fn is_ready(&self) -> bool {
        self.holding.load(Ordering::SeqCst) == READY
    }

    /// `{"ready": …, "reasons": [{"condition": …, "reason": …}]}`
    pub fn to_json(&self) -> String {
        let amiss = self.holding.load(Ordering::SeqCst) ^ READY;
        let reasons: Vec<_> = Condition::ALL
            .into_iter()
            .filter(|condition| amiss & condition.bit() != 0)
            .map(|condition| json!({"condition": condition.as_label(), "reason": condition.reason()}))
            .collect();
        json!({"ready": amiss == 0, "reasons": reasons}).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_needs_all_but_draining() {
        let readiness = Readiness::default();
        for condition in [Condition::Config, Condition::Endpoints, Condition::Serving] {
            assert!(!readiness.is_ready());
            readiness.clone().set(condition, true);
        }
        assert!(readiness.is_ready());
        assert_eq!(readiness.to_json(), r#"{"ready":true,"reasons":[]}"#);
        readiness.set(Condition::Draining, true);
        readiness.set(Condition::Endpoints, false);
        assert!(!readiness.is_ready());
        let text = readiness.to_json();
        assert!(
            text.contains("\"endpoints\"") && text.contains("going away") && !text.contains("config"),
            "{text}"
        );
    }
}
