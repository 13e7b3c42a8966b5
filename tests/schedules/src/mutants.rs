//! [`is_on`]: whether one of the [mutants](ALL) is switched on.

use std::sync::OnceLock;

/// The mutants in the order of their names, each with the scenario that must find it.
pub const ALL: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/mutants.rs"));

/// Returns whether the environment variable `DISTLOCK_MUTANT` switches this mutant on.
///
/// # Panics
///
/// If the variable is set and names no mutant.
#[must_use]
pub fn is_on(name: &str) -> bool {
    static CHOSEN: OnceLock<Option<String>> = OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| {
        let chosen = std::env::var("DISTLOCK_MUTANT").ok()?;
        let is_known = ALL.iter().any(|(name, _)| *name == chosen);
        assert!(
            is_known,
            "there is no mutant `{chosen}` in tests/schedules/mutants"
        );
        Some(chosen)
    });
    chosen.as_deref() == Some(name)
}
