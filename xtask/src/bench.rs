//! `cargo xtask bench <bench>`: measured side by side in one run.

use anyhow::Result;

use crate::parts;
use crate::suite::{command, run};

/// Requests per second through Envoy with and without Tokenweir.
pub(crate) fn throughput(json: Option<&str>) -> Result<()> {
    parts::envoy()?;
    let service = parts::service(false)?;
    let filter = parts::filter()?;
    let bin = ["run", "--locked", "--release", "--quiet", "-p", "e2e", "--bin", "throughput", "--"];
    let mut bench = command("cargo", &bin)?;
    if let Some(file) = json {
        bench.args(["--json", file]);
    }
    bench.env("TOKENWEIR_BIN", service).env("TOKENWEIR_WASM", filter);
    run(bench)
}
