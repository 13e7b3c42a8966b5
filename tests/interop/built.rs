//! Where `tests/interop.sh` has built the programs around other libraries, and which languages are
//! left out: for the tests and the benchmarks.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The variable that names the languages that are left out, as in `java,go`.
pub(crate) const SKIP: &str = "DISTLOCK_INTEROP_SKIP";

/// Whether this language was left out on purpose.
pub(crate) fn is_skipped(language: &str) -> bool {
    let skip = std::env::var(SKIP).unwrap_or_default();
    skip.split([',', ' ']).any(|skipped| skipped == language)
}

/// Whether this program is built. Its stamp is written last.
pub(crate) fn is_built(target: &Path, folder: &str) -> bool {
    target.join("interop").join(folder).join("stamp").exists()
}

/// Whether the programs of this language can be built and run here, as `tests/interop.sh` knows.
#[allow(dead_code, reason = "the benchmarks build what is missing")]
pub(crate) fn is_installed(language: &str) -> bool {
    let mut folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let script = folders.find_map(|it| Some(it.join("tests/interop.sh")).filter(|it| it.exists()));
    let mut command = Command::new(script.expect("the package lies in the repository"));
    let status = command
        .args(["has", language])
        .stdout(Stdio::null())
        .status();
    status.expect("there is a shell").success()
}

/// Returns the path of the program. Panics if it is not built, and says how to build it.
pub(crate) fn program(target: &Path, folder: &str, language: &str) -> PathBuf {
    let is_built = is_built(target, folder);
    let folder = target.join("interop").join(folder);
    assert!(
        is_built,
        "{} is not built: build the peers with `tests/interop.sh prepare`, or leave the language \
         out with {SKIP}={language}",
        folder.display(),
    );
    folder.join("run")
}
