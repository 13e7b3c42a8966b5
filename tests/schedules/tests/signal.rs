//! Runs loom's models of the signal, each time in a process of its own: loom aborts on a deadlock.

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
fn no_raise_is_slept_through() {
    assert!(passes(""));
}

#[test]
fn a_sleep_without_a_look_is_found() {
    assert!(!passes("sleeps_without_a_look"));
}
