//! Logs, the metrics' housekeeping, and what happens to panics.
//!
//! Logs are JSON lines on standard error, filtered by `TOKENWEIR_LOG` (as `info` or `info,tokenweir=debug`).

use std::io;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::fmt::MakeWriter;

use crate::metrics::Metrics;

/// Environment variable with the log filter.
pub const LOG_VARIABLE: &str = "TOKENWEIR_LOG";

/// Filter without the variable.
const LOG_DEFAULT: &str = "info";

/// Time between two runs of the metrics' upkeep.
const UPKEEP: Duration = Duration::from_secs(5);

/// Why logs could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter cannot be parsed.
    #[error(
        "TOKENWEIR_LOG={text:?} is not a log filter: {source}; use a level (error, warn, info, debug, trace), or target=level, separated by commas"
    )]
    Filter {
        /// The variable's value.
        text: String,
        /// What is wrong with it.
        source: ParseError,
    },
    /// Something else has set up logs in this process.
    #[error("logs are already set up in this process")]
    Installed,
}

/// Sends logs to standard error from here on.
///
/// # Errors
/// The filter cannot be parsed, or logs were set up before.
pub fn install_logs() -> Result<(), TelemetryError> {
    let filter = std::env::var(LOG_VARIABLE).unwrap_or_default();
    let subscriber = subscriber(&filter, io::stderr)?;
    tracing::subscriber::set_global_default(subscriber).map_err(|_| TelemetryError::Installed)
}

fn subscriber<W>(filter: &str, writer: W) -> Result<impl Subscriber + Send + Sync, TelemetryError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let text = if filter.trim().is_empty() { LOG_DEFAULT } else { filter };
    let filter = EnvFilter::try_new(text)
        .map_err(|source| TelemetryError::Filter { text: text.to_owned(), source })?;
    Ok(tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_env_filter(filter)
        .with_writer(writer)
        .finish())
}

/// Logs and counts every panic of the process. The message is left out: it can quote a prompt.
pub fn install_panic_hook(metrics: Metrics) {
    std::panic::set_hook(Box::new(move |info| {
        metrics.panicked();
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(place, "panic: this is a bug, please report it with this place");
    }));
}

/// Keeps the metrics' samples from piling up until `stop`.
pub async fn run_upkeep(metrics: Metrics, stop: CancellationToken) {
    let mut ticks = tokio::time::interval(UPKEEP);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => metrics.upkeep(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(filter: &str) -> Vec<serde_json::Value> {
        let buffer = Buffer::default();
        let writer = buffer.clone();
        let subscriber = subscriber(filter, move || writer.clone()).expect("a filter");
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(pool = "a", "hello");
            tracing::debug!("quiet");
        });
        let bytes = buffer.0.lock().unwrap().clone();
        String::from_utf8(bytes)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect()
    }

    #[test]
    fn logs_are_json_lines_under_the_filter() {
        let lines = logged("");
        assert_eq!(lines.len(), 1);
        assert_eq!(
            (&lines[0]["message"], &lines[0]["pool"], &lines[0]["level"]),
            (&"hello".into(), &"a".into(), &"INFO".into())
        );
        assert_eq!(logged("debug").len(), 2);
        assert_eq!(logged("error").len(), 0);
    }

    #[test]
    fn a_bad_filter_says_what_to_write() {
        let Err(error) = subscriber("tokenweir=loud", io::sink) else { panic!("an error") };
        let text = error.to_string();
        assert!(text.contains("TOKENWEIR_LOG=\"tokenweir=loud\"") && text.contains("use a level"), "{text}");
    }
}
