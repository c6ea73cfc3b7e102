//! `tokenweir doctor`: looks at everything around the service that its configuration names, and says what to do about
//! what is amiss.
//!
//! It changes nothing that stays, and sends no prompt to an engine. It can run beside a serving `tokenweir`.

mod engines;
mod listeners;
mod probe;
mod signals;
mod state;

use std::fmt;

use crate::config::Config;
use crate::{endpoints::Endpoints, tls};

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// As it should be.
    Ok,
    /// It cannot be seen from here.
    Skip,
    /// The service works, but not as well as it could.
    Warn,
    /// The service, or a part of it, does not work.
    Fail,
}

impl Level {
    fn as_label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Skip => "skip",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        }
    }
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How it came out.
    pub level: Level,
    /// What was looked at.
    pub subject: String,
    /// What was seen.
    pub what: String,
    /// What to do; empty where nothing is to be done.
    pub advice: String,
}

/// One line.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<4}  {}: {}", self.level.as_label(), self.subject, self.what)?;
        if self.advice.is_empty() { Ok(()) } else { write!(f, "; {}", self.advice) }
    }
}

/// All checks, in the order in which a request meets what they look at.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The checks.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Whether no check failed.
    pub fn is_well(&self) -> bool {
        !self.findings.iter().any(|finding| finding.level == Level::Fail)
    }

    fn add(
        &mut self,
        level: Level,
        subject: impl Into<String>,
        what: impl Into<String>,
        advice: impl Into<String>,
    ) {
        self.findings.push(Finding {
            level,
            subject: subject.into(),
            what: what.into(),
            advice: advice.into(),
        });
    }

    fn ok(&mut self, subject: impl Into<String>, what: impl Into<String>) {
        self.add(Level::Ok, subject, what, "");
    }
}

/// One check a line, and a line with their numbers.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            writeln!(f, "{finding}")?;
        }
        let count = |level| self.findings.iter().filter(|finding| finding.level == level).count();
        let (ok, warn, fail) = (count(Level::Ok), count(Level::Warn), count(Level::Fail));
        write!(f, "{ok} ok, {warn} to look at, {fail} failed, {} not visible from here", count(Level::Skip))
    }
}

/// Looks at everything that `config`, which is valid, names.
pub async fn run(config: &Config) -> Report {
    let mut report = Report::default();
    report.ok("configuration", format!("{} is valid", config.file.display()));
    state::examine(config, &mut report);
    if let Some(files) = &config.listen.tls {
        match tls::server_config(files) {
            Ok(_) => report.ok("listen.tls", "certificate and key fit"),
            Err(error) => report.add(Level::Fail, "listen.tls", error.to_string(), ""),
        }
    }
    let counted = listeners::examine(&config.listen, &mut report).await;
    match Endpoints::load(&config.endpoints.file, config) {
        Ok(endpoints) => {
            report.ok("endpoints", format!("{} is valid", config.endpoints.file.display()));
            engines::examine(config, &endpoints, counted.as_deref(), &mut report).await;
        }
        Err(errors) => {
            for error in errors.iter() {
                report.add(Level::Fail, "endpoints", error.to_string(), "");
            }
        }
    }
    report
}

#[cfg(test)]
mod tests;
