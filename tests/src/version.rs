//! Features that some of the servers under test lack.

use std::io::Write;
use std::process::Command;
use std::sync::LazyLock;

/// Returns the server's description of itself, such as `Redis server v=7.2.4 sha=..`.
fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        let output = Command::new(super::process::binary())
            .arg("--version")
            .output();
        output.map_or_else(
            |_| String::new(),
            |o| String::from_utf8_lossy(&o.stdout).into_owned(),
        )
    });
    &VERSION
}

/// Returns whether the server is Redis 6.
pub fn is_before_7() -> bool {
    version().contains(" v=6.")
}

/// Returns whether the server is Redis 6, and logs that the test is skipped because Redis 6 lacks
/// this feature.
pub fn skipped_before_7(what: &str) -> bool {
    if is_before_7() {
        skip(&format!("{what}: it is since Redis 7"));
    }
    is_before_7()
}

/// Writes to the log of the suite what is not tested, and why. Standard error is used directly
/// because the printed output of a test that passes is not shown.
pub fn skip(what: &str) {
    let _closed = writeln!(std::io::stderr(), "skipped: {what}");
}
