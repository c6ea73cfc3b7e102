//! `cargo xtask bench <bench>`: measured side by side in one run.

use anyhow::Result;

use crate::parts;
use crate::suite::{cargo, command, run};

/// What Tokenweir costs behind Envoy. `quick`: only whether every answer and every record is right.
pub(crate) fn overhead(json: Option<&str>, quick: bool) -> Result<()> {
    parts::envoy()?;
    let filter = parts::filter()?;
    // What is shipped is what is measured; for right and wrong the profile that other suites have built will do.
    let profile = if quick { "release" } else { "dist" };
    let build = ["build", "--locked", "--profile", profile, "-p"];
    cargo(&[&build[..], &["ext-proc-server", "--bin", "tokenweir"]].concat())?;
    cargo(&[&build[..], &["bench-overhead"]].concat())?;
    let folder = parts::target()?.join(profile);
    let mut bench = command(folder.join("bench-overhead"), &[])?;
    if quick {
        bench.arg("--quick");
    }
    if let Some(file) = json {
        bench.args(["--json", file]);
    }
    bench.env("TOKENWEIR_BIN", folder.join("tokenweir")).env("TOKENWEIR_WASM", filter);
    run(bench)
}

/// Strategies of the pick against each other. `quick`: one seed, and shorter.
pub(crate) fn pick(json: Option<&str>, quick: bool, seeds: Option<&str>) -> Result<()> {
    parts::envoy()?;
    let filter = parts::filter()?;
    let service = parts::service(false)?;
    cargo(&["build", "--locked", "--release", "-p", "bench-pick"])?;
    let mut bench = command(parts::target()?.join("release/bench-pick"), &[])?;
    if quick {
        bench.arg("--quick");
    }
    if let Some(file) = json {
        bench.args(["--json", file]);
    }
    if let Some(seeds) = seeds {
        bench.args(["--seeds", seeds]);
    }
    bench.env("TOKENWEIR_BIN", service).env("TOKENWEIR_WASM", filter);
    run(bench)
}
