//! The state folder and the secrets.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{Level, Report};
use crate::config::{Config, TOKEN_KEY_BYTES_MIN};

/// Name of the token key in the state folder.
const TOKEN_KEY_FILE: &str = "token.key";

pub(super) fn examine(config: &Config, report: &mut Report) {
    let folder = &config.state_dir;
    match try_write(folder) {
        Ok(()) => report.ok("state_dir", format!("{} can be written", folder.display())),
        Err(error) => {
            let what = format!("{} cannot be written: {error}", folder.display());
            report.add(Level::Fail, "state_dir", what, "make the folder and give it to the service's user");
        }
    }
    if config.token_keys.is_empty() {
        own_key(&folder.join(TOKEN_KEY_FILE), report);
    }
    for key in &config.token_keys {
        permissions(&format!("token_keys {}", key.id), &key.file, report);
    }
}

/// Makes and removes an empty file.
fn try_write(folder: &Path) -> io::Result<()> {
    let trial = folder.join(format!(".doctor-{}", std::process::id()));
    OpenOptions::new().write(true).create_new(true).open(&trial)?;
    fs::remove_file(trial)
}

fn own_key(file: &Path, report: &mut Report) {
    const SUBJECT: &str = "token key";
    match fs::metadata(file) {
        Ok(data) if data.len() < u64::try_from(TOKEN_KEY_BYTES_MIN).unwrap_or(u64::MAX) => {
            let what =
                format!("{} has {} bytes, fewer than {TOKEN_KEY_BYTES_MIN}", file.display(), data.len());
            report.add(Level::Fail, SUBJECT, what, "remove it; the service makes a new one at its start");
        }
        Ok(_) => permissions(SUBJECT, file, report),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            report.ok(SUBJECT, format!("{} is made at the first start", file.display()));
        }
        Err(error) => {
            let what = format!("{} cannot be looked at: {error}", file.display());
            report.add(Level::Fail, SUBJECT, what, "let the service's user read it");
        }
    }
    let what = "whether there is more than one replica";
    let advice = "if so, give all of them the same token_keys, or none can settle another's exchanges";
    report.add(Level::Skip, SUBJECT, what, advice);
}

fn permissions(subject: &str, file: &Path, report: &mut Report) {
    match fs::metadata(file).map(|data| data.permissions().mode() & 0o777) {
        Ok(mode) if mode & 0o077 == 0 => {
            report.ok(subject, format!("{} is readable by its owner only", file.display()))
        }
        Ok(mode) => {
            let what = format!("{} has mode {mode:04o}: others than its owner can read it", file.display());
            report.add(
                Level::Warn,
                subject,
                what,
                "chmod 0600, or defaultMode: 0400 on a Kubernetes Secret volume",
            );
        }
        Err(error) => {
            report.add(
                Level::Fail,
                subject,
                format!("{}: {error}", file.display()),
                "let the service's user read it",
            );
        }
    }
}
