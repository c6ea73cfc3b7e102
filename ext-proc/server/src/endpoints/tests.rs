use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::*;
use crate::metrics::Metrics;

fn config(file: &Path) -> Config {
    let text = format!(
        "pools: [{{name: a, models: [m]}}, {{name: b, models: [n]}}]\nendpoints: {{file: '{}', poll_ms: 50}}\n",
        file.display()
    );
    Config::parse(&text, Path::new("tokenweir.yaml")).expect("a valid configuration")
}

fn parse(text: &str) -> Result<Endpoints, String> {
    let file = Path::new("endpoints.yaml");
    Endpoints::parse(text, file, &config(file)).map_err(|errors| errors.to_string())
}

#[test]
fn a_file_is_read_in_its_order() {
    let endpoints = parse("pools: {a: [{address: '127.0.0.1:8002'}, {address: '[::1]:8001', ready: false}]}")
        .expect("valid");
    let entry = |text: &str, ready| EndpointEntry { address: text.parse().unwrap(), ready };
    assert_eq!(endpoints.of("a"), [entry("127.0.0.1:8002", true), entry("[::1]:8001", false)]);
    assert_eq!((endpoints.of("b"), endpoints.of("c"), endpoints.generation), (&[][..], &[][..], 1));
    assert!(endpoints.pools.contains_key("b"), "a pool without endpoints is still there");
}

#[test]
fn all_errors_come_at_once_with_their_lines() {
    let text = "\
pools:
  a:
    - address: localhost:8001
    - address: 127.0.0.1:8001
    - {address: '127.0.0.1:8001', redy: true}
    - address: 127.0.0.1:8001
    - address: 0.0.0.0:8001
    - adress: 127.0.0.1:8003
  aa: []
  b:
x: 1
";
    let want = "\
endpoints.yaml:3: pools.a[0].address: \"localhost:8001\" is not IP:PORT; write the IP:PORT that Envoy knows, such as 10.0.0.7:8000 or [fd00::7]:8000; a name would never match, because Envoy compares addresses
endpoints.yaml:5: pools.a[2].redy: unknown key; did you mean `ready`?
endpoints.yaml:6: pools.a[3].address: 127.0.0.1:8001 is listed twice; remove one of the two
endpoints.yaml:7: pools.a[4].address: 0.0.0.0:8001 is not one server's address; write the IP:PORT that Envoy knows
endpoints.yaml:8: pools.a[5].adress: unknown key; did you mean `address`?
endpoints.yaml:8: pools.a[5].address: is missing; add it; docs/configuration.md has an example
endpoints.yaml:9: pools.aa: is not a pool of the configuration; did you mean `a`?
endpoints.yaml:10: pools.b: is empty, not a list; give a list, or remove the key
endpoints.yaml:11: x: unknown key; known here: pools";
    assert_eq!(parse(text).expect_err("errors"), want);
    assert!(parse("").expect_err("an error").contains("no content"));
}

#[test]
fn a_pool_is_bounded() {
    let list: String = (0..=POOL_ENDPOINTS_MAX)
        .map(|n| format!("    - address: 10.0.{}.{}:1\n", n / 250, n % 250 + 1))
        .collect();
    let error = parse(&format!("pools:\n  a:\n{list}")).expect_err("an error");
    assert_eq!(error, "endpoints.yaml:2: pools.a: has 4097 endpoints, more than 4096; split the pool");
}

struct Watched {
    folder: tempfile::TempDir,
    latest: Latest,
    metrics: Metrics,
    stop: CancellationToken,
}

impl Watched {
    /// Watches `current/endpoints.yaml`, where `current` is a symbolic link as in a mounted ConfigMap.
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("current/endpoints.yaml");
        let config = Arc::new(config(&file));
        let (metrics, stop) = (Metrics::new(&config), CancellationToken::new());
        let start = Self::version(&folder, "v1", "pools: {a: [{address: '127.0.0.1:1'}]}\n");
        std::os::unix::fs::symlink(start, folder.path().join("current")).expect("a link");
        let first = Endpoints::load(&file, &config).expect("valid");
        let (latest, _task) = watch(config, first, metrics.clone(), stop.clone());
        Self { folder, latest, metrics, stop }
    }

    fn version(folder: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
        let path = folder.path().join(name);
        std::fs::create_dir_all(&path).expect("a folder");
        std::fs::write(path.join("endpoints.yaml"), text).expect("written");
        path
    }

    fn swap(&self, name: &str, text: &str) {
        let target = Self::version(&self.folder, name, text);
        let next = self.folder.path().join("next");
        std::os::unix::fs::symlink(target, &next).expect("a link");
        std::fs::rename(next, self.folder.path().join("current")).expect("swapped");
    }

    async fn next(&mut self) -> Arc<Endpoints> {
        tokio::time::timeout(Duration::from_secs(10), self.latest.changed())
            .await
            .expect("in time")
            .expect("alive");
        Arc::clone(&self.latest.borrow_and_update())
    }

    async fn until(&self, line: &str) {
        for _ in 0..400 {
            if self.metrics.render().lines().any(|have| have == line) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("{line} never came:\n{}", self.metrics.render());
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[tokio::test]
async fn a_changed_file_is_published_and_an_invalid_one_is_not() {
    let mut watched = Watched::start();
    watched
        .swap("v2", "pools: {a: [{address: '127.0.0.1:2', ready: false}], b: [{address: '127.0.0.1:3'}]}\n");
    let second = watched.next().await;
    assert_eq!((second.generation, second.of("a").len(), second.of("b").len()), (2, 1, 1));
    watched.until("tokenweir_endpoints{pool=\"a\",state=\"not_ready\"} 1").await;

    // Invalid, gone, and invalid in the same way again: the last good one stays.
    watched.swap("v3", "pools: {a: [{address: nonsense}]}\n");
    watched.until("tokenweir_endpoints_reload_total{result=\"invalid\"} 1").await;
    std::fs::remove_file(watched.folder.path().join("v3/endpoints.yaml")).expect("removed");
    watched.until("tokenweir_endpoints_reload_total{result=\"invalid\"} 2").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    watched.until("tokenweir_endpoints_reload_total{result=\"invalid\"} 2").await;
    assert!(!watched.latest.has_changed().expect("alive"));
    let text = watched.metrics.render();
    let age =
        text.lines().find_map(|line| line.strip_prefix("tokenweir_endpoints_age_seconds ")).expect("an age");
    assert!(age.parse::<f64>().expect("a number") > 0.2, "{age}");

    watched.swap("v4", "pools: {a: [], b: []}\n");
    let third = watched.next().await;
    assert_eq!((third.generation, third.of("a").len()), (3, 0));
    watched.until("tokenweir_endpoints_reload_total{result=\"ok\"} 3").await;
}

#[tokio::test]
async fn the_same_endpoints_in_other_words_are_no_change() {
    let mut watched = Watched::start();
    watched.swap("v2", "# a comment\npools:\n  a:\n    - address: 127.0.0.1:1\n");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!watched.latest.has_changed().expect("alive"));
    watched.swap("v3", "pools: {b: [{address: '127.0.0.1:1'}]}\n");
    assert_eq!(watched.next().await.generation, 2);
}
