//! A table of faults: what is said of each, how long that took, and how long it may take.

use super::scene::Row;
use crate::harness::time::fairly;
use parking_lot::Mutex;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// A fault's name, and what is to be seen of it.
pub(super) type Case = (&'static str, fn() -> Row);

/// Runs all of them, some at a time, and prints the table; what took too long or was answered wrongly is named at the end.
#[track_caller]
pub(super) fn examine(cases: &[Case]) {
    const AT_A_TIME: usize = 4;
    let (next, rows, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                while let Some((name, case)) = cases.get(next.fetch_add(1, Ordering::SeqCst)) {
                    match catch_unwind(|| fairly(|| in_time(case()))) {
                        Ok(row) => rows.lock().push((*name, row)),
                        Err(_) => wrong.lock().push(*name),
                    }
                }
            });
        }
    });
    let mut rows = rows.into_inner();
    rows.sort_by_key(|(name, _)| cases.iter().position(|(case, _)| case == name));
    println!("{:58} {:>9} {:>9}  said", "fault", "took ms", "bound ms");
    for (name, Row { said, took, bound }) in &rows {
        let (took, bound) = (took.as_secs_f64() * 1e3, bound.as_secs_f64() * 1e3);
        println!("{name:58} {took:9.1} {bound:9.1}  {said}");
    }
    let wrong = wrong.into_inner();
    assert!(wrong.is_empty(), "{wrong:?}");
}

fn in_time(row: Row) -> Row {
    assert!(row.took <= row.bound, "{:?} of at most {:?}: {}", row.took, row.bound, row.said);
    row
}
