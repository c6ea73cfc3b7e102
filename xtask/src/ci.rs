//! `cargo xtask ci`: the one gate. It installs what it needs, never skips, and ends at the first failure.

use anyhow::Result;

use crate::suite::{Suites, cargo, command, run};
use crate::{bench, demo, e2e, parts, tidy};

pub(crate) fn gate(full: bool) -> Result<()> {
    let mut suites = Suites::default();
    suites.run("tidy", tidy::check)?;
    suites.run("format", || cargo(&["fmt", "--all", "--check"]))?;
    suites.run("lints", || {
        cargo(&["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"])
    })?;
    suites.run("unit and property tests", || cargo(&["test", "--locked"]))?;
    suites.run("filter (wasm)", || parts::filter().map(drop))?;
    suites.run("service (release)", || parts::service(true).and_then(|_| parts::service(false)).map(drop))?;
    suites.run("e2e envoy", || e2e::envoy(full))?;
    suites.run("bench overhead, quick", || bench::overhead(None, true))?;
    suites.run("e2e sdk", e2e::sdk)?;
    suites.run("e2e vllm", || e2e::vllm(full))?;
    suites.run("demo", || demo::start(&demo::Options { once: true, engine: demo::EngineKind::Sim }))?;
    if full {
        suites.run("demo on real vLLM", || {
            demo::start(&demo::Options { once: true, engine: demo::EngineKind::Vllm })
        })?;
        suites.run("fuzz", fuzz)?;
    }
    suites.tell();
    Ok(())
}

/// A minute for each fuzz target. Needs a nightly toolchain, which a plain machine has not.
fn fuzz() -> Result<()> {
    for target in ["body", "edit", "response_meter"] {
        let mut fuzz = command("cargo", &["+nightly", "fuzz", "run", target, "--", "-max_total_time=60"])?;
        fuzz.current_dir(crate::suite::workspace()?.join("proto/openai"));
        run(fuzz)?;
    }
    Ok(())
}
