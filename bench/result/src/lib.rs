//! What a bench reports: its figures, each against the bars of `bench/figures.tsv`, as JSON and as a table.
//!
//! A bench doesn't fail for a figure: machines differ, and a red gate for a busy neighbour helps nobody. A missed *must*
//! is told loudly instead. Only a wrong answer ends a bench with an error, and that is for the bench itself to find.

pub mod bars;
pub mod machine;
pub mod numbers;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

pub use bars::{Bar, Verdict};
pub use numbers::{median, ratios};

/// One measured number.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Its name; rows of `figures.tsv` with this bench and name have bars.
    pub name: String,
    /// The number, in `unit`.
    pub value: f64,
    /// `ratio`, `count`, `KiB`, `1/s`, …
    pub unit: &'static str,
    bar: Option<Bar>,
}

impl Figure {
    /// How it stands against its bars.
    pub fn verdict(&self) -> Verdict {
        self.bar.as_ref().map_or(Verdict::NoBar, |bar| bar.judge(self.value))
    }
}

/// A bench's report while it is being made.
#[derive(Debug)]
pub struct Report {
    bench: &'static str,
    seeds: Vec<u64>,
    load_before: String,
    bars: Vec<(String, Bar)>,
    figures: Vec<Figure>,
    raw: Map<String, Value>,
}

impl Report {
    /// Begins the report of `bench`, and notes how busy the machine is already.
    pub fn begin(bench: &'static str, seeds: &[u64]) -> Self {
        Self {
            bench,
            seeds: seeds.to_vec(),
            load_before: machine::load(),
            bars: bars::of(bench),
            figures: Vec::new(),
            raw: Map::new(),
        }
    }

    /// Adds a figure.
    pub fn figure(&mut self, name: &str, value: f64, unit: &'static str) {
        let bar = self.bars.iter().find(|(figure, _)| figure == name).map(|(_, bar)| bar.clone());
        self.figures.push(Figure { name: name.to_owned(), value, unit, bar });
    }

    /// Adds what the figures were made of: rounds, CPU, lateness.
    pub fn raw(&mut self, name: &str, value: Value) {
        self.raw.insert(name.to_owned(), value);
    }

    /// The figures so far.
    pub fn figures(&self) -> &[Figure] {
        &self.figures
    }

    /// The whole as JSON.
    pub fn to_json(&self) -> Value {
        let figure = |figure: &Figure| {
            json!({
                "figure": figure.name,
                "value": figure.value,
                "unit": figure.unit,
                "must": figure.bar.as_ref().map(|bar| bar.must),
                "aim": figure.bar.as_ref().map(|bar| bar.aim),
                "verdict": figure.verdict().as_label(),
            })
        };
        json!({
            "bench": self.bench,
            "commit": machine::commit(),
            "machine": machine::describe(&self.load_before),
            "seeds": self.seeds,
            "figures": self.figures.iter().map(figure).collect::<Vec<_>>(),
            "raw": self.raw,
        })
    }

    /// The table: every figure beside its bars, then the musts that are missed, and the rows that were not measured.
    pub fn table(&self) -> String {
        let mut lines = vec![format!(
            "{:<34} {:>12} {:<6} {:>9} {:>9}  verdict",
            self.bench, "value", "unit", "must", "aim"
        )];
        for figure in &self.figures {
            let (must, aim) = figure
                .bar
                .as_ref()
                .map_or_else(Default::default, |bar| (bar.must.to_string(), bar.aim.to_string()));
            lines.push(format!(
                "{:<34} {:>12.3} {:<6} {must:>9} {aim:>9}  {}",
                figure.name,
                figure.value,
                figure.unit,
                figure.verdict().as_label()
            ));
        }
        lines.push(format!("load average: {} before, {} after", self.load_before, machine::load()));
        let missed = self.figures.iter().filter(|figure| figure.verdict() == Verdict::Missed);
        for figure in missed {
            let must = figure.bar.as_ref().map(|bar| bar.must).unwrap_or_default();
            lines.push(format!("!!! MISSED: {} is {:.3}, must be {must}", figure.name, figure.value));
        }
        let unmeasured = self
            .bars
            .iter()
            .filter(|(name, bar)| !bar.if_given && !self.figures.iter().any(|figure| figure.name == *name));
        for (name, _) in unmeasured {
            lines.push(format!("!!! NOT MEASURED: {name}"));
        }
        lines.join("\n")
    }

    /// Prints the table and writes the JSON: to `file`, else to `bench/results/BENCH.json`.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn finish(&self, file: Option<&Path>) -> Result<()> {
        tell(&self.table());
        let path = file.map_or_else(|| self.usual_path(), Path::to_path_buf);
        let text = serde_json::to_string_pretty(&self.to_json())? + "\n";
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        }
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        tell(&format!("written to {}", path.display()));
        Ok(())
    }

    fn usual_path(&self) -> PathBuf {
        machine::workspace().join("bench/results").join(self.bench).with_extension("json")
    }
}

/// Prints a line for who watches a bench run.
#[allow(clippy::print_stdout, reason = "a bench's product is what it prints")]
pub fn tell(line: &str) {
    println!("{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_must_and_a_row_that_was_not_measured_are_told() {
        let mut report = Report::begin("overhead", &[1]);
        report.figure("rps_vs_noop_1k", 0.5, "ratio");
        report.figure("rps_vs_noop_8k", 0.81, "ratio");
        report.figure("cpu_vs_noop_8k", 1.7, "ratio");
        report.figure("my_own", 7.0, "1/s");
        let table = report.table();
        assert!(table.contains("!!! MISSED: rps_vs_noop_1k is 0.500, must be 0.75"), "{table}");
        assert!(table.contains("!!! NOT MEASURED: tokens_off"), "{table}");
        assert!(!table.contains("NOT MEASURED: rps_vs_noop_1k"), "{table}");
        let json = report.to_json();
        let verdicts: Vec<&str> =
            json["figures"].as_array().unwrap().iter().map(|row| row["verdict"].as_str().unwrap()).collect();
        assert_eq!(verdicts, ["missed", "must", "aim", "no bar"]);
        assert!(json["machine"]["load_before"].is_string(), "{json}");
    }
}
