//! The bars of `bench/figures.tsv`: for each figure the value that it must reach, and the one to aim at.

/// Compiled in, so that a result is judged by the bars of its own commit.
const FIGURES: &str = include_str!("../../figures.tsv");

/// What one figure must reach.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// Whether higher is better.
    pub higher: bool,
    /// Short of this the figure is missed.
    pub must: f64,
    /// What to work towards.
    pub aim: f64,
    /// Whether it may be left unmeasured: it needs something that not every machine has.
    pub if_given: bool,
}

/// How a figure stands against its bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The aim is reached.
    Aim,
    /// The must is reached, the aim is not.
    Must,
    /// Short of the must, or no number at all.
    Missed,
    /// A figure without a row in `figures.tsv`.
    NoBar,
}

impl Verdict {
    /// Its text in JSON and tables.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Aim => "aim",
            Self::Must => "must",
            Self::Missed => "missed",
            Self::NoBar => "no bar",
        }
    }
}

impl Bar {
    /// Judges a value in the row's unit.
    pub fn judge(&self, value: f64) -> Verdict {
        let reaches = |bar: f64| if self.higher { value >= bar } else { value <= bar };
        match (reaches(self.aim), reaches(self.must)) {
            (true, _) => Verdict::Aim,
            (false, true) => Verdict::Must,
            (false, false) => Verdict::Missed,
        }
    }
}

/// Names and bars of one bench, in the file's order.
pub fn of(bench: &str) -> Vec<(String, Bar)> {
    let rows = FIGURES.lines().skip(1).map(|line| line.split('\t').collect::<Vec<_>>());
    rows.filter_map(|row| match row.as_slice() {
        [of, name, kind, better, must, aim, ..] if *of == bench => {
            let bar = Bar {
                higher: *better == "higher",
                must: must.parse().ok()?,
                aim: aim.parse().ok()?,
                if_given: *kind == "if-given",
            };
            Some(((*name).to_owned(), bar))
        }
        _ => None,
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_file_is_read() {
        let benches: std::collections::BTreeSet<&str> =
            FIGURES.lines().skip(1).filter_map(|line| line.split('\t').next()).collect();
        let read: usize = benches.iter().map(|bench| of(bench).len()).sum();
        assert_eq!(read, FIGURES.lines().count() - 1);
    }

    #[test]
    fn direction_decides_and_no_number_is_missed() {
        let higher = Bar { higher: true, must: 0.7, aim: 0.9, if_given: false };
        assert_eq!([0.9, 0.7, 0.69].map(|v| higher.judge(v)), [Verdict::Aim, Verdict::Must, Verdict::Missed]);
        let lower = Bar { higher: false, must: 2.0, aim: 1.0, if_given: false };
        assert_eq!([1.0, 2.0, 2.1].map(|v| lower.judge(v)), [Verdict::Aim, Verdict::Must, Verdict::Missed]);
        assert_eq!(lower.judge(f64::NAN), Verdict::Missed);
    }
}
