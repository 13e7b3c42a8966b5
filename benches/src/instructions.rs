//! Instructions for a cycle, counted by valgrind: the same on a busy machine as on a quiet one, so that a regression of a
//! few percent is seen. A run of many cycles less a run of few, so that the start does not count.

use crate::server::Server;
use std::process::Command;

const FEW: u64 = 200;
const MANY: u64 = 2_200;

/// What is done in a cycle, and by which worker.
const PATHS: &[(&str, &[&str])] = &[
    ("lock + unlock, memory", &["cycles", "memory"]),
    ("nested lock + unlock, memory", &["nested", "memory"]),
    ("lock + unlock, Redis (client only)", &["cycles", "ours"]),
    ("lock + dropped guard, Redis (client only)", &["cycles", "ours-drop"]),
    ("raw socket, for comparison (client only)", &["cycles", "raw"]),
];

/// Prints a table, as Markdown.
pub(crate) fn print() {
    let server = Server::start();
    println!("| path | instructions |\n|---|---|");
    for (path, worker) in PATHS {
        let [few, many] = [FEW, MANY].map(|cycles| counted(&server, worker, cycles));
        println!("| {path} | {} |", many.saturating_sub(few) / (MANY - FEW));
    }
}

/// All instructions of a process that does so many cycles.
fn counted(server: &Server, worker: &[&str], cycles: u64) -> u64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe().expect("this program is a file"))
        .arg("worker")
        .args(worker)
        .args(["--port", &server.port.to_string(), "--cycles", &cycles.to_string()])
        .output()
        .unwrap_or_else(|error| panic!("`valgrind` does not start ({error}): install valgrind"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the worker fails under valgrind:\n{text}");
    let line = text.lines().find_map(|line| line.split_once("Collected : "));
    let number = line.and_then(|(_, number)| number.trim().parse().ok());
    number.unwrap_or_else(|| panic!("valgrind does not say how many it counted:\n{text}"))
}
