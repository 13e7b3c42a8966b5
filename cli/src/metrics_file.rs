//! The file of `run --metrics-file`: counters in the text format of Prometheus, for the textfile
//! collector of the node exporter.
//!
//! Each run adds to the counters in the file, so one file may serve several locks. Runs may end at
//! the same time. So a run locks a separate lock file first, and then replaces the counters' file
//! as a whole.

use crate::processes::LOOK_AGAIN;
use distlock::LossCause;
use distlock::crossbeam_channel::after;
use distlock::time::{Clock, SystemClock};
use fd_lock::RwLock;
use rustix::fs::OFlags;
use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The longest wait for other runs that write the file. Otherwise a stopped run would hold up the
/// end of this one.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

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
    /// The command did not run, for another reason than a held lock: an error, or a signal before
    /// the start.
    #[default]
    Failed,
    Ran {
        status: u8,
        held: Duration,
        lost: Option<LossCause>,
    },
}

/// The waiting time and the outcome of a run, which are added to the counters.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) waited: Duration,
    pub(crate) outcome: Outcome,
}

/// Adds a run of this lock to the counters in the file. Gives up after [`LONGEST_WAIT`]: another
/// run may be stopped while it writes.
pub(crate) fn add(file: &Path, lock: &str, tally: &Tally) -> io::Result<()> {
    let mut lock_file = RwLock::new(open_lock(&beside(file, ".lock"))?);
    let by = SystemClock.now() + LONGEST_WAIT;
    loop {
        match lock_file.try_write() {
            Ok(_locked) => return replace(file, lock, tally),
            Err(error) if error.kind() == ErrorKind::WouldBlock && SystemClock.now() < by => {}
            Err(error) => return Err(error),
        }
        let _due = after(LOOK_AGAIN).recv();
    }
}

/// Opens the lock file, which may belong to another user. A link is not followed, and a pipe does
/// not block.
fn open_lock(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let flags = i32::try_from(flags).map_err(io::Error::other)?;
    let created = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o644)
        .custom_flags(flags)
        .open(path);
    let opened = created.or_else(|_| File::options().read(true).custom_flags(flags).open(path))?;
    match opened.metadata()?.is_file() {
        true => Ok(opened),
        false => Err(io::Error::other("its lock file is no regular file")),
    }
}

/// Replaces the file as a whole, and keeps its mode.
fn replace(file: &Path, lock: &str, tally: &Tally) -> io::Result<()> {
    let (mut values, mode) = match fs::read_to_string(file) {
        Ok(text) => (
            read(&text)?,
            fs::metadata(file)?.permissions().mode() & 0o777,
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => (BTreeMap::new(), 0o644),
        Err(error) => return Err(error),
    };
    count(&mut values, lock, tally.waited, &tally.outcome);
    // The name of the replacement is random, and no file may have that name yet, because another
    // user may have put a link at a name that can be guessed.
    let replacement = beside(file, &format!(".{:016x}", random()));
    let written = File::options()
        .write(true)
        .create_new(true)
        .open(&replacement)
        .and_then(|mut new| {
            new.write_all(text(&values).as_bytes())?;
            new.set_permissions(Permissions::from_mode(mode))
        })
        .and_then(|()| fs::rename(&replacement, file));
    if written.is_err() {
        let _absent = fs::remove_file(&replacement);
    }
    written
}

/// Returns a number that differs from run to run.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Returns this path with an ending appended. The collector ignores a file at the new path, because
/// it reads only files `*.prom`.
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
    // A new counter that this run does not increase begins with 0, so that Prometheus sees its
    // first increase later.
    for metric in [RUNS, FAILURES, SKIPS, ERRORS] {
        add(&metric, &lock, 0.0);
    }
    for cause in [
        LossCause::Expired,
        LossCause::InsufficientReplicas,
        LossCause::Gone,
    ] {
        add(&LOSSES, &format!("{lock},cause=\"{}\"", label(cause)), 0.0);
    }
    add(&WAIT, &lock, waited.as_secs_f64());
    add(&HOLD, &lock, 0.0);
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

/// Reads the samples. Refuses a file with lines of other programs, which a replacement would lose.
fn read(text: &str) -> io::Result<Values> {
    let mut values = Values::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let sample = line.rsplit_once(' ').and_then(|(name, value)| {
            let is_ours = ALL.iter().any(|metric| is_of(metric, name));
            Some((name.to_owned(), value.parse().ok()?)).filter(|_| is_ours)
        });
        let Some((name, value)) = sample else {
            let message = format!("it has a line that is not of this command: {line:?}");
            return Err(io::Error::other(message));
        };
        values.insert(name, value);
    }
    Ok(values)
}

/// Returns whether a sample, with its labels, is of this metric.
fn is_of(metric: &Metric, sample: &str) -> bool {
    sample
        .strip_prefix(metric.0)
        .is_some_and(|labels| labels.starts_with('{'))
}

fn text(values: &Values) -> String {
    let mut text = String::new();
    for metric in ALL {
        let samples: Vec<_> = values
            .iter()
            .filter(|(sample, _)| is_of(&metric, sample))
            .collect();
        if samples.is_empty() {
            continue;
        }
        let Metric(name, kind, help) = metric;
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
        let mut values = read(&text(&values)).unwrap();
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
        assert!(read("# of another\nnode_foo 3\n").is_err());
        assert!(text.contains("distlock_run_last_success_timestamp_seconds{lock=\"a\"} "));
    }
}
