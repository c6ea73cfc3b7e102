//! `cargo xtask e2e <suite>`: suites with real parts.

use anyhow::Result;

use crate::parts;
use crate::suite::{command, run};

/// Real Envoy, the service, the filter, engines. `full`: the long forms.
pub(crate) fn envoy(full: bool) -> Result<()> {
    parts::envoy()?;
    let faults = parts::service(true)?;
    let service = parts::service(false)?;
    let filter = parts::filter()?;
    // One test at a time: each starts its own Envoy, and two cores are soon full.
    let mut tests =
        command("cargo", &["test", "--locked", "--release", "-p", "e2e", "--", "--test-threads=1"])?;
    tests.env("TOKENWEIR_BIN", service).env("TOKENWEIR_FAULTS_BIN", faults).env("TOKENWEIR_WASM", filter);
    if full {
        tests.env("TOKENWEIR_FULL", "1");
    }
    run(tests)
}
