//! [`Faults`]: a workload in which many processes want one lock, and some of them are killed or
//! stopped.

use super::child::Child;
use super::{Column, Sample, place_of_value, sample_of};
use crate::raw::{Raw, Reply, request};
use crate::server::Server;
use crate::worker::faults::{ENTERED, ENTERED_WITH_ANOTHER, Event, FAILED, events};
use crate::worker::nanos;
use rustix::process::{Signal, kill_process};
use serde_json::json;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

pub(super) const PROCESSES: usize = 64;
/// Longer than a stop plus the greatest age of a lease before its renewal. Otherwise a holder that
/// is stopped would lose the lock.
pub(super) const LEASE_MILLIS: usize = 9_000;

const WARM: Duration = Duration::from_secs(1);
const CALM: Duration = Duration::from_secs(3);
const FAULTS: Duration = Duration::from_secs(8);
const KILL_EACH: Duration = Duration::from_millis(100);
const STOP_EACH: Duration = Duration::from_secs(1);
const STOPPED: Duration = Duration::from_secs(5);
/// The time between two reads of the store: short, because it limits the precision of
/// `longest_free_ms`.
const LOOK_EACH: Duration = Duration::from_millis(2);
/// The length of a worker's turn: longer than any measurement, because the worker runs until it is
/// killed.
const LONG: Duration = Duration::from_secs(3_600);

pub(super) const METRICS: &[(&str, &str)] = &[
    ("visits_per_s", "visits/s"),
    ("of_calm", "of those without faults"),
    ("violations", "two inside"),
    ("late", "entries with an old token"),
    ("longest_free_ms", "longest free ms"),
    ("longest_empty_ms", "no process inside ms"),
    ("killed", "killed"),
    ("stopped", "stopped"),
    ("failed", "errors"),
];

/// The faults that waiting processes suffer.
pub(super) struct Faults {
    pub(super) name: &'static str,
    /// Some processes are killed, and replaced.
    kills: bool,
    /// Some processes are stopped for a while.
    stops: bool,
}

impl Faults {
    pub(super) const ALL: [Self; 3] = [
        Self {
            name: "faults-killed",
            kills: true,
            stops: false,
        },
        Self {
            name: "faults-stopped",
            kills: false,
            stops: true,
        },
        Self {
            name: "faults-both",
            kills: true,
            stops: true,
        },
    ];

    pub(super) fn title(&self) -> String {
        let kills = format!(", one that waits killed each {KILL_EACH:?}");
        let stops = format!(", one that waits stopped each {STOP_EACH:?} for {STOPPED:?}");
        format!(
            "{PROCESSES} processes with holds of 2 ms, lease {LEASE_MILLIS} ms{}{}",
            if self.kills { &kills } else { "" },
            if self.stops { &stops } else { "" },
        )
    }
}

/// The time of a read of the store, in nanoseconds, and whether the lock was held.
type Look = (u64, bool);

struct Process {
    child: Child,
    /// The ID of the process's client, with which the owners in the store begin.
    client: String,
    stopped: Option<Instant>,
}

impl Process {
    fn start(column: &Column, arguments: &[String]) -> Self {
        let program = column.program.as_deref().expect("it is there");
        let mut child = Child::start(program, arguments);
        child.look();
        let found = child.end();
        let client = found["client"].as_str().expect("it has a name").to_owned();
        child.begin(LONG);
        Self {
            child,
            client,
            stopped: None,
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.child.id(), signal).expect("it is a child");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Dropping the child waits for its end, which a stopped process does not reach by itself.
        self.signal(Signal::KILL);
    }
}

impl Faults {
    /// Lets the processes of a column visit the lock, without faults and then with them.
    pub(super) fn turn(&self, server: &Server, column: &Column) -> Sample {
        let directory = tempfile::tempdir().expect("a directory of our own");
        let shared = directory.path().display().to_string();
        let mut arguments = column.arguments.clone();
        arguments.extend(["--shared".to_owned(), shared]);
        let mut processes: Vec<_> = (0..column.processes)
            .map(|_| Process::start(column, &arguments))
            .collect();
        thread::sleep(WARM);
        let calm = nanos();
        thread::sleep(CALM);
        let begin = nanos();
        let (killed, stopped, looks) = self.befall(&mut processes, server.port, column, &arguments);
        let end = nanos();
        drop(processes);
        let events = events(directory.path());
        let rate = |from: u64, to: u64| {
            let entries = events
                .iter()
                .filter(|it| (from..to).contains(&it[0]) && is_entry(it));
            entries.count() as f64 / ((to - from) as f64 / 1e9)
        };
        let (quiet, rate) = (rate(calm, begin), rate(begin, end));
        let count = |what: u64| events.iter().filter(|it| it[1] == what).count();
        let (empty, free) = longest(&events, &looks, begin, end);
        sample_of(json!({
            "visits_per_s": rate, "calm_visits_per_s": quiet, "of_calm": rate / quiet,
            "violations": count(ENTERED_WITH_ANOTHER), "failed": count(FAILED), "late": late(&events),
            "longest_empty_ms": empty as f64 / 1e6, "longest_free_ms": free as f64 / 1e6,
            "killed": killed, "stopped": stopped,
        }))
    }

    /// Kills and stops processes, and replaces those that are killed. Returns how many were killed,
    /// how many were stopped, and the reads of the store meanwhile.
    fn befall(
        &self,
        processes: &mut Vec<Process>,
        port: u16,
        column: &Column,
        arguments: &[String],
    ) -> (u32, u32, Vec<Look>) {
        let lock = &arguments[place_of_value(arguments, "--lock")];
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let looks = scope.spawn(|| look(port, lock, &is_over));
            let (want, wanted) = channel();
            let (started, fresh) = channel();
            // On a thread of its own: a process takes a while to start, which would delay the next
            // faults.
            let replace = move || {
                wanted.into_iter().for_each(|()| {
                    let _over = started.send(Process::start(column, arguments)).is_err();
                });
            };
            scope.spawn(replace);
            let mut raw = Raw::connect(port);
            let (mut killed, mut stopped, start) = (0_u32, 0_u32, Instant::now());
            while start.elapsed() < FAULTS {
                processes.extend(fresh.try_iter());
                for process in &mut *processes {
                    if process
                        .stopped
                        .is_some_and(|since| since.elapsed() >= STOPPED)
                    {
                        process.signal(Signal::CONT);
                        process.stopped = None;
                    }
                }
                if self.kills
                    && start.elapsed() >= KILL_EACH * (killed + 1)
                    && let Some(victim) = waiting(processes, &mut raw, lock)
                {
                    drop(processes.swap_remove(victim));
                    want.send(()).expect("replacements are made");
                    killed += 1;
                }
                if self.stops
                    && start.elapsed() >= STOP_EACH * stopped
                    && let Some(victim) = waiting(processes, &mut raw, lock)
                {
                    let process = &mut processes[victim];
                    process.signal(Signal::STOP);
                    process.stopped = Some(Instant::now());
                    stopped += 1;
                }
                thread::sleep(Duration::from_millis(5));
            }
            is_over.store(true, Ordering::Relaxed);
            drop(want);
            (killed, stopped, looks.join().expect("no panic"))
        })
    }
}

/// Picks a process at random; `None` if that one is stopped or holds the lock.
fn waiting(processes: &[Process], raw: &mut Raw, lock: &str) -> Option<usize> {
    let victim = fastrand::usize(..processes.len());
    let process = &processes[victim];
    let Reply::List(owners) = raw.call(&request(&["HKEYS", lock])) else {
        panic!("a lock is a hash");
    };
    let is_holder = |owner: &Reply| match owner {
        Reply::Text(owner) => owner.starts_with(process.client.as_bytes()),
        _ => false,
    };
    (process.stopped.is_none() && !owners.iter().any(is_holder)).then_some(victim)
}

/// Reads whether the lock is held, again and again until `is_over` is set.
fn look(port: u16, lock: &str, is_over: &AtomicBool) -> Vec<Look> {
    let (mut raw, exists) = (Raw::connect(port), request(&["EXISTS", lock]));
    let mut looks = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let is_held = matches!(raw.call(&exists), Reply::Int(1));
        looks.push((nanos(), is_held));
        thread::sleep(LOOK_EACH);
    }
    looks
}

fn is_entry(event: &Event) -> bool {
    [ENTERED, ENTERED_WITH_ANOTHER].contains(&event[1])
}

/// Returns the number of entries whose token is older than that of an earlier entry.
fn late(events: &[Event]) -> usize {
    let entries = events.iter().filter(|event| is_entry(event));
    let late = entries.scan(0, |newest, &[_, _, token]| {
        let is_late = token < *newest;
        *newest = token.max(*newest);
        Some(is_late)
    });
    late.filter(|is_late| *is_late).count()
}

/// Returns the longest time between an entry and the event before it, and the longest time between
/// two events during which every read found the lock free.
fn longest(events: &[Event], looks: &[Look], begin: u64, end: u64) -> (u64, u64) {
    let (mut empty, mut free, mut last) = (0, 0, begin);
    let inside = events
        .iter()
        .filter(|it| (begin..end).contains(&it[0]) && it[1] != FAILED);
    let gaps = inside.map(|it| (it[0], is_entry(it))).chain([(end, true)]);
    let mut looks = looks.iter().peekable();
    for (at, is_entry) in gaps {
        let mut since = None;
        while let Some(&&(time, is_held)) = looks.peek().filter(|look| look.0 < at) {
            looks.next();
            since = Some(time)
                .filter(|_| !is_held)
                .map(|time| since.unwrap_or(time));
            free = free.max(since.map_or(0, |since| time - since));
        }
        if is_entry {
            empty = empty.max(at - last);
        }
        last = at;
    }
    (empty, free)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::faults::LEFT;

    #[test]
    fn longest_free_time_ends_where_the_lock_is_held() {
        let events = [
            [10, ENTERED, 1],
            [20, LEFT, 1],
            [90, ENTERED, 2],
            [95, LEFT, 2],
        ];
        let looks = [
            (15, true),
            (25, false),
            (35, false),
            (45, true),
            (85, false),
            (92, true),
        ];
        assert_eq!(longest(&events, &looks, 5, 100), (70, 10));
    }

    #[test]
    fn entry_with_an_old_token_is_late() {
        let entries = [1, 2, 4, 3, 5].map(|token| [token, ENTERED, token]);
        assert_eq!(late(&entries), 1);
    }
}
