//! The service's exchange log, `exchanges.jsonl`: a line for each record, corrections appended under a higher revision.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Token counts; what the engine did not say is absent.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct Usage {
    pub input: Option<u64>,
    pub cached: Option<u64>,
    pub cache_write: Option<u64>,
    pub output: Option<u64>,
    pub reasoning: Option<u64>,
}

/// One record, as far as the suites look at it.
#[derive(Clone, Debug, Deserialize)]
pub struct Record {
    pub exchange: String,
    #[serde(default)]
    pub revision: u64,
    #[serde(default)]
    pub request_id: String,
    #[serde(default)]
    pub tenant: Option<String>,
    #[serde(default)]
    pub api: Option<String>,
    #[serde(default)]
    pub model: Option<String>,
    #[serde(default)]
    pub pool: Option<String>,
    #[serde(default)]
    pub endpoints: Vec<String>,
    #[serde(default)]
    pub endpoint: Option<String>,
    #[serde(default)]
    pub status: Option<u32>,
    #[serde(default)]
    pub usage: Usage,
    #[serde(default)]
    pub usage_source: Option<String>,
    #[serde(default)]
    pub end: Option<String>,
    #[serde(default)]
    pub ttft_us: Option<u64>,
    #[serde(default)]
    pub duration_us: Option<u64>,
    #[serde(default)]
    pub events: Option<u64>,
    #[serde(default)]
    pub flags: serde_json::Value,
}

/// The log as it stands.
#[derive(Clone, Debug, Default)]
pub struct Records {
    /// Every line, in order.
    pub all: Vec<Record>,
    /// Lines that are not records, with their errors. A torn last line is left out.
    pub bad: Vec<String>,
}

impl Records {
    /// Reads a log; none yet is an empty one.
    #[must_use]
    pub fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let mut records = Self::default();
        for line in whole.lines().filter(|line| !line.trim().is_empty()) {
            match serde_json::from_str(line) {
                Ok(record) => records.all.push(record),
                Err(error) => records.bad.push(format!("{error}: {line}")),
            }
        }
        records
    }

    /// The newest revision of every exchange.
    #[must_use]
    pub fn newest(&self) -> BTreeMap<&str, &Record> {
        let mut newest: BTreeMap<&str, &Record> = BTreeMap::new();
        for record in &self.all {
            let slot = newest.entry(&record.exchange).or_insert(record);
            if record.revision >= slot.revision {
                *slot = record;
            }
        }
        newest
    }

    /// The newest revisions by request id.
    #[must_use]
    pub fn by_request_id(&self) -> BTreeMap<&str, &Record> {
        self.newest().into_values().map(|record| (record.request_id.as_str(), record)).collect()
    }

    /// Exchanges with more than one line of the same revision: something was settled twice.
    #[must_use]
    pub fn doubled(&self) -> Vec<&str> {
        let mut seen: BTreeMap<(&str, u64), u32> = BTreeMap::new();
        for record in &self.all {
            *seen.entry((&record.exchange, record.revision)).or_default() += 1;
        }
        seen.into_iter().filter(|(_, count)| *count > 1).map(|((exchange, _), _)| exchange).collect()
    }
}
