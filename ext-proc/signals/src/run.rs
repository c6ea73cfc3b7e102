//! Which targets are polled: one task each, begun and ended as the list changes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::limits::{SCRAPES_MAX, TARGETS_MAX};
use crate::poll::{Shared, poll};
use crate::seam::{Kind, Settings, Sink, Target};

type Polls = BTreeMap<(Arc<str>, SocketAddr), (Kind, AbortOnDropHandle<()>)>;

/// Polls the targets and follows their list, until `stop`. New targets are asked at once; of those no longer listed
/// nothing is heard again. At its return no poller runs any more.
pub async fn run(
    mut targets: watch::Receiver<Arc<Vec<Target>>>,
    settings: Settings,
    sink: Arc<dyn Sink>,
    stop: CancellationToken,
) {
    let scrapes = Semaphore::new(SCRAPES_MAX);
    let shared = Arc::new(Shared { settings, sink, scrapes, epoch: Instant::now() });
    let mut polls = Polls::new();
    loop {
        let listed = Arc::clone(&targets.borrow_and_update());
        follow(&mut polls, &listed, &shared).await;
        tokio::select! {
            () = stop.cancelled() => break,
            changed = targets.changed() => {
                if changed.is_err() {
                    // Nobody will list anything new; what is listed stays.
                    stop.cancelled().await;
                    break;
                }
            }
        }
    }
    follow(&mut polls, &[], &shared).await;
}

async fn follow(polls: &mut Polls, listed: &[Target], shared: &Arc<Shared>) {
    let mut wanted = BTreeMap::new();
    for target in listed {
        if wanted.len() >= TARGETS_MAX {
            tracing::warn!(
                listed = listed.len(),
                polled = TARGETS_MAX,
                "too many endpoints: the last ones are picked without signals",
            );
            break;
        }
        wanted.entry((Arc::clone(&target.pool), target.address)).or_insert(target.kind);
    }
    let gone = polls.extract_if(.., |key, (kind, _)| wanted.get(key) != Some(kind));
    let gone: Vec<_> = gone.map(|(_, (_, poll))| poll).collect();
    for poll in &gone {
        poll.abort();
    }
    for ended in gone {
        // Aborted: there is no result to look at.
        let _aborted = ended.await;
    }
    for (key, kind) in wanted {
        polls.entry(key).or_insert_with_key(|(pool, address)| {
            let target = Target { pool: Arc::clone(pool), address: *address, kind };
            (kind, AbortOnDropHandle::new(tokio::spawn(poll(Arc::clone(shared), target))))
        });
    }
}
