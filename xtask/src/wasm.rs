//! Builds the filter's WebAssembly module, with whichever toolchain for `wasm32-unknown-unknown` the machine has.
//!
//! The target that rustup installs is used where it is there. Where it is not, and cannot be, Debian's own Rust builds the standard
//! library from its sources: `rustc-web`, `cargo-web`, `rust-web-src` and `lld`.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use crate::suite::{say, workspace};

const TARGET: &str = "wasm32-unknown-unknown";
/// Envoy's V8 has had vector instructions for long; searching an event's bytes takes most of the filter's time.
const RUSTFLAGS: (&str, &str) =
    ("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS", "-Ctarget-feature=+simd128");
const CRATE: &str = "wasm-filter-shim";
/// What cargo calls the artifact of [`CRATE`].
const ARTIFACT: &str = "wasm_filter_shim.wasm";
/// `[profile.wasm]` of the workspace.
const PROFILE: &str = "wasm";
const DEBIAN_BIN: &str = "/usr/bin";
const DEBIAN_PACKAGES: &[&str] = &["rustc-web", "cargo-web", "rust-web-src", "lld"];

/// Builds the module and tells its size and digest.
pub(crate) fn run() -> Result<()> {
    let module = build(&workspace()?)?;
    let bytes = fs::read(&module.path).with_context(|| format!("reading {}", module.path.display()))?;
    let digest: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    say(&format!(
        "{}: {} bytes, sha256 {digest}, built by {}",
        module.path.display(),
        bytes.len(),
        module.toolchain
    ));
    Ok(())
}

/// A module that was built.
pub(crate) struct Module {
    /// Where it lies.
    pub(crate) path: PathBuf,
    /// What built it.
    pub(crate) toolchain: &'static str,
}

/// Builds the module at `target/wasm/tokenweir.wasm` below the workspace's root.
pub(crate) fn build(workspace: &Path) -> Result<Module> {
    let target_dir = workspace.join("target/wasm-build");
    let toolchain = if rust_has_the_target() {
        cargo_build(Command::new("cargo"), workspace, &target_dir, &[])?;
        "the installed target"
    } else {
        if !debian_is_ready() {
            install_debian_packages()?;
        }
        debian_build(workspace, &target_dir)?;
        "Debian's rustc-web"
    };
    let built = target_dir.join(TARGET).join(PROFILE).join(ARTIFACT);
    let path = workspace.join("target/wasm/tokenweir.wasm");
    fs::create_dir_all(workspace.join("target/wasm")).context("creating target/wasm")?;
    // A module that is in use is replaced whole, never written into.
    let fresh = path.with_extension("wasm.new");
    fs::copy(&built, &fresh).with_context(|| format!("copying {}", built.display()))?;
    fs::rename(&fresh, &path).with_context(|| format!("replacing {}", path.display()))?;
    Ok(Module { path, toolchain })
}

fn rust_has_the_target() -> bool {
    let printed = Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]).output();
    printed.is_ok_and(|output| {
        let directory = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success() && fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some())
    })
}

fn cargo_build(mut cargo: Command, workspace: &Path, target_dir: &Path, more: &[&str]) -> Result<()> {
    cargo
        .current_dir(workspace)
        .args(["build", "--locked", "--package", CRATE, "--target", TARGET, "--profile", PROFILE])
        .arg("--target-dir")
        .arg(target_dir)
        .args(more)
        // The general one would replace it.
        .env_remove("RUSTFLAGS")
        .env(RUSTFLAGS.0, RUSTFLAGS.1);
    let status = cargo.status().with_context(|| format!("starting {}", cargo.get_program().display()))?;
    ensure!(status.success(), "building {CRATE} for {TARGET} failed: see above");
    Ok(())
}

fn debian_build(workspace: &Path, target_dir: &Path) -> Result<()> {
    let mut path = OsString::from(DEBIAN_BIN);
    if let Some(rest) = env::var_os("PATH") {
        path.push(":");
        path.push(rest);
    }
    let mut cargo = Command::new(Path::new(DEBIAN_BIN).join("cargo"));
    cargo
        .env("PATH", path)
        .env("RUSTC", Path::new(DEBIAN_BIN).join("rustc"))
        // Building the standard library is an unstable option; Debian's compiler is a stable one.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", "wasm-ld")
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("CARGO")
        .env_remove("LD_LIBRARY_PATH")
        .env_remove("RUSTC_WRAPPER");
    cargo_build(cargo, workspace, target_dir, &["-Zbuild-std=std,panic_abort"])
}

/// Whether Debian's compiler, its linker and the standard library's sources are there.
fn debian_is_ready() -> bool {
    let bin = Path::new(DEBIAN_BIN);
    if ["cargo", "rustc", "wasm-ld"].iter().any(|program| !bin.join(program).exists()) {
        return false;
    }
    let printed = Command::new(bin.join("rustc")).args(["--print", "sysroot"]).output();
    printed.is_ok_and(|output| {
        let sysroot = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Path::new(&sysroot).join("lib/rustlib/src/rust/library/Cargo.toml").exists()
    })
}

fn install_debian_packages() -> Result<()> {
    let packages = DEBIAN_PACKAGES.join(" ");
    let how = format!(
        "there is no toolchain for {TARGET}. Either `rustup target add {TARGET}`, or on Debian `apt-get install {packages}`"
    );
    if !Path::new("/usr/bin/apt-get").exists() || !is_root() {
        bail!("{how}");
    }
    say(&format!("No toolchain for {TARGET}: installing Debian's {packages}"));
    // A fresh machine has no package lists. If they can't be fetched, those that are there may still do.
    drop(Command::new("/usr/bin/apt-get").args(["update", "--quiet=2"]).status());
    let status = Command::new("/usr/bin/apt-get")
        .env("DEBIAN_FRONTEND", "noninteractive")
        .args(["install", "--yes", "--no-install-recommends"])
        .args(DEBIAN_PACKAGES)
        .status()
        .context("starting apt-get")?;
    ensure!(status.success() && debian_is_ready(), "that did not help: {how}");
    Ok(())
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}
