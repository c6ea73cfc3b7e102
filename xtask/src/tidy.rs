//! House rules that no compiler checks: file length, module headers, unfinished work, and paths that documents name.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::suite::{say, workspace};

/// A Rust file longer than this wants to be two.
const LINES_MAX: usize = 450;
/// What unfinished work is called. Written in pieces so that this file passes.
const UNFINISHED: [&str; 4] =
    [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("todo", "!("), concat!("unimple", "mented!(")];

/// Reports every breach at once.
pub(crate) fn check() -> Result<()> {
    let root = workspace()?;
    let listed = Command::new("git")
        .current_dir(&root)
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .output()
        .context("listing the files by git")?;
    let files = String::from_utf8(listed.stdout).context("file names are UTF-8")?;
    let mut breaches = Vec::new();
    let mut seen = 0;
    for name in files.lines() {
        // Deleted files are still listed until the deletion is committed; binary ones have nothing to check.
        let Ok(text) = std::fs::read_to_string(root.join(name)) else { continue };
        seen += 1;
        look(&root, name, &text, &mut breaches);
    }
    if seen == 0 {
        bail!("no file was looked at: is this a git checkout?");
    }
    if breaches.is_empty() {
        say(&format!("{seen} files are tidy"));
        return Ok(());
    }
    bail!("{}", breaches.join("\n"))
}

fn look(root: &Path, name: &str, text: &str, breaches: &mut Vec<String>) {
    let generated = name.contains("/generated/");
    if name.ends_with(".rs") && !generated {
        let lines = text.lines().count();
        if lines > LINES_MAX {
            breaches.push(format!("{name}: {lines} lines; split it (at most {LINES_MAX})"));
        }
        let part = name.ends_with("tests.rs") || name.contains("/tests/") || name.contains("/fuzz");
        if !part && !text.starts_with("//!") {
            breaches.push(format!("{name}:1: a module opens with `//!` and says what it decides, and why"));
        }
    }
    let code =
        [".rs", ".sh", ".py", ".toml", ".yaml", ".yml", ".proto"].iter().any(|end| name.ends_with(end));
    for (number, line) in (1..).zip(text.lines()) {
        if code && UNFINISHED.iter().any(|word| line.contains(word)) {
            breaches.push(format!("{name}:{number}: unfinished work; finish it, or file an issue"));
        }
        if name.ends_with(".md") {
            for path in paths(line) {
                if !root.join(path).exists() {
                    breaches.push(format!("{name}:{number}: `{path}` does not exist"));
                }
            }
        }
    }
}

/// Paths into the workspace that a line of a document names in backticks.
fn paths(line: &str) -> impl Iterator<Item = &str> {
    const TOPS: [&str; 10] = [
        "ext-proc/",
        "wasm-filter/",
        "proto/",
        "gateway-api/",
        "helm/",
        "e2e/",
        "bench/",
        "xtask/",
        "docs/",
        ".ci/",
    ];
    line.split('`')
        .skip(1)
        .step_by(2)
        .filter(|quoted| TOPS.iter().any(|top| quoted.starts_with(top)))
        .filter(|quoted| !quoted.contains([' ', '*', '<', '{', '…']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_breach_is_found() {
        let mut breaches = Vec::new();
        let long = "//! x\n".repeat(LINES_MAX + 1);
        look(Path::new("/nowhere"), "a/long.rs", &long, &mut breaches);
        look(Path::new("/nowhere"), "a/bare.rs", "fn main() {}\n", &mut breaches);
        look(Path::new("/nowhere"), "a/open.sh", &format!("# {}: later\n", UNFINISHED[0]), &mut breaches);
        look(Path::new("/nowhere"), "a.md", "see `docs/none.md` and `cargo xtask ci`\n", &mut breaches);
        assert_eq!(breaches.len(), 4, "{breaches:?}");
    }
}
