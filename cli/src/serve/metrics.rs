//! The text for Prometheus.

use super::sample::Board;
use crate::rows::Row;
use crate::store::{held_for, named};
use distlock::backend::LockInfo;
use std::fmt::Write;
use std::time::Duration;

/// A metric: its name behind `distlock_`, its type and its meaning.
type Metric = (&'static str, &'static str, &'static str);

const LOCK_HELD: Metric = ("lock_held", "gauge", "1 if the lock is held, else 0");
const LOCK_HOLDER: Metric = (
    "lock_holder_info",
    "gauge",
    "1, with the holder of the lock",
);
const HELD_SECONDS: Metric = (
    "lock_held_seconds",
    "gauge",
    "How long the holder has had it",
);
const LEASE_SECONDS: Metric = ("lock_lease_seconds", "gauge", "The rest of the lease");
const WAITERS: Metric = (
    "lock_waiters",
    "gauge",
    "Clients that wait, where that is known",
);
const TOKEN: Metric = (
    "lock_last_token",
    "gauge",
    "The largest token that was granted",
);
const READERS: Metric = ("lock_readers", "gauge", "Readers of a read-write lock");
const FREE: Metric = ("lock_free_permits", "gauge", "Free permits of a semaphore");
const CHANGES: Metric = (
    "lock_holds_ended_total",
    "counter",
    "Holds whose end was seen",
);
const EXPIRED: Metric = (
    "lock_holds_expired_total",
    "counter",
    "Holds that ended with their lease: their holder had not released or renewed them",
);
const LONGEST: Metric = (
    "lock_longest_hold_seconds",
    "gauge",
    "The longest hold that was seen",
);
const UP: Metric = (
    "store_up",
    "gauge",
    "1 if the last sample succeeded, else 0",
);
const AGE: Metric = (
    "sample_age_seconds",
    "gauge",
    "The age of the last sample that succeeded",
);
const TOOK: Metric = (
    "sample_seconds",
    "gauge",
    "How long the stores took for the last sample",
);
const FAILED: Metric = ("samples_failed_total", "counter", "Samples that failed");
const CUT: Metric = (
    "sample_is_cut",
    "gauge",
    "1 if there are more locks than --limit",
);

/// Returns the value of a metric for a lock, if the lock has one.
type ValueOf<'a> = &'a dyn Fn(&LockInfo) -> Option<f64>;

/// The lines of one metric after the other: Prometheus wants them together.
#[derive(Default)]
struct Text {
    text: String,
}

impl Text {
    fn add(&mut self, (name, kind, help): Metric, values: impl Iterator<Item = (String, f64)>) {
        let _infallible = write!(
            self.text,
            "# HELP distlock_{name} {help}\n# TYPE distlock_{name} {kind}\n"
        );
        for (labels, value) in values {
            let _infallible = writeln!(self.text, "distlock_{name}{labels} {value}");
        }
    }
}

/// Returns labels as the format has them.
fn labels(pairs: &[(&str, &str)]) -> String {
    let escaped = |text: &str| {
        text.replace('\\', r"\\")
            .replace('"', "\\\"")
            .replace('\n', r"\n")
    };
    let pairs = pairs
        .iter()
        .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)));
    format!("{{{}}}", pairs.collect::<Vec<_>>().join(","))
}

/// Returns all metrics.
pub(super) fn text(board: &Board) -> String {
    let state = board.state();
    let mut text = Text::default();
    let one = |value: f64| std::iter::once((String::new(), value));
    let number = |is: bool| if is { 1.0 } else { 0.0 };
    let is_up = state.failure.is_none() && state.taken.is_some();
    text.add(UP, one(number(is_up)));
    text.add(
        AGE,
        state
            .age()
            .into_iter()
            .map(|age| (String::new(), age.as_secs_f64())),
    );
    text.add(TOOK, one(state.took.as_secs_f64()));
    text.add(FAILED, one(state.failures as f64));
    text.add(CUT, one(number(state.found.is_cut)));
    let rows = &state.found.rows;
    let of_rows = |value: ValueOf<'_>| -> Vec<(String, f64)> {
        let value = |row: &Row| {
            let value = value(row.info.as_ref().ok()?)?;
            Some((labels(&[("name", row.name.as_str())]), value))
        };
        rows.iter().filter_map(value).collect()
    };
    let seconds = |time: Duration| time.as_secs_f64();
    let all: [(Metric, ValueOf<'_>); 7] = [
        (LOCK_HELD, &|info| Some(number(info.holder.is_some()))),
        (HELD_SECONDS, &|info| {
            held_for(info.holder.as_ref()?).map(seconds)
        }),
        (LEASE_SECONDS, &|info| {
            info.holder.as_ref()?.remaining.map(seconds)
        }),
        (WAITERS, &|info| info.waiters.map(|it| it as f64)),
        (TOKEN, &|info| info.largest_token.map(|it| it.get() as f64)),
        (READERS, &|info| {
            info.readers.as_ref().map(|_| info.holders as f64)
        }),
        (FREE, &|info| info.permits.map(|it| it.free.into())),
    ];
    for (metric, value) in all {
        text.add(metric, of_rows(value).into_iter());
    }
    let holders = rows.iter().filter_map(|row| {
        let holder = row.info.as_ref().ok()?.holder.as_ref()?;
        let pairs = [("name", row.name.as_str()), ("holder", &named(holder))];
        Some((labels(&pairs), 1.0))
    });
    text.add(LOCK_HOLDER, holders.collect::<Vec<_>>().into_iter());
    let mut names: Vec<_> = state.locks.keys().collect();
    names.sort_unstable();
    let of_locks = |value: &dyn Fn(&super::sample::Holds) -> f64| -> Vec<(String, f64)> {
        let value = |name: &&String| (labels(&[("name", name)]), value(&state.locks[*name]));
        names.iter().map(value).collect()
    };
    text.add(CHANGES, of_locks(&|it| it.ended as f64).into_iter());
    text.add(EXPIRED, of_locks(&|it| it.expired as f64).into_iter());
    text.add(
        LONGEST,
        of_locks(&|it| it.longest.as_secs_f64()).into_iter(),
    );
    text.text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        assert_eq!(
            labels(&[("name", "a\"b\\c\nd"), ("holder", "x")]),
            r#"{name="a\"b\\c\nd",holder="x"}"#
        );
    }
}
