//! Instructions for a cycle, counted by valgrind: the same on a busy machine as on a quiet one, so
//! that a regression of a few percent is seen. A run of many cycles less a run of few, so that the
//! start does not count.

use crate::server::Server;
use crate::suite::{self, Place};
use std::process::Command;

const FEW: u64 = 200;
const MANY: u64 = 2_200;
/// More than this, of what is written down, is a regression.
const ALLOWED: f64 = 1.03;

/// What is done in a cycle, and by which worker.
const PATHS: &[(&str, &[&str])] = &[
    ("lock + unlock, memory", &["cycles", "memory"]),
    ("nested lock + unlock, memory", &["nested", "memory"]),
    ("lock + unlock, Redis (client only)", &["cycles", "ours"]),
    (
        "lock + dropped guard, Redis (client only)",
        &["cycles", "ours-drop"],
    ),
    (
        "renewal, with a hundred held locks, Redis (client only)",
        &["hold", "ours", "--locks", "100", "--lease", "6000"],
    ),
    (
        "raw socket, for comparison (client only)",
        &["cycles", "raw"],
    ),
];

/// Prints a table, as Markdown, and writes it to the notes and the figures.
pub(crate) fn write(place: &Place) {
    let counted = count();
    let row = |(path, count): &(&str, u64)| format!("| {path} | {count} |\n");
    let rows: String = counted.iter().map(row).collect();
    let table = format!("| path | instructions |\n|---|---|\n{rows}");
    println!("{table}");
    suite::publish_instructions(&counted, &table, place);
}

/// Prints what is counted beside what is written down, and writes nothing.
///
/// # Panics
///
/// If a path has become longer than is allowed, or nothing is written down for it.
pub(crate) fn check(place: &Place) {
    let mut longer = Vec::new();
    println!("| path | instructions | written down |\n|---|---|---|");
    for (path, count) in count() {
        let written = suite::written_instructions(path, place).unwrap_or_default();
        println!("| {path} | {count} | {written} |");
        if count as f64 > written as f64 * ALLOWED {
            longer.push(path);
        }
    }
    assert!(
        longer.is_empty(),
        "more than 3 % above what is written down: {longer:?}"
    );
}

fn count() -> Vec<(&'static str, u64)> {
    let server = Server::start();
    let each = |(path, worker): &(&'static str, &[&str])| {
        let [few, many] = [FEW, MANY].map(|cycles| counted(&server, worker, cycles));
        (*path, many.saturating_sub(few) / (MANY - FEW))
    };
    PATHS.iter().map(each).collect()
}

/// All instructions of a process that does so many cycles.
fn counted(server: &Server, worker: &[&str], cycles: u64) -> u64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe().expect("this program is a file"))
        .arg("worker")
        .args(worker)
        .args([
            "--port",
            &server.port.to_string(),
            "--cycles",
            &cycles.to_string(),
        ])
        .output()
        .unwrap_or_else(|error| panic!("`valgrind` does not start ({error}): install valgrind"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "the worker fails under valgrind:\n{text}"
    );
    let line = text
        .lines()
        .find_map(|line| line.split_once("Collected : "));
    let number = line.and_then(|(_, number)| number.trim().parse().ok());
    number.unwrap_or_else(|| panic!("valgrind does not say how many it counted:\n{text}"))
}
