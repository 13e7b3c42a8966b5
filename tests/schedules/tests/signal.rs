//! Runs the loom models of the signal. Each run is a process of its own, because loom aborts on a
//! deadlock.

use std::process::Command;

/// Runs the models, with this mutant if any. Returns what they print if they fail.
fn failure(mutant: Option<&str>) -> Option<String> {
    let mut models = Command::new(env!("CARGO_BIN_EXE_signal-models"));
    models
        .env_remove("DISTLOCK_MUTANT")
        .env("RUST_BACKTRACE", "0");
    if let Some(mutant) = mutant {
        models.env("DISTLOCK_MUTANT", mutant);
    }
    let models = models.output().expect("it runs");
    let text = String::from_utf8_lossy(&models.stderr).into_owned();
    (!models.status.success()).then_some(text)
}

#[test]
fn raised_signal_always_ends_the_wait() {
    assert_eq!(failure(None), None);
}

#[test]
fn mutant_that_sleeps_without_a_check_is_found() {
    let failure = failure(Some("sleeps_without_a_look")).expect("the models fail");
    assert!(failure.contains("deadlock"), "{failure}");
}
