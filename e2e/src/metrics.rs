//! Reads Prometheus text: just enough to find one value by name and labels.

use std::collections::BTreeMap;

/// One sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

/// All samples of a scrape.
#[derive(Clone, Debug, Default)]
pub struct Scrape {
    pub samples: Vec<Sample>,
    /// The text as it came.
    pub text: String,
}

impl Scrape {
    /// Reads a scrape; lines that are not samples are left out.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let samples = text.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect();
        Self { samples, text: text.to_owned() }
    }

    /// The sum of the samples of this name that carry all these labels.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.samples
            .iter()
            .filter(|sample| sample.name == name && sample.has(labels))
            .map(|sample| sample.value)
            .sum()
    }

    /// The sum of the samples whose name begins with `prefix`.
    #[must_use]
    pub fn sum_prefix(&self, prefix: &str) -> f64 {
        self.samples.iter().filter(|sample| sample.name.starts_with(prefix)).map(|sample| sample.value).sum()
    }
}

impl Sample {
    fn has(&self, labels: &[(&str, &str)]) -> bool {
        labels.iter().all(|(name, value)| self.labels.get(*name).is_some_and(|found| found == value))
    }
}

fn sample(line: &str) -> Option<Sample> {
    let (series, value) = line.rsplit_once(' ')?;
    let value = value.parse().ok()?;
    let Some((name, rest)) = series.split_once('{') else {
        return Some(Sample { name: series.to_owned(), labels: BTreeMap::new(), value });
    };
    let rest = rest.strip_suffix('}')?;
    let mut labels = BTreeMap::new();
    for pair in rest.split("\",") {
        if let Some((name, value)) = pair.split_once("=\"") {
            labels.insert(name.trim().to_owned(), value.trim_end_matches('"').to_owned());
        }
    }
    Some(Sample { name: name.to_owned(), labels, value })
}

#[cfg(test)]
mod tests {
    use super::Scrape;

    #[test]
    fn a_sample_is_found_by_its_labels() {
        let text = "# TYPE a counter\na{x=\"1\",y=\"p, q\"} 3\na{x=\"2\",y=\"\"} 4\nb 1.5\n";
        let scrape = Scrape::parse(text);
        assert_eq!(scrape.sum("a", &[]), 7.0);
        assert_eq!(scrape.sum("a", &[("y", "p, q")]), 3.0);
        assert_eq!(scrape.sum("b", &[]), 1.5);
    }
}
