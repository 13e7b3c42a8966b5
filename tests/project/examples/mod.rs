//! The examples do what their first lines say: each is run as a user would run it.

mod batch_workers;
mod judge;
mod small;

use distlock_tests::child::Child;
use distlock_tests::time::eventually;
use rustix::process::{Pid, Signal, kill_process};
use std::time::Duration;

/// The bound on steps that take no time on an idle machine.
const SOON: Duration = Duration::from_secs(60);

/// Returns the only line that a failing program has written to standard error.
#[track_caller]
fn only_error(child: &Child) -> String {
    let errors = eventually("a line on standard error", SOON, || {
        let errors = child.errors();
        errors.ends_with('\n').then_some(errors)
    });
    assert_eq!(errors.lines().count(), 1, "{errors}");
    errors
}

/// Returns how many live processes have this argument.
fn processes_with(argument: &str) -> usize {
    let processes = std::fs::read_dir("/proc")
        .expect("there is a /proc")
        .flatten();
    let lines = processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    // The command line of a zombie is empty.
    lines
        .filter(|line| {
            line.split(|byte| *byte == 0)
                .any(|a| a == argument.as_bytes())
        })
        .count()
}

/// Returns the processes that `parent` has started and not yet waited for.
fn children_of(parent: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc")
        .expect("there is a /proc")
        .flatten();
    let numbers = processes.filter_map(|process| process.file_name().to_str()?.parse().ok());
    let is_child = |process: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        // The format is "12 (name, with anything in it) S 11 ..", where 11 is the parent.
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        after_name.split_whitespace().nth(1) == Some(&parent.to_string())
    };
    numbers.filter(is_child).collect()
}

/// Returns whether this process has a handler for the signal.
fn catches(process: u32, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask >> (signal.as_raw() - 1) & 1 == 1)
}

/// Sends the signal to this process alone, not to its group.
fn signal(process: u32, signal: Signal) {
    let pid = i32::try_from(process)
        .ok()
        .and_then(Pid::from_raw)
        .expect("a process has a number");
    kill_process(pid, signal).expect("a process of ours can be told");
}
