//! The plugin's configuration: one flat JSON object, read strictly.
//!
//! A misspelt key is an error and not a default, and all errors are told at once: Envoy refuses a listener whose plugin
//! does not configure, and the operator should not have to find out one mistake per try.

use std::fmt;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

/// Longest configuration that is read, bytes.
pub const CONFIG_BYTES_MAX: usize = 64 * 1024;
/// Most report clusters.
pub const REPORT_CLUSTERS_MAX: usize = 16;
/// Longest cluster name, bytes.
pub const CLUSTER_NAME_BYTES_MAX: usize = 512;
/// Most problems that one error lists.
const PROBLEMS_MAX: usize = 32;

/// How one plugin instance behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Refuse requests that carry no valid verdict.
    pub require_verdict: bool,
    /// Envoy clusters that take reports, tried in this order; 1 to [`REPORT_CLUSTERS_MAX`].
    pub report_clusters: Vec<String>,
    /// Most events that wait to be reported, per worker.
    pub queue_events_max: usize,
    /// How often waiting events are sent.
    pub tick: Duration,
    /// Most events in one report.
    pub batch_events_max: usize,
    /// Least time between two progress events of one exchange.
    pub progress: Duration,
}

impl Default for Config {
    /// The defaults, with no cluster to report to.
    fn default() -> Self {
        Config {
            require_verdict: true,
            report_clusters: Vec::new(),
            queue_events_max: 65_536,
            tick: Duration::from_millis(20),
            batch_events_max: 256,
            progress: Duration::from_secs(1),
        }
    }
}

/// Everything that is wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// One line for each problem: where, what, and what would be right.
    pub problems: Vec<String>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "plugin configuration: {}", self.problems.join("; "))
    }
}

impl Config {
    /// Reads the plugin's configuration.
    ///
    /// # Errors
    /// All problems at once: not JSON, unknown or doubled keys, values of a wrong type or out of range, no cluster.
    pub fn parse(bytes: &[u8]) -> Result<Config, ConfigError> {
        let mut problems = Problems(Vec::new());
        let mut config = Config::default();
        if bytes.len() > CONFIG_BYTES_MAX {
            problems.add(format!("is {} bytes long; at most {CONFIG_BYTES_MAX} are read", bytes.len()));
            return Err(ConfigError { problems: problems.0 });
        }
        let members = match serde_json::from_slice::<Members>(bytes) {
            Ok(members) => members.0,
            Err(error) => {
                problems.add(format!("is not a JSON object: {error}"));
                return Err(ConfigError { problems: problems.0 });
            }
        };
        let mut seen: Vec<&str> = Vec::new();
        for (key, value) in &members {
            if seen.contains(&key.as_str()) {
                problems.add(format!("`{}` is given twice", shown(key)));
                continue;
            }
            seen.push(key);
            config.set(key, value, &mut problems);
        }
        if !seen.contains(&"report_clusters") {
            problems.add(
                "`report_clusters` is missing: name the Envoy cluster of the tokenweir service".to_owned(),
            );
        }
        if problems.0.is_empty() { Ok(config) } else { Err(ConfigError { problems: problems.0 }) }
    }

    fn set(&mut self, key: &str, value: &Value, problems: &mut Problems) {
        match key {
            "require_verdict" => match value.as_bool() {
                Some(on) => self.require_verdict = on,
                None => problems.add("`require_verdict` must be true or false".to_owned()),
            },
            "report_clusters" => self.report_clusters = clusters(value, problems),
            "queue_events_max" => {
                self.queue_events_max =
                    size(key, value, 1_000_000, problems).unwrap_or(self.queue_events_max);
            }
            "batch_events_max" => {
                self.batch_events_max = size(key, value, 4096, problems).unwrap_or(self.batch_events_max);
            }
            "tick_ms" => {
                self.tick = number(key, value, 1000, problems).map_or(self.tick, Duration::from_millis);
            }
            "progress_s" => {
                self.progress = number(key, value, 3600, problems).map_or(self.progress, Duration::from_secs);
            }
            _ => problems.add(format!(
                "`{}` is not a key; keys are require_verdict, report_clusters, queue_events_max, tick_ms, \
                 batch_events_max, progress_s",
                shown(key)
            )),
        }
    }
}

fn number(key: &str, value: &Value, max: u64, problems: &mut Problems) -> Option<u64> {
    let number = value.as_u64().filter(|n| (1..=max).contains(n));
    if number.is_none() {
        problems.add(format!("`{key}` must be a whole number from 1 to {max}"));
    }
    number
}

fn size(key: &str, value: &Value, max: u64, problems: &mut Problems) -> Option<usize> {
    number(key, value, max, problems).and_then(|n| usize::try_from(n).ok())
}

fn clusters(value: &Value, problems: &mut Problems) -> Vec<String> {
    let Some(items) = value.as_array().filter(|items| (1..=REPORT_CLUSTERS_MAX).contains(&items.len()))
    else {
        problems.add(format!("`report_clusters` must be a list of 1 to {REPORT_CLUSTERS_MAX} cluster names"));
        return Vec::new();
    };
    let mut names: Vec<String> = Vec::new();
    for (at, item) in items.iter().enumerate() {
        match item.as_str() {
            Some(name)
                if name.is_empty()
                    || name.len() > CLUSTER_NAME_BYTES_MAX
                    || name.chars().any(char::is_control) =>
            {
                problems.add(format!(
                    "`report_clusters[{at}]` must have 1 to {CLUSTER_NAME_BYTES_MAX} bytes, without control characters"
                ));
            }
            Some(name) if names.iter().any(|n| n == name) => {
                problems.add(format!("`report_clusters[{at}]` repeats `{}`", shown(name)));
            }
            Some(name) => names.push(name.to_owned()),
            None => problems.add(format!("`report_clusters[{at}]` must be a string")),
        }
    }
    names
}

/// A foreign text, cut so that an error stays readable.
fn shown(text: &str) -> String {
    text.chars().take(64).filter(|c| !c.is_control()).collect()
}

struct Problems(Vec<String>);

impl Problems {
    fn add(&mut self, problem: String) {
        if self.0.len() < PROBLEMS_MAX {
            self.0.push(problem);
        }
    }
}

/// The members of an object in their order, doubled ones included: `serde_json`'s own map keeps only the last.
struct Members(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry::<String, Value>()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        from.deserialize_map(Collect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        Config::parse(text.as_bytes()).unwrap_err().problems
    }

    #[test]
    fn only_the_clusters_have_no_default() {
        let config = Config::parse(br#"{"report_clusters": ["ext_proc"]}"#).unwrap();
        assert_eq!(config, Config { report_clusters: vec!["ext_proc".to_owned()], ..Config::default() });
        assert!(config.require_verdict);
        assert_eq!(problems("{}").len(), 1);
    }

    #[test]
    fn every_key_is_read() {
        let config = Config::parse(
            br#"{"require_verdict": false, "report_clusters": ["a", "b/c"], "queue_events_max": 7, "tick_ms": 5,
                "batch_events_max": 3, "progress_s": 2}"#,
        )
        .unwrap();
        assert_eq!(
            config,
            Config {
                require_verdict: false,
                report_clusters: vec!["a".to_owned(), "b/c".to_owned()],
                queue_events_max: 7,
                tick: Duration::from_millis(5),
                batch_events_max: 3,
                progress: Duration::from_secs(2),
            }
        );
    }

    #[test]
    fn all_errors_are_told_at_once() {
        let found = problems(
            r#"{"require_verdict": "yes", "report_clusters": ["a", "a", "", 3], "queue_events_max": 0, "tick_ms": 20.5,
                "batch_events_max": -1, "progress_s": 99999, "tick": 1, "tick_ms": 20}"#,
        );
        for part in [
            "`require_verdict`",
            "`report_clusters[1]` repeats `a`",
            "`report_clusters[2]`",
            "`report_clusters[3]`",
            "`queue_events_max`",
            "`tick_ms` must",
            "`batch_events_max`",
            "`progress_s`",
            "`tick` is not a key",
            "`tick_ms` is given twice",
        ] {
            assert_eq!(found.iter().filter(|p| p.contains(part)).count(), 1, "{part} in {found:?}");
        }
        assert_eq!(found.len(), 10);
    }

    #[test]
    fn hostile_configurations_are_refused_in_bounded_space() {
        for text in
            ["", "null", "[]", "{", "\u{0}", r#"{"report_clusters": []}"#, r#"{"report_clusters": "a"}"#]
        {
            assert_eq!(problems(text).len(), 1, "{text}");
        }
        assert_eq!(problems(&"[".repeat(50_000)).len(), 1);
        let deep = format!("{{\"report_clusters\": {}", "[".repeat(50_000));
        assert_eq!(problems(&deep).len(), 1);
        let many: Vec<String> = (0..1000).map(|n| format!("\"k{n}\": 0")).collect();
        assert_eq!(problems(&format!("{{{}}}", many.join(","))).len(), PROBLEMS_MAX);
        assert_eq!(problems(&" ".repeat(CONFIG_BYTES_MAX + 1)).len(), 1);
    }
}
