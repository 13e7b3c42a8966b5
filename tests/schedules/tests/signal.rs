//! Runs loom's models of the signal, each run in a process of its own: loom aborts on a deadlock.

use std::process::Command;

fn passes(mutant: &str) -> bool {
    let models = Command::new(env!("CARGO_BIN_EXE_signal-models"))
        .env("DISTLOCK_MUTANT", mutant)
        .env("RUST_BACKTRACE", "0")
        .output()
        .expect("it runs");
    println!("{}", String::from_utf8_lossy(&models.stderr));
    models.status.success()
}

#[test]
fn raised_signal_always_ends_the_wait() {
    assert!(passes(""));
}

#[test]
fn mutant_that_sleeps_without_a_check_is_found() {
    assert!(!passes("sleeps_without_a_look"));
}
