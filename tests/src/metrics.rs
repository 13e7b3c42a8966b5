//! [`Recorded`]: the metrics that clients have recorded.

use metrics::Unit;
use metrics_util::MetricKind;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// The metrics that were recorded so far. Each snapshot empties the recorder, so the snapshots are
/// added up here.
pub struct Recorded {
    snapshotter: Snapshotter,
    series: Mutex<BTreeMap<String, Series>>,
}

/// A metric with one combination of labels.
#[derive(Clone, Debug)]
pub struct Series {
    pub kind: MetricKind,
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub unit: Option<Unit>,
    pub meaning: String,
    /// The value of a counter or a gauge.
    pub value: f64,
    /// The samples of a histogram.
    pub samples: Vec<f64>,
}

impl Recorded {
    /// Calls `make`, and records the metrics of the clients that it makes.
    pub fn of<T>(make: impl FnOnce() -> T) -> (Self, T) {
        let recorder = DebuggingRecorder::new();
        let made = metrics::with_local_recorder(&recorder, make);
        (Self::by(&recorder), made)
    }

    /// Records all metrics of this process.
    pub fn of_process() -> Self {
        let recorder = DebuggingRecorder::new();
        let recorded = Self::by(&recorder);
        recorder.install().expect("the process has no recorder yet");
        recorded
    }

    fn by(recorder: &DebuggingRecorder) -> Self {
        Self {
            snapshotter: recorder.snapshotter(),
            series: Mutex::default(),
        }
    }

    /// Returns all series that were registered so far.
    pub fn all(&self) -> Vec<Series> {
        let mut all = self.series.lock();
        for (key, unit, meaning, value) in self.snapshotter.snapshot().into_vec() {
            let (kind, key) = key.into_parts();
            let series = all
                .entry(format!("{kind:?} {key}"))
                .or_insert_with(|| Series {
                    kind,
                    name: key.name().to_owned(),
                    labels: key
                        .labels()
                        .map(|label| (label.key().to_owned(), label.value().to_owned()))
                        .collect(),
                    unit,
                    meaning: meaning.map_or_else(String::new, |it| it.to_string()),
                    value: 0.0,
                    samples: Vec::new(),
                });
            match value {
                DebugValue::Counter(more) => series.value += more as f64,
                DebugValue::Gauge(more) => series.value += more.0,
                DebugValue::Histogram(more) => series.samples.extend(more.iter().map(|it| it.0)),
            }
        }
        all.values().cloned().collect()
    }

    /// Returns the series of this name with this label (`name=value`); those with any labels if
    /// `label` is empty.
    #[track_caller]
    fn matching(&self, name: &str, label: &str) -> Vec<Series> {
        let has = |series: &Series| {
            label.is_empty()
                || series
                    .labels
                    .iter()
                    .any(|(key, value)| format!("{key}={value}") == label)
        };
        let mut matching = self.all();
        matching.retain(|series| series.name == name && has(series));
        assert!(!matching.is_empty(), "there is no {name} with {label:?}");
        matching
    }

    /// Returns the sum of a counter's or gauge's values, over all series with this label.
    #[track_caller]
    pub fn value(&self, name: &str, label: &str) -> f64 {
        self.matching(name, label)
            .iter()
            .map(|series| series.value)
            .sum()
    }

    /// Returns the samples of a histogram, of all series with this label.
    #[track_caller]
    pub fn samples(&self, name: &str, label: &str) -> Vec<f64> {
        self.matching(name, label)
            .into_iter()
            .flat_map(|series| series.samples)
            .collect()
    }
}
