//! [`alone`]: runs a test in a process of its own, for tests that count threads, connections or
//! processor time.

use parking_lot::Mutex;
use std::process::Command;

/// The environment variable that marks the second process.
const ALONE: &str = "LOCK_TEST_ALONE";

/// Held while a second process runs, so that these processes run one after the other.
static TURN: Mutex<()> = Mutex::new(());

/// Runs `test` in a second process of this binary, which runs no other test. At most one such
/// process runs at a time, but other tests continue in this process. `name` is the test's own full
/// name.
pub fn alone(name: &str, test: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some_and(|only| only == name) {
        test();
        return;
    }
    let _turn = TURN.lock();
    let binary = std::env::current_exe().expect("a test knows its binary");
    let output = Command::new(binary)
        .args([
            "--exact",
            name,
            "--nocapture",
            "--test-threads=1",
            "--include-ignored",
        ])
        .env(ALONE, name)
        .output()
        .expect("the test's own binary can be started");
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(
        output.status.success(),
        "{name} failed in a process of its own"
    );
    assert!(
        said.contains("1 passed"),
        "{name} is not the name of this test"
    );
}

/// Returns the names of this process's threads that the library started, which the system cuts at
/// 15 characters.
pub fn own_threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("this is Linux");
    let mut names: Vec<_> = tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .map(|name| name.trim().to_owned())
        .filter(|name| name.starts_with("distlock") || name.starts_with("r2d2"))
        .collect();
    names.sort();
    names
}

/// Returns the processor time of this process so far.
pub fn own_cpu_time() -> std::time::Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("this is Linux");
    // User and system time are the 12th and 13th fields after the name (which may contain spaces),
    // in ticks of a hundredth of a second.
    let fields: Vec<_> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let ticks: u64 = fields[11..13]
        .iter()
        .map(|field| field.parse::<u64>().unwrap_or(0))
        .sum();
    std::time::Duration::from_millis(ticks * 10)
}
