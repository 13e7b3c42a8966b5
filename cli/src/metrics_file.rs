//! The file of `run --metrics-file`: counters in the text format of Prometheus, for the textfile
//! collector of the node exporter.
//!
//! Each run adds to the counters that the file has, so it may serve several locks. It is replaced
//! as a whole, and only while its lock file is locked, because runs end at the same time.

use distlock::LossCause;
use fd_lock::RwLock;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A metric: its name, type and description.
struct Metric(&'static str, &'static str, &'static str);

const RUNS: Metric = Metric(
    "distlock_run_commands_total",
    "counter",
    "Commands that were run under the lock",
);
const FAILURES: Metric = Metric(
    "distlock_run_failures_total",
    "counter",
    "Commands that ended with another status than 0, or were stopped",
);
const SKIPS: Metric = Metric(
    "distlock_run_skips_total",
    "counter",
    "Runs without a command, because the lock was held",
);
const ERRORS: Metric = Metric(
    "distlock_run_errors_total",
    "counter",
    "Runs without a command, because the lock could not be acquired for another reason",
);
const LOSSES: Metric = Metric(
    "distlock_run_losses_total",
    "counter",
    "Locks that were lost while the command ran, by cause",
);
const WAIT: Metric = Metric(
    "distlock_run_wait_seconds_total",
    "counter",
    "Time of waiting for the lock",
);
const HOLD: Metric = Metric(
    "distlock_run_hold_seconds_total",
    "counter",
    "Time of holding the lock",
);
const LAST_SUCCESS: Metric = Metric(
    "distlock_run_last_success_timestamp_seconds",
    "gauge",
    "Time of day at which a command last ended with status 0",
);

/// All metrics, in the order of the file.
const ALL: [Metric; 8] = [
    RUNS,
    FAILURES,
    SKIPS,
    ERRORS,
    LOSSES,
    WAIT,
    HOLD,
    LAST_SUCCESS,
];

/// The outcome of one run.
#[derive(Default)]
pub(crate) enum Outcome {
    Skipped,
    /// The lock could not be acquired, or the command not be started.
    #[default]
    Failed,
    Ran {
        status: u8,
        held: Duration,
        lost: Option<LossCause>,
    },
}

/// What a run adds to the counters.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) waited: Duration,
    pub(crate) outcome: Outcome,
}

/// Adds a run of this lock to the counters in the file.
pub(crate) fn add(file: &Path, lock: &str, tally: &Tally) -> io::Result<()> {
    let mut locked = RwLock::new(File::create(beside(file, ".lock"))?);
    let _locked = locked.write()?;
    let mut values = match fs::read_to_string(file) {
        Ok(text) => read(&text),
        Err(error) if error.kind() == ErrorKind::NotFound => BTreeMap::new(),
        Err(error) => return Err(error),
    };
    count(&mut values, lock, tally.waited, &tally.outcome);
    let replacement = beside(file, ".new");
    fs::write(&replacement, text(&values))?;
    fs::rename(replacement, file)
}

/// Returns the path of a file in the same folder, which the collector does not read.
fn beside(file: &Path, ending: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// The samples of a file, by the name of the metric with its labels.
type Values = BTreeMap<String, f64>;

fn count(values: &mut Values, lock: &str, waited: Duration, outcome: &Outcome) {
    let lock = format!("lock=\"{}\"", escaped(lock));
    let mut add = |metric: &Metric, labels: &str, value: f64| {
        *values
            .entry(format!("{}{{{labels}}}", metric.0))
            .or_default() += value;
    };
    // Counters begin with 0, so that the first increase is seen.
    for metric in [RUNS, FAILURES, SKIPS, ERRORS] {
        add(&metric, &lock, 0.0);
    }
    add(&WAIT, &lock, waited.as_secs_f64());
    match outcome {
        Outcome::Skipped => add(&SKIPS, &lock, 1.0),
        Outcome::Failed => add(&ERRORS, &lock, 1.0),
        Outcome::Ran { status, held, lost } => {
            add(&RUNS, &lock, 1.0);
            add(&HOLD, &lock, held.as_secs_f64());
            if let Some(cause) = lost {
                add(&LOSSES, &format!("{lock},cause=\"{}\"", label(*cause)), 1.0);
            }
            if *status == 0 {
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                let sample = format!("{}{{{lock}}}", LAST_SUCCESS.0);
                values.insert(sample, now.unwrap_or_default().as_secs_f64());
            } else {
                add(&FAILURES, &lock, 1.0);
            }
        }
    }
}

fn label(cause: LossCause) -> &'static str {
    match cause {
        LossCause::Expired => "expired",
        LossCause::InsufficientReplicas => "insufficient_replicas",
        LossCause::Gone => "gone",
        _ => "other",
    }
}

/// Reads the samples. Other lines, as a user may have written, are dropped.
fn read(text: &str) -> Values {
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    samples.filter_map(sample).collect()
}

fn text(values: &Values) -> String {
    let mut text = String::new();
    for Metric(name, kind, help) in ALL {
        let of_metric = |sample: &str| {
            sample
                .strip_prefix(name)
                .is_some_and(|it| it.starts_with('{'))
        };
        let samples: Vec<_> = values
            .iter()
            .filter(|(sample, _)| of_metric(sample))
            .collect();
        if samples.is_empty() {
            continue;
        }
        text += &format!("# HELP {name} {help}.\n# TYPE {name} {kind}\n");
        for (sample, value) in samples {
            text += &format!("{sample} {value}\n");
        }
    }
    text
}

/// Escapes the value of a label.
fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_add_to_what_the_file_has() {
        let mut values = Values::new();
        let second = Duration::from_secs(1);
        let ran = |status, lost| Outcome::Ran {
            status,
            held: second,
            lost,
        };
        count(&mut values, "a", second, &ran(0, None));
        let mut values = read(&text(&values));
        count(&mut values, "a", second, &ran(75, Some(LossCause::Gone)));
        count(&mut values, "a", second, &Outcome::Skipped);
        count(&mut values, "a \"b\"", second, &Outcome::Failed);
        let text = text(&values);
        for line in [
            "# TYPE distlock_run_commands_total counter",
            "distlock_run_commands_total{lock=\"a\"} 2",
            "distlock_run_failures_total{lock=\"a\"} 1",
            "distlock_run_skips_total{lock=\"a\"} 1",
            "distlock_run_errors_total{lock=\"a\"} 0",
            "distlock_run_errors_total{lock=\"a \\\"b\\\"\"} 1",
            "distlock_run_losses_total{lock=\"a\",cause=\"gone\"} 1",
            "distlock_run_wait_seconds_total{lock=\"a\"} 3",
            "distlock_run_hold_seconds_total{lock=\"a\"} 2",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
        assert!(text.contains("distlock_run_last_success_timestamp_seconds{lock=\"a\"} "));
    }
}
