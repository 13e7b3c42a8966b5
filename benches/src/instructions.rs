//! Instructions for a cycle, counted by valgrind: the same on a busy machine as on a quiet one, so
//! that a regression of a few percent is seen. A run of many cycles less a run of few, so that the
//! start does not count.

use crate::server::Server;
use crate::suite::{self, Place};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const COUNTING: [&str; 2] = ["--tool=callgrind", "--callgrind-out-file=/dev/null"];
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
        (*path, of_a_cycle(|cycles| counted(&server, worker, cycles)))
    };
    PATHS.iter().map(each).collect()
}

/// Instructions of the server for a cycle of this worker.
pub(crate) fn of_server(program: &Path, worker: &[&str]) -> u64 {
    of_a_cycle(|cycles| counted_of_server(program, worker, cycles))
}

/// Instructions for a cycle, by what is counted for so many: without those of the start.
fn of_a_cycle(counted: impl Fn(u64) -> u64) -> u64 {
    let [few, many] = [FEW, MANY].map(counted);
    many.saturating_sub(few) / (MANY - FEW)
}

/// All instructions of a server for so many cycles.
fn counted_of_server(program: &Path, worker: &[&str], cycles: u64) -> u64 {
    let directory = tempfile::tempdir().expect("a directory of our own");
    let log = directory.path().join("log");
    let log_option = format!("--log-file={}", log.display());
    // Its timer ticks as seldom as it can.
    let server = Server::start_under(
        &["valgrind", COUNTING[0], COUNTING[1], &log_option],
        &["--hz", "1"],
    );
    let (port, cycles) = (server.port.to_string(), cycles.to_string());
    let status = Command::new(program)
        .arg("worker")
        .args(worker)
        .args(["--port", &port, "--cycles", &cycles])
        .status();
    assert!(status.is_ok_and(|it| it.success()), "the worker fails");
    server.shut_down();
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        if let Some(count) = collected(&text) {
            return count;
        }
        assert!(Instant::now() < end, "valgrind does not end:\n{text}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The number in the report of valgrind.
fn collected(report: &str) -> Option<u64> {
    let number = |line: &str| line.split_once("Collected : ")?.1.trim().parse().ok();
    report.lines().find_map(number)
}

/// All instructions of a process that does so many cycles.
fn counted(server: &Server, worker: &[&str], cycles: u64) -> u64 {
    let output = Command::new("valgrind")
        .args(COUNTING)
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
    collected(&text).unwrap_or_else(|| panic!("valgrind does not say how many it counted:\n{text}"))
}
