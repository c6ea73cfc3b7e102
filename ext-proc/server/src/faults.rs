//! Faults on demand, for the suites that prove what a fault does. Built only with the feature `faults`; `TOKENWEIR_FAULT`
//! names the fault and the phase, as in `panic:await_body`.

use std::sync::OnceLock;

static FAULT: OnceLock<Option<(String, String)>> = OnceLock::new();

fn fault() -> Option<&'static (String, String)> {
    let read = || {
        let text = std::env::var("TOKENWEIR_FAULT").ok()?;
        text.split_once(':').map(|(kind, phase)| (kind.to_owned(), phase.to_owned()))
    };
    FAULT.get_or_init(read).as_ref()
}

/// Panics if the fault is a panic in this phase.
#[allow(clippy::panic, reason = "the fault")]
pub(crate) fn strike(phase: &str) {
    if fault().is_some_and(|(kind, at)| kind == "panic" && at == phase) {
        panic!("injected fault in phase {phase}");
    }
}
