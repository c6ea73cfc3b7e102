//! Follows the endpoints file by its content, every `endpoints.poll_ms`.
//!
//! Content is compared, not times or inode numbers: a mounted ConfigMap changes by a swap of symbolic links, and an
//! editor writes in place. Changed content must read the same twice before it counts, so that a half-written file is
//! not taken for a shorter one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::Endpoints;
use crate::config::{Config, ConfigErrors, read_text};
use crate::metrics::Metrics;

/// Time between the two readings of changed content.
const SETTLE: Duration = Duration::from_millis(20);

/// Where the newest valid snapshot is found.
pub type Latest = watch::Receiver<Arc<Endpoints>>;

/// Follows the file of `config.endpoints` until `stop`, from `first` on, which was read from it. Must be called inside a
/// Tokio runtime.
pub fn watch(
    config: Arc<Config>,
    first: Endpoints,
    metrics: Metrics,
    stop: CancellationToken,
) -> (Latest, JoinHandle<()>) {
    metrics.endpoints_read(Some(&first));
    let (sender, latest) = watch::channel(Arc::new(first));
    let watcher = Watcher { config, metrics, sender, seen: None, good_at: Instant::now(), good: true };
    (latest, tokio::spawn(watcher.run(stop)))
}

/// What one look at the file found.
#[derive(Clone, PartialEq, Eq)]
enum Look {
    Text([u8; 32]),
    /// It could not be read, with the error.
    Unreadable(String),
}

struct Watcher {
    config: Arc<Config>,
    metrics: Metrics,
    sender: watch::Sender<Arc<Endpoints>>,
    /// The last look that was acted on.
    seen: Option<Look>,
    /// When the snapshot in use was last seen to be the file's content.
    good_at: Instant,
    good: bool,
}

impl Watcher {
    async fn run(mut self, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(self.config.endpoints.poll);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => self.look().await,
            }
        }
    }

    async fn look(&mut self) {
        let (text, look) = self.read().await;
        if self.seen.as_ref() != Some(&look) {
            tokio::time::sleep(SETTLE).await;
            let (_, again) = self.read().await;
            if again != look {
                // Still being written: the next look decides.
                return self.tell_age();
            }
            self.seen = Some(look);
            self.take(text).await;
        }
        if self.good {
            self.good_at = Instant::now();
        }
        self.tell_age();
    }

    fn tell_age(&self) {
        self.metrics.endpoints_age(self.good_at.elapsed());
    }

    async fn read(&self) -> (Result<String, ConfigErrors>, Look) {
        let file = self.config.endpoints.file.clone();
        let text = blocking(&file, read_text).await;
        let look = match &text {
            Ok(text) => Look::Text(Sha256::digest(text).into()),
            Err(errors) => Look::Unreadable(errors.to_string()),
        };
        (text, look)
    }

    /// Takes new content: publishes it, or says once why not.
    async fn take(&mut self, text: Result<String, ConfigErrors>) {
        let config = Arc::clone(&self.config);
        let parse = move |file: &Path| text.and_then(|text| Endpoints::parse(&text, file, &config));
        match blocking(&self.config.endpoints.file, parse).await {
            Ok(mut endpoints) => {
                self.good = true;
                let current = Arc::clone(&self.sender.borrow());
                if current.pools == endpoints.pools {
                    return;
                }
                endpoints.generation = current.generation.saturating_add(1);
                tracing::info!(generation = endpoints.generation, "endpoints changed");
                self.metrics.endpoints_read(Some(&endpoints));
                // Kept even while nobody listens.
                self.sender.send_replace(Arc::new(endpoints));
            }
            Err(errors) => {
                self.good = false;
                self.metrics.endpoints_read(None);
                let errors = errors.to_string();
                tracing::error!(
                    errors,
                    "the endpoints file is not valid; the last good endpoints stay in use"
                );
            }
        }
    }
}

/// Runs `work` where it may block. A panic in it is an error like any other, and does not end the watch.
async fn blocking<T: Send + 'static>(
    file: &Path,
    work: impl FnOnce(&Path) -> Result<T, ConfigErrors> + Send + 'static,
) -> Result<T, ConfigErrors> {
    let path: PathBuf = file.to_owned();
    match tokio::task::spawn_blocking(move || work(&path)).await {
        Ok(result) => result,
        Err(_stopped) => Err(ConfigErrors::file(file, "could not be checked", "report this file as a bug")),
    }
}
