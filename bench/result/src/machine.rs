//! What was measured, and where: commit, processor, and how busy the machine was with other things.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

/// The workspace's root.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new(".")).to_path_buf()
}

fn output(command: &str, args: &[&str]) -> String {
    let output = Command::new(command).args(args).current_dir(workspace()).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

/// The commit that was measured, with `+changes` when the tree had any; empty outside a git checkout.
pub fn commit() -> String {
    let changed = !output("git", &["status", "--porcelain", "--untracked-files=no"]).is_empty();
    output("git", &["rev-parse", "HEAD"]) + if changed { "+changes" } else { "" }
}

/// Load averages over 1, 5 and 15 minutes.
pub fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// The machine, with its load `before` and now.
pub fn describe(before: &str) -> Value {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    json!({
        "cpu": model.trim_start_matches([' ', '\t', ':']),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "kernel": output("uname", &["-r"]),
        "load_before": before,
        "load_after": load(),
    })
}
