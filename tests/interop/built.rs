//! Where `tests/interop.sh` has built the programs around other libraries, and which languages it was to leave out. For the
//! tests, and for the benchmarks.

use std::path::{Path, PathBuf};

/// Names the languages that are left out, as in `java,go`.
pub(crate) const SKIP: &str = "DISTLOCK_INTEROP_SKIP";

/// Whether this language was left out on purpose.
pub(crate) fn is_skipped(language: &str) -> bool {
    let skip = std::env::var(SKIP).unwrap_or_default();
    skip.split([',', ' ']).any(|skipped| skipped == language)
}

/// What is to be run. Panics if it is not there, and says how to build it.
pub(crate) fn program(target: &Path, folder: &str, language: &str) -> PathBuf {
    let folder = target.join("interop").join(folder);
    // It comes last: without it, something may be missing.
    assert!(
        folder.join("stamp").exists(),
        "{} is not built: build the peers with `tests/interop.sh prepare`, or leave the language out with {SKIP}={language}",
        folder.display(),
    );
    folder.join("run")
}
