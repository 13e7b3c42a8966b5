//! [`Summary`]: medians and spreads of a workload's samples, and of ratios between columns within a
//! round.

use super::{Measured, Sample, Work};
use serde_json::{Value, json};

/// The median, the least and the greatest of several figures.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) least: f64,
    pub(super) most: f64,
}

pub(super) struct Summary<'a> {
    pub(super) work: &'a Work,
    samples: &'a [Vec<Sample>],
}

impl Spread {
    fn of(mut figures: Vec<f64>) -> Option<Self> {
        figures.retain(|figure| figure.is_finite());
        figures.sort_unstable_by(f64::total_cmp);
        let (least, most) = (*figures.first()?, *figures.last()?);
        let middle = figures.len() / 2;
        let median = if figures.len() % 2 == 1 {
            figures[middle]
        } else {
            (figures[middle - 1] + figures[middle]) / 2.0
        };
        Some(Self {
            median,
            least,
            most,
        })
    }
}

impl<'a> Summary<'a> {
    pub(super) fn of(measured: &'a Measured) -> Self {
        Self {
            work: &measured.work,
            samples: &measured.samples,
        }
    }

    pub(super) fn columns(&self) -> impl Iterator<Item = &'static str> {
        self.work.columns.iter().map(|column| column.name)
    }

    /// Returns the spread of one column's figures.
    pub(super) fn figure(&self, column: &str, metric: &str) -> Option<Spread> {
        Spread::of(
            self.row(column)?
                .iter()
                .filter_map(|sample| sample.get(metric)?.as_f64())
                .collect(),
        )
    }

    /// Returns the spread of one column's figures, each divided by the figure of another column in
    /// the same round.
    pub(super) fn ratio(&self, column: &str, other: &str, metric: &str) -> Option<Spread> {
        let pairs = self.row(column)?.iter().zip(self.row(other)?);
        let ratio = |(one, other): (&Sample, &Sample)| {
            Some(one.get(metric)?.as_f64()? / other.get(metric)?.as_f64()?)
        };
        Spread::of(pairs.filter_map(ratio).collect())
    }

    fn row(&self, column: &str) -> Option<&'a [Sample]> {
        let index = self.columns().position(|name| name == column)?;
        Some(&self.samples[index])
    }

    /// Returns a line of JSON for each column and metric.
    pub(super) fn lines(&self) -> impl Iterator<Item = String> {
        let first = self.work.columns[0].name;
        self.columns().flat_map(move |column| {
            self.work.metrics.iter().filter_map(move |(metric, _)| {
                let spread = |spread: Option<Spread>| -> Value {
                    spread.map_or(Value::Null, |spread| {
                        json!([spread.median, spread.least, spread.most])
                    })
                };
                let figure = self.figure(column, metric)?;
                let line = json!({
                    "work": self.work.name, "column": column, "metric": metric,
                    "rounds": self.work.rounds,
                    "median_least_most": spread(Some(figure)),
                    "ratio": spread(self.ratio(column, first, metric)),
                });
                Some(format!("{line}\n"))
            })
        })
    }
}
