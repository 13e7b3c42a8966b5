//! One table of all faults: what is reported for each, how long that took, and how long it may
//! take.

use super::scene::Row;
use super::{answers, interrupts, misuse, process_limits, server, server_changes};
use distlock_tests::time::{retry_if_late, scaled, with_tolerance};
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// How much longer than its bound a fault may take on a machine that is late.
const MOST_OVERDUE: Duration = Duration::from_secs(4);

/// The name of a fault, and the function that causes it.
pub(super) type Case = (&'static str, fn() -> Row);

/// Faults of one kind.
struct Group {
    kind: &'static str,
    cases: &'static [Case],
    /// If true, each case runs in a process of its own: the fault affects the whole process, and
    /// would disturb other cases.
    apart: bool,
}

const TABLE: &[Group] = &[
    Group {
        kind: "the store",
        cases: server::CASES,
        apart: false,
    },
    Group {
        kind: "the store, meanwhile",
        cases: server_changes::CASES,
        apart: false,
    },
    Group {
        kind: "the network",
        cases: answers::CASES,
        apart: false,
    },
    Group {
        kind: "TLS",
        cases: super::tls::CASES,
        apart: false,
    },
    Group {
        kind: "our own",
        cases: misuse::CASES,
        apart: false,
    },
    Group {
        kind: "our own, to a whole process",
        cases: process_limits::CASES,
        apart: true,
    },
    Group {
        kind: "an interrupt",
        cases: interrupts::CASES,
        apart: false,
    },
];

/// The result of a case.
enum Verdict {
    InTime(Row),
    TooLate(Row),
    Wrong,
}

#[test]
fn every_fault_has_its_outcome_within_its_bound() {
    let cases = || {
        TABLE
            .iter()
            .flat_map(|group| group.cases.iter().map(move |case| (group, case)))
    };
    let verdicts = examine(&cases().collect::<Vec<_>>());
    println!(
        "{:57} {:>9} {:>9}  {:8}  said",
        "fault", "took ms", "bound ms", "verdict"
    );
    let (mut wrong, mut too_late, mut kind) = (Vec::new(), Vec::new(), "");
    for ((group, (name, _)), verdict) in cases().zip(&verdicts) {
        if std::mem::replace(&mut kind, group.kind) != group.kind {
            println!("- {kind}: {} faults", group.cases.len());
        }
        let (row, word) = match verdict {
            Verdict::InTime(row) => (Some(row), "in time"),
            Verdict::TooLate(row) => (Some(row), "TOO LATE"),
            Verdict::Wrong => (None, "WRONG"),
        };
        match verdict {
            Verdict::InTime(_) => {}
            Verdict::TooLate(_) => too_late.push(format!("{kind}, {name}")),
            Verdict::Wrong => wrong.push(format!("{kind}, {name}")),
        }
        match row {
            Some(Row { said, took, bound }) => {
                let (took, bound) = (took.as_secs_f64() * 1e3, bound.as_secs_f64() * 1e3);
                println!("  {name:55} {took:9.1} {bound:9.1}  {word:8}  {said}");
            }
            None => println!("  {name:55} {:9} {:9}  {word:8}", "-", "-"),
        }
    }
    println!("{} faults", verdicts.len());
    assert!(wrong.is_empty(), "wrong: {wrong:#?}");
    // Late cases have been repeated where the machine was late.
    assert!(too_late.is_empty(), "too late: {too_late:#?}");
}

/// Runs all cases, some at a time; each has a server of its own.
fn examine(cases: &[(&Group, &'static Case)]) -> Vec<Verdict> {
    // The cases mostly wait for leases and time-outs.
    const AT_A_TIME: usize = 32;
    let (next, verdicts) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::SeqCst);
                    let Some((group, case)) = cases.get(at) else {
                        return;
                    };
                    let verdict = verdict(group, case);
                    verdicts.lock().push((at, verdict));
                }
            });
        }
    });
    let mut verdicts = verdicts.into_inner();
    verdicts.sort_by_key(|(at, _)| *at);
    verdicts.into_iter().map(|(_, verdict)| verdict).collect()
}

fn verdict(group: &Group, (name, case): &'static Case) -> Verdict {
    let too_late = Mutex::new(None);
    let run = || {
        *too_late.lock() = None;
        let (row, tolerance) = with_tolerance(|| {
            if group.apart {
                process_limits::run(name)
            } else {
                case()
            }
        });
        // Set only after the case has run: a panic of the case itself is wrong, not late.
        *too_late.lock() = Some(row.clone());
        let overdue = row.took.saturating_sub(row.bound);
        tolerance.must_cover(overdue, scaled(MOST_OVERDUE), name);
        row
    };
    match (
        catch_unwind(AssertUnwindSafe(|| retry_if_late(run))),
        too_late.into_inner(),
    ) {
        (Ok(row), _) => Verdict::InTime(row),
        (Err(_), Some(row)) => Verdict::TooLate(row),
        (Err(_), None) => Verdict::Wrong,
    }
}
