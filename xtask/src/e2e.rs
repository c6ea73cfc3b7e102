//! `cargo xtask e2e <suite>`: suites with real parts.

use anyhow::Result;

use crate::parts;
use crate::suite::{command, run};

/// Real Envoy, the service, the filter, engines. `full`: the long forms.
pub(crate) fn envoy(full: bool) -> Result<()> {
    // One test at a time: each starts its own Envoy, and two cores are soon full.
    with_parts(&["--", "--test-threads=1"], full)
}

/// The Python SDKs as clients; installed on first use.
pub(crate) fn sdk() -> Result<()> {
    run(command("bash", &["e2e/kits/sdk/install.sh"])?)?;
    alone("sdk", false)
}

/// Two real vLLM engines, the Python SDKs as clients; both installed on first use. `full`: the long forms.
pub(crate) fn vllm(full: bool) -> Result<()> {
    run(command("bash", &["e2e/kits/sdk/install.sh"])?)?;
    run(command("bash", &["e2e/kits/vllm/install.sh"])?)?;
    alone("vllm", full)
}

/// A suite that the usual run leaves out, because it needs what a kit installs. Its figures are shown.
fn alone(suite: &str, full: bool) -> Result<()> {
    with_parts(&["--test", suite, "--", "--ignored", "--nocapture", "--test-threads=1"], full)
}

fn with_parts(args: &[&str], full: bool) -> Result<()> {
    parts::envoy()?;
    let faults = parts::service(true)?;
    let service = parts::service(false)?;
    let filter = parts::filter()?;
    let mut tests = command("cargo", &["test", "--locked", "--release", "-p", "e2e"])?;
    tests.args(args);
    tests.env("TOKENWEIR_BIN", service).env("TOKENWEIR_FAULTS_BIN", faults).env("TOKENWEIR_WASM", filter);
    if full {
        tests.env("TOKENWEIR_FULL", "1");
    }
    run(tests)
}
