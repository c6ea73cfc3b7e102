//! Where the real parts lie. A missing one is an error that names the command that makes it.

use anyhow::{Result, bail};
use std::path::{Path, PathBuf};

/// The cache that the kits install into: `TOKENWEIR_CACHE`, else `~/.cache/tokenweir`.
#[must_use]
pub fn cache() -> PathBuf {
    if let Some(dir) = std::env::var_os("TOKENWEIR_CACHE") {
        return dir.into();
    }
    let home = std::env::var_os("HOME").unwrap_or_else(|| "/tmp".into());
    Path::new(&home).join(".cache/tokenweir")
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}

/// Build folders to look in: the one that this test binary was built into, then the workspace's own.
fn target_dirs() -> Vec<PathBuf> {
    let mut dirs = Vec::new();
    if let Some(dir) = std::env::var_os("CARGO_TARGET_DIR") {
        dirs.push(PathBuf::from(dir));
    }
    if let Ok(exe) = std::env::current_exe()
        && let Some(profile) = exe.ancestors().find(|dir| dir.ends_with("debug") || dir.ends_with("release"))
        && let Some(target) = profile.parent()
    {
        dirs.push(target.to_path_buf());
    }
    dirs.push(workspace().join("target"));
    dirs
}

fn find(what: &str, variable: &str, made_by: &str, candidates: &[PathBuf]) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(variable) {
        let path = PathBuf::from(path);
        if path.is_file() {
            return Ok(path);
        }
        bail!("{variable} names {}, which is not a file: {made_by} makes {what}", path.display());
    }
    // The newest: someone who has just built one profile means that one.
    let newest = candidates
        .iter()
        .filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path)))
        .max_by_key(|(time, _)| *time);
    match newest {
        Some((_, path)) => Ok(path.clone()),
        None => {
            let tried: Vec<String> = candidates.iter().map(|path| path.display().to_string()).collect();
            bail!(
                "{what} is missing: `{made_by}` makes it, or set {variable}. Looked at: {}",
                tried.join(", ")
            )
        }
    }
}

/// The `tokenweir` binary.
pub fn tokenweir() -> Result<PathBuf> {
    let candidates: Vec<PathBuf> = target_dirs()
        .iter()
        .flat_map(|dir| [dir.join("release/tokenweir"), dir.join("debug/tokenweir")])
        .collect();
    find("the tokenweir binary", "TOKENWEIR_BIN", "cargo build -p ext-proc-server", &candidates)
}

/// The `tokenweir` binary with faults on demand.
pub fn tokenweir_with_faults() -> Result<PathBuf> {
    let candidates: Vec<PathBuf> = target_dirs()
        .iter()
        .flat_map(|dir| [dir.join("release/tokenweir-faults"), dir.join("debug/tokenweir-faults")])
        .collect();
    let made_by = "cargo build -p ext-proc-server --bin tokenweir-faults --features faults";
    find("the tokenweir binary with faults", "TOKENWEIR_FAULTS_BIN", made_by, &candidates)
}

/// The filter, `tokenweir.wasm`.
pub fn wasm() -> Result<PathBuf> {
    let candidates: Vec<PathBuf> = target_dirs().iter().map(|dir| dir.join("wasm/tokenweir.wasm")).collect();
    find("the filter tokenweir.wasm", "TOKENWEIR_WASM", "cargo xtask wasm", &candidates)
}

/// The Envoy binary.
pub fn envoy() -> Result<PathBuf> {
    let candidates = [cache().join("envoy-1.40.0/envoy")];
    find("Envoy 1.40.0", "TOKENWEIR_ENVOY", "e2e/kits/envoy.sh", &candidates)
}
