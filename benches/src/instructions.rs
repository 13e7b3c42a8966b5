//! Counts the instructions of a lock and unlock cycle with valgrind. The count is the same on a
//! busy machine as on an idle one, so that a regression of a few percent is visible.
//!
//! The count of a run with few cycles is subtracted from that of a run with many, so that the start
//! of the process does not count.

use crate::server::Server;
use crate::suite::{self, Place};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const COUNTING: [&str; 2] = ["--tool=callgrind", "--callgrind-out-file=/dev/null"];
const FEW: u64 = 200;
const MANY: u64 = 2_200;
/// The ratio to the recorded count above which a path has a regression.
const ALLOWED: f64 = 1.03;

/// The measured paths: the name of each, and the arguments of its worker.
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

/// Prints each count with the recorded count, and writes no file.
///
/// # Panics
///
/// If a count is more than 3 % above the recorded one, or if none is recorded.
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

/// Returns the instructions that a server executes for one cycle of this worker.
pub(crate) fn of_server(program: &Path, worker: &[&str]) -> u64 {
    of_a_cycle(|cycles| counted_of_server(program, worker, cycles))
}

/// Returns the instructions for one cycle, without those of the start. `counted` returns all
/// instructions of a run with the given number of cycles.
fn of_a_cycle(counted: impl Fn(u64) -> u64) -> u64 {
    let [few, many] = [FEW, MANY].map(counted);
    many.saturating_sub(few) / (MANY - FEW)
}

/// Returns all instructions of a server, from its start to its end, for a run of this many cycles.
fn counted_of_server(program: &Path, worker: &[&str], cycles: u64) -> u64 {
    let directory = tempfile::tempdir().expect("a directory of our own");
    let log = directory.path().join("log");
    let log_option = format!("--log-file={}", log.display());
    // The server's timer runs as rarely as possible, because its instructions are counted, too.
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

/// Returns the number of instructions in valgrind's report.
fn collected(report: &str) -> Option<u64> {
    let number = |line: &str| line.split_once("Collected : ")?.1.trim().parse().ok();
    report.lines().find_map(number)
}

/// Returns all instructions of a worker process that runs this many cycles.
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
